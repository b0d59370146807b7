"""The long work an upgrade leaves: message uids, filling the search indexes, emptying retired ones.

All of it happens while Hermes may be writing. Each step is one short write transaction that publishes how far it got,
aims at `HOLD_SECONDS` under the write lock, and is followed by a pause at least as long, so another writer waits for
one step at most. A kill between two steps loses nothing; the next upgrade, ours or Hermes's, goes on at the marker.

The order matters: uids come after the layout, when no update trigger fires for them any more, so that no message is
indexed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine

from hermes_store.migrations.report import Progress, ProgressCallback
from hermes_store.sqlite import shape as keys
from hermes_store.sqlite.engine import BEGIN_OPTION
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX, Layout, Shape, inspect
from hermes_store.sqlite.views import quoted

#: Seconds a step aims to hold the write lock; the promise is 0.1, and a commit takes time of its own.
HOLD_SECONDS = 0.06
#: Message ids looked at between two looks at the clock.
_BITE = 16
#: Ids compared at once when looking for gaps; reading holds no write lock.
_COMPARE = 20_000
#: Segments may pile up while filling (merging is put off), but FTS5 allows 2,000 and slows down long before.
_CRISIS_MERGE = 1_500
_STEPS_BETWEEN_MERGES = 400
#: FTS5's own defaults, put back at the end.
_DEFAULT_AUTOMERGE, _DEFAULT_CRISIS_MERGE = 4, 16
_CACHE_KIB = 64 * 1024

_TRIGRAM_SESSION = (
    "s.source NOT IN ('cron', 'subagent') AND json_extract("
    "CASE WHEN json_valid(s.model_config) THEN s.model_config ELSE '{}' END, '$._delegate_from') IS NULL"
)


@dataclass(frozen=True, slots=True)
class _Fill:
    """One index: which messages belong in it, and the text of each."""

    name: str
    columns: str
    rows: str

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.name} (rowid, {self.columns}) {self.rows}"

    @property
    def insert_missing(self) -> str:
        return f"{self.insert} AND NOT EXISTS (SELECT 1 FROM {self.name}_docsize AS d WHERE d.id = m.id)"


#: Layout 3, as its triggers feed it. ``?`` is a range of ids: above the first, up to the second.
_WORD = _Fill(
    WORD_INDEX,
    "content, tool_name, tool_calls",
    "SELECT m.id, CASE WHEN m.role = 'tool' THEN substr(COALESCE(m.content, ''), 1, 8192) ELSE m.content END,"
    " m.tool_name, m.tool_calls FROM messages AS m WHERE m.id > ? AND m.id <= ?",
)
_TRIGRAM = _Fill(
    TRIGRAM_INDEX,
    "content, tool_name",
    "SELECT m.id, m.content, m.tool_name FROM messages AS m JOIN sessions AS s ON s.id = m.session_id"
    f" WHERE m.role <> 'tool' AND {_TRIGRAM_SESSION} AND m.id > ? AND m.id <= ?",
)
_FILLS = (_WORD, _TRIGRAM)


@dataclass(slots=True)
class PendingWork:
    """Runs what is pending on one file.

    Attributes:
        engine: A writable engine of the file.
        progress: Called after each step.
        swap: Lays the indexes out anew inside the connection's transaction; it is given the reason.
        changed: True once anything was written.
    """

    engine: Engine
    progress: ProgressCallback
    swap: Callable[[Connection, str], None]
    changed: bool = field(default=False, init=False)

    def run(self) -> str | None:
        """Do everything that is pending, to its end.

        Returns:
            What could not be brought to an end; None normally.
        """
        with self._writer() as writer:
            self._identify_messages(writer)
            left = None
            if _indexable(inspect_now(self.engine)):
                left = self._fill_indexes(writer)
                self._merge_segments(writer)
            self._empty_trash(writer)
        return left

    def _identify_messages(self, writer: Connection) -> None:
        """Give every message a uid, with the marker keys Hermes uses for the same work."""
        shape = inspect_now(self.engine)
        if keys.UID_DONE_KEY in shape.meta or not shape.has_column("messages", "message_uid"):
            return
        total = int(_read(self.engine, "SELECT MAX(id) FROM messages") or 0)
        position = int(shape.meta.get(keys.UID_POSITION_KEY, "0"))
        while position < total:
            with self._step(writer) as clock:
                while position < total and clock.time_left():
                    upper = min(position + _BITE, total)
                    writer.exec_driver_sql(
                        "UPDATE messages SET message_uid = lower(hex(randomblob(16)))"
                        " WHERE id > ? AND id <= ? AND message_uid IS NULL",
                        (position, upper),
                    )
                    position = upper
                _set_meta(writer, keys.UID_POSITION_KEY, position)
            self.progress(Progress("identify", position, total))
        with self._step(writer):
            _set_meta(writer, keys.UID_DONE_KEY, 1)
            _drop_meta(writer, keys.UID_POSITION_KEY)

    def _fill_indexes(self, writer: Connection) -> str | None:
        problem = None
        for _attempt in range(2):
            if inspect_now(self.engine).rebuild is not None:
                self._fill_marked_range(writer)
            problem = self._mend_gaps(writer)
            if problem is None:
                return None
            with writer.begin():
                self.swap(writer, problem)
            self.changed = True
        return f"search indexes: {problem}, again right after they were filled; run the upgrade again"

    def _fill_marked_range(self, writer: Connection) -> None:
        """Fill the ids between the markers, in order, both indexes together."""
        self._settings(writer, automerge=0, crisis=_CRISIS_MERGE)
        steps = 0
        while True:
            with self._step(writer) as clock:
                # Read under the lock: Hermes's own fill may have moved, or finished, meanwhile.
                rebuild = inspect(writer).rebuild
                if rebuild is None:
                    return
                progress, high_water = rebuild
                while progress < high_water and clock.time_left():
                    upper = min(progress + _BITE, high_water)
                    for fill in _FILLS:
                        writer.exec_driver_sql(fill.insert, (progress, upper))
                    progress = upper
                if progress < high_water:
                    _set_meta(writer, keys.PROGRESS_KEY, progress)
                else:
                    _drop_meta(writer, keys.HIGH_WATER_KEY, keys.PROGRESS_KEY, keys.OPTIMIZE_KEY)
                    _set_meta(writer, keys.STORAGE_VERSION_KEY, int(Layout.ALIGNED.value))
            self.progress(Progress("index", progress, high_water))
            steps += 1
            if steps % _STEPS_BETWEEN_MERGES == 0:
                self._merge(writer)

    def _mend_gaps(self, writer: Connection) -> str | None:
        """Compare each index with the messages that belong in it, and add what is missing.

        Returns:
            Why an index cannot be mended by adding: it holds rows that do not belong there.
        """
        for fill in _FILLS:
            for low, high in _ranges(self.engine, fill):
                missing, surplus = _compare(self.engine, fill, low, high)
                if surplus:
                    return f"{fill.name} holds messages that do not belong in it"
                if missing:
                    self._add_missing(writer, fill, low, high)
        return None

    def _add_missing(self, writer: Connection, fill: _Fill, low: int, high: int) -> None:
        position = low
        while position < high:
            with self._step(writer) as clock:
                while position < high and clock.time_left():
                    upper = min(position + _BITE, high)
                    writer.exec_driver_sql(fill.insert_missing, (position, upper))
                    position = upper
            self.progress(Progress("index", position, high, f"gap in {fill.name}"))

    def _merge_segments(self, writer: Connection) -> None:
        """Merge what the fill piled up, and put FTS5's own settings back."""
        if _settings_changed(self.engine):
            self._merge(writer)
            self._settings(writer, automerge=_DEFAULT_AUTOMERGE, crisis=_DEFAULT_CRISIS_MERGE)

    def _merge(self, writer: Connection) -> None:
        for fill in _FILLS:
            pages, done, more = 16, 0, True
            while more:
                with self._step(writer) as clock:
                    before = _total_changes(writer)
                    _command(writer, fill.name, "merge", pages)
                    more = _total_changes(writer) - before >= 2  # noqa: PLR2004 - FTS5's own sign of work done
                done += pages
                pages = _paced(pages, clock.held)
                self.progress(Progress("merge", done, 0, fill.name))

    def _empty_trash(self, writer: Connection) -> None:
        """Empty the retired tables in steps, then drop them; their pages become free pages of the file."""
        for name in inspect_now(self.engine).trash:
            delete = _delete_some(self.engine, name)
            rows, emptied, dropped = 256, 0, False
            while not dropped:
                with self._step(writer) as clock:
                    deleted = writer.exec_driver_sql(delete, (rows,)).rowcount
                    if dropped := deleted < rows:
                        writer.exec_driver_sql(f"DROP TABLE {quoted(name)}")
                        _drop_meta(writer, f"fts_teardown_{name}_progress")
                emptied += deleted
                self.progress(Progress("clean", emptied, 0, name))
                rows = _paced(rows, clock.held)

    def _settings(self, writer: Connection, *, automerge: int, crisis: int) -> None:
        with self._step(writer):
            for fill in _FILLS:
                _command(writer, fill.name, "automerge", automerge)
                _command(writer, fill.name, "crisismerge", crisis)

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
            raw: Any = connection.connection.driver_connection
            before = raw.execute("PRAGMA cache_size").fetchone()[0]
            raw.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            try:
                yield connection
            finally:
                raw.execute(f"PRAGMA cache_size={before}")

    @contextmanager
    def _step(self, writer: Connection) -> Iterator[_Clock]:
        """One write transaction, then a pause at least as long as it held the lock."""
        clock = _Clock()
        with writer.begin():
            clock.start()
            yield clock
        clock.stop()
        self.changed = True
        time.sleep(clock.held)


@dataclass(slots=True)
class _Clock:
    """How long a step has held the write lock."""

    started: float = 0.0
    held: float = 0.0

    def start(self) -> None:
        self.started = time.perf_counter()

    def stop(self) -> None:
        self.held = time.perf_counter() - self.started

    def time_left(self) -> bool:
        return time.perf_counter() - self.started < HOLD_SECONDS


def inspect_now(engine: Engine) -> Shape:
    """Read the shape in a read transaction of its own.

    Args:
        engine: An engine of the file.
    """
    with engine.connect() as reader:
        return inspect(reader)


def is_pending(engine: Engine, *, thorough: bool) -> bool:
    """Say whether `PendingWork` has anything to do on a file that is at head.

    Args:
        engine: An engine of the file.
        thorough: Compare the indexes with the messages row by row, too; takes time in proportion to the file.
    """
    shape = inspect_now(engine)
    if keys.UID_DONE_KEY not in shape.meta or shape.trash:
        return True
    if not _indexable(shape):
        return False
    if shape.rebuild is not None or _settings_changed(engine):
        return True
    return thorough and any(
        any(_compare(engine, fill, low, high)) for fill in _FILLS for low, high in _ranges(engine, fill)
    )


def _indexable(shape: Shape) -> bool:
    """Only layout 3 is ever filled; a file whose layout could not be changed here waits for a better SQLite."""
    return not shape.stale and all(
        index.layout is Layout.ALIGNED and index.fed_consistently and not index.unknown
        for index in (shape.word, shape.trigram)
    )


def _ranges(engine: Engine, fill: _Fill) -> Iterator[tuple[int, int]]:
    """Ranges of ids that together cover all messages and everything in the index."""
    ends = "SELECT {0}(id) FROM (SELECT {0}(id) AS id FROM messages UNION ALL SELECT {0}(id) FROM {1}_docsize)"
    low, top = (_read(engine, ends.format(end, fill.name)) for end in ("MIN", "MAX"))
    if low is None or top is None:
        return
    for start in range(low - 1, top, _COMPARE):
        yield start, min(start + _COMPARE, top)


def _compare(engine: Engine, fill: _Fill, low: int, high: int) -> tuple[bool, bool]:
    """Whether rows are missing from an index, and whether it holds rows that do not belong, within a range of ids."""
    belongs = f"SELECT id FROM ({fill.rows})"
    indexed = f"SELECT id FROM {fill.name}_docsize WHERE id > ? AND id <= ?"
    with engine.connect() as reader:
        missing, surplus = (
            reader.exec_driver_sql(f"SELECT 1 FROM ({these} EXCEPT {those}) LIMIT 1", (low, high, low, high)).first()
            for these, those in ((belongs, indexed), (indexed, belongs))
        )
    return missing is not None, surplus is not None


def _delete_some(engine: Engine, name: str) -> str:
    """The statement that deletes a number of rows of a retired table, by its rowid or, without one, by its key."""
    create = str(_read(engine, "SELECT sql FROM sqlite_master WHERE name = ?", name))
    key = "rowid"
    if "WITHOUT ROWID" in create.upper():
        with engine.connect() as reader:
            columns = reader.exec_driver_sql(f"SELECT name FROM pragma_table_info('{name}') WHERE pk > 0 ORDER BY pk")
            key = ", ".join(quoted(row[0]) for row in columns)
    return f"DELETE FROM {quoted(name)} WHERE ({key}) IN (SELECT {key} FROM {quoted(name)} LIMIT ?)"


def _paced(size: int, held: float) -> int:
    """The size of the next step, from how long the last one held the lock."""
    factor = min(2.0, max(0.25, HOLD_SECONDS / max(held, 0.001)))
    return max(4, int(size * factor))


def _settings_changed(engine: Engine) -> bool:
    query = "SELECT 1 FROM {}_config WHERE (k = 'automerge' AND v <> {}) OR (k = 'crisismerge' AND v <> {})"
    defaults = (_DEFAULT_AUTOMERGE, _DEFAULT_CRISIS_MERGE)
    return any(_read(engine, query.format(fill.name, *defaults)) for fill in _FILLS)


def _read(engine: Engine, query: str, *parameters: str) -> Any:
    with engine.connect() as reader:
        return reader.exec_driver_sql(query, parameters).scalar()


def _command(connection: Connection, name: str, command: str, value: int) -> None:
    connection.exec_driver_sql(f"INSERT INTO {name} ({name}, rank) VALUES (?, ?)", (command, value))


def _total_changes(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT total_changes()").scalar_one())


def _set_meta(connection: Connection, key: str, value: int) -> None:
    connection.exec_driver_sql(
        "INSERT INTO state_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )


def _drop_meta(connection: Connection, *names: str) -> None:
    for name in names:
        connection.exec_driver_sql("DELETE FROM state_meta WHERE key = ?", (name,))
