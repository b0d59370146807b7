"""One path for every upgrade: checks, backup, revisions, pending work, report.

``migrate="auto"``, ``hermes-store upgrade`` and ``alembic upgrade`` all come through `run_upgrade`. It looks before it
writes: a file that needs nothing is not written to, and a file that needs something is checked and backed up first.

The stamp only says which revisions Alembic would run. What a file really has is found by running the stamped
revisions again, inside a transaction that is rolled back if it turns out to change anything, so that the backup comes
first: Hermes may have rewritten a trigger or set a marker since the file was stamped.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from alembic.script import Script
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.errors import HermesStoreError, ReadOnlyError, StoreBusyError, UpgradeError
from hermes_store.migrations.chain import apply_again, chain, recognise, stamped_revision
from hermes_store.migrations.filelock import rebuild_lock, upgrade_lock
from hermes_store.migrations.pending import PendingWork, detach_damaged, is_pending
from hermes_store.migrations.preflight import require_known, require_sound, require_store
from hermes_store.migrations.report import Progress, ProgressCallback, UpgradeReport, silent
from hermes_store.migrations.search_objects import describe_unknown, hands_off
from hermes_store.migrations.steps import inspect_now
from hermes_store.migrations.text_fill import is_text_queued
from hermes_store.models import Base
from hermes_store.sqlite.backup import backup_beside
from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import is_damage
from hermes_store.sqlite.engine import BEGIN_OPTION, DEFAULT_TIMEOUT, driver_error, is_busy, make_engine, row_changes
from hermes_store.sqlite.journal import create_file
from hermes_store.sqlite.readonly import require_file
from hermes_store.sqlite.shape import Shape, inspect

#: From here on the search indexes are in layout 3 and there may be pending work.
_FIRST_WITH_PENDING_WORK = "h31"
#: Makes the decoded-text index.
_DECODED_TEXT = "hs03"

RunRevisions = Callable[[Connection, "RevisionRun"], None]


@dataclass(slots=True)
class RevisionRun:
    """What Alembic's environment needs while it runs revisions for us.

    Attributes:
        report: Where revisions say what they did.
        progress: Called before each revision.
        orphans: Broken foreign keys the file came with, counted; a revision that adds one is rolled back.
        changes: SQLite's count of changed rows when the last revision was done.
    """

    report: UpgradeReport
    progress: ProgressCallback
    orphans: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: int = field(default=0)

    def applied(self, connection: Connection, revision: str) -> None:
        """Check a revision inside its transaction, before it is committed.

        Args:
            connection: The connection it ran on.
            revision: Its id.

        Raises:
            UpgradeError: It broke a foreign key that was whole.
        """
        self.progress(Progress("revision", 0, 0, revision))
        changes = row_changes(connection)
        if changes - self.changes > 1:  # the stamp itself is one change
            broken = foreign_key_orphans(connection) - self.orphans
            if broken:
                tables = ", ".join(sorted({table for table, _ in broken}))
                raise UpgradeError(f"{revision} would break foreign keys in {tables}; it was rolled back")
        self.changes = changes


def run_upgrade(
    path: Path,
    revision: str,
    run_revisions: RunRevisions,
    *,
    progress: ProgressCallback | None = None,
    backup: bool = True,
    driver: ModuleType | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    thorough: bool = True,
) -> UpgradeReport:
    """Upgrade a file, creating it if it is missing.

    Args:
        path: The file.
        revision: Where to: a revision's id, ``head``, or a relative one such as ``+1``.
        run_revisions: Runs Alembic's revisions up to there on the connection it is given.
        progress: Called with each step.
        backup: Keep the old state beside the file first.
        driver: The DBAPI module to use.
        timeout: Seconds to wait for the write lock.
        thorough: On a file that is at head, compare its indexes with its messages row by row as well.

    Returns:
        What was found and done.

    Raises:
        NotAStoreError, CorruptStoreError, SchemaTooNewError: The file is not one to upgrade; nothing was written.
        StoreBusyError: Another writer, or another upgrade, did not make room.
        UpgradeError: No room for the backup, or a revision failed; the message says what to do.
    """
    started = time.monotonic()
    report = UpgradeReport(path=path)
    module: Any = driver or sqlite3
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with upgrade_lock(path):
        try:
            if not path.exists():
                with suppress(FileExistsError):  # Hermes was first; then it is a file like any other
                    create_file(path, driver=driver)
                    report.created = report.changed = True
            require_file(path)
            engine = make_engine(path, driver=driver, timeout=timeout)
            try:
                upgrade = _Upgrade(path, engine, report, progress or silent, driver)
                upgrade.run(revision, run_revisions, backup=backup, thorough=thorough)
            finally:
                engine.dispose()
        except (DatabaseError, module.Error) as error:  # settings of a connection are made past SQLAlchemy
            raise _explain(path, error) from error
    report.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class _Upgrade:
    """The upgrade of one open file."""

    path: Path
    engine: Engine
    report: UpgradeReport
    progress: ProgressCallback
    driver: ModuleType | None
    revisions: Sequence[Script] = field(default_factory=chain)

    def run(self, revision: str, run_revisions: RunRevisions, *, backup: bool, thorough: bool) -> None:
        shape = require_store(self.path, self.engine)
        with self.engine.connect() as connection:
            stamp = stamped_revision(connection, shape)
        guess = None if stamp else recognise(shape, self.revisions)
        self.report.before = self.report.after = stamp or (f"~{guess}" if guess else None)
        if require_known(self.path, shape):
            self.report.note(f"Hermes schema {shape.schema_version} is newer than this version knows; left as it is")
            if hands_off(shape):
                self.report.leave_pending(describe_unknown(shape))
            return
        stamped = self._up_to(stamp)
        ahead = self._up_to(revision)[len(stamped) :] if not revision.startswith("+") else [self.revisions[-1]]
        if not ahead and not self._differs(stamped) and not self._is_pending(stamped, thorough=thorough):
            if is_text_queued(self.engine):  # the everyday case; nothing but an index of ours changes, so no backup
                self._finish(self._pending_work().drain())
                self.report.changed = True
            return
        self._secure(shape, backup=backup)
        self.report.rows_before = self._count_rows()
        detach_damaged(self.engine)
        self._run_revisions(stamped, run_revisions if ahead else None)
        if (self.report.after or "") >= _FIRST_WITH_PENDING_WORK:
            self._finish(self._pending_work().run())
        self.report.rows_after = self._count_rows()
        self.report.changed = True

    def _up_to(self, revision: str | None) -> Sequence[Script]:
        if revision is None:
            return ()
        if revision in {"head", "heads"}:
            return self.revisions
        for place, script in enumerate(self.revisions):
            if script.revision == revision:
                return self.revisions[: place + 1]
        raise UpgradeError(f"{revision} is no revision of this version: update hermes-store, or name another one")

    def _differs(self, stamped: Sequence[Script]) -> bool:
        """Whether the stamped revisions find anything to do; found out by letting them, and rolling back."""
        trial = UpgradeReport(path=self.path)
        with self.engine.connect() as connection:
            try:
                # Deferred: as long as nothing has to be written, this waits for nobody and nobody for it.
                probe(connection, inspect(connection))  # its temporary tables must not count as a difference
                before = _fingerprint(connection)
                apply_again(connection, stamped, trial)
                differs = _fingerprint(connection) != before
            except DatabaseError as error:
                if not is_busy(error) and not is_damage(error):
                    raise
                differs = True  # it wanted to write while somebody else was writing, or met a damaged index
            connection.rollback()
        for left in trial.pending:
            self.report.leave_pending(left)
        return differs

    def _is_pending(self, stamped: Sequence[Script], *, thorough: bool) -> bool:
        has_work = stamped and stamped[-1].revision >= _FIRST_WITH_PENDING_WORK
        return bool(has_work) and is_pending(self.engine, thorough=thorough)

    def _secure(self, shape: Shape, *, backup: bool) -> None:
        """Check the tables and keep a copy, unless there is nothing to lose."""
        with self.engine.connect() as connection:
            tables = [name for name in Base.metadata.tables if name in shape.columns]
            empty = all(connection.exec_driver_sql(f"SELECT 1 FROM {name} LIMIT 1").first() is None for name in tables)
        if empty:
            return
        self.progress(Progress("check", 0, 0))
        require_sound(self.path, self.engine, shape)
        if backup:
            self.report.backup = backup_beside(
                self.engine,
                self.path,
                progress=lambda done, total: self.progress(Progress("backup", done, total)),
                driver=self.driver,
            )

    def _run_revisions(self, stamped: Sequence[Script], run_revisions: RunRevisions | None) -> None:
        with rebuild_lock(self.path), self._writer() as connection:
            raw: Any = connection.connection.driver_connection
            raw.execute("PRAGMA foreign_keys=OFF")  # a no-op inside a transaction, so before the first one
            try:
                with connection.begin():
                    run = RevisionRun(self.report, self.progress, foreign_key_orphans(connection))
                    run.changes = row_changes(connection)
                    if stamped:
                        apply_again(connection, stamped, self.report)
                        run.applied(connection, stamped[-1].revision)
                if run_revisions is not None:
                    run_revisions(connection, run)
                if connection.in_transaction():
                    connection.rollback()
                self.report.after = stamped_revision(connection, inspect_now(self.engine))
            finally:
                if connection.in_transaction():
                    connection.rollback()
                raw.execute("PRAGMA foreign_keys=ON")

    def _pending_work(self) -> PendingWork:
        return pending_work(self.path, self.engine, self.progress, self.report.note)

    def _finish(self, left: list[str]) -> None:
        for problem in left:
            self.report.leave_pending(problem)

    def _count_rows(self) -> dict[str, int]:
        shape = inspect_now(self.engine)
        with self.engine.connect() as connection:
            return {
                name: int(connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one())
                for name in Base.metadata.tables
                if name in shape.columns
            }

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
            yield connection


def pending_work(path: Path, engine: Engine, progress: ProgressCallback, note: Callable[[str], None]) -> PendingWork:
    """Make what does the long work of a file, with the revisions' own ways of laying an index out.

    Args:
        path: The file.
        engine: A writable engine of it.
        progress: Called after each step.
        note: Called with what the user should know.
    """
    modules: dict[str, Any] = {script.revision: script.module for script in chain()}

    def swap(connection: Connection, reason: str) -> None:
        with rebuild_lock(path):
            modules[_FIRST_WITH_PENDING_WORK].swap_search_indexes(connection)
        note(f"search indexes laid out anew: {reason}")

    return PendingWork(engine, progress, swap, modules[_DECODED_TEXT].renew_text_index, note)


def foreign_key_orphans(connection: Connection) -> Counter[tuple[str, str]]:
    """Count the broken foreign keys of Hermes's tables; real files hold some.

    Other programs' tables are left out: SQLite raises for a key that does not fit its parent, and none of ours is one.

    Args:
        connection: A connection.

    Returns:
        Child and parent table to the number of rows. Not the rows: a table that is rebuilt numbers its rows anew.
    """
    shape = inspect(connection)
    tables = [
        table.name for table in Base.metadata.tables.values() if table.foreign_keys and table.name in shape.columns
    ]
    return Counter(
        (str(child), str(parent))
        for table in tables
        for child, _, parent, _ in connection.exec_driver_sql(f"PRAGMA main.foreign_key_check({table})")
    )


def _fingerprint(connection: Connection) -> tuple[int, int, int]:
    """Moves with every change of rows, schema or application id, also inside a transaction."""
    cookie = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    return row_changes(connection), cookie, connection.exec_driver_sql("PRAGMA application_id").scalar_one()


def _explain(path: Path, error: Exception) -> HermesStoreError:
    code, text = driver_error(error)
    if is_busy(error):
        return StoreBusyError(f"{path} is locked by another process; what was done so far stays: run the upgrade again")
    if code == sqlite3.SQLITE_READONLY or "readonly" in text:
        return ReadOnlyError(f"{path} cannot be written; check the permissions of the file and its folder")
    return UpgradeError(f"{path}: {text}; the step was rolled back: see what it says, then run the upgrade again")


def summarise(rows_before: Mapping[str, int], rows_after: Mapping[str, int]) -> list[str]:
    """Describe how the row counts changed.

    Args:
        rows_before: Rows per table before.
        rows_after: Rows per table after.

    Returns:
        One line per table that has rows, such as ``messages: 332 rows, unchanged``.
    """
    lines = []
    for table, after in rows_after.items():
        before = rows_before.get(table, 0)
        if before or after:
            lines.append(f"{table}: {after} rows, {'unchanged' if before == after else f'{after - before:+d}'}")
    return lines
