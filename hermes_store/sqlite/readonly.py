"""Opening a file for reading without changing a byte of it.

``mode=ro`` reads through SQLite's locks and sees what a live writer has committed to its write-ahead log. It cannot
read a WAL file in a folder where it may not make the shared-memory file; ``immutable=1`` can, but takes no locks and
silently ignores a log. So:

* no ``-wal`` there and the folder cannot be written: immutable, guarded by a look at the file's size and times before
  and after each read;
* otherwise ``mode=ro``, and what SQLite then cannot do (a log without shared memory, a hot rollback journal) is a
  typed error that says what to do. Never "delete the log": it holds commits.

Files are looked at with ``stat`` only. Opening one behind SQLite's back and closing it again would drop the locks of
this very process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.errors import (
    CorruptStoreError,
    HermesStoreError,
    NotAStoreError,
    NotFoundError,
    ReadOnlyError,
    StoreBusyError,
)
from hermes_store.sqlite.engine import DEFAULT_TIMEOUT, driver_error, is_busy, make_engine

_CANTOPEN, _READONLY, _NOTADB, _CORRUPT = 14, 8, 26, 11  # SQLite's primary result codes


@dataclass(frozen=True, slots=True)
class FileState:
    """What ``stat`` says of a file and whether it has a write-ahead log."""

    device: int
    inode: int
    size: int
    modified_ns: int
    has_wal: bool

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Look at a file.

        Args:
            path: The database file.
        """
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, _side(path, "-wal").exists())


@dataclass(frozen=True, slots=True)
class Reader:
    """An engine that only reads, with the guard that an immutable one needs.

    Attributes:
        engine: The engine.
        path: The file.
        opened: The file's state when an immutable engine was made; None when SQLite's own locks protect the reads.
    """

    engine: Engine
    path: Path
    opened: FileState | None

    @property
    def outdated(self) -> bool:
        """True when an immutable engine must be made anew because the file is no longer what it was."""
        return self.opened is not None and FileState.of(self.path) != self.opened

    def confirm(self) -> None:
        """Check after a read that it saw one state of the file.

        Raises:
            StoreBusyError: The file changed meanwhile; what was read must not be used.
        """
        if self.outdated:
            raise StoreBusyError(f"{self.path} changed while it was read without locks; read again")


def open_reader(path: Path, *, driver: ModuleType | None = None, timeout: float = DEFAULT_TIMEOUT) -> Reader:
    """Open a file for reading.

    Args:
        path: The database file.
        driver: The DBAPI module to use.
        timeout: Seconds to wait for a writer that is just committing.

    Returns:
        The reader; its engine has read the schema once, so the file is known to be readable.

    Raises:
        NotFoundError: There is no such file.
        NotAStoreError: It is no SQLite database.
        ReadOnlyError: It cannot be read without writing beside it.
        StoreBusyError: A writer held it for the whole time.
    """
    require_file(path)
    alone = not _side(path, "-wal").exists() and not _has_content(_side(path, "-journal"))
    immutable = alone and not os.access(path.parent, os.W_OK)
    state = FileState.of(path) if immutable else None
    engine = make_engine(path, mode="ro", immutable=immutable, driver=driver, timeout=timeout)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM main.sqlite_master")
    except DatabaseError as error:
        engine.dispose()
        raise explain_open_error(path, error) from error
    return Reader(engine, path, state)


def require_file(path: Path) -> None:
    """Check that there is a file.

    Args:
        path: The database file.

    Raises:
        NotFoundError: Nothing is there.
        NotAStoreError: It is a folder or something else that is no file.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist; `hermes-store upgrade {path}` creates a new store there")
    if not path.is_file():
        raise NotAStoreError(f"{path} is not a file; give the path of a state.db")


def explain_open_error(path: Path, error: Exception) -> HermesStoreError:  # noqa: PLR0911 - one per cause
    """Say in our own terms why SQLite could not open or read a file.

    Args:
        path: The database file.
        error: What SQLAlchemy, or the driver, raised.
    """
    code, text = driver_error(error)
    if is_busy(error):
        return StoreBusyError(f"{path} is locked by another process; try again, or give a longer timeout")
    if code == _NOTADB or "not a database" in text:
        return NotAStoreError(
            f"{path} is not a SQLite database (zeroed, truncated or encrypted); nothing was changed: restore a backup"
        )
    if code == _CORRUPT or "malformed" in text:
        return CorruptStoreError(f"{path} is damaged: {text}; nothing was changed: restore a backup or recover it")
    if _has_content(_side(path, "-journal")):
        return ReadOnlyError(
            f"{path} has a rollback journal of an interrupted write, which only a writer can roll back: "
            "open it once for writing (Hermes does, `hermes-store upgrade` too), and keep the journal until then"
        )
    if _side(path, "-wal").exists():
        return ReadOnlyError(
            f"{path} has a write-ahead log that cannot be read here, because its folder does not allow the "
            "shared-memory file: copy the file together with its -wal to a folder you can write, and read it there"
        )
    if code in {_CANTOPEN, _READONLY}:
        return ReadOnlyError(f"{path} cannot be opened here: {text}; check the permissions of the file and its folder")
    return HermesStoreError(f"{path} cannot be read: {text}")


def _side(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
