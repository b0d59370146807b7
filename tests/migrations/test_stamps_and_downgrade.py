"""Stamps, and the way back: our own revisions can be reversed, those of Hermes cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_files import FRESH, Released
from migrations.files import (
    DRIVER,
    HEAD,
    cells,
    connect,
    content_of,
    hermes_objects,
    message,
    run,
    session,
    shape,
    upgrade,
)
from migrations.indexes import troubles

from hermes_store import migrations
from hermes_store.errors import NotAStoreError, NotFoundError, UpgradeError

OURS = "ix_hs_messages_timestamp"


def indexes(path: Path) -> set[str]:
    return {name for kind, name in shape(path) if kind == "index"}


@pytest.fixture
def used(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    upgrade(path, "h22")
    session(path, "a", system_prompt="be brief")
    message(path, "a", "some words")
    return path


class TestDowngrade:
    def test_our_own_revisions_are_reversed_without_a_trace(self, used: Path) -> None:
        upgrade(used, "h31")
        before, rows = shape(used), content_rows(used)
        upgrade(used)
        assert OURS in indexes(used)
        migrations.downgrade(used, "h31", driver=DRIVER)
        assert shape(used) == before
        assert content_rows(used) == rows
        assert migrations.current(used, driver=DRIVER) == "h31"

    def test_up_again_after_down(self, used: Path) -> None:
        upgrade(used)
        migrations.downgrade(used, "h31", driver=DRIVER)
        assert OURS not in indexes(used)
        report = upgrade(used)
        assert (report.before, report.after) == ("h31", HEAD)
        assert OURS in indexes(used)
        assert troubles(used) == []

    @pytest.mark.parametrize("revision", ["base", "h30", "h11", "-9"])
    def test_below_hermess_columns_it_is_refused_and_nothing_is_changed(self, revision: str, used: Path) -> None:
        upgrade(used)
        before = content_of(used)
        with pytest.raises(UpgradeError, match="belong to Hermes"):
            migrations.downgrade(used, revision, driver=DRIVER)
        assert content_of(used) == before
        assert migrations.current(used, driver=DRIVER) == HEAD
        assert OURS in indexes(used)

    def test_a_revision_that_is_not_in_the_chain_is_refused(self, used: Path) -> None:
        upgrade(used)
        before = content_of(used)
        with pytest.raises(UpgradeError):
            migrations.downgrade(used, "h99", driver=DRIVER)
        assert content_of(used) == before

    def test_a_file_without_a_stamp_is_refused_untouched(self, used: Path) -> None:
        run(used, "DROP TABLE hermes_store_version")
        before = content_of(used)
        with pytest.raises(UpgradeError, match="no revision of ours"):
            migrations.downgrade(used, "base", driver=DRIVER)
        assert content_of(used) == before

    def test_a_missing_file_is_not_created(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError):
            migrations.downgrade(tmp_path / "none.db", "h31", driver=DRIVER)
        assert not (tmp_path / "none.db").exists()


class TestStampExisting:
    @pytest.mark.parametrize(
        ("name", "revision"),
        [
            (name, f"h{name[1:3]}")
            for name in FRESH
            if "0.20.1.2" not in name and "0.20.4" not in name and "0.21.3" not in name
        ]
        + [("v26-axisrow-0.20.1.2.db", "h25"), ("v26-iot-0.20.4.post1.db", "h25"), ("v30-iot-0.21.3.post1.db", "h26")],
    )
    def test_a_file_is_stamped_with_what_its_shape_has_reached(
        self, name: str, revision: str, released: Released
    ) -> None:
        path = released(name)
        before = content_rows(path)
        assert migrations.stamp_existing(path, driver=DRIVER) == revision
        assert migrations.current(path, driver=DRIVER) == revision
        after = content_rows(path)
        assert after.pop("hermes_store_version") == [[("text", revision.encode())]]
        assert after == before
        assert upgrade(path).before == revision

    def test_a_wrong_stamp_is_replaced(self, used: Path) -> None:
        run(used, "UPDATE hermes_store_version SET version_num = 'h11'")
        assert migrations.stamp_existing(used, driver=DRIVER) == "h22"

    def test_less_than_the_first_schema_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        run(path, "CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT)")
        before = content_of(path)
        with pytest.raises(UpgradeError, match="table sessions"):
            migrations.stamp_existing(path, driver=DRIVER)
        assert content_of(path) == before

    def test_a_missing_file_is_not_created(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError):
            migrations.stamp_existing(tmp_path / "none.db", driver=DRIVER)
        assert not (tmp_path / "none.db").exists()


class TestQuestions:
    def test_check_lists_what_is_missing(self, released: Released) -> None:
        status = migrations.check(released("v26-iot-0.21.0.post1.db"), driver=DRIVER)
        assert status.revision is None
        assert status.recognised == "h26"
        assert status.head == HEAD
        assert status.schema_version == 26
        assert status.is_behind
        assert not status.newer
        for piece in ("table conversation_generations", "column messages.message_uid", f"index {OURS}"):
            assert piece in status.missing

    def test_check_sees_pending_work_at_head(self, used: Path) -> None:
        upgrade(used)
        assert not migrations.check(used, driver=DRIVER).pending
        run(used, "INSERT INTO state_meta VALUES ('fts_rebuild_high_water', '1'), ('fts_rebuild_progress', '0')")
        assert migrations.check(used, driver=DRIVER).pending

    def test_questions_change_nothing(self, used: Path) -> None:
        before = content_of(used)
        assert migrations.current(used, driver=DRIVER) == "h22"
        migrations.check(used, driver=DRIVER)
        migrations.history()
        assert content_of(used) == before

    def test_questions_about_a_missing_file_are_answered_with_an_error(self, tmp_path: Path) -> None:
        for question in (migrations.current, migrations.check):
            with pytest.raises(NotFoundError):
                question(tmp_path / "none.db", driver=DRIVER)

    def test_questions_about_no_store_are_answered_with_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("no database" * 100)
        for question in (migrations.current, migrations.check):
            with pytest.raises(NotAStoreError):
                question(tmp_path / "text.db", driver=DRIVER)

    def test_history_is_one_line_of_ids_that_sort(self) -> None:
        ids = [revision.id for revision in migrations.history()]
        assert ids[:3] == ["h11", "h13", "h14"]
        assert ids == sorted(ids)
        assert all(revision.summary and "\n" not in revision.summary for revision in migrations.history())


class TestRevisionsByName:
    def test_a_file_at_head_is_not_taken_back_by_upgrading_to_less(self, used: Path) -> None:
        upgrade(used)
        before = content_of(used)
        assert not upgrade(used, "h13").changed
        assert content_of(used) == before

    def test_a_revision_that_is_not_in_the_chain_is_refused_untouched(self, used: Path) -> None:
        before = content_of(used)
        for revision in ("h99", "hs99", "", "head+1"):
            with pytest.raises(UpgradeError):
                upgrade(used, revision)
        assert content_of(used) == before

    def test_a_stamp_of_a_newer_version_of_ours_is_refused_untouched(self, used: Path) -> None:
        run(used, "UPDATE hermes_store_version SET version_num = 'hs99'")
        before = content_of(used)
        with pytest.raises(UpgradeError, match="hs99"):
            upgrade(used)
        assert content_of(used) == before

    def test_one_step_at_a_time(self, used: Path) -> None:
        assert upgrade(used, "+1").after == "h25"
        upgrade(used)
        with pytest.raises(UpgradeError):
            upgrade(used, "+1")

    def test_an_unstamped_file_of_a_later_schema_can_be_stamped_step_by_step(self, released: Released) -> None:
        path = released("v31-iot-0.22.2.post1.db")
        before = hermes_objects(path)
        assert upgrade(path, "h14").after == "h14"
        assert hermes_objects(path) == before
        assert run(path, "SELECT version FROM schema_version") == [(31,)]
        assert upgrade(path).after == HEAD


def content_rows(path: Path) -> dict[str, list[list[tuple[str, object]]]]:
    with connect(path) as connection:
        found = cells(connection)
    return {
        table: [list(row.values()) for row in rows.values()]
        for table, rows in found.items()
        if table != "hermes_store_version" or rows
    }
