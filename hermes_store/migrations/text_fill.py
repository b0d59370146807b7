"""The long work of the decoded-text index: noting old messages once, then moving what waits into the index.

The triggers tell of every change from the moment they exist, so a message whose id was read may change before the id
is written into the queue: it is there either way. Ids are therefore looked for without the write lock, and written in
short steps that publish how far the search got. Then the queue is drained in steps. A kill between two steps loses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.migrations import steps
from hermes_store.migrations.markers import set_marker
from hermes_store.migrations.report import Progress, ProgressCallback
from hermes_store.migrations.segments import (
    STEPS_BETWEEN_MERGES,
    finish_merging,
    is_merging_put_off,
    merge,
    put_off_merging,
)
from hermes_store.migrations.steps import id_ranges, inspect_now, read_value, step
from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import first_damage, is_damage
from hermes_store.sqlite.decoded import (
    ENCODED,
    FILLED,
    TEXT_FILL_KEY,
    TEXT_INDEX,
    TEXT_PARTS,
    TEXT_QUEUE,
    drain,
    is_index_failure,
    text_index_fault,
    text_objects_fault,
)
from hermes_store.sqlite.shape import inspect

#: Messages read at once when ids are looked for.
_SCAN = 2_000
#: From so many waiting messages on, merging is left to the end.
_MANY = 500
_TABLES = ("messages", f"{TEXT_INDEX}_content")
_BELONGS = f"SELECT m.id FROM messages AS m WHERE m.id > :low AND m.id <= :high AND {ENCODED}"
_INDEXED = f"SELECT id FROM {TEXT_INDEX}_content WHERE id > :low AND id <= :high"
_EITHER = f"{_BELONGS} UNION {_INDEXED}"
#: Not in the index although they belong there, or the other way round; and nobody knows of it yet.
_DIFFERENCE = f"SELECT id FROM ({_BELONGS} EXCEPT {_INDEXED}) UNION SELECT id FROM ({_INDEXED} EXCEPT {_BELONGS})"
_UNNOTED = f"SELECT id FROM ({_DIFFERENCE}) WHERE id NOT IN (SELECT message_id FROM {TEXT_QUEUE})"
_NOTE = (
    f"INSERT INTO {TEXT_QUEUE} (message_id)"
    f" SELECT :id WHERE NOT EXISTS (SELECT 1 FROM {TEXT_QUEUE} WHERE message_id = :id)"
)
#: A text of n characters has n - 2 of its three-character grams in the index; fewer mean that some were lost.
_GRAMS = "SELECT COALESCE(SUM(cnt), 0) FROM temp.hs_text_grams"
_DUE_GRAMS = f"SELECT COALESCE(SUM(MAX(length(c0) - 2, 0)), 0) FROM {TEXT_INDEX}_content"


@dataclass(frozen=True, slots=True)
class TextWork:
    """Fills the decoded-text index of one file.

    Attributes:
        engine: A writable engine of the file.
        progress: Called after each step.
        renew: Puts an empty index in the place of a damaged one, inside the connection's transaction.
        note: Called with what the user should know.
    """

    engine: Engine
    progress: ProgressCallback
    renew: Callable[[Connection], None]
    note: Callable[[str], None]

    def run(self, writer: Connection, *, thorough: bool = True) -> str | None:
        """Note what is to be indexed, and index it.

        Args:
            writer: A connection of `hermes_store.migrations.steps.writing`.
            thorough: Read the index and the messages whole, to find what nobody told of.

        Returns:
            What could not be brought to an end; None normally.
        """
        if not _is_laid_out(self.engine):
            return None
        problem = None
        for _attempt in range(2):
            problem = self._complete(writer, thorough=thorough)
            if problem is None:
                return None
            with step(writer):
                self.renew(writer)
            self.note(f"{TEXT_INDEX} made anew: {problem}")
        return f"{TEXT_INDEX}: {problem}, again right after it was made; run the upgrade again"

    def _complete(self, writer: Connection, *, thorough: bool) -> str | None:
        """Bring the index up to date as it is; say why that is not possible, if it is not."""
        try:
            self._note_old_messages(writer)
            self._drain(writer)
            if thorough:
                if _is_damaged(self.engine):
                    return "it is damaged"
                for ids, _ in _found(self.engine, _UNNOTED):
                    with step(writer):
                        _queue(writer, ids)
                self._drain(writer)
        except DatabaseError as error:
            if not is_index_failure(error):
                raise
            return "it is damaged"
        return None

    def _note_old_messages(self, writer: Connection) -> None:
        marker = inspect_now(self.engine).meta.get(TEXT_FILL_KEY)
        if marker == FILLED:
            return
        total = int(read_value(self.engine, "SELECT MAX(id) FROM messages") or 0)
        # Anything but a number means that nothing is known: from the start, then.
        after = int(marker) if marker is not None and marker.lstrip("-").isdecimal() else None
        for ids, position in _found(self.engine, _EITHER, after):
            with step(writer):
                _queue(writer, ids)
                set_marker(writer, TEXT_FILL_KEY, position)
            self.progress(Progress("decode", position, total, "looking for encoded messages"))
        with step(writer):
            set_marker(writer, TEXT_FILL_KEY, FILLED)

    def _drain(self, writer: Connection) -> None:
        waiting = int(read_value(self.engine, f"SELECT count(*) FROM {TEXT_QUEUE}"))
        if waiting > _MANY:
            put_off_merging(writer, TEXT_INDEX)
        done, rounds, weight = 0, 0, steps.FIRST_WEIGHT
        while done < waiting:
            with step(writer) as clock:
                moved = drain(writer, weight)
            if not moved:  # another process was here
                break
            done, rounds, weight = done + moved, rounds + 1, steps.paced(weight, clock.held)
            self.progress(Progress("decode", done, waiting))
            if rounds % STEPS_BETWEEN_MERGES == 0:
                merge(writer, self.progress, TEXT_INDEX)
        finish_merging(self.engine, writer, self.progress, TEXT_INDEX)


def is_text_pending(engine: Engine, *, thorough: bool) -> bool:
    """Say whether there is more to do than to drain the queue.

    Args:
        engine: An engine of the file.
        thorough: Read the index and the messages whole; takes time in proportion to the file.
    """
    if not _is_laid_out(engine):
        return False
    if text_index_fault(inspect_now(engine)) is not None:
        return True
    if is_merging_put_off(engine, TEXT_INDEX):
        return True
    return thorough and (_is_damaged(engine) or any(ids for ids, _ in _found(engine, _UNNOTED)))


def is_text_queued(engine: Engine) -> bool:
    """Say whether messages wait to be moved into the index.

    Args:
        engine: An engine of the file.
    """
    return _is_laid_out(engine) and read_value(engine, f"SELECT 1 FROM {TEXT_QUEUE} LIMIT 1") is not None


def _is_laid_out(engine: Engine) -> bool:
    with engine.connect() as reader:
        shape = inspect(reader)
        able = probe(reader, shape)
    return able.fts5 and able.trigram and text_objects_fault(shape) is None


def _found(engine: Engine, query: str, after: int | None = None) -> Iterator[tuple[list[int], int]]:
    """Look through all messages, and all that is in the index; give the ids found, and how far that is."""
    for low, high in id_ranges(engine, _TABLES, _SCAN, after):
        with engine.connect() as reader:
            ids = reader.exec_driver_sql(query, {"low": low, "high": high}).scalars().all()
        yield [int(id_) for id_ in ids], high


def _queue(writer: Connection, ids: list[int]) -> None:
    if ids:
        writer.exec_driver_sql(_NOTE, [{"id": id_} for id_ in ids])


def _is_damaged(engine: Engine) -> bool:
    """Whether the index cannot be read, or has lost some of the text it stores."""
    with engine.connect() as reader:
        able = probe(reader, inspect(reader))
        try:
            if any(
                first_damage(reader.exec_driver_sql(f"PRAGMA main.quick_check({TEXT_INDEX}_{part})").scalars())
                for part in TEXT_PARTS
            ):
                return True
            if not able.fts5vocab:
                return False
            # Gone again with the transaction, which is rolled back.
            reader.exec_driver_sql(f"CREATE VIRTUAL TABLE temp.hs_text_grams USING fts5vocab(main, {TEXT_INDEX}, row)")
            grams, due = (reader.exec_driver_sql(query).scalar_one() for query in (_GRAMS, _DUE_GRAMS))
        except DatabaseError as error:
            if not is_damage(error) and not is_index_failure(error):
                raise
            return True
    return bool(grams != due)
