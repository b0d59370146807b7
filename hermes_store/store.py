"""The store: one file (or an application's engine), its units of work, and the repositories inside them.

`HermesStore` holds no state of its own but the engine and what it learned about the file; every answer comes from a
transaction, short or the caller's. Reading goes through `hermes_store.sqlite.views`, so files of every released schema
look alike; writing needs the columns of schema 31 and says so before the first statement.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, Self, cast

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import ORMExecuteState, Session

from hermes_store import migrations
from hermes_store.errors import NotFoundError, ReadOnlyError, SchemaBehindError, StoreBusyError
from hermes_store.lineage import LineageRepository
from hermes_store.locks import LockRepository
from hermes_store.messages import MessageRepository
from hermes_store.meta import MetaRepository
from hermes_store.migrations.preflight import require_known, require_store
from hermes_store.models import Base
from hermes_store.scope import OpenScope, Result, WriteKind
from hermes_store.search.execute import explain, search
from hermes_store.search.filters import make_filters
from hermes_store.search.records import SearchPage, SearchPlan
from hermes_store.sessions import SessionRepository
from hermes_store.sqlite.activity import activity_fault, has_unsettled, settle
from hermes_store.sqlite.backup import backup_to
from hermes_store.sqlite.capabilities import Capabilities, probe
from hermes_store.sqlite.decoded import DRAIN_WEIGHT, drain, has_queued, text_index_fault
from hermes_store.sqlite.engine import (
    BEGIN_OPTION,
    DEFAULT_TIMEOUT,
    TIMEOUT_OPTION,
    begin_now,
    busy_as_typed,
    make_engine,
    read_text,
)
from hermes_store.sqlite.gaps import incomplete_indexes
from hermes_store.sqlite.identity import FileIdentity
from hermes_store.sqlite.readonly import Reader, explain_open_error, open_reader, require_file
from hermes_store.sqlite.shape import Shape, inspect
from hermes_store.sqlite.temporary import temporary_objects
from hermes_store.sqlite.views import fit_connection, make_lineage_views, shadow_views
from hermes_store.sqlite.vocabulary import make_vocabulary
from hermes_store.target import resolve_target
from hermes_store.upkeep import Upkeep
from hermes_store.writing import Writer

log = logging.getLogger("hermes_store")

Migrate = Literal["auto", "check", "off"]


class UnitOfWork:
    """The repositories inside one transaction.

    Attributes:
        session: The SQLAlchemy session, for ORM queries of your own.
        sessions, messages, lineage, meta, locks: The repositories.
        shape: What the file is like, as this transaction sees it.
    """

    def __init__(self, session: Session, shape: Shape, whole: set[int] | None = None) -> None:
        self.session = session
        self.shape = shape
        self._whole = set() if whole is None else whole
        scope = OpenScope(session)
        self.sessions = SessionRepository(scope)
        self.messages = MessageRepository(scope)
        self.lineage = LineageRepository(scope)
        self.meta = MetaRepository(scope)
        self.locks = LockRepository(scope)

    def search(self, query: str, **filters: Any) -> SearchPage:
        """Search messages in this transaction; see `HermesStore.search`.

        Args:
            query: The query.
            filters: The keyword arguments of `HermesStore.search`.
        """
        return search(self.session.connection(), query, self._filters(filters), **self._abilities())

    def explain(self, query: str, **filters: Any) -> SearchPlan:
        """Say how a search would run; see `HermesStore.explain`.

        Args:
            query: The query.
            filters: The keyword arguments of `HermesStore.search`.
        """
        return explain(self.session.connection(), query, self._filters(filters), **self._abilities())

    def _abilities(self) -> dict[str, Any]:
        """What a search may believe: the file's shape, with indexes that lack messages, and the library's modules."""
        connection = self.session.connection()
        able = probe(connection, self.shape)  # first: where a damaged page was read, no temporary table can be made
        gaps: frozenset[str] = frozenset()
        if not self.shape.stale and self.shape.schema_cookie not in self._whole:
            gaps = incomplete_indexes(connection, self.shape)
            if not gaps:  # a gap is looked for again each time: an upgrade may have filled it
                self._whole.add(self.shape.schema_cookie)
        shape = replace(self.shape, incomplete=gaps)
        return {"shape": shape, "fts5": able.fts5, "trigram": able.trigram}

    def _filters(self, given: dict[str, Any]) -> Any:
        lineage_of = given.pop("lineage_of", None)
        if lineage_of is not None:
            root = self.lineage.root(lineage_of)
            family = [root, *self.lineage.descendants(root)]
            allowed = given.get("session_ids")
            given["session_ids"] = family if allowed is None else [one for one in family if one in set(allowed)]
        return make_filters(**given)


class HermesStore(Upkeep):
    """A Hermes ``state.db``, typed.

    Serves many threads; after ``fork()`` a child opens its own.

    Args:
        engine: A SQLite engine that the application owns. `close` leaves it open, and nothing is added to it: BEGIN
            is said by each unit of work, where the engine has not begun by itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader: Reader | None = None
        self._path: Path | None = None
        self._owns = False
        self._timeout = DEFAULT_TIMEOUT
        self._read_only = False
        self._driver: ModuleType | None = None
        self._reopen = threading.Lock()
        self._whole: set[int] = set()  # schema cookies under which no index was found to lack messages
        self._writer = Writer(engine, partial(self._connect, "immediate"), lambda *wrote: self._after_commit(*wrote))  # noqa: PLW0108
        self.sessions = SessionRepository(self)
        self.messages = MessageRepository(self)
        self.lineage = LineageRepository(self)
        self.meta = MetaRepository(self)
        self.locks = LockRepository(self)

    @classmethod
    def open(
        cls,
        target: str | os.PathLike[str] | URL | None = None,
        *,
        read_only: bool = False,
        migrate: Migrate = "check",
        driver: ModuleType | None = None,
        profile: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Self:
        """Open a store; costs nothing in proportion to the file.

        Args:
            target: A path, a ``sqlite:///`` URL, or None: ``$HERMES_STORE_URL``, else ``$HERMES_HOME/state.db``, else
                ``~/.hermes/state.db``.
            read_only: Change nothing, not a byte of the file or its write-ahead log.
            migrate: ``"auto"`` upgrades, creating a missing file; ``"check"`` raises when the file is behind;
                ``"off"`` opens what is there, of any released schema.
            driver: A DBAPI module other than the standard library's; see `hermes_store.sqlite.engine` for the risk.
            profile: A Hermes profile, instead of a target.
            timeout: Seconds to wait for the write lock.

        Raises:
            NotFoundError: There is no file, and ``migrate`` is not ``"auto"``.
            NotAStoreError, CorruptStoreError: The file is no store, or damaged.
            SchemaBehindError: The file is behind, and ``migrate`` is ``"check"``.
            SchemaTooNewError: A newer Hermes changed something this version relies on.
            ReadOnlyError: The file cannot be read without writing beside it.
            StoreBusyError: Somebody held the lock for the whole time.
            ValueError: ``migrate`` is unknown, or upgrades a file that was to be read only.
        """
        if migrate not in {"auto", "check", "off"}:
            raise ValueError(f"migrate must be 'auto', 'check' or 'off', not {migrate!r}")
        if migrate == "auto" and read_only:
            raise ValueError("migrate='auto' writes; use 'check' or 'off' with read_only=True")
        path = resolve_target(target, profile=profile)
        if migrate == "auto":
            migrations.upgrade(path, driver=driver, timeout=timeout, thorough=False)
        elif migrate == "check":
            _require_current(path, driver)
        if read_only:
            reader = open_reader(path, driver=driver, timeout=timeout)
            store = cls(reader.engine)
            store._reader = reader
        else:
            require_file(path)
            store = cls(make_engine(path, driver=driver, timeout=timeout))
        store._path, store._owns, store._timeout = path, True, timeout
        store._read_only, store._driver = read_only, driver
        store._writer.path, store._writer.timeout = path, timeout
        try:
            store._writer.identity = FileIdentity.of(path)
            require_known(path, require_store(path, store._engine))
        except BaseException:
            store.close()
            raise
        return store

    @property
    def path(self) -> Path | None:
        """The file; None when an application's engine was given."""
        return self._path

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """One read transaction: everything inside sees one state of the file.

        Yields:
            The unit of work; writing in it raises `ReadOnlyError`.
        """
        with self._connect("deferred") as (connection, shape), _ReadingSession(connection, autoflush=False) as session:
            yield UnitOfWork(session, shape, self._whole)
        if self._reader is not None:
            self._reader.confirm()

    @contextmanager
    def write(self, *, kind: WriteKind = "routine") -> Iterator[UnitOfWork]:
        """One write transaction: the lock is taken first, and committed when the block ends without an error.

        Args:
            kind: How long to wait for the lock: ``routine`` the store's timeout, ``transcript`` three times that,
                ``activity`` half a second.

        Yields:
            The unit of work.

        Raises:
            CorruptIndexError: A search index was damaged, and the block was rolled back; the indexes are detached now,
                so the same block succeeds when it is run again.
            CorruptStoreError: A table is damaged; nothing was written.
            ReadOnlyError: The store was opened read-only.
            SchemaBehindError: The file lacks columns of schema 31.
            StoreBusyError: The lock was not free in time.
            StoreReplacedError: The file was replaced or deleted since it was opened.
        """
        with self._require_writer().block(kind) as (session, shape):
            yield UnitOfWork(session, shape, self._whole)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The scope of ``store.sessions`` and the other repositories: one short read transaction."""
        with self.read() as unit:
            yield unit.session

    @contextmanager
    def writing(self, *, kind: WriteKind = "routine") -> Iterator[Session]:
        """The scope of ``store.sessions`` and the other repositories: one short write transaction.

        Args:
            kind: As for `write`.
        """
        with self.write(kind=kind) as unit:
            yield unit.session

    def run(self, write: Callable[[Session], Result], *, kind: WriteKind = "routine") -> Result:
        """Run a function in a short write transaction; a damaged search index does not keep it from being committed.

        Where the triggers of an index make it fail, it is run again in a transaction that detaches the indexes first.

        Args:
            write: The function; it may be called twice, so it makes the objects that it adds to the session.
            kind: As for `write`.

        Returns:
            What the function returned.

        Raises:
            CorruptStoreError: A table is damaged; nothing was written.
            ReadOnlyError, SchemaBehindError, StoreBusyError, StoreReplacedError: As for `write`.
        """
        return self._require_writer().run(write, kind)

    def search(self, query: str, **filters: Any) -> SearchPage:
        """Find messages.

        Args:
            query: Words (all of them), ``"phrases"``, ``word*``, ``AND``, ``OR``, ``NOT``, brackets, ``NEAR(a b, 5)``;
                any string is accepted.
            filters: ``roles``, ``sources``, ``exclude_sources``, ``session_ids`` (lists; None is no filter, an empty
                list allows nothing), ``lineage_of`` (a session, for all its relatives), ``after`` and ``before``
                (message time: aware datetime, ISO text, epoch seconds, or relative such as ``7d``), ``sort``
                (``rank``, ``newest``, ``oldest``), ``limit`` (20), ``offset`` (0), ``include_inactive``,
                ``include_archived``, ``include_hidden``, ``titles``, ``context``, ``timeout`` (seconds).

        Returns:
            The hits, which way they were found, and what to know about it.

        Raises:
            QueryError: There is nothing in the query to search for.
            ValueError: A filter has a value that means nothing; the message names it.
            StoreBusyError: The file was locked, or the time was up.
        """
        with self.read() as unit:
            return unit.search(query, **filters)

    def explain(self, query: str, **filters: Any) -> SearchPlan:
        """Say how a search would run, without running it.

        Args:
            query: The query.
            filters: As for `search`.
        """
        with self.read() as unit:
            return unit.explain(query, **filters)

    @property
    def schema(self) -> Shape:
        """What the file is like: tables, columns, search indexes and their state."""
        with self.read() as unit:
            return unit.shape

    @property
    def capabilities(self) -> Capabilities:
        """What the SQLite library in use can do with this file, and the remedy for what it cannot."""
        with self.read() as unit:
            return probe(unit.session.connection(), unit.shape)

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Path:
        """Write a verified copy of the store, readable by its owner only.

        Args:
            path: The new file; an existing one is never overwritten.
            progress: Called with pages copied and pages in all.

        Returns:
            The new file.

        Raises:
            ConflictError: The file exists.
            UpgradeError: The disk has no room for it.
            CorruptStoreError: The copy did not pass its check.
        """
        return backup_to(self._engine, Path(path), progress=progress, driver=self._driver)

    def close(self) -> None:
        """Close all connections; an engine that the application gave stays open."""
        if self._owns:
            if not self._read_only:
                self._writer.close()
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _connect(
        self, mode: Literal["deferred", "immediate"], timeout: float | None = None
    ) -> Iterator[tuple[Connection, Shape]]:
        engine, budget = self._current_engine(), self._timeout if timeout is None else timeout
        options = {BEGIN_OPTION: mode, TIMEOUT_OPTION: budget}
        with busy_as_typed(self._path), engine.connect().execution_options(**options) as connection:
            raw: Any = connection.connection.driver_connection
            factory, raw.text_factory = raw.text_factory, read_text
            # An application's engine may leave foreign keys off; a write of ours must not break them.
            keys_off = mode == "immediate" and not raw.execute("PRAGMA foreign_keys").fetchone()[0]
            try:
                try:
                    if keys_off:
                        raw.execute("PRAGMA foreign_keys=ON")
                    fitted = fit_connection(connection, Base.metadata)
                    begin(connection, mode, budget, restore=self._timeout)
                    shape = inspect(connection, fitted)
                except (DatabaseError, _driver_error(engine)) as error:
                    raise explain_open_error(self._path or Path("the database"), error) from error
                yield connection, shape
            finally:
                if connection.in_transaction():
                    connection.rollback()
                raw.text_factory = factory
                if keys_off:
                    raw.execute("PRAGMA foreign_keys=OFF")

    def _require_writer(self) -> Writer:
        if self._read_only:
            raise ReadOnlyError(f"{self._path} was opened read-only; open it without read_only to write")
        return self._writer

    def _after_commit(self, connection: Connection, shape: Shape) -> None:
        """Move some decoded texts into their index and settle some sessions' heads, if nobody else is writing.

        In a transaction of its own: where that index is damaged, SQLite rolls back more than a savepoint.
        """
        indexed, bounded = text_index_fault(shape) is None, activity_fault(shape) is None
        driver: Any = connection.connection.driver_connection  # past SQLAlchemy, which would begin a transaction
        try:
            if not ((indexed and has_queued(driver)) or (bounded and has_unsettled(driver))):
                return
            connection.execution_options(**{TIMEOUT_OPTION: 0.0})
            begin(connection, "immediate", 0.0, restore=self._timeout)
            if bounded:
                settle(connection)
            if indexed:
                drain(connection, DRAIN_WEIGHT)
            connection.commit()
        except (DatabaseError, StoreBusyError, _driver_error(self._engine)) as error:
            log.debug("decoded texts wait for the next write or upgrade: %s", type(error).__name__)

    def _current_engine(self) -> Engine:
        """The engine; made anew when it reads without locks and the file has changed since."""
        if self._reader is None or not self._reader.outdated:
            return self._engine
        with self._reopen:
            if self._reader.outdated:
                self._reader.engine.dispose()
                self._reader = open_reader(self._reader.path, driver=self._driver, timeout=self._timeout)
                self._engine = self._reader.engine
        return self._engine


def bind(session: Session) -> UnitOfWork:
    """Use the repositories inside a transaction that the application owns.

    Args:
        session: A SQLAlchemy session on a SQLite store; its transaction begins and ends elsewhere.

    Returns:
        The unit of work. On a file of an older schema, temporary views that complete it are made on the session's
        connection, inside its transaction.
    """
    connection = session.connection()
    shape = inspect(connection)
    driver: Any = connection.connection.driver_connection
    with temporary_objects(driver):
        for statement in shadow_views(shape, Base.metadata).values():
            connection.exec_driver_sql(statement.replace("CREATE TEMP VIEW", "CREATE TEMP VIEW IF NOT EXISTS", 1))
        make_vocabulary(driver)
        make_lineage_views(driver)
    return UnitOfWork(session, shape)


def begin(
    connection: Connection, mode: Literal["deferred", "immediate"], timeout: float, *, restore: float | None = None
) -> None:
    """Begin the transaction that a unit of work runs in.

    Our own engines say BEGIN by their event; an application's engine may leave it to the driver, which would begin
    too late (at the first write) or not at all.

    Args:
        connection: A connection on which nothing has begun.
        mode: Which BEGIN.
        timeout: Seconds to wait for the write lock.
        restore: Seconds of SQLite's own busy handler afterwards; the same when not given.
    """
    connection.begin()
    raw: Any = connection.connection.driver_connection
    if not raw.in_transaction:
        begin_now(connection, mode, timeout, restore=restore)


def _driver_error(engine: Engine) -> type[Exception]:
    """The driver's own error class: what is said to the driver itself does not pass through SQLAlchemy."""
    module: Any = engine.dialect.dbapi
    return cast("type[Exception]", module.DatabaseError)


def _require_current(path: Path, driver: ModuleType | None) -> None:
    try:
        status = migrations.check(path, driver=driver)
    except NotFoundError:
        raise NotFoundError(f"{path} does not exist; open it with migrate='auto' to create it") from None
    if status.is_behind:
        at = status.revision or (f"the shape of {status.recognised}" if status.recognised else "no known revision")
        raise SchemaBehindError(
            f"{path} is at {at}, this version at {status.head}; run: hermes-store upgrade {path} "
            "(or open it with migrate='auto', or with migrate='off' to read it as it is)"
        )


class _ReadingSession(Session):
    """A session that refuses to write what was changed in it."""


@event.listens_for(_ReadingSession, "before_flush")
def _refuse_to_write(session: Session, *_: Any) -> None:
    if session.new or session.dirty or session.deleted:
        raise ReadOnlyError("this unit of work only reads; use store.write()")


@event.listens_for(_ReadingSession, "do_orm_execute")
def _refuse_to_change(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        raise ReadOnlyError("this unit of work only reads; use store.write()")
