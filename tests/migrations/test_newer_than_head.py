"""A file of a Hermes newer than we know: worked with while all that we need is there, never lowered or re-stamped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixture_files import HAVE_FIXTURES
from migrations.files import (
    DRIVER,
    HEAD,
    NEWEST,
    backups,
    content_of,
    copy_of,
    copy_released,
    message,
    run,
    session,
    upgrade,
)

from hermes_store import HermesStore, migrations
from hermes_store.errors import SchemaTooNewError
from hermes_store.models import HermesSession, Message

pytestmark = pytest.mark.skipif(not HAVE_FIXTURES, reason="no released files here")

NEW_PARTS = (
    "UPDATE schema_version SET version = 99",
    "ALTER TABLE sessions ADD COLUMN nova TEXT",
    "ALTER TABLE messages ADD COLUMN nova INTEGER NOT NULL DEFAULT 7",
    "CREATE TABLE nova (id INTEGER PRIMARY KEY)",
    "CREATE INDEX idx_nova ON messages (nova)",
)
UNKNOWN_TRIGGER = (
    "DROP TRIGGER messages_fts_insert",
    (
        "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN"
        " INSERT INTO messages_fts (rowid, content, tool_name, tool_calls) VALUES (new.id, lower(new.content), '', ''); END"
    ),
)
UNKNOWN_VIEW = (
    "DROP VIEW messages_fts_trigram_src",
    "CREATE VIEW messages_fts_trigram_src AS SELECT id, role, content, tool_name FROM messages WHERE role = 'user'",
)
UNKNOWN_TABLE = (
    *[f"DROP TRIGGER messages_fts_{action}" for action in ("insert", "delete", "update")],
    "DROP TABLE messages_fts",
    "CREATE VIRTUAL TABLE messages_fts USING fts5(content, tokenize='porter')",
)
LEASES = "CREATE TABLE session_turn_leases (conversation_id TEXT PRIMARY KEY, holder TEXT NOT NULL, "


@pytest.fixture(scope="module")
def at_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = copy_released(NEWEST, tmp_path_factory.mktemp("head"))
    upgrade(path)
    return path


@pytest.fixture
def path(at_head: Path, tmp_path: Path) -> Path:
    return copy_of(at_head, tmp_path)


def names(path: Path) -> set[str]:
    """What is beside a file, without what a reader may leave."""
    return {other.name for other in path.parent.iterdir() if not other.name.endswith((".lock", "-wal", "-shm"))}


@pytest.mark.parametrize("stamped", [True, False])
def test_a_newer_file_is_left_as_it_is(stamped: bool, path: Path, tmp_path: Path) -> None:
    if not stamped:
        path = copy_released(NEWEST, tmp_path / "unstamped")
    run(path, *NEW_PARTS)
    before = content_of(path)
    report = upgrade(path)
    assert not report.changed
    assert "99" in report.notes[0]
    assert report.pending == []
    assert content_of(path) == before
    assert backups(path) == []
    status = migrations.check(path, driver=DRIVER)
    assert status.newer
    assert status.schema_version == 99
    assert status.revision == (HEAD if stamped else None)


def test_a_newer_file_is_read_and_written(path: Path) -> None:
    run(path, *NEW_PARTS)
    with HermesStore.open(path, migrate="auto", driver=DRIVER) as store:
        with store.write() as tx:
            tx.session.add(HermesSession(id="new", source="cli", started_at=1.0, title="On a newer file"))
            tx.session.add(Message(session_id="new", role="user", content="words for newer schemas", timestamp=1.0))
        assert store.sessions.get("new").title == "On a newer file"
        assert [hit.session_id for hit in store.search("newer schemas").hits] == ["new"]
    assert run(path, "SELECT version FROM schema_version") == [(99,)]
    assert run(path, "SELECT nova FROM messages WHERE session_id = 'new'") == [(7,)]


@pytest.mark.parametrize(
    "changes",
    [
        ("DROP INDEX idx_sessions_tool_names", "ALTER TABLE sessions DROP COLUMN tool_names"),
        ("DROP TABLE gateway_heartbeats",),
        ("DROP TABLE session_turn_leases", f"{LEASES}acquired_at TEXT NOT NULL, expires_at REAL NOT NULL)"),
        (
            "DROP TABLE session_turn_leases",
            (
                "CREATE TABLE session_turn_leases (conversation_id TEXT, holder TEXT NOT NULL, acquired_at REAL NOT NULL,"
                " expires_at REAL NOT NULL, PRIMARY KEY (conversation_id, holder))"
            ),
        ),
    ],
    ids=["a column is gone", "a table is gone", "a type is another", "a key is another"],
)
def test_a_newer_file_that_lacks_what_we_need_is_refused_untouched(changes: tuple[str, ...], path: Path) -> None:
    run(path, *NEW_PARTS, *changes)
    before, beside = content_of(path), names(path)
    for call in (
        lambda: upgrade(path),
        lambda: migrations.check(path, driver=DRIVER),
        lambda: HermesStore.open(path, migrate="auto", driver=DRIVER),
    ):
        with pytest.raises(SchemaTooNewError, match="99"):
            call()
    assert content_of(path) == before
    assert names(path) == beside


def test_an_old_file_that_claims_to_be_newer_is_refused_untouched(tmp_path: Path) -> None:
    path = copy_released("v22-0.19.0.db", tmp_path)
    run(path, "UPDATE schema_version SET version = 99")
    before = content_of(path)
    with pytest.raises(SchemaTooNewError):
        upgrade(path)
    assert content_of(path) == before


@pytest.mark.parametrize("version", [31, 99])
@pytest.mark.parametrize("unknown", [UNKNOWN_TRIGGER, UNKNOWN_VIEW, UNKNOWN_TABLE], ids=["trigger", "view", "table"])
def test_an_index_of_an_unknown_kind_is_never_rebuilt_and_the_report_says_so(
    unknown: tuple[str, ...], version: int, path: Path
) -> None:
    run(
        path,
        *unknown,
        f"UPDATE schema_version SET version = {version}",
        "INSERT INTO state_meta VALUES ('fts_stale', '1')",
    )
    before = content_of(path)
    report = upgrade(path)
    assert not report.changed
    assert "unknown to us" in report.pending[0]
    assert content_of(path) == before


@pytest.mark.parametrize("unknown", [UNKNOWN_TRIGGER, UNKNOWN_VIEW], ids=["trigger", "view"])
@pytest.mark.parametrize("name", ["v25-iot-0.20.0.post2.db", NEWEST])
def test_the_other_steps_are_done_beside_an_index_of_an_unknown_kind(
    unknown: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    path = copy_released(name, tmp_path)
    run(path, *unknown)
    report = upgrade(path)
    assert report.after == HEAD
    assert "unknown to us" in report.pending[0]
    texts = run(path, "SELECT sql FROM sqlite_master WHERE name GLOB 'messages_fts*'")
    assert (unknown[-1],) in texts
    assert run(path, "SELECT count(*) FROM messages WHERE message_uid IS NULL") == [(0,)]
    again = upgrade(path)
    assert not again.changed
    assert again.pending == report.pending


def test_a_search_does_not_use_an_index_of_an_unknown_kind(path: Path) -> None:
    run(path, *UNKNOWN_TRIGGER)
    session(path, "new")
    message(path, "new", "words that the unknown trigger indexes in its own way")
    with HermesStore.open(path, migrate="off", driver=DRIVER) as store:
        page = store.search("unknown trigger indexes")
        assert [hit.session_id for hit in page.hits] == ["new"]
        assert "messages_fts" in str(page.degraded)


def test_unknown_values_of_known_columns_are_kept(path: Path) -> None:
    config = json.dumps({"nova": {"deep": [1, 2]}})
    session(path, "odd", model_config=config, title_source="nova")
    run(path, *NEW_PARTS)
    upgrade(path)
    assert run(path, "SELECT model_config, title_source FROM sessions WHERE id = 'odd'") == [(config, "nova")]
