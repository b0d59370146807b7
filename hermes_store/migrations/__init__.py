"""Upgrading a file: revisions, the work they leave, and the safety around both.

The shape of it: `runner` is the one path every upgrade takes. It asks `preflight` whether the file may be touched,
keeps a backup, lets Alembic run the revisions of `chain` (made of `ensure` and, for the indexes, `search_objects` and
`text_objects`), then runs `pending` to its end (with `text_fill`, in the steps of `steps`). `filelock` keeps several
upgrades, and Hermes's own index rebuilds, apart. `environment` is what ``alembic/env.py`` calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection

from hermes_store.errors import UpgradeError
from hermes_store.migrations import environment
from hermes_store.migrations.chain import Revision, chain, make_config, missing_pieces, recognise, stamped_revision
from hermes_store.migrations.filelock import PROCESS_LOCK, upgrade_lock
from hermes_store.migrations.pending import is_pending
from hermes_store.migrations.preflight import require_known, require_store
from hermes_store.migrations.report import Progress, ProgressCallback, UpgradeReport
from hermes_store.migrations.runner import RevisionRun, run_upgrade
from hermes_store.migrations.steps import inspect_now
from hermes_store.sqlite.engine import BEGIN_OPTION, DEFAULT_TIMEOUT, make_engine
from hermes_store.sqlite.readonly import open_reader, require_file
from hermes_store.target import resolve_target

__all__ = [
    "Progress",
    "ProgressCallback",
    "Revision",
    "SchemaStatus",
    "UpgradeReport",
    "check",
    "current",
    "downgrade",
    "history",
    "stamp_existing",
    "upgrade",
]

Target = str | os.PathLike[str] | URL | None


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """How far a file is, by its stamp and by its shape.

    Attributes:
        revision: The stamp; None on a file no upgrade of ours has seen.
        recognised: The last revision of which nothing is missing, whatever the stamp says.
        head: The newest revision of this version.
        schema_version: Hermes's own number; None when the file has none.
        newer: The file is newer than everything this version knows, and holds all that it needs.
        missing: What the chain would add, such as ``column messages.message_uid``.
        pending: There is indexing or other long work that an upgrade would finish.
    """

    revision: str | None
    recognised: str | None
    head: str
    schema_version: int | None
    newer: bool
    missing: tuple[str, ...]
    pending: bool

    @property
    def is_behind(self) -> bool:
        """True when an upgrade has revisions to run or something to add."""
        return not self.newer and (self.revision != self.head or bool(self.missing))


def upgrade(
    target: Target = None,
    revision: str = "head",
    progress: ProgressCallback | None = None,
    *,
    backup: bool = True,
    driver: ModuleType | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    thorough: bool = True,
) -> UpgradeReport:
    """Bring a file to a revision, with everything that belongs to it; run it again at any time.

    Args:
        target: A path, a URL, or None for the place Hermes uses.
        revision: A revision's id, or ``head``.
        progress: Called with each step of long work.
        backup: Keep the old state beside the file first, once per distinct state.
        driver: A DBAPI module other than the standard library's.
        timeout: Seconds to wait for the write lock.
        thorough: On a file that is at head, compare its indexes with its messages row by row as well, which takes
            time in proportion to the file.

    Returns:
        What was found and done.

    Raises:
        NotAStoreError, CorruptStoreError, SchemaTooNewError: The file is not one to upgrade; nothing was written.
        StoreBusyError: Another writer, or another upgrade, did not make room.
        UpgradeError: No room for the backup, or a revision failed; the message says what to do.
    """

    def run_revisions(connection: Connection, run: RevisionRun) -> None:
        config = make_config()
        config.attributes[environment.CONNECTION] = connection
        config.attributes[environment.RUN] = run
        with _explained():
            command.upgrade(config, revision)

    return run_upgrade(
        resolve_target(target),
        revision,
        run_revisions,
        progress=progress,
        backup=backup,
        driver=driver,
        timeout=timeout,
        thorough=thorough,
    )


def downgrade(target: Target, revision: str, *, driver: ModuleType | None = None) -> None:
    """Take revisions of ours (``hs…``) back; those of Hermes cannot be.

    Args:
        target: A path, a URL, or None for the place Hermes uses.
        revision: The revision to go back to, ``h31`` at the least.
        driver: A DBAPI module other than the standard library's.

    Raises:
        UpgradeError: The revision lies below what Hermes owns, or no upgrade of ours has seen the file; nothing was
            changed.
    """
    if current(target, driver=driver) is None:
        raise UpgradeError(f"{resolve_target(target)} has no revision of ours that could be taken back")
    _run_command(target, lambda config: command.downgrade(config, revision), driver)


def current(target: Target = None, *, driver: ModuleType | None = None) -> str | None:
    """Read a file's stamp without changing it.

    Args:
        target: A path, a URL, or None for the place Hermes uses.
        driver: A DBAPI module other than the standard library's.

    Returns:
        A revision's id, or None on a file no upgrade of ours has seen.
    """
    return check(target, driver=driver).revision


def history() -> list[Revision]:
    """All revisions, oldest first."""
    with PROCESS_LOCK:
        return [Revision(script.revision, script.doc.splitlines()[0]) for script in chain()]


def check(target: Target = None, *, driver: ModuleType | None = None) -> SchemaStatus:
    """Say how far a file is, without changing it.

    Args:
        target: A path, a URL, or None for the place Hermes uses.
        driver: A DBAPI module other than the standard library's.

    Returns:
        The status; a few milliseconds, whatever the size of the file.

    Raises:
        NotFoundError, NotAStoreError, SchemaTooNewError, ReadOnlyError: As opening the file would.
    """
    path = resolve_target(target)
    reader = open_reader(path, driver=driver)
    try:
        shape = require_store(path, reader.engine)
        newer = require_known(path, shape)
        with reader.engine.connect() as connection:
            stamp = stamped_revision(connection, shape)
        with PROCESS_LOCK:
            revisions = chain()
        missing = tuple(piece for script in revisions for piece in missing_pieces(script, shape))
        return SchemaStatus(
            revision=stamp,
            recognised=recognise(shape, revisions),
            head=revisions[-1].revision,
            schema_version=shape.schema_version,
            newer=newer,
            missing=missing,
            pending="state_meta" in shape.columns and not missing and is_pending(reader.engine, thorough=False),
        )
    finally:
        reader.engine.dispose()


def stamp_existing(target: Target = None, *, driver: ModuleType | None = None) -> str:
    """Stamp a file with the revision its shape has reached, changing nothing else.

    An upgrade does not need it; it recognises a file by itself.

    Args:
        target: A path, a URL, or None for the place Hermes uses.
        driver: A DBAPI module other than the standard library's.

    Returns:
        The revision's id.

    Raises:
        UpgradeError: Even the first schema is incomplete; the message lists what is missing.
    """
    path = resolve_target(target)
    require_file(path)
    engine = make_engine(path, driver=driver)
    try:
        require_store(path, engine)
        shape = inspect_now(engine)
    finally:
        engine.dispose()
    with PROCESS_LOCK:
        revisions = chain()
    reached = recognise(shape, revisions)
    if reached is None:
        missing = ", ".join(missing_pieces(revisions[0], shape))
        raise UpgradeError(f"{path} has not even the first schema (missing: {missing}); upgrade it instead")
    _run_command(target, lambda config: command.stamp(config, reached, purge=True), driver)
    return reached


@contextmanager
def _explained() -> Iterator[None]:
    """Turn Alembic's own refusals, such as of a revision that is not in the chain, into ours."""
    try:
        yield
    except CommandError as error:
        raise UpgradeError(f"{error}; `alembic history` lists the revisions") from error


def _run_command(target: Target, run: Callable[[Config], None], driver: ModuleType | None) -> None:
    path = resolve_target(target)
    require_file(path)
    engine = make_engine(path, driver=driver)
    try:
        require_store(path, engine)
        with upgrade_lock(path), engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
            config = make_config()
            config.attributes[environment.CONNECTION] = connection
            with _explained():
                run(config)
    finally:
        engine.dispose()
