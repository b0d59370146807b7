"""Which files are written to, how long a write waits for one, and what becomes of a file that is not there any more."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from fixture_files import STORES, Released
from migrations.files import run, session
from writing.damages import SESSION, add_message, markers, triggers, written

from hermes_store import HermesStore
from hermes_store.errors import ReadOnlyError, SchemaBehindError, StoreBusyError, StoreReplacedError
from hermes_store.sqlite.checkpoints import WRITES_BETWEEN
from hermes_store.sqlite.engine import JOURNAL_SIZE_LIMIT

# Layouts and schemas


@pytest.mark.parametrize("name", STORES)
def test_any_search_layout_is_written_to_and_no_schema_below_31(released: Released, name: str) -> None:
    path = released(name)
    before = run(path, "SELECT id, content FROM messages ORDER BY id")
    version = run(path, "SELECT version FROM schema_version")[0][0]
    with HermesStore.open(path, migrate="off") as store:
        if version < 31:
            with pytest.raises(SchemaBehindError, match="hermes-store upgrade"):
                store.run(lambda session: add_message(session, "words"))
            assert run(path, "SELECT id, content FROM messages ORDER BY id") == before
            return
        store.sessions.create("cli", id=SESSION)
        ids = [
            store.run(lambda session, role=role: add_message(session, "zanzibar 数据库迁移", role))
            for role in ("user", "tool")
        ]
        store.run(lambda session: session.connection().exec_driver_sql("UPDATE messages SET content = content || ' x'"))
        assert {hit.id for hit in store.search("zanzibar")} == set(ids)
        # Layouts from 2 on leave tool rows out of the substring index.
        assert ids[0] in {hit.id for hit in store.search("数据库迁移")}
    stored = run(path, "SELECT id, content FROM messages ORDER BY id")
    assert [row[0] for row in stored] == [row[0] for row in before] + ids


# A tokenizer that is not here

CJK_TRIGGERS = {f"messages_fts_cjk_{action}" for action in ("insert", "update", "delete")}


def cjk_triggers(path: Path) -> set[str]:
    rows = run(path, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    return {name for (name,) in rows} & CJK_TRIGGERS


@pytest.fixture
def cjk(released: Released) -> Path:
    path = released("cjk/v31-iot-0.22.2-cjk.db")
    session(path, SESSION)
    assert cjk_triggers(path) == CJK_TRIGGERS
    with pytest.raises(sqlite3.OperationalError, match="no such tokenizer"):
        run(path, f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ('{SESSION}', 'user', 'x', 1.0)")
    return path


@pytest.mark.parametrize("short", [True, False], ids=["short", "block"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_an_index_whose_tokenizer_is_not_here_is_taken_off_and_the_write_lands(
    cjk: Path, role: str, short: bool
) -> None:
    before = triggers(cjk)
    with HermesStore.open(cjk, migrate="off") as store:
        if short:
            store.run(lambda session: add_message(session, "words", role))
        else:
            with store.write() as unit:
                unit.meta.set("beside", "x")
                add_message(unit.session, "words", role)
        assert role in {hit.role for hit in store.search("words", limit=100)}
    assert written(cjk) == ["words"]
    assert cjk_triggers(cjk) == set()
    assert triggers(cjk) == before
    assert markers(cjk) == {"fts_cjk_stale": "1"}


def test_that_index_stays_as_long_as_no_message_is_written(cjk: Path) -> None:
    with HermesStore.open(cjk, migrate="off") as store:
        store.meta.set("mine", "1")
        store.sessions.rename(SESSION, "title")
        with pytest.raises(ZeroDivisionError), store.write() as unit:
            add_message(unit.session, "words")
            raise ZeroDivisionError
    assert cjk_triggers(cjk) == CJK_TRIGGERS
    assert markers(cjk) == {}
    assert written(cjk) == []


# Replaced and deleted files


def replace(path: Path, other: Path) -> None:
    """Restore a backup as it should be done, but for the store that has the file open."""
    shutil.copy(other, path.with_name("restored.db"))
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    path.with_name("restored.db").replace(path)


def test_a_file_that_was_replaced_is_not_written_to(store: HermesStore, path: Path, whole: Path) -> None:
    store.run(lambda session: add_message(session, "one"))
    replace(path, whole)
    before = path.read_bytes()
    with pytest.raises(StoreReplacedError, match="replaced by another file"):
        store.run(lambda session: add_message(session, "two"))
    with pytest.raises(StoreReplacedError), store.write():
        pytest.fail("the block must not run")
    with pytest.raises(StoreReplacedError):
        store.meta.set("mine", "1")
    assert path.read_bytes() == before
    with HermesStore.open(path) as again:
        again.run(lambda session: add_message(session, "two"))
    assert written(path) == ["two"]


def test_a_file_that_was_deleted_is_not_made_again(store: HermesStore, path: Path) -> None:
    path.unlink()
    with pytest.raises(StoreReplacedError, match="deleted"):
        store.meta.set("mine", "1")
    store.close()
    assert not path.exists()


def test_a_file_that_is_replaced_while_a_write_waits_is_not_written_to(
    path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, HermesStore.open(path) as store:
        other.execute("BEGIN IMMEDIATE")

        def sleep(_seconds: float) -> None:
            replace(path, whole)
            other.execute("ROLLBACK")

        monkeypatch.setattr("hermes_store.sqlite.engine.time.sleep", sleep)
        with pytest.raises(StoreReplacedError):
            store.meta.set("mine", "1")
    assert run(path, "SELECT count(*) FROM state_meta WHERE key = 'mine'") == [(0,)]


def test_the_file_is_never_opened_to_look_at_it(store: HermesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("opening the file and closing it again drops the locks of this process")

    store.meta.set("warm", "1")
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.open", refuse)
    store.meta.set("mine", "1")


def test_closing_a_store_whose_file_was_replaced_leaves_the_new_files_log_alone(path: Path, whole: Path) -> None:
    run(path, "PRAGMA journal_mode=WAL")
    store = HermesStore.open(path)
    store.run(lambda session: add_message(session, "old"))
    replace(path, whole)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("INSERT INTO state_meta (key, value) VALUES ('theirs', '1')")
        log = path.with_name(path.name + "-wal").read_bytes()
        assert log
        store.close()
        assert path.with_name(path.name + "-wal").read_bytes() == log
    assert run(path, "SELECT value FROM state_meta WHERE key = 'theirs'") == [("1",)]


# Waiting


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("routine", 0.3, 2.0), ("transcript", 0.9, 3.0), ("activity", 0.2, 0.9)]
)
def test_a_write_waits_as_long_as_its_kind_may(path: Path, kind: str, least: float, most: float) -> None:
    timeout = 1.2 if kind == "activity" else 0.4
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        HermesStore.open(path, timeout=timeout) as store,
    ):
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreBusyError):
            store.run(lambda session: add_message(session, "x"), kind=kind)
        assert least <= time.monotonic() - started <= most
        other.execute("ROLLBACK")
        store.run(lambda session: add_message(session, "x"), kind=kind)
    assert written(path) == ["x"]


def test_a_kind_that_does_not_exist_is_an_error(store: HermesStore) -> None:
    with pytest.raises(ValueError, match="kind"), store.write(kind="urgent"):
        pass


def test_a_store_that_only_reads_refuses_every_way_of_writing(path: Path) -> None:
    with HermesStore.open(path, read_only=True) as store:
        for write in (
            lambda: store.run(lambda session: add_message(session, "x")),
            store.detach_damaged_indexes,
            lambda: store.meta.set("mine", "1"),
        ):
            with pytest.raises(ReadOnlyError):
                write()


# The write-ahead log


def pragmas(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the checkpoints that the store asks for."""
    said: list[str] = []
    real = sqlite3.connect

    def connect(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = real(*arguments, **options)
        connection.set_trace_callback(lambda text: said.append(text) if "checkpoint" in text else None)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    return said


def test_every_fiftieth_write_copies_the_log_back_without_waiting_for_anybody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(path, "PRAGMA journal_mode=WAL")
    said = pragmas(path, monkeypatch)
    with HermesStore.open(path) as store:
        for number in range(WRITES_BETWEEN * 2 + 3):
            store.meta.set("mine", str(number))
        assert said == ["PRAGMA main.wal_checkpoint(PASSIVE)"] * 2
    assert set(said) == {"PRAGMA main.wal_checkpoint(PASSIVE)"}
    assert len(said) == 3  # once more when it was closed


def test_the_log_does_not_grow_while_no_reader_holds_it(path: Path) -> None:
    run(path, "PRAGMA journal_mode=WAL")
    log = path.with_name(path.name + "-wal")
    with HermesStore.open(path) as store:
        before, largest = path.stat().st_size, 0
        for number in range(WRITES_BETWEEN * 12):
            store.run(lambda session, number=number: add_message(session, f"words {number} and more words " * 500))
            largest = max(largest, log.stat().st_size)
        assert path.stat().st_size - before > 12_000_000
        assert largest < 12_000_000


def test_a_reader_that_holds_the_log_does_not_keep_a_write_waiting(path: Path) -> None:
    run(path, "PRAGMA journal_mode=WAL")
    log = path.with_name(path.name + "-wal")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, HermesStore.open(path) as store:
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM messages").fetchone()
        started = time.monotonic()
        for _ in range(WRITES_BETWEEN * 3):
            store.run(lambda session: add_message(session, "words " * 100))
        assert time.monotonic() - started < 10
        held = log.stat().st_size
        assert reader.execute("SELECT count(*) FROM messages").fetchone() == seen
        reader.execute("COMMIT")
        for _ in range(WRITES_BETWEEN * 3):
            store.run(lambda session: add_message(session, "words " * 100))
        assert log.stat().st_size <= max(held * 1.5, JOURNAL_SIZE_LIMIT)
    assert len(written(path)) == WRITES_BETWEEN * 6


def test_closing_removes_no_file_of_anybody_who_still_has_it_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, "PRAGMA journal_mode=WAL")

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a store removes no file")

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("SELECT count(*) FROM messages").fetchone()
        store = HermesStore.open(path)
        store.meta.set("mine", "1")
        for name in ("unlink", "remove"):
            monkeypatch.setattr(os, name, refuse)
        store.close()
        monkeypatch.undo()
        assert path.with_name(path.name + "-wal").exists()
        assert other.execute("SELECT value FROM state_meta WHERE key = 'mine'").fetchone() == ("1",)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_the_journal_of_a_file_stays_as_it_is(path: Path, journal: str) -> None:
    run(path, f"PRAGMA journal_mode={journal}")
    with HermesStore.open(path) as store:
        for number in range(WRITES_BETWEEN + 1):
            store.meta.set("mine", str(number))
    assert run(path, "PRAGMA journal_mode") == [(journal,)]


def test_many_threads_write_through_one_store(path: Path) -> None:
    with HermesStore.open(path) as store:

        def append(thread: int) -> list[int]:
            return [
                store.run(lambda session, number=number: add_message(session, f"{thread} {number}"), kind="transcript")
                for number in range(15)
            ]

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(append, range(8)))
    assert all(some == sorted(some) for some in ids)
    assert sorted(written(path)) == sorted(f"{thread} {number}" for thread in range(8) for number in range(15))
