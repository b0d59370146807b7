"""Taking search indexes off a file, so that messages can be written although an index cannot.

Every write of a message fires triggers that write into the search indexes; if one of those is damaged, lacks a part or
needs a tokenizer that is not here, the message cannot be written either. Then the triggers go, and a marker says that
the indexes miss messages from now on: ``fts_stale`` for the word and substring index, ``fts_cjk_stale`` for that of the
loadable tokenizer. These are Hermes's own keys, so Hermes scans too until somebody has made the indexes anew.

What a damaged index looks like depends on the SQLite library and on what is damaged. The error may come with the
statement or only with COMMIT, which flushes the indexes; SQLite may have rolled the transaction back, or left it open
although nothing can be written in it any more. So a failed write is always rolled back first, and `is_index_failure`
only says whom to suspect: whether the messages themselves are sound is for the caller to check.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import is_damage, lacks_parts
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

ACTIONS = ("insert", "delete", "update")

_NAMES_MESSAGES = re.compile(r"\bmessages\b", re.IGNORECASE)
_ONLY_READS = re.compile(r"\s*(?:SELECT|EXPLAIN|PRAGMA)\b", re.IGNORECASE)
_SET_MARKER = "INSERT INTO main.state_meta (key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = '1'"
#: Errors of an index that have no code of their own.
_TEXTS = (
    "vtable constructor failed: messages_fts",
    "no such table: main.messages_fts",
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
    if error.statement is not None and not writes_messages(error.statement):
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
    live = tuple(name for name in names if shape.has("trigger", name))
    for name in live:
        _run(connection, f"DROP TRIGGER IF EXISTS main.{name}")
    return live


def _run(connection: Connection, statement: str, *parameters: str) -> None:
    """Ask the driver itself: this may happen just before another statement of the same connection."""
    driver: Any = connection.connection.driver_connection
    driver.execute(statement, parameters)
