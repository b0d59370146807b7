"""However a file came to head, it ends in the shape that the newest known Hermes gives a fresh file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixture_files import HAVE_FIXTURES
from migrations.files import (
    DRIVER,
    HEAD,
    NEWEST,
    connect,
    copy_released,
    hermes_objects,
    message,
    numbered,
    run,
    session,
    stored_objects,
    upgrade,
)
from migrations.indexes import troubles

from hermes_store import migrations

#: Revision to a fresh file of the release that it reaches.
FRESH = {
    "h11": "v11-0.13.0.db",
    "h13": "v13-0.15.2.db",
    "h14": "v14-0.16.0.db",
    "h16": "v16-0.17.0.db",
    "h17": "v17-0.18.0.db",
    "h19": "v19-0.18.2.db",
    "h22": "v22-0.19.0.db",
    "h25": "v25-iot-0.20.0.post2.db",
    "h26": "v26-iot-0.21.0.post1.db",
    "h30": "v30-iot-0.21.5.post2.db",
    "h31": NEWEST,
}
REVISIONS = [revision.id for revision in migrations.history()]
#: ``state_meta`` keys of running features, and of ours; every other key belongs to the file itself.
FEATURES = re.compile(r"hs_.*|telegram_.*|goal:.*|last_.*|ghost_session_prune_v1|orphaned_compression_finalize_v1")

needs_released_files = pytest.mark.skipif(not HAVE_FIXTURES, reason="no released files here")


@needs_released_files
def test_a_file_of_ours_has_the_shape_of_a_fresh_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert upgrade(path).created
    newest = copy_released(NEWEST, tmp_path / "newest")
    assert hermes_objects(path) == hermes_objects(newest)
    assert keys(path) == keys(newest)
    assert numbered(path)


@needs_released_files
@pytest.mark.parametrize("revision", FRESH)
def test_each_revision_gives_an_empty_file_the_shape_of_its_release(revision: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    report = upgrade(path, revision)
    assert report.after == revision
    released = copy_released(FRESH[revision], tmp_path / "released")
    assert hermes_objects(path) == hermes_objects(released)
    assert keys(path) == keys(released)
    assert numbered(path) == numbered(released)
    assert run(path, "SELECT version FROM schema_version") == run(released, "SELECT version FROM schema_version")
    assert not upgrade(path, revision).changed


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_file_of_any_revision_that_was_used_goes_on_to_head(revision: str, tmp_path: Path) -> None:
    fresh, path = tmp_path / "fresh.db", tmp_path / "state.db"
    upgrade(fresh)
    upgrade(path, revision)
    session(path, "kept", system_prompt="be brief", title="A title")
    session(path, "child", source="subagent", parent_session_id="kept")
    for text in ("first words", "第一条消息内容", "\0json:[]"):
        message(path, "kept", text)
        message(path, "child", text, role="tool", tool_name="terminal")
    report = upgrade(path)
    assert report.after == HEAD
    assert hermes_objects(path) == hermes_objects(fresh)
    assert troubles(path) == []
    assert run(path, "SELECT count(*) FROM messages") == [(6,)]
    assert not upgrade(path).changed


def test_all_revisions_one_by_one_end_where_head_does(tmp_path: Path) -> None:
    fresh, path = tmp_path / "fresh.db", tmp_path / "state.db"
    upgrade(fresh)
    upgrade(path, REVISIONS[0])
    session(path, "kept")
    message(path, "kept")
    for revision in REVISIONS[1:]:
        assert upgrade(path, revision).after == revision
        message(path, "kept", f"written at {revision}")
    assert hermes_objects(path) == hermes_objects(fresh)
    assert troubles(path) == []


@pytest.mark.parametrize("revision", [revision for revision in REVISIONS if revision < "h31"])
def test_revisions_before_31_leave_the_search_objects_of_a_used_file_alone(revision: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    upgrade(path, "h11")
    session(path, "kept")
    message(path, "kept")
    before = search_objects(path)
    upgrade(path, revision)
    after = search_objects(path)
    assert len(before) == 8
    # Only what the triggers of schema 30 could not live with is changed, as release 0.20.0 does.
    narrowed = {("trigger", f"{name}_update") for name in ("messages_fts", "messages_fts_trigram")}
    assert {key for key in before if after[key] != before[key]} == (narrowed if revision == "h30" else set())
    assert after.keys() == before.keys()


def search_objects(path: Path) -> dict[tuple[str, str], str]:
    with connect(path) as connection:
        found = stored_objects(connection)
    kinds = ("trigger", "view")
    return {
        key: sql
        for key, sql in found.items()
        if key[1].startswith("messages_fts") and (key[0] in kinds or sql.startswith("CREATE VIRTUAL"))
    }


def keys(path: Path) -> set[str]:
    return {key for (key,) in run(path, "SELECT key FROM state_meta") if not FEATURES.fullmatch(key)}


def test_the_library_under_test_is_the_one_that_was_asked_for() -> None:
    assert DRIVER.sqlite_version_info >= (3, 34)
