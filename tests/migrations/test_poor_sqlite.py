"""A SQLite without the substring tokenizer, or without FTS5: tables and rows are upgraded, the indexes wait for a better one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fixture_files import STORES, Released
from migrations.files import DRIVER, HEAD, cells, connect, hermes_objects, message, run, session, upgrade
from migrations.indexes import INDEXES, troubles

from hermes_store import migrations

#: What is missing to the error SQLite gives for it.
ERRORS = {"fts5": "no such module: fts5", "trigram": "no such tokenizer: trigram"}
#: One file per layout and mixture.
MIXED = [
    name
    for name in STORES
    if name.startswith(("v11", "v22", "v25", "v30-iot-0.21.3", "v31", "cjk/v26", "upgrade/u4"))
    or name in {"optimize/v26-iot-0.20.4-partial.db", "optimize/v31-iot-0.22.2-partial.db"}
]


def poor(lacks: str) -> ModuleType:
    """Make a driver whose SQLite can neither create nor touch what needs the missing part."""
    denied = set(INDEXES) if lacks == "fts5" else {"messages_fts_trigram"}
    touching = {
        DRIVER.SQLITE_READ,
        DRIVER.SQLITE_INSERT,
        DRIVER.SQLITE_UPDATE,
        DRIVER.SQLITE_DELETE,
        DRIVER.SQLITE_DROP_VTABLE,
    }
    wanted = "USING fts5" if lacks == "fts5" else "tokenize='trigram'"

    def authorize(action: int, first: str | None, *_: Any) -> int:
        return int(DRIVER.SQLITE_DENY if action in touching and first in denied else DRIVER.SQLITE_OK)

    class Cursor(DRIVER.Cursor):  # type: ignore[misc, name-defined]
        def execute(self, sql: str, *parameters: Any) -> Any:
            if "CREATE VIRTUAL TABLE" in sql and wanted in sql:
                raise DRIVER.OperationalError(ERRORS[lacks])
            try:
                return super().execute(sql, *parameters)
            except DRIVER.DatabaseError as error:
                if "prohibited" in str(error) or "not authorized" in str(error):
                    raise DRIVER.OperationalError(ERRORS[lacks]) from error
                raise

    class Connection(DRIVER.Connection):  # type: ignore[misc, name-defined]
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, *arguments: Any) -> Any:
            return self.cursor().execute(*arguments)

    def connect(*arguments: Any, **options: Any) -> Any:
        connection = DRIVER.connect(*arguments, factory=Connection, **options)
        connection.set_authorizer(authorize)
        return connection

    driver = ModuleType(f"sqlite_without_{lacks}")
    driver.__dict__.update({name: value for name, value in vars(DRIVER).items() if not name.startswith("__")})
    driver.connect = connect  # type: ignore[attr-defined]
    return driver


@pytest.fixture(params=ERRORS)
def lacks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_stand_in_fails_as_such_a_sqlite_does(lacks: str, released: Released) -> None:
    path = released("v22-0.19.0.db")
    connection = poor(lacks).connect(str(path), isolation_level=None)
    for statement in (
        "CREATE VIRTUAL TABLE temp.x USING fts5(a, tokenize='trigram')",
        "SELECT rowid FROM messages_fts_trigram LIMIT 1",
        "INSERT INTO messages (session_id, role, timestamp) VALUES ('a', 'user', 1.0)",
    ):
        with pytest.raises(DRIVER.OperationalError, match=ERRORS[lacks]):
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("name", MIXED)
def test_tables_and_rows_are_upgraded_and_a_better_sqlite_does_the_rest(
    name: str, lacks: str, released: Released, tmp_path: Path
) -> None:
    path, driver, fresh = released(name), poor(lacks), tmp_path / "fresh.db"
    upgrade(fresh)
    report = upgrade(path, driver=driver)
    assert report.after == HEAD
    assert (
        [left for left in report.pending if f"has no {lacks}" in left and "newer SQLite" in left]
        == report.pending
        != []
    )
    before = without_search(path)
    assert before == without_search(fresh)
    assert run(path, "SELECT count(*) FROM messages WHERE message_uid IS NULL") == [(0,)]
    assert run(path, "SELECT version FROM schema_version") == [(31,)]
    with connect(path) as connection:
        rows = cells(connection)["messages"]

    again = upgrade(path, driver=driver)
    assert not again.changed
    assert again.pending == report.pending

    better = upgrade(path)
    assert better.pending == []
    assert troubles(path) == []
    reference = hermes_objects(fresh)
    found = hermes_objects(path)
    assert {key: found[key] for key in reference if key[0] in {"trigger", "view"}} == {
        key: text for key, text in reference.items() if key[0] in {"trigger", "view"}
    }
    with connect(path) as connection:
        assert cells(connection)["messages"] == rows
    assert not upgrade(path).changed


def without_search(path: Path) -> set[tuple[str, str]]:
    """Names of what does not belong to search, nor to another program."""
    known = ("idx_", "messages_display", "messages_message_uid")
    return {
        (kind, name) for kind, name in hermes_objects(path) if kind in {"index", "trigger"} and name.startswith(known)
    } | {
        (kind, name)
        for (kind, name), value in hermes_objects(path).items()
        if kind == "table" and isinstance(value, tuple)
    }


def test_a_new_file_has_no_search_objects_until_a_better_sqlite_makes_them(lacks: str, tmp_path: Path) -> None:
    path, fresh = tmp_path / "state.db", tmp_path / "fresh.db"
    upgrade(fresh)
    report = upgrade(path, driver=poor(lacks))
    assert report.after == HEAD
    assert f"has no {lacks}" in report.pending[0]
    assert not [name for _, name in hermes_objects(path) if name.startswith("messages_fts")]
    session(path, "a")
    message(path, "a", "written meanwhile 中文内容")
    assert upgrade(path).pending == []
    assert hermes_objects(path) == hermes_objects(fresh)
    assert troubles(path) == []


def test_rows_without_an_active_flag_are_healed_although_old_triggers_cannot_run(
    lacks: str, released: Released
) -> None:
    path = released("v11-0.13.0.db")
    run(path, "ALTER TABLE messages ADD COLUMN active INTEGER")
    assert upgrade(path, driver=poor(lacks)).after == HEAD
    assert run(path, "SELECT DISTINCT active FROM messages") == [(1,)]
    upgrade(path)
    assert troubles(path) == []


def test_a_check_says_that_work_is_left_only_where_it_can_be_done(lacks: str, released: Released) -> None:
    path = released("v22-0.19.0.db")
    upgrade(path, driver=poor(lacks))
    status = migrations.check(path, driver=poor(lacks))
    assert status.revision == HEAD
    assert not status.is_behind
    assert not status.pending


def test_a_missing_tokenizer_of_the_optional_index_is_detached_in_one_go(released: Released) -> None:
    path = released("cjk/v31-iot-0.22.2-cjk.db")
    names = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'messages_fts_cjk*'"
    assert len(run(path, names)) == 3
    report = upgrade(path)
    assert any("messages_fts_cjk detached" in note for note in report.notes)
    assert run(path, names) == []
    assert run(path, "SELECT value FROM state_meta WHERE key = 'fts_cjk_stale'") == [("1",)]
    assert run(path, "SELECT count(*) FROM sqlite_master WHERE name = 'messages_fts_cjk'") == [(1,)]
    message(path, "20260710_090000_aaaa01", "写入成功")
    assert troubles(path) == []
