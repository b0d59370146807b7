"""The long work an upgrade leaves: message uids, filling the search indexes, emptying retired ones.

All of it happens while Hermes may be writing, in `hermes_store.migrations.steps` that publish how far they got. A kill
between two of them loses nothing; the next upgrade, ours or Hermes's, goes on at the marker.

The order matters: uids come after the layout, when no update trigger fires for them any more, so that no message is
indexed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.migrations import steps
from hermes_store.migrations.markers import drop_markers, set_marker
from hermes_store.migrations.report import Progress, ProgressCallback
from hermes_store.migrations.schema_edits import editable_schema
from hermes_store.migrations.segments import (
    STEPS_BETWEEN_MERGES,
    finish_merging,
    is_merging_put_off,
    merge,
    put_off_merging,
)
from hermes_store.migrations.steps import id_ranges, inspect_now, read_value, step, writing
from hermes_store.migrations.text_fill import TextWork, is_text_pending
from hermes_store.sqlite import shape as keys
from hermes_store.sqlite.activity import activity_fault, is_wrong, refill
from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import INDEX_PARTS, first_damage, is_damage, lacks_parts
from hermes_store.sqlite.engine import BEGIN_OPTION
from hermes_store.sqlite.gaps import SUBSTRING_SESSIONS
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX, Layout, Shape, inspect
from hermes_store.sqlite.views import quoted

#: What it costs, about, to write the messages of a range, in bytes of the word index: the substring index takes four
#: times that, a row without text still something. ``length()`` of a text stops at its first NUL, hence the casts.
_WEIGHTS = (
    "SELECT id, 64 + COALESCE(length(CAST(tool_calls AS BLOB)), 0) + COALESCE(CASE role"
    " WHEN 'tool' THEN min(length(CAST(content AS BLOB)), 8192) ELSE 5 * length(CAST(content AS BLOB)) END, 0)"
    " FROM messages WHERE id > ? AND id <= ? ORDER BY id"
)
#: Messages compared at once when looking for gaps; reading holds no write lock.
_COMPARE = 20_000
#: Answered from the index on uids, which holds the rows that are active.
_LACKS_UID = "SELECT 1 FROM messages WHERE active = 1 AND message_uid IS NULL LIMIT 1"


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
    f" WHERE m.role <> 'tool' AND {SUBSTRING_SESSIONS} AND m.id > ? AND m.id <= ?",
)
_FILLS = (_WORD, _TRIGRAM)
_NAMES = (WORD_INDEX, TRIGRAM_INDEX)


@dataclass(slots=True)
class PendingWork:
    """Runs what is pending on one file.

    Attributes:
        engine: A writable engine of the file.
        progress: Called after each step.
        swap: Lays the indexes out anew inside the connection's transaction; it is given the reason.
        renew: Puts an empty decoded-text index in the place of a damaged one.
        note: Called with what the user should know.
    """

    engine: Engine
    progress: ProgressCallback
    swap: Callable[[Connection, str], None]
    renew: Callable[[Connection], None]
    note: Callable[[str], None]

    def run(self) -> list[str]:
        """Do everything that is pending, to its end.

        Returns:
            What could not be brought to an end; nothing normally.
        """
        with writing(self.engine) as writer:
            self._identify_messages(writer)
            left = []
            if _fillable(self.engine):
                left.append(self._fill_indexes(writer))
                finish_merging(self.engine, writer, self.progress, *_NAMES)
            left.append(self.decoding.run(writer))
            self._mend_activity(writer)
            self._empty_trash(writer)
        return [problem for problem in left if problem is not None]

    def drain(self) -> list[str]:
        """Do no more than move decoded texts that wait into their index.

        Returns:
            As `run`.
        """
        with writing(self.engine) as writer:
            left = self.decoding.run(writer, thorough=False)
        return [] if left is None else [left]

    @property
    def decoding(self) -> TextWork:
        """The work on the decoded-text index."""
        return TextWork(self.engine, self.progress, self.renew, self.note)

    def _identify_messages(self, writer: Connection) -> None:
        """Give every message a uid, with the marker keys Hermes uses for the same work."""
        shape = inspect_now(self.engine)
        if shape.uids_filled and not read_value(self.engine, _LACKS_UID):
            return
        first, total = (int(read_value(self.engine, f"SELECT {end}(id) FROM messages") or 0) for end in ("MIN", "MAX"))
        position = first - 1 if shape.uids_filled or shape.uid_position is None else shape.uid_position
        weight = steps.FIRST_WEIGHT
        while position < total:
            with step(writer) as clock:
                upper = _share(writer, position, total, weight)
                writer.exec_driver_sql(
                    "UPDATE messages SET message_uid = lower(hex(randomblob(16)))"
                    " WHERE id > ? AND id <= ? AND message_uid IS NULL",
                    (position, upper),
                )
                position = upper
                set_marker(writer, keys.UID_POSITION_KEY, position)
            weight = steps.paced(weight, clock.held)
            self.progress(Progress("identify", position, total))
        with step(writer):
            set_marker(writer, keys.UID_DONE_KEY, 1)
            drop_markers(writer, keys.UID_POSITION_KEY)

    def _fill_indexes(self, writer: Connection) -> str | None:
        problem = None
        for _attempt in range(2):
            problem = self._complete_indexes(writer)
            if problem is None:
                return None
            with writer.begin():
                self.swap(writer, problem)
        return f"search indexes: {problem}, again right after they were filled; run the upgrade again"

    def _complete_indexes(self, writer: Connection) -> str | None:
        """Add to the indexes as they are; say why that is not possible, if it is not."""
        try:
            if inspect_now(self.engine).rebuild is not None:
                self._fill_marked_range(writer)
            if inspect_now(self.engine).stale:
                return "they were detached while they were filled"
            for fill in _FILLS:
                if _is_damaged(self.engine, fill):
                    return f"{fill.name} is damaged"
            return self._mend_gaps(writer)
        except DatabaseError as error:
            if not is_damage(error):
                raise
            return "an index is damaged"

    def _fill_marked_range(self, writer: Connection) -> None:
        """Fill the ids between the markers, in order, both indexes together."""
        put_off_merging(writer, *_NAMES)
        done, weight = 0, steps.FIRST_WEIGHT
        while True:
            with step(writer) as clock:
                # Read under the lock: Hermes may have filled on, finished, or detached the indexes meanwhile.
                shape = inspect(writer)
                if shape.rebuild is None or not _indexable(shape):
                    return
                progress, high_water = shape.rebuild
                upper = _share(writer, progress, high_water, weight)
                for fill in _FILLS:
                    # One statement per step: FTS5 starts a new segment with each, and each has to be merged later.
                    writer.exec_driver_sql(fill.insert, (progress, upper))
                progress = upper
                if progress < high_water:
                    set_marker(writer, keys.PROGRESS_KEY, progress)
                else:
                    drop_markers(writer, keys.HIGH_WATER_KEY, keys.PROGRESS_KEY, keys.OPTIMIZE_KEY)
                    set_marker(writer, keys.STORAGE_VERSION_KEY, int(Layout.ALIGNED.value))
            self.progress(Progress("index", progress, high_water))
            weight = steps.paced(weight, clock.held)
            done += 1
            if done % STEPS_BETWEEN_MERGES == 0:
                merge(writer, self.progress, *_NAMES)

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
        position, weight = low, steps.FIRST_WEIGHT
        while position < high:
            with step(writer) as clock:
                upper = _share(writer, position, high, weight)
                writer.exec_driver_sql(fill.insert_missing, (position, upper))
            position, weight = upper, steps.paced(weight, clock.held)
            self.progress(Progress("index", position, high, f"gap in {fill.name}"))

    def _mend_activity(self, writer: Connection) -> None:
        """Work the sessions' bounds out anew if sessions were written while the triggers were off."""
        if _is_activity_wrong(self.engine):
            with step(writer):
                refill(writer)

    def _empty_trash(self, writer: Connection) -> None:
        """Empty the retired tables in steps, then drop them; their pages become free pages of the file."""
        for name in inspect_now(self.engine).trash:
            try:
                self._empty_in_steps(writer, name)
            except DatabaseError as error:
                if not is_damage(error):
                    raise
                with step(writer):
                    _unhook(writer, name)
                self.note(f"{name} was damaged and could only be unhooked; VACUUM would give its space back")

    def _empty_in_steps(self, writer: Connection, name: str) -> None:
        delete = _delete_some(self.engine, name)
        rows, emptied, dropped = 256, 0, False
        while not dropped:
            with step(writer) as clock:
                deleted = writer.exec_driver_sql(delete, (rows,)).rowcount
                if dropped := deleted < rows:
                    writer.exec_driver_sql(f"DROP TABLE {quoted(name)}")
                    drop_markers(writer, f"fts_teardown_{name}_progress")
            emptied += deleted
            self.progress(Progress("clean", emptied, 0, name))
            rows = steps.paced(rows, clock.held)


def is_pending(engine: Engine, *, thorough: bool) -> bool:
    """Say whether `PendingWork` has anything to do on a file that is at head.

    Args:
        engine: An engine of the file.
        thorough: Compare the indexes with the messages row by row, too; takes time in proportion to the file.
    """
    shape = inspect_now(engine)
    if not shape.uids_filled or shape.trash or (thorough and read_value(engine, _LACKS_UID)):
        return True
    if is_text_pending(engine, thorough=thorough) or (thorough and _is_activity_wrong(engine)):
        return True
    if not _fillable(engine):
        return False
    if shape.rebuild is not None:
        return True
    try:
        return is_merging_put_off(engine, *_NAMES) or (
            thorough and any(_is_incomplete(engine, fill) for fill in _FILLS)
        )
    except DatabaseError as error:
        if not is_damage(error):
            raise
        return True


def disagreeing_indexes(engine: Engine) -> list[str]:
    """Name the search indexes that do not hold exactly the messages that belong in them.

    Args:
        engine: An engine of the file. Where an index waits to be filled, is detached, or is in an older layout, nothing
            is compared.
    """
    if not _fillable(engine) or inspect_now(engine).rebuild is not None:
        return []
    return [fill.name for fill in _FILLS if any(any(_compare(engine, fill, *ids)) for ids in _ranges(engine, fill))]


def detach_damaged(engine: Engine) -> None:
    """Mark indexes whose pages cannot be read as stale, with Hermes's own key, so that nothing reads them again.

    Once a transaction has met damage, SQLite lets nothing more be written in it. An upgrade looks into indexes only
    while a fill is marked, so only then this is needed.

    Args:
        engine: A writable engine of the file.
    """
    if (
        inspect_now(engine).rebuild is None
        or not _fillable(engine)
        or not any(_is_damaged(engine, fill) for fill in _FILLS)
    ):
        return
    with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection, connection.begin():
        set_marker(connection, keys.STALE_KEY, 1)


def _is_activity_wrong(engine: Engine) -> bool:
    with engine.connect() as reader:
        return activity_fault(inspect(reader)) is None and is_wrong(reader)


def _fillable(engine: Engine) -> bool:
    with engine.connect() as reader:
        shape = inspect(reader)
        able = probe(reader, shape)
    return able.fts5 and able.trigram and _indexable(shape)


def _indexable(shape: Shape) -> bool:
    """Only layout 3 is ever filled; a file whose layout could not be changed here waits for a better SQLite."""
    return not shape.stale and all(
        index.layout is Layout.ALIGNED
        and index.fed_consistently
        and not index.unknown
        and not lacks_parts(shape, index.name)
        for index in (shape.word, shape.trigram)
    )


def _is_incomplete(engine: Engine, fill: _Fill) -> bool:
    return _is_damaged(engine, fill) or any(any(_compare(engine, fill, *ids)) for ids in _ranges(engine, fill))


def _is_damaged(engine: Engine, fill: _Fill) -> bool:
    """Whether the pages that hold an index can be read; an index that is wrong in itself is not found by this."""
    with engine.connect() as reader:
        try:
            return any(
                first_damage(reader.exec_driver_sql(f"PRAGMA main.quick_check({fill.name}_{part})").scalars())
                for part in INDEX_PARTS
            )
        except DatabaseError as error:
            if not is_damage(error):
                raise
            return True


def _ranges(engine: Engine, fill: _Fill) -> Iterator[tuple[int, int]]:
    return id_ranges(engine, ("messages", f"{fill.name}_docsize"), _COMPARE)


def _share(connection: Connection, low: int, high: int, weight: int) -> int:
    """The id that ends a step of this weight: one message at least, all up to the highest id at most."""
    with connection.exec_driver_sql(_WEIGHTS, (low, high)) as rows:
        for id_, cost in rows:
            weight -= cost
            if weight <= 0:
                return int(id_)
    return high


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
    create = str(read_value(engine, "SELECT sql FROM sqlite_master WHERE name = ?", name))
    key = "rowid"
    if "WITHOUT ROWID" in create.upper():
        with engine.connect() as reader:
            columns = reader.exec_driver_sql(f"SELECT name FROM pragma_table_info('{name}') WHERE pk > 0 ORDER BY pk")
            key = ", ".join(quoted(row[0]) for row in columns)
    return f"DELETE FROM {quoted(name)} WHERE ({key}) IN (SELECT {key} FROM {quoted(name)} LIMIT ?)"


def _unhook(connection: Connection, table: str) -> None:
    """Take a table out of the schema without reading a page of it; its pages stay unused until VACUUM."""
    with editable_schema(connection):
        connection.exec_driver_sql("DELETE FROM sqlite_master WHERE tbl_name = ?", (table,))
