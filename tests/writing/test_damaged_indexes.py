"""A damaged or missing search index costs no message; what is damaged in the messages themselves is never "healed"."""

from __future__ import annotations

import logging
import random
import sqlite3
from pathlib import Path

import pytest
from migrations.files import run
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from writing.damages import (
    DAMAGES,
    SESSION,
    TRIGGERS,
    Damage,
    add_message,
    markers,
    overwrite_root,
    triggers,
    written,
)

from hermes_store import HermesStore, bind
from hermes_store.errors import CorruptIndexError, CorruptStoreError
from hermes_store.models import Message, StateMeta
from hermes_store.sqlite.detach import is_index_failure

INDEXES = ("messages_fts", "messages_fts_trigram")
WORDS = "zanzibar words"

every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
every_index = pytest.mark.parametrize("index", INDEXES)


@every_damage
@every_index
def test_a_message_lands_although_an_index_is_damaged(path: Path, index: str, damage: Damage) -> None:
    damage(path, index)
    with HermesStore.open(path, migrate="off") as store:
        calls = []

        def write(session: Session) -> int:
            calls.append(1)
            session.add(StateMeta(key="beside", value="x"))
            return add_message(session, WORDS)

        id_ = store.run(write)
        assert written(path) == [WORDS]
        assert triggers(path) == set()
        assert markers(path) == {"fts_stale": "1"}
        assert run(path, "SELECT count(*) FROM state_meta WHERE key = 'beside'") == [(1,)]
        page = store.search("zanzibar")
        assert [hit.id for hit in page] == [id_]
        assert page.degraded is not None
        assert "stale" in page.degraded or "is missing" in page.degraded
        store.run(lambda session: add_message(session, "another"))
    assert len(calls) == 2
    assert written(path) == [WORDS, "another"]


@every_damage
@every_index
@pytest.mark.parametrize("query", ["docker", "数据库", "库", "docker OR 数据库"])
def test_a_search_answers_whatever_is_damaged(whole: Path, path: Path, index: str, damage: Damage, query: str) -> None:
    with HermesStore.open(whole, read_only=True, migrate="off") as store:
        expected = {hit.id for hit in store.search(query, limit=1000)}
    damage(path, index)
    with HermesStore.open(path, migrate="off") as store:
        assert {hit.id for hit in store.search(query, limit=1000)} == expected


@every_damage
@every_index
def test_a_block_is_rolled_back_and_lands_when_it_is_run_again(path: Path, index: str, damage: Damage) -> None:
    damage(path, index)
    with HermesStore.open(path, migrate="off") as store:

        def block() -> None:
            with store.write() as unit:
                unit.meta.set("beside", "x")
                add_message(unit.session, WORDS)
                add_message(unit.session, "another")

        with pytest.raises(CorruptIndexError, match="again") as caught:
            block()
        assert WORDS not in str(caught.value)
        assert written(path) == []
        assert store.meta.get("beside") is None
        assert markers(path) == {"fts_stale": "1"}
        block()
        assert written(path) == [WORDS, "another"]
        assert store.meta.get("beside") == "x"


@every_index
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE messages SET content = content || ' grown' WHERE session_id = 'written'",
        "DELETE FROM messages WHERE session_id = 'written'",
        "INSERT OR REPLACE INTO messages (id, session_id, role, content, timestamp) SELECT id, session_id, role, 'other', 2.0 FROM messages WHERE session_id = 'written'",
    ],
    ids=["update", "delete", "replace"],
)
def test_other_writes_land_as_well(path: Path, index: str, statement: str) -> None:
    run(path, f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ('{SESSION}', 'user', 'old', 1.0)")
    DAMAGES["a page of its data"](path, index)
    with HermesStore.open(path, migrate="off") as store:
        store.run(lambda session: session.execute(text(statement)))
    assert written(path) == {"U": ["old grown"], "D": [], "I": ["other"]}[statement[0]]
    assert markers(path) == {"fts_stale": "1"}


def test_sessions_can_be_deleted_and_what_touches_no_message_does_not_notice(path: Path) -> None:
    run(path, f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ('{SESSION}', 'user', 'old', 1.0)")
    DAMAGES["a page of its data"](path, "messages_fts")
    with HermesStore.open(path, migrate="off") as store:
        store.meta.set("mine", "1")
        store.sessions.rename(SESSION, "title")
        store.locks.acquire(SESSION, store.locks.make_holder())
        assert triggers(path) == TRIGGERS
        assert store.sessions.delete(SESSION).messages == 1
    assert triggers(path) == set()


def test_ids_stay_in_the_order_of_the_calls(store: HermesStore, path: Path) -> None:
    ids = [store.run(lambda session, number=number: add_message(session, str(number))) for number in range(5)]
    DAMAGES["a page of its sizes"](path, "messages_fts")
    ids += [store.run(lambda session, number=number: add_message(session, str(number))) for number in range(5, 10)]
    assert ids == sorted(ids)
    assert written(path) == [str(number) for number in range(10)]


def test_detaching_is_said_once_and_without_a_text(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGES["no index at all"](path, "messages_fts")
    with HermesStore.open(path, migrate="off") as store, caplog.at_level(logging.WARNING):
        store.run(lambda session: add_message(session, WORDS))
        store.run(lambda session: add_message(session, WORDS))
    assert len(caplog.records) == 1
    assert WORDS not in caplog.text


def test_an_index_of_layout_0_that_holds_a_message_already_is_damaged(path: Path, tmp_path: Path) -> None:
    """The constraint that fails there is one of a table that holds the index, and says nothing else."""
    for index in INDEXES:
        for action in ("insert", "update", "delete"):
            run(path, f"DROP TRIGGER {index}_{action}")
        run(path, f"DROP TABLE {index}")
    run(
        path,
        "CREATE VIRTUAL TABLE messages_fts USING fts5(content)",
        "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content); END",
        "INSERT INTO messages_fts (rowid, content) SELECT seq + 2, 'ghost' FROM sqlite_sequence WHERE name = 'messages'",
    )
    add = f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ('{SESSION}', 'user', 'x', 1.0)"
    run(path, add)
    with pytest.raises(sqlite3.IntegrityError, match=r"^constraint failed$"):
        run(path, add)
    with HermesStore.open(path, migrate="off") as store:
        store.run(lambda session: add_message(session, WORDS))
    assert written(path) == ["x", WORDS]
    assert markers(path) == {"fts_stale": "1"}


@pytest.mark.parametrize("table", ["hs_text_queue", "hs_session_activity"])
@pytest.mark.parametrize("how", ["overwritten", "gone"])
@pytest.mark.parametrize("both", [False, True], ids=["alone", "with an index"])
def test_a_damaged_table_of_ours_costs_no_message_and_no_search_index(
    path: Path, table: str, how: str, both: bool
) -> None:
    if how == "gone":
        run(path, f"DROP TABLE {table}")
    else:
        overwrite_root(path, table)
    if both:
        DAMAGES["its structure is garbage"](path, "messages_fts")
    encoded = '\0json:[{"type": "text", "text": "zanzibar"}]'
    with HermesStore.open(path, migrate="off") as store:
        assert store.search("docker").hits  # also while the triggers are there
        id_ = store.run(lambda session: add_message(session, encoded))
        assert [hit.id for hit in store.search("zanzibar")] == [id_]
        assert store.sessions.list(limit=1000)
    assert written(path) == [encoded]
    assert triggers(path) == (set() if both else TRIGGERS)
    assert markers(path) == ({"fts_stale": "1"} if both else {})
    left = {name for (name,) in run(path, "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'hs_*'")}
    assert left
    assert not any(
        name.startswith({"hs_text_queue": "hs_text", "hs_session_activity": "hs_activity"}[table]) for name in left
    )


def test_a_session_is_created_although_a_table_of_ours_is_damaged(path: Path) -> None:
    overwrite_root(path, "hs_session_activity")
    with HermesStore.open(path, migrate="off") as store:
        with pytest.raises(CorruptIndexError):
            store.sessions.create("cli", id="new")
        assert store.sessions.create("cli", id="new").id == "new"
    assert triggers(path) == TRIGGERS


# Not the fault of an index


@pytest.mark.parametrize("table", ["messages", "sessions", "idx_messages_session_active"])
@pytest.mark.parametrize("short", [True, False], ids=["short", "block"])
def test_damage_of_the_tables_is_said_and_nothing_is_detached(path: Path, table: str, short: bool) -> None:
    if run(path, ("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))) == []:
        table = run(
            path,
            "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'messages' AND sql LIKE '%session_id%'",
        )[0][0]
    overwrite_root(path, table)
    with HermesStore.open(path, migrate="off") as store:
        with pytest.raises(CorruptStoreError, match="sessions" if table == "sessions" else "messages"):
            if short:
                store.run(lambda session: add_message(session, WORDS))
            else:
                with store.write() as unit:
                    add_message(unit.session, WORDS)
        with pytest.raises(CorruptStoreError):
            store.detach_damaged_indexes()
    assert triggers(path) == TRIGGERS
    assert markers(path) == {}


def test_damage_of_both_is_damage_of_the_table(path: Path) -> None:
    DAMAGES["a page of its data"](path, "messages_fts")
    overwrite_root(path, "messages")
    with HermesStore.open(path, migrate="off") as store, pytest.raises(CorruptStoreError, match="table messages"):
        store.run(lambda session: add_message(session, WORDS))
    assert triggers(path) == TRIGGERS


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ({"session_id": "nobody", "role": "user", "timestamp": 1.0}, IntegrityError),
        ({"session_id": SESSION, "role": None, "timestamp": 1.0}, IntegrityError),
    ],
    ids=["no such session", "no role"],
)
def test_mistakes_of_the_caller_stay_the_callers(store: HermesStore, path: Path, rows: dict, error: type) -> None:
    calls = []

    def write(session: Session) -> None:
        calls.append(1)
        session.execute(insert(Message).values(**rows))

    with pytest.raises(error):
        store.run(write)
    with pytest.raises(error), store.write() as unit:
        unit.session.execute(insert(Message).values(**rows))
    assert calls == [1]
    assert triggers(path) == TRIGGERS
    assert markers(path) == {}


def test_another_programs_trigger_that_fails_is_not_ours_to_drop(path: Path) -> None:
    run(
        path,
        "CREATE TRIGGER theirs AFTER INSERT ON messages BEGIN SELECT RAISE(ABORT, 'constraint failed by choice'); END",
    )
    with HermesStore.open(path, migrate="off") as store, pytest.raises(IntegrityError):
        store.run(lambda session: add_message(session, WORDS))
    run(path, "DROP TRIGGER theirs", "CREATE TRIGGER theirs AFTER INSERT ON messages BEGIN DELETE FROM not_there; END")
    with HermesStore.open(path, migrate="off") as store, pytest.raises(OperationalError):
        store.run(lambda session: add_message(session, WORDS))
    assert triggers(path) == TRIGGERS
    assert markers(path) == {}


def test_a_bound_session_gets_the_drivers_error_and_can_detach(path: Path) -> None:
    DAMAGES["its structure is garbage"](path, "messages_fts_trigram")
    with HermesStore.open(path, migrate="off") as store:
        with pytest.raises(DBAPIError), Session(store._engine) as session:
            bind(session)
            add_message(session, WORDS)
            session.commit()
        assert set(store.detach_damaged_indexes()) == TRIGGERS
        assert store.detach_damaged_indexes() == ()
        with Session(store._engine) as session:
            bind(session)
            add_message(session, WORDS)
            session.commit()
    assert written(path) == [WORDS]
    assert markers(path) == {"fts_stale": "1"}


def test_random_bytes_in_an_index_never_cost_a_message(whole: Path, tmp_path: Path) -> None:
    """Whatever the damage does, a message is there when its write returned, and old ones are as they were."""
    from migrations.files import copy_of

    before = run(whole, "SELECT id, content FROM messages ORDER BY id")
    for seed in range(12):
        chance = random.Random(seed)
        path = copy_of(whole, tmp_path / str(seed))
        with sqlite3.connect(path) as connection:
            size = connection.execute("PRAGMA page_size").fetchone()[0]
            pages = [
                row[0]
                for row in connection.execute(
                    "SELECT rootpage FROM sqlite_master WHERE name GLOB 'messages_fts*' AND rootpage > 0"
                )
            ]
        connection.close()
        with path.open("r+b") as stored:
            for page in chance.sample(pages, 2):
                stored.seek((page - 1) * size + chance.randrange(size - 64))
                stored.write(chance.randbytes(64))
        with HermesStore.open(path, migrate="off") as store:
            ids = [store.run(lambda session: add_message(session, WORDS)) for _ in range(20)]
        assert run(path, "SELECT id, content FROM messages ORDER BY id") == before + [(id_, WORDS) for id_ in ids], seed


def test_an_error_of_a_driver_without_codes_is_told_by_its_text(store: HermesStore) -> None:
    statement = "INSERT INTO messages (id) VALUES (?)"

    def blamed(said: str, of: str | None = statement) -> bool:
        return is_index_failure(OperationalError(of, {}, sqlite3.OperationalError(said)), store.schema)

    assert blamed("database disk image is malformed")
    assert blamed('fts5: corruption found reading blob 10 from table "messages_fts"')
    assert blamed("database disk image is malformed", None)  # COMMIT
    assert blamed("no such tokenizer: cjk_unicode61")
    assert not blamed("SQL logic error")  # every table that holds an index is there
    assert blamed("no such table: main.hs_session_activity", "INSERT INTO sessions (id) VALUES (?)")
    assert not blamed("database disk image is malformed", "INSERT INTO state_meta (key) VALUES (?)")
    assert not blamed("database disk image is malformed", "SELECT id FROM messages")
    assert not blamed("UNIQUE constraint failed: messages.id")
    assert not blamed("no such table: main.other")
