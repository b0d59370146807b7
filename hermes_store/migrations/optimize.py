"""Merging what many small writes left in the search indexes, in steps that keep nobody waiting.

Nothing else: no VACUUM, which needs the file for itself, and no statistics, by which Hermes's own queries would run
differently from then on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import DatabaseError

from hermes_store.migrations.filelock import upgrade_lock
from hermes_store.migrations.report import ProgressCallback, silent
from hermes_store.migrations.segments import merge
from hermes_store.migrations.steps import inspect_now, writing
from hermes_store.sqlite.decoded import TEXT_INDEX, is_index_failure, text_objects_fault
from hermes_store.sqlite.engine import busy_as_typed, make_engine
from hermes_store.sqlite.index_check import stated_fault
from hermes_store.sqlite.readonly import require_file
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX, Shape


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """What was merged.

    Attributes:
        merged: The indexes that consist of as few segments as they should now.
        skipped: The others, each with the reason.
        seconds: How long it took.
    """

    merged: tuple[str, ...]
    skipped: tuple[str, ...]
    seconds: float


def optimize(
    path: Path, progress: ProgressCallback | None = None, *, driver: ModuleType | None = None, timeout: float
) -> OptimizeReport:
    """Merge the segments of the search indexes.

    Args:
        path: The file.
        progress: Called after each step.
        driver: The DBAPI module to use.
        timeout: Seconds to wait for the write lock.

    Returns:
        What was merged, and what was not.

    Raises:
        NotFoundError: There is no such file.
        StoreBusyError: Another writer, or an upgrade, did not make room.
    """
    started = time.monotonic()
    merged, skipped = [], []
    require_file(path)
    engine = make_engine(path, driver=driver, timeout=timeout)
    try:
        with upgrade_lock(path), busy_as_typed(path):
            shape = inspect_now(engine)
            for name in (WORD_INDEX, TRIGRAM_INDEX, TEXT_INDEX):
                fault = _fault(shape, name)
                if fault is None:
                    try:
                        with writing(engine) as writer:
                            merge(writer, progress or silent, name)
                    except DatabaseError as error:
                        if not is_index_failure(error):
                            raise
                        fault = "is damaged; rebuild it"
                if fault is None:
                    merged.append(name)
                else:
                    skipped.append(f"{name} {fault}")
    finally:
        engine.dispose()
    return OptimizeReport(tuple(merged), tuple(skipped), time.monotonic() - started)


def _fault(shape: Shape, name: str) -> str | None:
    if name == TEXT_INDEX:
        return text_objects_fault(shape)
    found = shape.word if name == WORD_INDEX else shape.trigram
    return "was written by a Hermes unknown to us" if found.unknown else stated_fault(shape, name)
