"""What went wrong in SQLite, in this package's terms.

A search never turns an error into an empty page. Each error of the driver is either the fault of a search index (the
answer then comes from a scan) or becomes one of this package's errors. Their texts carry no query and no message.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from hermes_store.errors import CorruptStoreError, HermesStoreError, NotAStoreError, StoreBusyError
from hermes_store.sqlite.engine import driver_error

# Result codes of SQLite: https://www.sqlite.org/rescode.html
_BUSY, _LOCKED, _INTERRUPT, _CORRUPT, _CONSTRAINT, _NOT_A_DATABASE = 5, 6, 9, 11, 19, 26

# A driver without result codes has texts only; some faults of an index are plain errors that have nothing else either.
_INDEX_TEXTS = (
    "vtable constructor failed",
    "no such module",
    "no such tokenizer",
    "no such table: main.messages_fts",
    "no such table: main.hs_text",
    "no such table: temp.hs_",  # a connection without the vocabulary tables
    "constraint failed",
    "fts5",
    "sql logic error",  # all that is said where a table that holds an index is gone
)
#: Virtual-machine instructions of SQLite between two looks at the clock; a fraction of a millisecond.
_INSTRUCTIONS = 10_000


class SearchTimeoutError(StoreBusyError):
    """A search took longer than its ``timeout`` and was stopped; nothing is known about what it would have found."""


class Fault(enum.Enum):
    """Whose fault an error is."""

    INDEX = "index"
    """A search index, if the statement used one; else a canonical table."""
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    NOT_A_DATABASE = "not a database"
    OTHER = "other"


def fault_of(error: DBAPIError) -> Fault:
    """Tell whose fault an error of the driver is.

    Args:
        error: The error as SQLAlchemy wraps it.
    """
    code, said = driver_error(error)
    text = said.lower()
    if code in (_BUSY, _LOCKED) or "is locked" in text:
        return Fault.BUSY
    if code == _INTERRUPT or "interrupted" in text:
        return Fault.INTERRUPTED
    if code == _NOT_A_DATABASE or "not a database" in text:
        return Fault.NOT_A_DATABASE
    damaged = code in (_CORRUPT, _CONSTRAINT) or "malformed" in text
    return Fault.INDEX if damaged or any(part in text for part in _INDEX_TEXTS) else Fault.OTHER


def typed(error: DBAPIError) -> HermesStoreError:
    """Turn an error of the driver that no scan can make good into one of this package's.

    Args:
        error: The error as SQLAlchemy wraps it.
    """
    match fault_of(error):
        case Fault.BUSY:
            return StoreBusyError("the file is locked by another connection; try again")
        case Fault.INTERRUPTED:
            return StoreBusyError("the search was interrupted; try again, or give it more time")
        case Fault.NOT_A_DATABASE:
            return NotAStoreError("the file is not an SQLite database, or its header is damaged")
        case Fault.INDEX:
            return CorruptStoreError(
                "a table of the file is damaged; take a copy of the file and run `hermes-store verify` on it"
            )
        case _:
            name = getattr(error.orig, "sqlite_errorname", None) or type(error.orig).__name__
            return HermesStoreError(f"SQLite could not run the search ({name})")


@contextmanager
def deadline(connection: Connection, seconds: float | None) -> Iterator[None]:
    """Stop whatever statement runs on a connection when the time is up.

    The driver's progress handler does it; an application's own handler on the same connection is replaced.

    Args:
        connection: The connection that the block uses.
        seconds: Time from now, None for no limit.

    Raises:
        SearchTimeoutError: The time was up inside the block.
    """
    if seconds is None:
        yield
        return
    driver: Any = connection.connection.driver_connection
    end = time.monotonic() + seconds
    expired = False

    def look() -> int:
        nonlocal expired
        expired = expired or time.monotonic() > end
        return int(expired)

    driver.set_progress_handler(look, _INSTRUCTIONS)
    try:
        yield
    except DBAPIError as error:
        if expired and fault_of(error) is Fault.INTERRUPTED:
            raise SearchTimeoutError(
                f"the search took longer than {seconds:g} s; narrow it, or give it more time"
            ) from (error.orig)
        raise
    finally:
        driver.set_progress_handler(None, _INSTRUCTIONS)
