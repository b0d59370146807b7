"""Files no release made quite so: older than any known one, half-way between two, interrupted, or named unusually."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_files import FRESH, Released
from migrations.files import (
    DRIVER,
    HEAD,
    NEWEST,
    connect,
    copy_of,
    hermes_objects,
    message,
    run,
    session,
    shape,
    upgrade,
)
from migrations.indexes import INDEXES, troubles

from hermes_store import migrations

#: Less than the first released schema: what the earliest tables can be imagined to have had.
ANCIENT = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "INSERT INTO schema_version VALUES (6)",
    (
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, parent_session_id TEXT REFERENCES sessions(id),"
        " started_at REAL NOT NULL, title TEXT, model_config TEXT, system_prompt TEXT, input_tokens INTEGER DEFAULT 0)"
    ),
    (
        "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),"
        " role TEXT NOT NULL, content TEXT, timestamp REAL NOT NULL)"
    ),
    "CREATE VIRTUAL TABLE messages_fts USING fts5(content, content=messages, content_rowid=id)",
    (
        "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN"
        " INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content); END"
    ),
    "INSERT INTO sessions (id, source, started_at, title, system_prompt) VALUES ('a', 'cli', 1.0, 'T', 'be brief')",
    "INSERT INTO sessions (id, source, started_at, title) VALUES ('b', 'cli', 2.0, 'T')",
    "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('a', 'user', 'ancient words', 1.0)",
    "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('b', 'tool', 'ancient output', 2.0)",
)


def without_order(path: Path) -> dict[tuple[str, str], object]:
    """The shape, without what only a table that is made anew can have."""
    return {key: value[0] if isinstance(value, tuple) else value for key, value in hermes_objects(path).items()}


def test_a_schema_older_than_any_release_is_completed(tmp_path: Path) -> None:
    path, fresh = tmp_path / "state.db", tmp_path / "fresh.db"
    run(path, *ANCIENT)
    upgrade(fresh)
    report = upgrade(path)
    assert (report.before, report.after) == (None, HEAD)
    assert report.backup is not None
    assert without_order(path) == without_order(fresh)
    assert troubles(path) == []
    assert run(path, "SELECT id, title FROM sessions ORDER BY id") == [("a", "T #2"), ("b", "T")]
    assert run(path, "SELECT content, active FROM messages ORDER BY id") == [
        ("ancient words", 1),
        ("ancient output", 1),
    ]


def test_two_files_of_one_version_that_lack_different_columns_end_the_same(released: Released, tmp_path: Path) -> None:
    first, fresh = released("v14-0.16.0.db"), tmp_path / "fresh.db"
    second = copy_of(first, tmp_path / "second")
    run(first, "ALTER TABLE messages DROP COLUMN reasoning_content")
    run(second, "ALTER TABLE sessions DROP COLUMN api_call_count", "ALTER TABLE messages DROP COLUMN finish_reason")
    for path in (first, second, fresh):
        upgrade(path)
    assert hermes_objects(first) == hermes_objects(second) == hermes_objects(fresh)
    assert troubles(first) == troubles(second) == []


def test_a_file_that_holds_one_table_of_hermes_becomes_a_store(released: Released, tmp_path: Path) -> None:
    path, fresh = released("extras/async-delegations-only-0.19.0.db"), tmp_path / "fresh.db"
    rows = run(path, "SELECT delegation_id, state FROM async_delegations")
    upgrade(fresh)
    upgrade(path)
    assert hermes_objects(path) == hermes_objects(fresh)
    assert run(path, "SELECT delegation_id, state FROM async_delegations") == rows
    assert run(path, "SELECT version FROM schema_version") == [(31,)]


@pytest.mark.parametrize("name", [name for name in FRESH if name < "v25"])
def test_a_released_file_can_be_written_after_every_revision(name: str, released: Released) -> None:
    path = released(name)
    session_id = run(path, "SELECT id FROM sessions LIMIT 1")[0][0]
    for revision in ("h14", "h25", "h30", "h31"):
        upgrade(path, revision, backup=False)
        message(path, session_id, f"written at {revision} 写于")
        last = "(SELECT MAX(id) FROM messages)"
        run(path, f"UPDATE messages SET content = 'changed at {revision}' WHERE id = {last}")
        message(path, session_id, "gone again")
        run(path, f"DELETE FROM messages WHERE id = {last}")
    upgrade(path, backup=False)
    assert troubles(path) == []
    assert run(path, "SELECT count(*) FROM messages WHERE content GLOB 'changed at *'") == [(4,)]


def test_a_write_that_was_interrupted_is_rolled_back_first(released: Released, tmp_path: Path) -> None:
    source, path = released("v22-0.19.0.db"), tmp_path / "interrupted" / "state.db"
    path.parent.mkdir()
    run(source, "PRAGMA journal_mode=DELETE")
    rows = run(source, "SELECT id, role, content FROM messages")
    with connect(source) as connection:
        connection.execute("PRAGMA cache_size=10")  # so that changed pages are in the file before the commit
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE messages SET content = 'half written', role = 'tool'")
        for suffix in ("", "-journal"):
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")
        connection.execute("ROLLBACK")
    assert path.with_name("state.db-journal").stat().st_size > 0
    assert path.read_bytes() != source.read_bytes()
    assert upgrade(path).after == HEAD
    assert run(path, "SELECT id, role, content FROM messages") == rows
    assert troubles(path) == []


def test_targets_are_paths_urls_or_where_hermes_would_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HERMES_STORE_URL", raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    targets = {"relative.db": "relative.db", f"sqlite:///{tmp_path}/url.db": "url.db", None: "home/state.db"}
    for target, created in targets.items():
        report = migrations.upgrade(target, driver=DRIVER)
        assert report.path == Path(created) or report.path == tmp_path / created
        assert (tmp_path / created).is_file()
        assert migrations.current(target, driver=DRIVER) == HEAD


def test_a_quick_look_at_head_does_not_compare_indexes(released: Released) -> None:
    path = released("v22-0.19.0.db")
    upgrade(path)
    with connect(path) as connection:
        row = connection.execute(f"{INDEXES['messages_fts_trigram'][1]} LIMIT 1").fetchone()
        connection.execute(
            "INSERT INTO messages_fts_trigram (messages_fts_trigram, rowid, content, tool_name)"
            " VALUES ('delete', ?, ?, ?)",
            row,
        )
    assert not upgrade(path, thorough=False).changed
    assert troubles(path) != []
    assert upgrade(path).changed
    assert troubles(path) == []


def test_a_newest_file_gains_only_what_is_ours(released: Released) -> None:
    path = released(NEWEST)
    before = shape(path)
    report = upgrade(path)
    gained = [name for kind, name in shape(path) if (kind, name) not in before]
    assert [name for name in gained if not name.startswith(("ix_hs_", "hs_", "hermes_store_version"))] == []
    assert report.notes == []


def test_messages_without_a_session_are_found_by_words_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    upgrade(path, "h22")
    session(path, "a")
    message(path, "a", "attached words")
    message(path, "nobody", "detached words")
    upgrade(path)
    for index, found in {"messages_fts": 2, "messages_fts_trigram": 1}.items():
        assert run(path, f"SELECT count(*) FROM {index} WHERE {index} MATCH 'words'") == [(found,)]
    assert troubles(path) == []
