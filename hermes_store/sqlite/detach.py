"""Taking search indexes off a file, so that messages can be written although an index cannot.

Every write of a message fires triggers that write into the search indexes; if one of those is damaged, lacks a part or
needs a tokenizer that is not here, the message cannot be written either. Then the triggers go, and a marker says that
the indexes miss messages from now on: ``fts_stale`` for the word and substring index, ``fts_cjk_stale`` for that of the
loadable tokenizer. These are Hermes's own keys, so Hermes scans too until somebody has made the indexes anew.

Two plain tables of ours are fed by triggers as well (`hermes_store.sqlite.decoded`, `hermes_store.sqlite.activity`).
Where one of them is damaged, only its triggers go: without them it is not believed, and the next upgrade sees to it.

What a damaged index looks like depends on the SQLite library and on what is damaged. The error may come with the
statement or only with COMMIT, which flushes the indexes; SQLite may have rolled the transaction back, or left it open
although nothing can be written in it any more. So a failed write is always rolled back first, and `is_index_failure`
only says whom to suspect: whether the messages themselves are sound is for the caller to check.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DatabaseError, DBAPIError

from hermes_store.sqlite.activity import ACTIVITY_TABLE
from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import first_damage, is_damage, lacks_parts
from hermes_store.sqlite.decoded import TEXT_QUEUE
from hermes_store.sqlite.engine import driver_error
from hermes_store.sqlite.shape import (
    CJK_INDEX,
    CJK_STALE_KEY,
    STALE_KEY,
    TRIGRAM_INDEX,
    WORD_INDEX,
    Layout,
    Shape,
)
from hermes_store.sqlite.views import quoted

ACTIONS = ("insert", "delete", "update")

#: Our tables that triggers write into, with the beginning of those triggers' names.
_OWN = {TEXT_QUEUE: "hs_text_", ACTIVITY_TABLE: "hs_activity_"}

_FEEDS = re.compile(r"\b(?:messages|sessions)\b", re.IGNORECASE)
_NAMES_MESSAGES = re.compile(r"\bmessages\b", re.IGNORECASE)
_ONLY_READS = re.compile(r"\s*(?:SELECT|EXPLAIN|PRAGMA)\b", re.IGNORECASE)
_SET_MARKER = "INSERT INTO main.state_meta (key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = '1'"
#: Errors of an index that have no code of their own.
_TEXTS = (
    "vtable constructor failed: messages_fts",
    "no such table: main.messages_fts",
    "no such table: main.hs_",
    "no such module: fts5",
    "no such tokenizer",
    "invalid fts5 file format",
    "fts5:",
)


def writes_messages(statement: str) -> bool:
    """True for a statement that may fire the triggers of the search indexes.

    Args:
        statement: Its SQL.
    """
    return _NAMES_MESSAGES.search(statement) is not None and _ONLY_READS.match(statement) is None


def is_index_failure(error: DBAPIError, shape: Shape) -> bool:
    """True when a write failed in a way in which a search index makes it fail.

    Damage of the messages themselves can look the same; it must be ruled out before anything is done about it.

    Args:
        error: What a statement, or COMMIT, raised.
        shape: The file's shape before.
    """
    statement = error.statement
    if statement is not None and (_FEEDS.search(statement) is None or _ONLY_READS.match(statement) is not None):
        return False
    code, text = driver_error(error)
    if is_damage(error) or (code is None and "corrupt" in text):
        return True
    if text == "constraint failed":
        # A constraint of an ordinary table is named; this one is of a table that holds an index.
        return code in {None, sqlite3.SQLITE_CONSTRAINT}
    if text == "SQL logic error":
        # Says nothing, and is all that is said where a table that holds an index is gone.
        return any(
            found.layout is not Layout.ABSENT and lacks_parts(shape, found.name)
            for found in (shape.word, shape.trigram, shape.cjk)
        )
    return any(words in text for words in _TEXTS)


def damaged_tables(engine: Engine, shape: Shape) -> tuple[str, ...]:
    """Name the tables of ours that triggers write into and that are damaged or gone.

    Args:
        engine: An engine of the file.
        shape: The file's shape.
    """
    return tuple(name for name in _OWN if _own_triggers(shape, name) and _is_damaged(engine, shape, name))


def detach_tables(connection: Connection, shape: Shape, tables: Collection[str]) -> tuple[str, ...]:
    """Take off the triggers that write into tables of ours.

    Args:
        connection: A connection inside a write transaction in which nothing has failed.
        shape: The file's shape.
        tables: The tables.

    Returns:
        The triggers that were dropped.
    """
    return _drop(connection, tuple(trigger for table in tables for trigger in _own_triggers(shape, table)))


def detach(connection: Connection, shape: Shape) -> tuple[str, ...]:
    """Take off all search indexes that triggers feed.

    Args:
        connection: A connection inside a write transaction in which nothing has failed.
        shape: The file's shape.

    Returns:
        The triggers that were dropped; empty when somebody else has been here before.
    """
    dropped = _drop_triggers(connection, shape, WORD_INDEX, TRIGRAM_INDEX)
    if dropped or not shape.stale:
        _run(connection, _SET_MARKER, STALE_KEY)
    return dropped + detach_foreign(connection, shape)


def detach_foreign(connection: Connection, shape: Shape) -> tuple[str, ...]:
    """Take off the index of the loadable tokenizer.

    Args:
        connection: A connection inside a write transaction.
        shape: The file's shape.

    Returns:
        The triggers that were dropped.
    """
    dropped = _drop_triggers(connection, shape, CJK_INDEX)
    if dropped:
        _run(connection, _SET_MARKER, CJK_STALE_KEY)
    return dropped


def needs_foreign_tokenizer(connection: Connection, shape: Shape) -> bool:
    """True when triggers feed an index whose tokenizer this connection does not have: they make writes fail.

    Args:
        connection: A connection.
        shape: The file's shape.
    """
    return bool(shape.cjk.triggers_present) and bool(probe(connection, shape).foreign_tokenizers)


def detach_foreign_in_time(connection: Connection, shape: Shape) -> None:
    """Take off the index of a tokenizer that is not here, when the first message is written and not before.

    Until then nothing is lost for a Hermes that has the tokenizer.

    Args:
        connection: A connection inside a write transaction; it is watched as long as it lives.
        shape: The file's shape.
    """
    if not needs_foreign_tokenizer(connection, shape):
        return
    waiting = True

    @event.listens_for(connection, "before_cursor_execute")
    def look(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal waiting
        if waiting and writes_messages(statement):
            waiting = False
            detach_foreign(connection, shape)


def _drop_triggers(connection: Connection, shape: Shape, *indexes: str) -> tuple[str, ...]:
    names = (f"{index}_{action}" for index in indexes for action in ACTIONS)
    return _drop(connection, tuple(name for name in names if shape.has("trigger", name)))


def _drop(connection: Connection, triggers: tuple[str, ...]) -> tuple[str, ...]:
    for name in triggers:
        _run(connection, f"DROP TRIGGER IF EXISTS main.{quoted(name)}")
    return triggers


def _own_triggers(shape: Shape, table: str) -> list[str]:
    return sorted(name for kind, name in shape.objects if kind == "trigger" and name.startswith(_OWN[table]))


def _is_damaged(engine: Engine, shape: Shape, table: str) -> bool:
    if not shape.has("table", table):
        return True
    with engine.connect() as connection:
        try:
            return first_damage(connection.exec_driver_sql(f"PRAGMA main.quick_check({table})").scalars()) is not None
        except DatabaseError as error:
            if not is_damage(error):
                raise
            return True


def _run(connection: Connection, statement: str, *parameters: str) -> None:
    """Ask the driver itself: this may happen just before another statement of the same connection."""
    driver: Any = connection.connection.driver_connection
    driver.execute(statement, parameters)
