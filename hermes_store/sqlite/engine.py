"""The one place where SQLite engines are made, and how a transaction begins.

SQLAlchemy never emits BEGIN for SQLite in a way that suits a shared file, so the driver is put into its autocommit
mode and the engine's ``begin`` event says BEGIN itself:

* ``immediate`` for writers. The write lock is taken first, so a transaction can never read, then fail to write.
  Waiting happens here and only here: with jitter (20-150 ms for the first two seconds, then 250-1000 ms, the figures
  Hermes uses), until the time budget is spent; then `StoreBusyError`.
* ``deferred`` for readers (the default).
* ``none`` for statements SQLite refuses inside a transaction (VACUUM, some PRAGMAs).

The mode is an execution option of the connection (`BEGIN_OPTION`), so one engine serves all three.

Every SQLite connection of one process must come from one SQLite library: POSIX file locks belong to the process, and
a second library's close() silently drops the first one's locks. ``driver=`` therefore changes the library for a
program that uses nothing else; the default is the standard library's ``sqlite3``.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from hermes_store.errors import StoreBusyError

log = logging.getLogger("hermes_store.sqlite")

#: Execution option of a connection: ``"immediate"``, ``"deferred"`` or ``"none"``.
BEGIN_OPTION = "hermes_store_begin"
#: Execution option of a connection: seconds to wait for the write lock, instead of the engine's own.
TIMEOUT_OPTION = "hermes_store_timeout"

#: Seconds a writer waits for the lock by default (Hermes's own budget for a routine write).
DEFAULT_TIMEOUT = 20.0
#: Hermes caps its readers at eight connections; more gain nothing on one file.
POOL_SIZE = 8
#: Bytes a write-ahead log or journal is cut back to after a checkpoint; the releases use the same 64 MiB.
JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024

_EAGER_SECONDS = 2.0
_EAGER_SLEEP = (0.020, 0.150)
_PATIENT_SLEEP = (0.250, 1.000)


class UndecodableText(str):
    """Text whose stored bytes are not valid UTF-8, read with U+FFFD in their place.

    It is a ``str`` in every respect; its type is the flag by which records report the problem.
    """

    __slots__ = ()


def read_text(stored: bytes) -> str:
    """Decode a text cell; never raises.

    Args:
        stored: The bytes of the cell.

    Returns:
        The text, as `UndecodableText` when bytes had to be replaced.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return UndecodableText(stored.decode(errors="replace"))


def file_uri(path: Path, **parameters: str) -> str:
    """Name a file for SQLite as a URI, with whatever characters its path has.

    Args:
        path: The database file.
        parameters: URI parameters such as ``mode="ro"``.

    Returns:
        The URI; SQLite's ``?``, ``#`` and ``%`` are escaped.
    """
    absolute = path.absolute().as_posix()
    prefix = "file:" if absolute.startswith("/") else "file:///"
    # As bytes: a path need not be Unicode.
    return f"{prefix}{urllib.parse.quote(os.fsencode(absolute))}?{urllib.parse.urlencode(parameters)}"


def make_engine(
    path: Path | None,
    *,
    mode: str = "rw",
    immutable: bool = False,
    driver: ModuleType | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Engine:
    """Make an engine for one SQLite file.

    Args:
        path: The file; None for a database in memory that lives as long as the engine.
        mode: ``"rw"`` (the file must exist) or ``"ro"``. Files are created by `hermes_store.sqlite.journal`.
        immutable: Read without locks and without a write-ahead log; only for a file nobody can write.
        driver: A DBAPI module that takes ``sqlite3``'s arguments, such as ``pysqlite3``.
        timeout: Seconds a write waits for the lock, and a read for a writer that is just committing.

    Returns:
        The engine, with an explicit pool and this module's transaction rules.
    """
    module: Any = driver or sqlite3
    parameters = {"mode": mode} | ({"immutable": "1"} if immutable else {})
    database = file_uri(path, **parameters) if path is not None else ":memory:"

    def connect() -> Any:
        return module.connect(
            database, uri=path is not None, timeout=timeout, isolation_level=None, check_same_thread=False
        )

    pool: dict[str, Any] = (
        {"poolclass": QueuePool, "pool_size": POOL_SIZE, "max_overflow": 0, "pool_timeout": max(timeout, 1.0)}
        if path is not None
        else {"poolclass": StaticPool}
    )
    # Parameters are message texts: they stay out of SQLAlchemy's exceptions and logs.
    engine = create_engine("sqlite+pysqlite://", creator=connect, module=module, hide_parameters=True, **pool)
    own_transactions(engine, timeout=timeout, read_only=mode == "ro")
    return engine


def own_transactions(engine: Engine, *, timeout: float = DEFAULT_TIMEOUT, read_only: bool = False) -> None:
    """Put this module's connection set-up and transaction rules on an engine.

    These are the only listeners this package ever adds to an engine that an application made, and only when it asks
    for them: ``connect`` (foreign keys, text decoding, journal size) and ``begin`` (see the module's docstring).

    Args:
        engine: A SQLite engine; its driver connections are switched to autocommit, BEGIN comes from here.
        timeout: Seconds to wait for the write lock.
        read_only: True when the connections cannot write anyway.
    """

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        raw: Any = connection
        raw.isolation_level = None
        raw.text_factory = read_text
        raw.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            raw.execute(f"PRAGMA journal_size_limit={JOURNAL_SIZE_LIMIT}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        mode = options.get(BEGIN_OPTION, "deferred")
        if mode != "none":
            begin_now(connection, mode, float(options.get(TIMEOUT_OPTION, timeout)), restore=timeout)


def begin_now(
    connection: Connection, mode: Literal["deferred", "immediate"], timeout: float, *, restore: float | None = None
) -> None:
    """Say BEGIN; for a writer, wait for the lock.

    Args:
        connection: A connection whose driver has no transaction open.
        mode: Which BEGIN.
        timeout: Seconds to wait for the write lock.
        restore: Seconds of SQLite's own busy handler afterwards; the same when not given.

    Raises:
        StoreBusyError: The lock was not free in time.
    """
    if mode == "immediate":
        _begin_immediate(connection, timeout, restore=timeout if restore is None else restore)
    else:
        connection.exec_driver_sql("BEGIN")


def driver_error(error: BaseException) -> tuple[int | None, str]:
    """Take apart what SQLite said.

    Args:
        error: An exception of SQLAlchemy or of the driver.

    Returns:
        The primary result code (https://www.sqlite.org/rescode.html), None from a driver without codes; and the text.
    """
    original = getattr(error, "orig", None) or error
    code = getattr(original, "sqlite_errorcode", None)
    return (None if code is None else int(code) & 0xFF), str(original)


def is_busy(error: BaseException) -> bool:
    """True when SQLite failed because another connection holds a lock.

    Args:
        error: An exception of SQLAlchemy or of the driver.
    """
    code, text = driver_error(error)
    if code is not None:
        return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    return "is locked" in text


@contextmanager
def busy_as_typed(path: Path | str | None) -> Iterator[None]:
    """Turn SQLite's "database is locked" inside the block into `StoreBusyError`.

    Args:
        path: What to name in the message.
    """
    try:
        yield
    except DatabaseError as error:
        if is_busy(error):
            raise StoreBusyError(
                f"{path or 'the database'} is locked by another connection; try again, or give a longer timeout"
            ) from error
        raise


def row_changes(connection: Connection) -> int:
    """SQLite's own count of rows changed on this connection.

    Args:
        connection: A connection.
    """
    return int(connection.exec_driver_sql("SELECT total_changes()").scalar_one())


def _begin_immediate(connection: Connection, budget: float, *, restore: float) -> None:
    started = time.monotonic()
    # SQLite's own busy handler sleeps without jitter, which makes waiting writers collide again and again.
    connection.exec_driver_sql("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError as error:
                waited = time.monotonic() - started
                if not is_busy(error):
                    raise
                if waited >= budget:
                    raise StoreBusyError(
                        f"the write lock was not free for {waited:.1f} s; another process is writing: "
                        "try again, or give a longer timeout"
                    ) from error
                low, high = _EAGER_SLEEP if waited < _EAGER_SECONDS else _PATIENT_SLEEP
                time.sleep(min(random.uniform(low, high), max(budget - waited, 0.001)))  # noqa: S311 - jitter, no secret
            else:
                return
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={int(restore * 1000)}")
