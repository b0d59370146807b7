"""Making the search indexes anew, or completing them, on a file that is used meanwhile.

The way is that of an upgrade: where an index is detached, damaged, or fed by the wrong triggers, both are swapped for
empty ones in one short transaction; then the pending work fills them in small steps. Whoever stops in between goes on
by calling again, or lets Hermes or the next upgrade do it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from hermes_store.errors import SchemaBehindError
from hermes_store.migrations.filelock import upgrade_lock
from hermes_store.migrations.preflight import require_sound
from hermes_store.migrations.report import ProgressCallback, UpgradeReport, silent
from hermes_store.migrations.runner import pending_work
from hermes_store.migrations.search_objects import capable, describe_unknown, hands_off
from hermes_store.migrations.steps import inspect_now
from hermes_store.models import Base
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine
from hermes_store.sqlite.index_check import index_fault
from hermes_store.sqlite.readonly import explain_open_error, require_file
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX, inspect
from hermes_store.sqlite.views import shadow_views


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found and did.

    Attributes:
        reasons: Why the indexes were made anew, one for each; empty when they could stay and were completed at most.
        notes: What else was done.
        pending: What could not be finished here, with the remedy.
        seconds: How long it took.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    pending: tuple[str, ...]
    seconds: float


def rebuild_indexes(
    path: Path,
    progress: ProgressCallback | None = None,
    *,
    force: bool = False,
    driver: ModuleType | None = None,
    timeout: float,
) -> RebuildReport:
    """Make the search indexes of a file whole.

    Args:
        path: The file.
        progress: Called after each step.
        force: Make them anew although nothing seems to be wrong.
        driver: The DBAPI module to use.
        timeout: Seconds to wait for the write lock.

    Returns:
        What was found and done.

    Raises:
        CorruptStoreError: A table is damaged; nothing was written.
        NotFoundError: There is no such file.
        SchemaBehindError: It lacks columns of schema 31; an upgrade makes the indexes, too.
        StoreBusyError: Another writer, or an upgrade, did not make room.
    """
    started = time.monotonic()
    report = UpgradeReport(path=path)
    require_file(path)
    engine = make_engine(path, driver=driver, timeout=timeout)
    try:
        with upgrade_lock(path), _explained(path):
            faults = {name: index_fault(engine, name) for name in (WORD_INDEX, TRIGRAM_INDEX)}
            reasons = [f"{name} {fault}" for name, fault in faults.items() if fault is not None]
            if force and not reasons:
                reasons.append("asked for")
            if reasons:
                require_sound(path, engine, inspect_now(engine))  # it is from the messages that they are made
            work = pending_work(path, engine, progress or silent, report.note)
            with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as writer, writer.begin():
                able = _able(writer, path, report)
                if able and reasons:
                    work.swap(writer, "; ".join(reasons))
            if able:
                for problem in work.run():
                    report.leave_pending(problem)
    finally:
        engine.dispose()
    return RebuildReport(
        reasons=tuple(reasons) if able else (),
        notes=tuple(report.notes),
        pending=tuple(report.pending),
        seconds=time.monotonic() - started,
    )


def _able(writer: Connection, path: Path, report: UpgradeReport) -> bool:
    shape = inspect(writer)
    behind = next(iter(shadow_views(shape, Base.metadata)), None)
    if behind is not None:
        raise SchemaBehindError(f"{path} lacks columns of schema 31 (in {behind}); run: hermes-store upgrade {path}")
    if hands_off(shape):
        report.leave_pending(describe_unknown(shape))
        return False
    return capable(writer, shape, report)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise explain_open_error(path, error) from error
