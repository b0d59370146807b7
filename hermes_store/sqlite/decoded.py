"""The index of decoded texts: what is in it, when it may be believed, and how waiting messages are moved into it.

Structured content and escaped tool calls are stored in a form in which no search index finds their words. Their decoded
text has an index of its own, ``hs_text_fts``. Decoding takes Python, and a trigger that wrote into an index would make
Hermes's writes fail when that index is damaged. So triggers note ids in a plain table, ``hs_text_queue``, and nothing
more; whoever runs this package moves them on, with `drain`.

The invariant, from the moment the triggers exist: a message that belongs here is in the queue, or above the position
of the first fill, or its text as it is now is in the index. The index may hold more (a REPLACE deletes without telling
any trigger), so what it proposes is checked against the message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from hermes_store.content import decode, decode_tool_calls
from hermes_store.sqlite.damage import is_damage, lacks_parts
from hermes_store.sqlite.engine import driver_error
from hermes_store.sqlite.shape import TEXT_FILL_KEY, TEXT_INDEX, Shape, text_digest

__all__ = [
    "DRAIN_WEIGHT",
    "ENCODED",
    "FILLED",
    "TEXT_FILL_KEY",
    "TEXT_INDEX",
    "TEXT_PARTS",
    "TEXT_QUEUE",
    "drain",
    "is_index_failure",
    "searched_text",
    "text_index_fault",
    "text_objects_fault",
]

TEXT_QUEUE = "hs_text_queue"
#: What FTS5 appends to the index's name to name the tables that hold it; sizes of rows are not kept.
TEXT_PARTS = ("data", "idx", "content", "config")
#: The value of `TEXT_FILL_KEY` once every old message was noted; before, the last id that was.
FILLED = "done"
#: Which messages (``messages AS m``) are searched in their decoded text.
ENCODED = "(instr(m.content, char(0)) OR instr(m.tool_calls, '\\u'))"
#: Characters of a tool result that are searched, as in layout 3.
TOOL_LIMIT = 8192
#: Weight (bytes of stored text, about) that is moved after a write: some milliseconds of work.
DRAIN_WEIGHT = 128 * 1024
_ROW_WEIGHT = 64
#: What follows each text, so that its last characters begin trigrams, too: short terms are looked up by those.
_PADDING = "\n\n"

#: Type and name of everything that must be there, with the digest of its text as the revision makes it.
_DIGESTS: Mapping[tuple[str, str], str] = {
    ("table", TEXT_INDEX): "375cfa3d4febcc4d",
    ("table", TEXT_QUEUE): "018604f45315079f",
    ("trigger", "hs_text_insert"): "2d38dbaae79e20a3",
    ("trigger", "hs_text_update"): "0f6cd38fd8badaa4",
    ("trigger", "hs_text_delete"): "21a5c516c881a261",
}

_WAITING = f"""SELECT q.message_id, {ENCODED}, m.role, m.content,
    CASE WHEN instr(m.tool_calls, '\\u') THEN m.tool_calls END
    FROM main.{TEXT_QUEUE} AS q LEFT JOIN main.messages AS m ON m.id = q.message_id ORDER BY q.message_id"""


def text_objects_fault(shape: Shape) -> str | None:
    """Say what is wrong with the tables and triggers of the index.

    Args:
        shape: The file's shape.

    Returns:
        The reason, to be read after the index's name; None when all are there, with exactly our texts.
    """
    if ("table", TEXT_INDEX) not in shape.objects:
        return "is missing"
    for key, digest in _DIGESTS.items():
        stored = shape.objects.get(key)
        if stored is None or text_digest(stored) != digest:
            own = key == ("table", TEXT_INDEX)
            return "has a shape that this version did not make" if own else "is not kept up to date by what it needs"
    if lacks_parts(shape, TEXT_INDEX, TEXT_PARTS):
        return "lacks a part of itself"
    return None


def text_index_fault(shape: Shape) -> str | None:
    """Say why the index, together with its queue, must not be believed.

    Args:
        shape: The file's shape.

    Returns:
        The reason, to be read after the index's name; None when every message that belongs in it is there or queued.
    """
    fault = text_objects_fault(shape)
    if fault is None and shape.meta.get(TEXT_FILL_KEY) != FILLED:
        return "is not filled yet"
    return fault


def searched_text(role: object, content: object, escaped_calls: object) -> str:
    """Give the text by which a message is found here.

    Args:
        role: Its role.
        content: What the column holds.
        escaped_calls: Its tool calls if they hold JSON escapes, else None.

    Returns:
        The decoded content (of a tool result the beginning) and tool calls, on lines of their own, and two more line
        breaks. Without NUL, at which some SQLite libraries stop reading.
    """
    text = decode(content).text
    if role == "tool":
        text = text[:TOOL_LIMIT]
    if escaped_calls is not None:
        text = f"{text}\n{decode_tool_calls(escaped_calls).text}"
    return text.replace("\0", " ") + _PADDING


def has_queued(driver_connection: Any) -> bool:
    """Tell whether a message waits to be moved into the index.

    Args:
        driver_connection: The driver's connection of a file that has the queue.
    """
    return driver_connection.execute(f"SELECT 1 FROM main.{TEXT_QUEUE} LIMIT 1").fetchone() is not None


def drain(connection: Connection, weight: int) -> int:
    """Move waiting messages from the queue into the index, with their text as it is now.

    Args:
        connection: A connection of this package (invalid UTF-8 is read, not raised) inside a write transaction that
            holds nothing else: when the index is damaged SQLite may roll all of it back, savepoints or not.
        weight: About how many bytes of stored text to move; at least one message is.

    Returns:
        How many messages were taken off the queue; 0 when none is waiting.

    Raises:
        DatabaseError: Nothing was moved, and the transaction must be rolled back. `is_index_failure` tells whether the
            index is to blame.
    """
    taken: list[tuple[int]] = []
    texts: list[tuple[int, str]] = []
    with connection.exec_driver_sql(_WAITING) as waiting:
        for id_, encoded, role, content, calls in waiting:
            taken.append((id_,))
            if encoded:
                texts.append((id_, searched_text(role, content, calls)))
            weight -= _ROW_WEIGHT + sum(len(stored) for stored in (content, calls) if isinstance(stored, str | bytes))
            if weight <= 0:
                break
    if taken:
        connection.exec_driver_sql(f"DELETE FROM main.{TEXT_INDEX} WHERE rowid = ?", taken)
        if texts:
            connection.exec_driver_sql(f"INSERT INTO main.{TEXT_INDEX} (rowid, text) VALUES (?, ?)", texts)
        connection.exec_driver_sql(f"DELETE FROM main.{TEXT_QUEUE} WHERE message_id = ?", taken)
    return len(taken)


def is_index_failure(error: BaseException) -> bool:
    """True when `drain` failed because of the index: damaged, lacking a part, or of a module this SQLite lacks.

    Args:
        error: An exception of SQLAlchemy or of the driver.
    """
    code, text = driver_error(error)
    if code is None:
        return is_damage(error) or any(words in text for words in _FAILURES)
    # A missing table or module has no code of its own; a row that is there twice, although it was just deleted, is
    # a constraint that failed inside the index.
    return code in {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT}


#: How the same reads from a driver without codes.
_FAILURES = ("constraint failed", "vtable constructor failed", "no such", "logic error", "invalid fts5 file format")
