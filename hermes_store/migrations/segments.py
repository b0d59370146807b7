"""The segments of an FTS5 index while it is filled: they pile up, and are merged in steps of our own.

FTS5 would merge inside the writes, and hold the lock for much longer than a step may.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from hermes_store.migrations import steps
from hermes_store.migrations.report import Progress, ProgressCallback
from hermes_store.migrations.steps import read_value, step
from hermes_store.sqlite.engine import row_changes

#: Segments may pile up while filling (merging is put off), but FTS5 allows 2,000 and slows down long before.
STEPS_BETWEEN_MERGES = 400
_CRISIS_MERGE = 1_500
#: FTS5's own defaults, put back at the end.
_DEFAULT_AUTOMERGE, _DEFAULT_CRISIS_MERGE = 4, 16


def put_off_merging(writer: Connection, *names: str) -> None:
    """Let segments pile up; the setting stays in the file until `finish_merging`.

    Args:
        writer: A connection of `hermes_store.migrations.steps.writing`.
        names: The indexes.
    """
    _settings(writer, names, automerge=0, crisis=_CRISIS_MERGE)


def is_merging_put_off(engine: Engine, *names: str) -> bool:
    """Say whether an index has other settings than FTS5's own.

    Args:
        engine: An engine of the file.
        names: The indexes.
    """
    query = "SELECT 1 FROM {}_config WHERE (k = 'automerge' AND v <> {}) OR (k = 'crisismerge' AND v <> {})"
    defaults = (_DEFAULT_AUTOMERGE, _DEFAULT_CRISIS_MERGE)
    return any(read_value(engine, query.format(name, *defaults)) for name in names)


def finish_merging(engine: Engine, writer: Connection, progress: ProgressCallback, *names: str) -> None:
    """Merge what a fill piled up, and put FTS5's own settings back; nothing where they are there.

    Args:
        engine: An engine of the file.
        writer: A connection of `hermes_store.migrations.steps.writing`.
        progress: Called after each step.
        names: The indexes.
    """
    if is_merging_put_off(engine, *names):
        merge(writer, progress, *names)
        _settings(writer, names, automerge=_DEFAULT_AUTOMERGE, crisis=_DEFAULT_CRISIS_MERGE)


def merge(writer: Connection, progress: ProgressCallback, *names: str) -> None:
    """Merge segments until there is nothing to merge.

    Args:
        writer: A connection of `hermes_store.migrations.steps.writing`.
        progress: Called after each step.
        names: The indexes.
    """
    for name in names:
        pages, done, more = 16, 0, True
        while more:
            with step(writer) as clock:
                before = row_changes(writer)
                _command(writer, name, "merge", pages)
                more = row_changes(writer) - before >= 2  # noqa: PLR2004 - FTS5's own sign of work done
            done += pages
            pages = steps.paced(pages, clock.held)
            progress(Progress("merge", done, 0, name))


def _settings(writer: Connection, names: tuple[str, ...], *, automerge: int, crisis: int) -> None:
    with step(writer):
        for name in names:
            _command(writer, name, "automerge", automerge)
            _command(writer, name, "crisismerge", crisis)


def _command(connection: Connection, name: str, command: str, value: int) -> None:
    connection.exec_driver_sql(f"INSERT INTO {name} ({name}, rank) VALUES (?, ?)", (command, value))
