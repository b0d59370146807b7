"""Checking a file: its tables, its search indexes, all of it. Nothing is written, and no lock keeps a writer out.

What is found has a name, a problem and a remedy. Damage of a table and damage of an index are different things: an
index can be made anew from the messages, a message from nothing but a backup.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.migrations.pending import disagreeing_indexes
from hermes_store.migrations.text_fill import is_text_pending
from hermes_store.models import Base
from hermes_store.sqlite.damage import first_damage, is_damage
from hermes_store.sqlite.decoded import TEXT_INDEX, is_index_failure, text_index_fault
from hermes_store.sqlite.engine import driver_error
from hermes_store.sqlite.index_check import index_fault, stated_fault
from hermes_store.sqlite.shape import CJK_INDEX, CJK_STALE_KEY, TRIGRAM_INDEX, WORD_INDEX, Shape, inspect
from hermes_store.sqlite.views import quoted

Level = Literal["quick", "indexes", "full"]
Kind = Literal["table", "index", "rows", "file"]

_REMEDIES: dict[Kind, str] = {
    "table": "restore a backup, or recover the file with SQLite's .recover",
    "index": "store.rebuild_index(), or hermes-store upgrade",
    "rows": "none is needed: such rows are shown and flagged",
    "file": "VACUUM, when no other program has the file open",
}

#: Beginnings of what SQLite's check of the whole file says that is not damage of a table.
_NO_DAMAGE = ("ok", "***", "malformed inverted index", "unable to validate the inverted index")


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """One thing that is wrong.

    Attributes:
        kind: ``table`` (messages or other data are damaged), ``index`` (can be made anew), ``rows`` (odd ones, such as
            those whose session is gone), ``file`` (pages that nothing uses).
        name: The table or index.
        problem: What is wrong with it, to be read after the name.
        remedy: What to do.
    """

    kind: Kind
    name: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found.

    Attributes:
        level: How thorough the look was.
        findings: What is wrong.
        seconds: How long it took.
    """

    level: Level
    findings: tuple[VerifyFinding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True when neither a table nor an index is damaged."""
        return not any(finding.kind in {"table", "index"} for finding in self.findings)


def verify(engine: Engine, level: Level) -> VerifyReport:
    """Check a file.

    Args:
        engine: An engine of the file.
        level: ``quick``: the structure of the tables, and what the file says of its indexes. ``indexes``: also every
            entry of the indexes, and whether they hold the messages they should. ``full``: also the whole file and its
            foreign keys. Each takes time in proportion to the file.

    Returns:
        What was found.

    Raises:
        ValueError: There is no such level.
    """
    if level not in get_args(Level):
        raise ValueError(f"level must be 'quick', 'indexes' or 'full', not {level!r}")
    started = time.monotonic()
    with engine.connect() as connection:
        shape = inspect(connection)
    findings = [*_tables(engine, shape), *_stated(shape)]
    sound = all(finding.kind != "table" for finding in findings)
    if level != "quick" and sound:  # whatever reads a damaged table only fails
        findings += _indexes(engine, {finding.name for finding in findings})
    if level == "full":
        findings += _pages(engine, explained=any(finding.kind in {"table", "index"} for finding in findings))
        findings += _orphans(engine, shape) if sound else ()
    return VerifyReport(level, tuple(dict.fromkeys(findings)), time.monotonic() - started)


def _finding(kind: Kind, name: str, problem: str) -> VerifyFinding:
    return VerifyFinding(kind, name, problem, _REMEDIES[kind])


def _tables(engine: Engine, shape: Shape) -> Iterator[VerifyFinding]:
    for table in Base.metadata.tables:
        if table not in shape.columns:
            continue
        problem = None
        # A transaction for each: one that met a damaged page can fail at anything else.
        with engine.connect() as connection:
            try:
                rows = connection.exec_driver_sql(f"PRAGMA main.quick_check({quoted(table)})").scalars().all()
                problem = first_damage(rows)
                odd = [row for row in rows if row != "ok"] if problem is None else []
            except DatabaseError as error:
                if not is_damage(error):
                    raise
                problem, odd = driver_error(error)[1], []
        if problem is not None:
            yield _finding("table", table, f"is damaged ({problem})")
        elif odd:
            yield _finding("rows", table, f"has rows whose cells are not what their columns declare ({len(odd)} found)")


def _stated(shape: Shape) -> Iterator[VerifyFinding]:
    for name in (WORD_INDEX, TRIGRAM_INDEX):
        fault = stated_fault(shape, name)
        if fault is not None:
            yield _finding("index", name, fault)
    if shape.rebuild is not None:
        yield _finding("index", WORD_INDEX, "is not filled to its end; searches scan the rest")
    if CJK_STALE_KEY in shape.meta:
        yield VerifyFinding("index", CJK_INDEX, "was detached", "a Hermes that has its tokenizer makes it anew")
    # Files that no upgrade of ours has seen do not have this one.
    text = text_index_fault(shape) if shape.has("table", TEXT_INDEX) else None
    if text is not None:
        yield _finding("index", TEXT_INDEX, text)


def _indexes(engine: Engine, named: set[str]) -> Iterator[VerifyFinding]:
    for name in (WORD_INDEX, TRIGRAM_INDEX):
        fault = None if name in named else index_fault(engine, name)
        if fault is not None:
            named.add(name)
            yield _finding("index", name, fault)
    if not {WORD_INDEX, TRIGRAM_INDEX} & named:
        for name in disagreeing_indexes(engine):
            yield _finding("index", name, "does not hold exactly the messages that belong in it")
    if TEXT_INDEX not in named and is_text_pending(engine, thorough=True):
        yield _finding("index", TEXT_INDEX, "is damaged, or lacks texts")


def _pages(engine: Engine, *, explained: bool) -> Iterator[VerifyFinding]:
    """Check all pages of the file, also those that belong to no table of Hermes."""
    lost = 0
    with engine.connect() as connection:
        try:
            rows = connection.exec_driver_sql("PRAGMA main.integrity_check").scalars().all()
        except DatabaseError as error:
            if not is_damage(error) and not is_index_failure(error):
                raise
            # An index that cannot even be opened ends the check in newer SQLite libraries.
            rows = [driver_error(error)[1]] if is_damage(error) else []
    for line in (line for row in rows for line in row.splitlines()):
        if line.endswith("never used"):
            lost += 1
        # Whether an index can be read was found out before; SQLite's alarm about one may be false.
        elif not explained and not line.startswith(_NO_DAMAGE) and first_damage([line]) is not None:
            yield _finding("table", "the file", f"is damaged ({line})")
    if lost:
        yield _finding("file", "the file", f"has {lost} pages that nothing uses")


def _orphans(engine: Engine, shape: Shape) -> Iterator[VerifyFinding]:
    for name, table in Base.metadata.tables.items():
        if name in shape.columns and table.foreign_keys:
            with engine.connect() as connection:
                orphans = connection.exec_driver_sql(f"PRAGMA main.foreign_key_check({quoted(name)})").all()
            if orphans:
                yield _finding("rows", name, f"has {len(orphans)} rows that name what does not exist")
