"""Short write transactions, and how long work is cut into them.

Hermes may be writing all the while. Each step aims at `HOLD_SECONDS` under the write lock and is followed by a pause
at least as long, so another writer waits for one step at most. Reading for a step is done before it, in transactions
that end: one that stayed open would keep a rollback journal from being committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Engine

from hermes_store.sqlite.engine import BEGIN_OPTION
from hermes_store.sqlite.shape import Shape, inspect

#: Seconds a step aims to hold the write lock; the promise is 0.1, and a commit takes time of its own.
HOLD_SECONDS = 0.05
#: Weight (bytes of text, about) of a first step, before it is known how fast this host is; small enough for a slow one.
FIRST_WEIGHT = 256 * 1024
#: The last of the next few ids. Steps count messages, not ids: ids may have gaps of any size.
_NEXT_ID = "SELECT MAX(id) FROM (SELECT id FROM {} WHERE id > ? ORDER BY id LIMIT {})"
_CACHE_KIB = 64 * 1024


@dataclass(slots=True)
class Clock:
    """How long a step has held the write lock."""

    started: float = 0.0
    held: float = 0.0

    def start(self) -> None:
        """The lock was taken."""
        self.started = time.perf_counter()

    def stop(self) -> None:
        """The lock was given back."""
        self.held = time.perf_counter() - self.started

    def since_stop(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self.started - self.held


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection for many steps.

    Args:
        engine: A writable engine of the file.

    Yields:
        The connection, with a larger cache and without automatic checkpoints.
    """
    with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
        raw: Any = connection.connection.driver_connection
        settings = {"cache_size": -_CACHE_KIB, "wal_autocheckpoint": 0}  # `step` does the checkpoints
        before = {name: raw.execute(f"PRAGMA {name}").fetchone()[0] for name in settings}
        try:
            for name, value in settings.items():
                raw.execute(f"PRAGMA {name}={value}")
            yield connection
        finally:
            for name, value in before.items():
                raw.execute(f"PRAGMA {name}={value}")


@contextmanager
def step(writer: Connection) -> Iterator[Clock]:
    """One write transaction, then a pause at least as long as it held the lock; the log is copied back in it.

    Args:
        writer: A connection of `writing`.

    Yields:
        The clock of this step.
    """
    clock = Clock()
    with writer.begin():
        clock.start()
        yield clock
    clock.stop()
    raw: Any = writer.connection.driver_connection
    raw.execute("PRAGMA main.wal_checkpoint(PASSIVE)").fetchone()  # keeps no writer waiting; no-op without a log
    time.sleep(max(clock.held - clock.since_stop(), 0.0))


def paced(size: int, held: float) -> int:
    """The size of the next step, from how long the last one held the lock.

    Args:
        size: The size of the last one.
        held: Seconds it held the lock.
    """
    factor = min(2.0, max(0.25, HOLD_SECONDS / max(held, 0.001)))
    return max(4, int(size * factor))


def inspect_now(engine: Engine) -> Shape:
    """Read the shape in a read transaction of its own.

    Args:
        engine: An engine of the file.
    """
    with engine.connect() as reader:
        return inspect(reader)


def read_value(engine: Engine, query: str, *parameters: str) -> Any:
    """Read one value in a read transaction of its own.

    Args:
        engine: An engine of the file.
        query: The query.
        parameters: Its parameters.

    Returns:
        The first column of its first row; None when there is none.
    """
    with engine.connect() as reader:
        return reader.exec_driver_sql(query, parameters).scalar()


def id_ranges(engine: Engine, tables: Sequence[str], rows: int, after: int | None = None) -> Iterator[tuple[int, int]]:
    """Give ranges of ids that together cover all rows of some tables, none of them with many.

    Args:
        engine: An engine of the file.
        tables: The tables; each has an integer key named ``id``.
        rows: How many rows of one table a range may hold.
        after: Leave out the ids up to here.

    Yields:
        Pairs: above the first id, up to the second.
    """
    if after is None:
        lowest = [read_value(engine, f"SELECT MIN(id) FROM {table}") for table in tables]
        after = min((int(id_) for id_ in lowest if id_ is not None), default=0) - 1
    while (high := _end_of_range(engine, tables, rows, after)) is not None:
        yield after, high
        after = high


def _end_of_range(engine: Engine, tables: Sequence[str], rows: int, low: int) -> int | None:
    with engine.connect() as reader:
        ends = [
            cast("int | None", reader.exec_driver_sql(_NEXT_ID.format(table, rows), (low,)).scalar_one())
            for table in tables
        ]
    return min((end for end in ends if end is not None), default=None)
