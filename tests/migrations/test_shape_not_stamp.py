"""Other programs own the file too: whatever they did to a file at head, the next upgrade puts right, and only that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixture_files import FIXTURES, HAVE_FIXTURES
from migrations.files import (
    HEAD,
    Upgraded,
    cells,
    connect,
    content_of,
    copy_of,
    copy_released,
    hermes_objects,
    message,
    run,
    stored_objects,
    upgrade,
    upgraded_copy,
)
from migrations.indexes import INDEXES, STRUCTURED, troubles

from hermes_store.migrations import Progress

pytestmark = pytest.mark.skipif(not HAVE_FIXTURES, reason=f"no released files in {FIXTURES}")

Deed = Callable[[Path], object]
FTS_TRIGGERS = [f"{name}_{action}" for name in INDEXES for action in ("insert", "delete", "update")]


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Upgraded:
    """A file that was in layout 0, so that all of its index was made by the library under test."""
    return upgraded_copy("v22-0.19.0.db", tmp_path_factory.mktemp("upgraded"))


@pytest.fixture
def path(upgraded: Upgraded, tmp_path: Path) -> Path:
    return copy_of(upgraded.path, tmp_path)


def triggers_of(name: str, tmp: Path, index: str = "messages_fts") -> dict[str, str]:
    """A release's triggers of one index."""
    with connect(copy_released(name, tmp / "other")) as connection:
        stored = stored_objects(connection)
    return {trigger: stored["trigger", trigger] for trigger in FTS_TRIGGERS if trigger.rpartition("_")[0] == index}


def install(path: Path, triggers: dict[str, str]) -> None:
    for name, sql in triggers.items():
        run(path, f"DROP TRIGGER IF EXISTS {name}", sql)


def layout_2_triggers(path: Path) -> None:
    install(path, triggers_of("v30-iot-0.21.3.post1.db", path.parent))
    run(path, "INSERT INTO state_meta SELECT 'fts_tool_full_content_high_water', MAX(id) FROM messages")


def layout_2_triggers_and_a_long_row_cut_short(path: Path) -> None:
    run(path, f"DELETE FROM messages WHERE id IN ({STRUCTURED})")
    for _ in range(20):  # so that the index's totals can stand the loss, and SQLite does not notice
        message(path, run(path, "SELECT id FROM sessions LIMIT 1")[0][0], "many words " * 2000)
    layout_2_triggers(path)
    changed = "UPDATE messages SET content = 'short now' WHERE role = 'tool' AND length(content) > 8192 RETURNING id"
    assert run(path, changed) != []


def inline_triggers(path: Path) -> None:
    for index in INDEXES:
        install(path, triggers_of("v22-0.19.0.db", path.parent, index))


def inline_triggers_and_a_message(path: Path) -> None:
    inline_triggers(path)
    message(path, run(path, "SELECT id FROM sessions LIMIT 1")[0][0], "written under the wrong triggers")


def drop_a_trigger_and_write(path: Path) -> None:
    run(path, "DROP TRIGGER messages_fts_trigram_insert")
    message(path, run(path, "SELECT id FROM sessions LIMIT 1")[0][0], "never indexed 从未编入")


def make_a_gap(name: str) -> Deed:
    """Take messages out of an index, the way an interrupted fill leaves it, without any marker."""

    def deed(path: Path) -> None:
        columns, rows = INDEXES[name]
        width = len(columns.split(","))
        with connect(path) as connection:
            for row in connection.execute(f"{rows} LIMIT 100").fetchall():
                marks = ", ".join("?" * width)
                connection.execute(f"INSERT INTO {name} ({name}, rowid, {columns}) VALUES ('delete', ?, {marks})", row)

    return deed


def leave_trash(path: Path) -> None:
    run(
        path,
        "CREATE TABLE fts_v22_trash_messages_fts_data (id INTEGER PRIMARY KEY, block BLOB)",
        "INSERT INTO fts_v22_trash_messages_fts_data SELECT id, zeroblob(100) FROM messages",
        "CREATE TABLE fts_v22_trash_messages_fts_idx (segid, term, pgno, PRIMARY KEY (segid, term)) WITHOUT ROWID",
        "INSERT INTO fts_v22_trash_messages_fts_idx SELECT id % 3, id, id FROM messages",
        "INSERT INTO state_meta VALUES ('fts_teardown_fts_v22_trash_messages_fts_data_progress', '5')",
    )


def orphan_the_shadow_tables(path: Path) -> None:
    run(path, *[f"DROP TRIGGER {name}" for name in FTS_TRIGGERS])
    with connect(path) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("DELETE FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE messages_fts%'")
    assert ("messages_fts_data",) in run(path, "SELECT name FROM sqlite_master")


def drop_both_indexes(path: Path) -> None:
    run(path, *[f"DROP TRIGGER {name}" for name in FTS_TRIGGERS], *[f"DROP TABLE {name}" for name in INDEXES])


def meta(key: str, value: str | None) -> Deed:
    return lambda path: run(path, ("INSERT OR REPLACE INTO state_meta VALUES (?, ?)", (key, value)))


def statements(*sql: str) -> Deed:
    return lambda path: run(path, *sql)


FIRST = "(SELECT session_id FROM messages WHERE role = 'user' ORDER BY id LIMIT 1)"
TAG = "json_set(COALESCE(model_config, '{}'), '$._delegate_from', 'somebody')"

#: What another program may do to a file at head.
DEEDS: dict[str, Deed] = {
    "0.21.3 rewrote the word triggers": layout_2_triggers,
    "0.21.3 rewrote the word triggers and a long row was cut short": layout_2_triggers_and_a_long_row_cut_short,
    "0.19.0 put inline triggers there": inline_triggers,
    "0.19.0 put inline triggers there and wrote": inline_triggers_and_a_message,
    "a trigger was dropped": statements("DROP TRIGGER messages_fts_delete"),
    "a trigger was dropped and a message written": drop_a_trigger_and_write,
    "all six triggers were dropped": statements(*[f"DROP TRIGGER {name}" for name in FTS_TRIGGERS]),
    "a display trigger was replaced": statements(
        "DROP TRIGGER messages_display_order_insert",
        "CREATE TRIGGER messages_display_order_insert AFTER INSERT ON messages BEGIN SELECT 1; END",
    ),
    "the uid trigger was dropped": statements("DROP TRIGGER messages_message_uid_insert"),
    "indexes were dropped": statements("DROP INDEX idx_messages_session_id", "DROP INDEX ix_hs_messages_timestamp"),
    "the unique title index was dropped": statements("DROP INDEX idx_sessions_title_unique"),
    "tables were dropped": statements("DROP TABLE gateway_heartbeats", "DROP TABLE compression_locks"),
    "a table was made anew with fewer columns": statements(
        "DROP TABLE async_delegations",
        "CREATE TABLE async_delegations (delegation_id TEXT PRIMARY KEY, origin_session TEXT NOT NULL,"
        " state TEXT NOT NULL, dispatched_at REAL NOT NULL, updated_at REAL NOT NULL)",
    ),
    "a column was dropped": statements("ALTER TABLE async_delegations DROP COLUMN origin_session_id"),
    "a view was dropped": statements("DROP VIEW messages_fts_src"),
    "the indexes are marked as stale": meta("fts_stale", "1"),
    "a fill is marked that never was": meta("fts_rebuild_high_water", "360"),
    "a fill is marked at its start": statements(
        "INSERT INTO state_meta VALUES ('fts_rebuild_high_water', '360'), ('fts_rebuild_progress', '0')"
    ),
    "half a marker is left": meta("fts_rebuild_progress", "12"),
    "a marker is no number": meta("fts_rebuild_high_water", "many"),
    "a marker is beyond every number": meta("fts_rebuild_high_water", "9" * 40),
    "a layout 2 marker is left": meta("fts_tool_full_content_high_water", "5"),
    "an optimisation is on offer": meta("fts_optimize_available", "1"),
    "the layout number is wrong": meta("fts_storage_version", "1"),
    "the uid marker is gone": statements("DELETE FROM state_meta WHERE key = 'message_uid_backfill'"),
    "the uid marker says no": meta("message_uid_backfill", "0"),
    "uids are gone": statements("UPDATE messages SET message_uid = NULL WHERE id % 5 = 0"),
    "the word index has a gap": make_a_gap("messages_fts"),
    "the substring index has a gap": make_a_gap("messages_fts_trigram"),
    "trash is left": leave_trash,
    "shadow tables are orphaned": orphan_the_shadow_tables,
    "both indexes were dropped": drop_both_indexes,
    "a shadow table was dropped": statements("DROP TABLE messages_fts_docsize"),
    "a shadow table was dropped while a fill is marked": statements(
        "DROP TABLE messages_fts_trigram_docsize",
        "INSERT INTO state_meta VALUES ('fts_rebuild_high_water', '360'), ('fts_rebuild_progress', '0')",
    ),
    "a session went before its messages": statements(
        f"DELETE FROM sessions WHERE id = {FIRST}",
        "DELETE FROM messages WHERE session_id NOT IN (SELECT id FROM sessions)",
    ),
    "a session became a delegate later": statements(f"UPDATE sessions SET model_config = {TAG} WHERE id = {FIRST}"),
    "a session became a cron job later": statements(f"UPDATE sessions SET source = 'cron' WHERE id = {FIRST}"),
    "the file lost its number": statements("PRAGMA application_id = 0"),
    "our stamp is gone": statements("DELETE FROM hermes_store_version"),
    "our stamp's table is gone": statements("DROP TABLE hermes_store_version"),
    "our stamp is an old one": statements("UPDATE hermes_store_version SET version_num = 'h13'"),
    "the version was lowered": statements("UPDATE schema_version SET version = 11"),
    "the version row is gone": statements("DELETE FROM schema_version"),
    "the version table is gone": statements("DROP TABLE schema_version"),
    "all state is gone": statements("DROP TABLE state_meta"),
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_after(deed: Deed, path: Path, upgraded: Upgraded) -> None:
    deed(path)
    with connect(path) as connection:
        before = cells(connection)
    report = upgrade(path)
    assert report.pending == []
    assert report.after == HEAD
    assert hermes_objects(path) == hermes_objects(upgraded.path)
    assert troubles(path) == []
    assert run(path, "SELECT count(*) FROM messages WHERE message_uid IS NULL") == [(0,)]
    assert run(path, "SELECT version FROM schema_version") == [(31,)]
    with connect(path) as connection:
        assert same_conversations(cells(connection), before)
    assert not upgrade(path).changed


def same_conversations(after: Any, before: Any) -> bool:
    """Nothing but uids, and what a lowered version makes Hermes's own steps do, differs."""
    for table, ignored in {"messages": {"message_uid"}, "sessions": {"model_config"}}.items():
        for cells_ in (after[table], before[table]):
            for row in cells_.values():
                for column in ignored:
                    row.pop(column)
        if after[table] != before[table]:
            return False
    return True


def test_objects_of_other_programs_stay_as_they_are(path: Path) -> None:
    run(
        path,
        "CREATE TABLE plugin_log (a INTEGER PRIMARY KEY, b TEXT)",
        "CREATE TABLE messages_fts_notes (id INTEGER PRIMARY KEY, note TEXT)",
        "INSERT INTO messages_fts_notes VALUES (1, 'mine')",
        "CREATE TABLE messages_fts_trigram_data_of_mine (id INTEGER)",
        "CREATE TABLE fts_v22_note (id INTEGER)",
        "ALTER TABLE messages ADD COLUMN plugin_column TEXT DEFAULT 'z'",
        "ALTER TABLE sessions ADD COLUMN plugin_column INTEGER NOT NULL DEFAULT 3",
        "CREATE INDEX plugin_index ON messages (plugin_column)",
        "CREATE TRIGGER plugin_trigger AFTER INSERT ON messages BEGIN INSERT INTO plugin_log (b) VALUES (new.role); END",
        "CREATE VIEW plugin_view AS SELECT rowid FROM messages_fts",
        "CREATE VIEW plugin_broken AS SELECT * FROM not_there",
        "INSERT INTO state_meta VALUES ('plugin:key', 'value')",
    )
    before = content_of(path)
    assert not upgrade(path).changed
    assert content_of(path) == before


@pytest.mark.parametrize("name", ["v11-0.13.0.db", "v25-iot-0.20.0.post2.db", "upgrade/u4-v30-iot-0.21.3.db"])
def test_objects_of_other_programs_survive_the_whole_upgrade(name: str, tmp_path: Path) -> None:
    path = copy_released(name, tmp_path)
    run(
        path,
        "CREATE TABLE plugin_log (a INTEGER PRIMARY KEY, b TEXT REFERENCES sessions(title), c REFERENCES nowhere(x))",
        "INSERT INTO plugin_log (b, c) VALUES ('no such title', 1)",
        "CREATE TABLE messages_fts_notes (id INTEGER PRIMARY KEY, note TEXT)",
        "INSERT INTO messages_fts_notes VALUES (1, 'mine')",
        "ALTER TABLE messages ADD COLUMN plugin_column TEXT DEFAULT 'z'",
        "CREATE INDEX plugin_index ON messages (plugin_column)",
        "CREATE TRIGGER plugin_trigger AFTER INSERT ON messages BEGIN INSERT INTO plugin_log (b) VALUES (NULL); END",
        "CREATE VIEW plugin_view AS SELECT rowid FROM messages_fts",
        "CREATE VIEW plugin_broken AS SELECT * FROM not_there",
        "CREATE TRIGGER plugin_broken_trigger AFTER DELETE ON sessions BEGIN DELETE FROM not_there; END",
    )
    with connect(path) as connection:
        objects, rows = stored_objects(connection), cells(connection)
    upgrade(path)
    with connect(path) as connection:
        objects_after, rows_after = stored_objects(connection), cells(connection)
    for key, sql in objects.items():
        if key[1] == "messages_fts_notes" or key[1].startswith("plugin_"):
            assert objects_after[key] == sql
    for table in ("plugin_log", "messages_fts_notes"):
        assert rows_after.get(table) == rows.get(table)
    assert run(path, "SELECT DISTINCT plugin_column FROM messages") == [("z",)]
    assert run(path, "SELECT note FROM messages_fts_notes") == [("mine",)]
    assert troubles(path) == []


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Raised from a progress callback, as Ctrl-C is."""


@dataclass
class StopAt:
    """Stops an upgrade at its first step of a phase, or at a later one."""

    phase: str
    step: int
    detail: str = ""
    seen: int = 0

    def __call__(self, progress: Progress) -> None:
        if progress.phase == self.phase and self.detail in progress.detail:
            self.seen += 1
            if self.seen == self.step:
                raise Interrupted


STOPS = [
    StopAt("check", 1),
    StopAt("backup", 1),
    *[StopAt("revision", 1, revision) for revision in ("h11", "h16", "h25", "h30", "h31", "hs01", "hs02", "hs03")],
    StopAt("identify", 2),
    StopAt("index", 1),
    StopAt("index", 3),
    StopAt("merge", 1),
    StopAt("merge", 2),
    StopAt("clean", 1),
    StopAt("clean", 4),
]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: f"{stop.phase}-{stop.detail}{stop.step}")
@pytest.mark.parametrize("name", ["v14-0.16.0.db", "optimize/v26-iot-0.20.4-partial.db"])
def test_an_upgrade_that_was_stopped_goes_on(
    name: str, stop: StopAt, tmp_path: Path, upgraded: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stop.phase in {"identify", "index"}:  # so that there are many steps
        monkeypatch.setattr("hermes_store.migrations.steps.HOLD_SECONDS", 0.01)
        monkeypatch.setattr("hermes_store.migrations.steps.FIRST_WEIGHT", 20_000)
    path = copy_released(name, tmp_path)
    with connect(copy_released(name, tmp_path / "before")) as connection:
        before = cells(connection)
    stop.seen = 0
    with pytest.raises(Interrupted):
        upgrade(path, progress=stop)
    session_id = run(path, "SELECT session_id FROM messages LIMIT 1")[0][0]
    message(path, session_id, "written while the upgrade is half done 写入")
    gone = run(path, "SELECT MIN(id) FROM messages")[0][0]
    run(path, ("DELETE FROM messages WHERE id = ?", (gone,)))
    assert upgrade(path).pending == []
    assert hermes_objects(path) == hermes_objects(upgraded.path)
    assert troubles(path) == []
    with connect(path) as connection:
        after = cells(connection)
    assert before["sessions"].keys() == after["sessions"].keys()
    assert before["messages"].keys() - after["messages"].keys() == {gone}
    assert len(after["messages"]) == len(before["messages"])
    for id_, row in after["messages"].items():
        if id_ in before["messages"]:
            old = before["messages"][id_]
            assert {column: row[column] for column in old} == old
    assert not upgrade(path).changed
