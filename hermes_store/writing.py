"""The write transactions of a store: whose file it is, how long to wait, what a damaged index may cost.

A write takes the lock first and waits nowhere else. It looks whether the file is still the one that was opened, and
whether it has the columns of schema 31; the layout of its search indexes does not matter. After it is committed, the
write-ahead log is copied back now and then.

A damaged search index costs no message. A function (`Writer.run`) is run again in a new transaction, in which the
indexes have been detached first: all of it is committed together, or nothing. A block (`Writer.block`) cannot be run
again; it is rolled back, the indexes are detached, and the error asks for another try. Before either, the messages and
all other tables of Hermes are checked: where one of those is damaged, nothing is detached and nothing written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from hermes_store.errors import CorruptIndexError, CorruptStoreError, NotFoundError, SchemaBehindError, StoreBusyError
from hermes_store.migrations.preflight import require_sound
from hermes_store.models import Base
from hermes_store.scope import Result, WriteKind
from hermes_store.sqlite.checkpoints import Checkpoints, checkpoint
from hermes_store.sqlite.damage import is_damage
from hermes_store.sqlite.detach import (
    damaged_tables,
    detach,
    detach_foreign_in_time,
    detach_tables,
    is_index_failure,
    writes_messages,
)
from hermes_store.sqlite.engine import DEFAULT_TIMEOUT
from hermes_store.sqlite.identity import FileIdentity
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX, Shape
from hermes_store.sqlite.views import lacking

log = logging.getLogger("hermes_store")

#: They are detached together.
SEARCH_INDEXES = (WORD_INDEX, TRIGRAM_INDEX)
#: Seconds to wait at most for what the next call says anyway.
ACTIVITY_BUDGET = 0.5
#: How much longer than usual to wait with rows that exist nowhere else (20 and 60 s, as in Hermes).
_TRANSCRIPT_FACTOR = 3.0

#: Opens a transaction that has the write lock, within some seconds.
Connect = Callable[[float], AbstractContextManager[tuple[Connection, Shape]]]


@dataclass(slots=True)
class Writer:
    """Writes to one file.

    Attributes:
        engine: A writable engine of the file.
        connect: Opens a transaction on it that has the write lock.
        afterwards: Called after a commit, on the connection that wrote.
        path: The file; None on an application's engine.
        identity: Which file was opened; None on an application's engine, whose connections may be older than the store.
        timeout: Seconds that a routine write waits for the lock.
        checkpoints: Counts the writes.
    """

    engine: Engine
    connect: Connect
    afterwards: Callable[[Connection, Shape], None]
    path: Path | None = None
    identity: FileIdentity | None = None
    timeout: float = DEFAULT_TIMEOUT
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    @contextmanager
    def block(self, kind: WriteKind) -> Iterator[tuple[Session, Shape]]:
        """One write transaction around a block.

        Args:
            kind: How long to wait for the lock.

        Yields:
            The session, and what the file is like.

        Raises:
            CorruptIndexError: A search index was damaged; it is detached now, and the block can be run again.
            CorruptStoreError: A table is damaged; nothing was written.
            SchemaBehindError: The file lacks columns of schema 31.
            StoreBusyError: The lock was not free in time.
            StoreReplacedError: Another file, or none, is at the path.
        """
        known: Shape | None = None
        try:
            with self._transaction(kind) as (session, known):
                yield session, known
        except DBAPIError as error:
            tables = self._require_index_failure(error, known)
            self.detach(tables)
            raise CorruptIndexError(
                f"a search index of {self._name} is damaged, so that messages could not be written; what this block "
                "wrote was rolled back, and the search indexes were detached: run the block again, and "
                "rebuild_index() when there is time (until then searches scan)"
            ) from error

    def run(self, write: Callable[[Session], Result], kind: WriteKind) -> Result:
        """One write transaction around a function; a second one, without the search indexes, if one is damaged.

        Args:
            write: The function. It may be called twice, so it makes the objects that it adds, and uses up no iterator.
            kind: How long to wait for the lock.

        Returns:
            What it returned.

        Raises:
            CorruptStoreError: A table is damaged; nothing was written.
            SchemaBehindError, StoreBusyError, StoreReplacedError: As for `block`.
        """
        known: Shape | None = None
        try:
            with self._transaction(kind) as (session, known):
                return write(session)
        except DBAPIError as error:
            tables = self._require_index_failure(error, known)
        if tables:
            with suppress(DBAPIError), self._transaction(kind, without=tables) as (session, _):
                return write(session)
        try:
            with self._transaction(kind, without=(*tables, *SEARCH_INDEXES)) as (session, _):
                return write(session)
        except DBAPIError as error:
            if is_damage(error):
                raise self._damaged() from error
            raise

    def detach(self, tables: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Detach the search indexes in a transaction of its own.

        Args:
            tables: Only these tables of ours, if there are any.

        Returns:
            The triggers that were dropped.
        """
        with self._locked("transcript") as (connection, shape):
            dropped = _detach(connection, shape, tables or SEARCH_INDEXES)
            connection.commit()
        self._say(dropped)
        return dropped

    def file(self) -> tuple[Path, ModuleType]:
        """Say which file is written to, and by which SQLite library, for work that needs an engine of its own.

        Raises:
            NotFoundError: The database is in memory.
            StoreReplacedError: Another file, or none, is at the path.
        """
        if self.identity is not None:
            self.identity.require_unchanged()
        path = self.path
        if path is None:
            with self.engine.connect() as connection:
                databases = connection.exec_driver_sql("PRAGMA database_list").all()
            name = next((row[2] for row in databases if row[1] == "main"), None)
            if not name:
                raise NotFoundError("the database is in memory; this needs a file")
            path = Path(name)
        return path, cast("ModuleType", self.engine.dialect.dbapi)

    def close(self) -> None:
        """Copy the write-ahead log back, if this store has written and the file is still there."""
        if not self.checkpoints.writes or (self.identity is not None and not self.identity.is_unchanged):
            return
        try:
            with self.engine.connect() as connection:
                connection.rollback()
                checkpoint(connection)
        except (SQLAlchemyError, StoreBusyError) as error:  # all connections may be in use
            log.debug("the write-ahead log was not copied back: %s", type(error).__name__)

    @property
    def _name(self) -> str:
        return str(self.path or "the file")

    def _budget(self, kind: WriteKind) -> float:
        match kind:
            case "routine":
                return self.timeout
            case "transcript":
                return self.timeout * _TRANSCRIPT_FACTOR
            case "activity":
                return min(self.timeout, ACTIVITY_BUDGET)
        raise ValueError(f"the kind of a write must be 'routine', 'transcript' or 'activity', not {kind!r}")

    @contextmanager
    def _locked(self, kind: WriteKind) -> Iterator[tuple[Connection, Shape]]:
        budget = self._budget(kind)
        if self.identity is not None:
            self.identity.require_unchanged()  # a new connection would open whatever is there
        with self.connect(budget) as (connection, shape):
            if self.identity is not None:
                self.identity.require_unchanged()  # waiting for the lock may have taken a while
            behind = lacking(connection, shape, Base.metadata)
            if behind is not None:
                raise SchemaBehindError(
                    f"{self._name} lacks columns of schema 31 (in {behind}); "
                    f"run: hermes-store upgrade {self.path or 'PATH'}"
                )
            yield connection, shape

    @contextmanager
    def _transaction(self, kind: WriteKind, *, without: tuple[str, ...] = ()) -> Iterator[tuple[Session, Shape]]:
        dropped: tuple[str, ...] = ()
        with self._locked(kind) as (connection, shape), Session(connection) as session:
            if without:
                dropped = _detach(connection, shape, without)
            if WORD_INDEX not in without:
                detach_foreign_in_time(connection, shape)
            yield session, shape
            # The session joined a transaction that was begun on the connection, and would not end it.
            session.flush()
            connection.commit()
            session.close()
            self._say(dropped)
            self.afterwards(connection, shape)
            self.checkpoints.count(connection)

    def _require_index_failure(self, error: DBAPIError, shape: Shape | None) -> tuple[str, ...]:
        """Name the tables of ours to blame, none if it is a search index; raise what anything else is to blame for."""
        suspected = shape is not None and is_index_failure(error, shape)
        if not suspected and not is_damage(error):
            raise error
        if shape is not None:
            require_sound(self.path or Path("the file"), self.engine, shape)
        if shape is None or not suspected:
            raise self._damaged() from error
        tables = damaged_tables(self.engine, shape)
        if not tables and error.statement is not None and not writes_messages(error.statement):
            raise self._damaged() from error  # the search indexes have nothing to do with it
        return tables

    def _damaged(self) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._name} is damaged, though neither its tables nor its search indexes seem to be to blame; "
            "nothing was written: run verify('full'), and restore a backup or recover the file"
        )

    def _say(self, dropped: tuple[str, ...]) -> None:
        if dropped:
            log.warning(
                "%s: an index is damaged; %d triggers were taken off so that messages can be written. "
                "Searches scan until rebuild_index(), or an upgrade, has made the indexes anew",
                self._name,
                len(dropped),
            )


def _detach(connection: Connection, shape: Shape, what: tuple[str, ...]) -> tuple[str, ...]:
    dropped = detach_tables(connection, shape, [name for name in what if name not in SEARCH_INDEXES])
    return dropped + (detach(connection, shape) if WORD_INDEX in what else ())
