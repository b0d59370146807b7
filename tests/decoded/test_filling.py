"""An upgrade brings every encoded message into the index, and only what is encoded; it can be stopped at any time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from decoded.texts import DAMAGES, ENCODED, PLAIN, indexed, matches, queued, statements, structured, wanted, write
from fixture_files import STORES, Released
from migrations.files import DRIVER, HEAD, connect, content_of, run, stored_objects, upgrade
from migrations.indexes import troubles

from hermes_store import HermesStore, migrations
from hermes_store.maintenance.info import describe
from hermes_store.migrations import Progress
from hermes_store.sqlite.decoded import TEXT_FILL_KEY, text_index_fault
from hermes_store.sqlite.engine import make_engine
from hermes_store.sqlite.shape import Shape, inspect


def shape_of(path: Path) -> Shape:
    engine = make_engine(path, driver=DRIVER)
    try:
        with engine.connect() as connection:
            return inspect(connection)
    finally:
        engine.dispose()


class TestOfAnyFile:
    @pytest.mark.parametrize("name", [name for name in STORES if "/" not in name])
    def test_what_is_indexed_is_what_decoding_every_message_gives(self, name: str, released: Released) -> None:
        path = released(name)
        assert upgrade(path).pending == []
        assert indexed(path) == wanted(path)
        assert text_index_fault(shape_of(path)) is None

    def test_every_kind_of_text_is_indexed(self, path: Path) -> None:
        assert indexed(path) == wanted(path)
        assert len(indexed(path)) >= len(ENCODED)
        for text in ("苹果派说明书", "写入成功", "before", "after", "无内容"):
            assert len(matches(path, text)) == 1
        assert matches(path, "iVBORw0KGgo") == matches(path, "末尾。") == set()

    def test_the_texts_it_is_recognised_by_are_those_of_the_revision(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        upgrade(path)
        assert text_index_fault(shape_of(path)) is None

    def test_nothing_to_do_writes_nothing(self, path: Path) -> None:
        before = content_of(path)
        assert not upgrade(path).changed
        assert not upgrade(path, thorough=False).changed
        assert not migrations.check(path, driver=DRIVER).pending
        assert content_of(path) == before


class TestOfWhatIsQueued:
    @pytest.mark.parametrize("thorough", [True, False])
    def test_the_next_upgrade_indexes_it_without_a_backup(self, path: Path, thorough: bool) -> None:
        with connect(path) as connection:
            ids = write(connection, ENCODED | PLAIN)
            connection.execute("UPDATE messages SET content = ? WHERE id = ?", (structured("改过的"), ids[0]))
            connection.execute("DELETE FROM messages WHERE id = ?", (ids[1],))
        run(
            path,
            "UPDATE messages SET content = 'plain now', tool_calls = NULL WHERE id = (SELECT MIN(rowid) FROM hs_text_fts)",
        )
        assert not migrations.check(path, driver=DRIVER).pending
        report = upgrade(path, thorough=thorough)
        assert (report.changed, report.backup, report.pending) == (True, None, [])
        assert queued(path) == []
        assert indexed(path) == wanted(path)
        assert matches(path, "改过的") == {ids[0]}
        assert not upgrade(path).changed

    def test_info_counts_it(self, path: Path) -> None:
        with connect(path) as connection:
            write(connection, ENCODED)
        with HermesStore.open(path, driver=DRIVER) as store:
            assert describe(store).pending == (f"decoded texts to index: {len(ENCODED)} messages",)


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised from a progress callback, as Ctrl-C is."""


class TestWhenStopped:
    @pytest.mark.parametrize("at", range(1, 12, 2))
    def test_it_goes_on_where_it_was(self, at: int, released: Released, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hermes_store.migrations.text_fill._SCAN", 100)
        monkeypatch.setattr("hermes_store.migrations.steps.FIRST_WEIGHT", 1)
        monkeypatch.setattr("hermes_store.migrations.steps.paced", lambda size, held: size)
        path = released("v31-iot-0.22.2.post1.db")
        with connect(path) as connection:
            write(connection, ENCODED | PLAIN)
        seen: list[Progress] = []

        def stop(progress: Progress) -> None:
            if progress.phase == "decode":
                seen.append(progress)
                if len(seen) == at:
                    raise Stopped

        with pytest.raises(Stopped):
            upgrade(path, progress=stop)
        with connect(path) as connection:
            write(connection, ENCODED)
            connection.execute(
                "DELETE FROM messages WHERE id = (SELECT MIN(id) FROM messages WHERE instr(content, char(0)))"
            )
        steps: list[Progress] = []
        assert upgrade(path, progress=steps.append).pending == []
        again = [step for step in steps if step.phase == "decode" and step.detail]
        assert again == [step for step in again if step.done > max(0, *(one.done for one in seen if one.detail))]
        assert indexed(path) == wanted(path)
        assert not upgrade(path).changed

    def test_before_it_is_done_the_index_is_not_believed(self, path: Path) -> None:
        run(path, f"UPDATE state_meta SET value = '10' WHERE key = '{TEXT_FILL_KEY}'")
        assert text_index_fault(shape_of(path)) == "is not filled yet"
        assert migrations.check(path, driver=DRIVER).pending
        with HermesStore.open(path, driver=DRIVER) as store:
            assert describe(store).pending == ("hs_text_fts is not filled yet",)


#: What another program may do to tables and triggers, with what is then wrong.
DEEDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a trigger was dropped": (statements("DROP TRIGGER hs_text_update"), "is not kept up to date by what it needs"),
    "all triggers were dropped": (
        statements("DROP TRIGGER hs_text_insert", "DROP TRIGGER hs_text_update", "DROP TRIGGER hs_text_delete"),
        "is not kept up to date by what it needs",
    ),
    "a trigger was changed": (
        statements(
            "DROP TRIGGER hs_text_insert", "CREATE TRIGGER hs_text_insert AFTER INSERT ON messages BEGIN SELECT 1; END"
        ),
        "is not kept up to date by what it needs",
    ),
    "the queue is another table": (
        statements("DROP TABLE hs_text_queue", "CREATE TABLE hs_text_queue (message_id INTEGER PRIMARY KEY, note TEXT)"),
        "is not kept up to date by what it needs",
    ),
    "all of it was dropped": (
        statements(
            "DROP TRIGGER hs_text_insert", "DROP TRIGGER hs_text_update", "DROP TRIGGER hs_text_delete",
            "DROP TABLE hs_text_queue", "DROP TABLE hs_text_fts",
        ),
        "is missing",
    ),
    "the index is a plain table": (
        statements("DROP TABLE hs_text_fts", "CREATE TABLE hs_text_fts (text)"),
        "has a shape that this version did not make",
    ),
    "the index has another tokenizer": (
        statements("DROP TABLE hs_text_fts", "CREATE VIRTUAL TABLE hs_text_fts USING fts5(text)"),
        "has a shape that this version did not make",
    ),
    "a part was dropped": (statements("DROP TABLE hs_text_fts_idx"), "lacks a part of itself"),
    "the marker is gone": (statements("DELETE FROM state_meta WHERE key = 'hs_text_fill'"), "is not filled yet"),
    "the marker is no number": (
        statements("UPDATE state_meta SET value = 'soon' WHERE key = 'hs_text_fill'"),
        "is not filled yet",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEDS)
def test_after_another_programs_deed_everything_is_looked_at_again(name: str, path: Path) -> None:
    deed, fault = DEEDS[name]
    deed(path)
    assert text_index_fault(shape_of(path)) == fault
    if "queue" not in name:
        with connect(path) as connection:  # unnoticed where the triggers are gone
            write(connection, ENCODED)
            changed = "SELECT id FROM messages WHERE instr(content, char(0)) ORDER BY id LIMIT 1"
            connection.execute(f"UPDATE messages SET content = ? WHERE id = ({changed})", (structured("变了"),))
            connection.execute(f"DELETE FROM messages WHERE id = ({changed} OFFSET 1)")
    assert upgrade(path).pending == []
    assert text_index_fault(shape_of(path)) is None
    assert indexed(path) == wanted(path)
    assert troubles(path) == []
    assert not upgrade(path).changed


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_index_is_made_anew(damage: Callable[[Path], object], path: Path) -> None:
    damage(path)
    report = upgrade(path)
    assert report.changed
    assert report.pending == []
    assert indexed(path) == wanted(path)
    assert matches(path, "苹果派说明书")
    assert troubles(path) == []
    assert not upgrade(path).changed


class TestTheWayBack:
    @pytest.mark.parametrize("damage", [lambda path: None, *DAMAGES.values()], ids=["whole", *DAMAGES])
    def test_nothing_is_left(self, damage: Callable[[Path], object], path: Path) -> None:
        damage(path)
        with connect(path) as connection:
            write(connection, ENCODED)
        migrations.downgrade(path, "hs02", driver=DRIVER)
        with connect(path) as connection:
            assert [name for _, name in stored_objects(connection) if "hs_text" in name] == []
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert run(path, "SELECT key FROM state_meta WHERE key GLOB 'hs_*'") == []
        with connect(path) as connection:
            write(connection, ENCODED | PLAIN)
        assert upgrade(path).after == HEAD
        assert indexed(path) == wanted(path)
        assert troubles(path) == []
