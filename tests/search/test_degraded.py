"""An index that cannot be believed costs time, never an answer; an error is never an empty page."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from search.corpora import Corpus, Opened
from sqlalchemy.exc import DBAPIError, OperationalError

from hermes_store.errors import CorruptStoreError, HermesStoreError, NotAStoreError, StoreBusyError
from hermes_store.search.faults import Fault, SearchTimeoutError, fault_of, typed

WORDS, CHINESE = "docker", "大别山项目"


@pytest.fixture
def filled(corpus: Corpus) -> Corpus:
    corpus.add_all("about docker", "a dockerfile", "大别山项目", "修改docker服务端", "docker 大别山项目", "nothing")
    return corpus


def _answers(file: Opened) -> dict[str, set[int]]:
    queries = (WORDS, CHINESE, "docker NOT 大别山项目", "docker OR 大别山项目")
    return {query: set(file.ids(query)) for query in queries}


def _breakages() -> dict[str, Callable[[Corpus], None]]:
    def without_fts5(file: Corpus) -> None:
        file.fts5 = False

    def run(*statements: str) -> Callable[[Corpus], None]:
        def act(file: Corpus) -> None:
            for statement in statements:
                file.execute(statement)

        return act

    return {
        "needs FTS5": without_fts5,
        "is marked stale": run("INSERT INTO state_meta (key, value) VALUES ('fts_stale', '1')"),
        "is missing": run(
            "DROP TRIGGER messages_fts_insert",
            "DROP TRIGGER messages_fts_update",
            "DROP TRIGGER messages_fts_delete",
            "DROP TABLE messages_fts",
            "DROP TRIGGER messages_fts_trigram_insert",
            "DROP TRIGGER messages_fts_trigram_update",
            "DROP TRIGGER messages_fts_trigram_delete",
            "DROP TABLE messages_fts_trigram",
        ),
        "is not kept up to date": run(
            "DROP TRIGGER messages_fts_insert",
            "DROP TRIGGER messages_fts_trigram_insert",
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', 'late docker 大别山项目', 9e9)",
        ),
        "has a shape that no known release made": run(
            "DROP TRIGGER messages_fts_insert",
            "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN SELECT 1; END",
            "DROP TRIGGER messages_fts_trigram_insert",
            "CREATE TRIGGER messages_fts_trigram_insert AFTER INSERT ON messages BEGIN SELECT 1; END",
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', 'late docker 大别山项目', 9e9)",
        ),
    }


@pytest.mark.parametrize("reason", _breakages())
def test_an_index_that_must_not_be_believed_is_not(filled: Corpus, reason: str):
    expected = _answers(filled)
    last = filled.connection.exec_driver_sql("SELECT MAX(id) FROM messages").scalar_one()
    _breakages()[reason](filled)
    for query, ids in _answers(filled).items():
        # The row that reached no index is found as well.
        assert {id_ for id_ in ids if id_ <= last} == expected[query], query
        page = filled.search(query)
        assert page.route == "like"
        assert page.degraded is not None
        assert reason in page.degraded
        assert ">>>" in page.hits[0].snippet


@pytest.mark.parametrize("index", ["messages_fts", "messages_fts_trigram"])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE main.{0}_data SET block = x'00ff00' WHERE id > 10",
        "DELETE FROM main.{0}_data",
        "DELETE FROM main.{0}_docsize",
        "DROP TABLE main.{0}_data",
    ],
)
def test_a_damaged_index_gives_the_same_answer_by_a_scan(filled: Corpus, index: str, damage: str):
    query = WORDS if index == "messages_fts" else CHINESE
    expected = set(filled.ids(query))
    filled.connection.commit()
    with sqlite3.connect(filled.path) as other:
        other.execute(damage.format(index))
    other.close()
    page = filled.search(query)
    assert {hit.id for hit in page} == expected
    assert page.degraded is not None
    assert index in page.degraded
    assert "like" in page.route


def test_a_damaged_word_index_leaves_the_substring_index_in_use(filled: Corpus):
    filled.connection.exec_driver_sql("UPDATE main.messages_fts_data SET block = x'00ff00' WHERE id > 10")
    page = filled.search(CHINESE, limit=2)
    assert page.route == "trigram"
    assert page.degraded is None
    assert len(page) == 2
    assert filled.search(CHINESE).degraded is None
    assert "trigram" not in str(filled.search(CHINESE).degraded)


def test_an_index_dropped_behind_our_back_is_a_damaged_one(filled: Corpus):
    expected = set(filled.ids(WORDS))
    filled.connection.exec_driver_sql("DROP TABLE main.messages_fts")
    assert set(filled.ids(WORDS)) == expected


def test_hits_whose_message_is_gone_or_says_something_else_are_dropped(filled: Corpus):
    filled.connection.exec_driver_sql("INSERT INTO messages_fts (rowid, content) VALUES (999, 'docker ghost')")
    filled.connection.exec_driver_sql("INSERT INTO messages_fts (rowid, content) VALUES (6, 'docker ghost')")
    assert set(filled.ids(WORDS)) == {1, 4, 5}


def test_a_damaged_message_table_is_an_error_of_its_own(filled: Corpus):
    for number in range(500):
        filled.add(f"filler {number} " * 20)
    filled.connection.commit()
    root = filled.connection.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").scalar_one()
    filled.connection.rollback()
    filled.connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    filled.connection.rollback()
    with filled.path.open("r+b") as stored:
        stored.seek((root - 1) * 4096)
        stored.write(b"\x05" + b"\xff" * 4095)
    filled.connection.invalidate()
    with pytest.raises(CorruptStoreError):
        filled.search("filler")


def test_a_long_search_stops_at_its_timeout(filled: Corpus):
    filled.connection.exec_driver_sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO messages (session_id, role, content, timestamp) SELECT 's', 'user', hex(zeroblob(2000)), i FROM n"
    )
    with pytest.raises(SearchTimeoutError) as caught:
        filled.search("->", timeout=0.001)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, HermesStoreError)
    assert filled.ids(WORDS, timeout=60) == filled.ids(WORDS)  # the connection goes on working


def _driver_error(
    message: str, name: str | None = None, kind: type[sqlite3.Error] = sqlite3.OperationalError
) -> DBAPIError:
    original = kind(message)
    if name is not None:
        original.sqlite_errorcode = getattr(sqlite3, name)
        original.sqlite_errorname = name
    return OperationalError("SELECT secret", {}, original)


@pytest.mark.parametrize(
    ("error", "fault", "type_"),
    [
        (_driver_error("database is locked", "SQLITE_BUSY"), Fault.BUSY, StoreBusyError),
        (_driver_error("database table is locked"), Fault.BUSY, StoreBusyError),
        (_driver_error("interrupted", "SQLITE_INTERRUPT"), Fault.INTERRUPTED, StoreBusyError),
        (_driver_error("database disk image is malformed", "SQLITE_CORRUPT"), Fault.INDEX, CorruptStoreError),
        (_driver_error("database disk image is malformed"), Fault.INDEX, CorruptStoreError),
        (_driver_error("constraint failed", "SQLITE_CONSTRAINT"), Fault.INDEX, CorruptStoreError),
        (_driver_error("vtable constructor failed: messages_fts"), Fault.INDEX, CorruptStoreError),
        (_driver_error("no such module: fts5"), Fault.INDEX, CorruptStoreError),
        (_driver_error("no such tokenizer: trigram"), Fault.INDEX, CorruptStoreError),
        (_driver_error("file is not a database", "SQLITE_NOTADB"), Fault.NOT_A_DATABASE, NotAStoreError),
        (_driver_error("disk I/O error", "SQLITE_IOERR"), Fault.OTHER, HermesStoreError),
        (_driver_error("no such column: x"), Fault.OTHER, HermesStoreError),
    ],
)
def test_each_error_of_the_driver_is_told_apart(error: DBAPIError, fault: Fault, type_: type[Exception]):
    assert fault_of(error) is fault
    assert type(typed(error)) is type_
    assert "secret" not in str(typed(error))


def test_a_locked_file_is_busy_and_not_empty(filled: Corpus):
    filled.connection.commit()
    # A rollback journal locks readers out; a write-ahead log never does.
    driver = filled.connection.connection.driver_connection
    driver.execute("PRAGMA journal_mode=DELETE")
    driver.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(filled.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreBusyError):
            filled.search(WORDS)
    finally:
        other.close()
    filled.connection.rollback()
    assert filled.ids(WORDS)


@pytest.mark.parametrize(("threshold", "logged"), [("0", True), ("100000", False), ("nonsense", False)])
def test_slow_searches_are_logged_without_their_query(
    filled: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, threshold: str, logged: Any
):
    monkeypatch.setenv("HERMES_SEARCH_SLOW_MS", threshold)
    with caplog.at_level(logging.INFO, logger="hermes_store.search"):
        filled.search(WORDS)
    assert bool(caplog.records) is logged
    assert WORDS not in caplog.text
    if logged:
        assert "route word" in caplog.text
        assert "3 hits" in caplog.text


def test_the_query_is_logged_at_debug_only(
    filled: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("HERMES_SEARCH_SLOW_MS", "0")
    with caplog.at_level(logging.DEBUG, logger="hermes_store.search"):
        filled.search(WORDS)
    assert [record.levelname for record in caplog.records if WORDS in record.getMessage()] == ["DEBUG"]
