"""Laying out the search indexes: which texts are there, what is wrong with them, and the swap to the right ones.

An index never changes its layout in place. The swap is one short transaction: the old tables are unhooked and their
shadow tables renamed (nothing is copied), the new empty tables, views and triggers are created, and a pair of markers
says which message ids are not indexed yet. From that moment any Hermes and we search the file completely (the ids
between the markers by scanning), and `hermes_store.migrations.pending` fills the index in small steps, then empties
the renamed tables. Marker keys, trash names and gating are Hermes's own, so either side can go on where the other
stopped.

Both indexes are always swapped together: one marker pair gates the triggers of both, so filling one while the other is
complete would let the complete one miss deletions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from hermes_store.migrations.markers import drop_markers, set_marker
from hermes_store.migrations.report import UpgradeReport
from hermes_store.migrations.schema_edits import editable_schema, plain_renames
from hermes_store.sqlite import shape as keys
from hermes_store.sqlite.capabilities import REMEDIES, probe
from hermes_store.sqlite.damage import lacks_parts
from hermes_store.sqlite.detach import detach_foreign, needs_foreign_tokenizer
from hermes_store.sqlite.shape import (
    TRASH_PREFIX,
    TRIGRAM_INDEX,
    WORD_INDEX,
    Layout,
    Shape,
    inspect,
    text_digest,
)
from hermes_store.sqlite.views import quoted

#: Shadow tables of FTS5, with the columns by which they are told from a user's table of the same name.
_SHADOW_COLUMNS: Mapping[str, frozenset[str]] = {
    "data": frozenset({"id", "block"}),
    "idx": frozenset({"segid", "term", "pgno"}),
    "docsize": frozenset({"id", "sz"}),
    "config": frozenset({"k", "v"}),
    "content": frozenset({"id", "c0"}),
}


@dataclass(frozen=True, slots=True)
class SearchIndex:
    """The exact texts of one search index in one layout.

    Attributes:
        name: The virtual table's name.
        layout: The layout these texts belong to.
        table: Its ``CREATE VIRTUAL TABLE`` text.
        triggers: Trigger name to CREATE text.
        view: The ``CREATE VIEW`` text of ``<name>_src``; None when the layout needs none.
    """

    name: str
    layout: Layout
    table: str
    triggers: Mapping[str, str]
    view: str | None = None

    def differences(self, shape: Shape) -> dict[tuple[str, str], str]:
        """Find triggers and views whose stored text is not exactly ours.

        Args:
            shape: The file's shape.

        Returns:
            ``(type, name)`` to the text it must have.
        """
        wanted = {("trigger", name): text for name, text in self.triggers.items()}
        if self.view is not None:
            wanted["view", f"{self.name}_src"] = self.view
        return {key: text for key, text in wanted.items() if shape.objects.get(key) != text}


def create_on_empty_file(connection: Connection, indexes: Sequence[SearchIndex], report: UpgradeReport) -> None:
    """Give a file without messages the indexes of a release's fresh file; leave any other file alone.

    Args:
        connection: A connection inside a write transaction.
        indexes: The release's indexes.
        report: Where to say what the SQLite library cannot do.
    """
    if connection.exec_driver_sql("SELECT 1 FROM messages LIMIT 1").first() is not None:
        return
    shape = inspect(connection)
    order = list(Layout)
    older = any(
        order.index(_layout(shape, index.name)) < order.index(index.layout)
        or _layout(shape, index.name) is Layout.ABSENT
        for index in indexes
    )
    if older and not hands_off(shape) and capable(connection, shape, report):
        swap(connection, indexes)
        if connection.exec_driver_sql("SELECT 1 FROM sqlite_sequence WHERE name = 'messages'").first() is None:
            # The retired indexes have never held a message: nothing is left to be emptied in steps later.
            for name in inspect(connection).trash:
                connection.exec_driver_sql(f"DROP TABLE {quoted(name)}")


def lay_out(connection: Connection, indexes: Sequence[SearchIndex], report: UpgradeReport) -> None:
    """Bring the search indexes of any file to the given layout.

    Args:
        connection: A connection inside a write transaction.
        indexes: The indexes to have.
        report: Where to say what was done, or why not.
    """
    shape = inspect(connection)
    detach_foreign_tokenizer(connection, shape, report)
    if hands_off(shape):
        report.leave_pending(describe_unknown(shape))
        return
    if not capable(connection, shape, report):
        narrow_update_triggers(connection, shape)
        return
    reason = why_swap(connection, shape, indexes)
    if reason is not None:
        swap(connection, indexes)
        report.note(f"search indexes laid out anew: {reason}")
        return
    for index in indexes:
        for (kind, name), text in index.differences(shape).items():
            connection.exec_driver_sql(f"DROP {kind} IF EXISTS {quoted(name)}")
            connection.exec_driver_sql(text)
            report.note(f"{kind} {name} put back to the text of layout {index.layout.value}")
    # No trigger reads the one any more, and there is nothing left of what the other offers.
    drop_markers(connection, keys.TOOL_HIGH_WATER_KEY, keys.OPTIMIZE_KEY)


def hands_off(shape: Shape) -> bool:
    """True when a search object has a text no known release wrote: a newer Hermes would fight over it.

    Args:
        shape: The file's shape.
    """
    return shape.word.unknown or shape.trigram.unknown


def describe_unknown(shape: Shape) -> str:
    """Say which search objects are left alone, for a report.

    Args:
        shape: The shape of a file for which `hands_off` is true.
    """
    unknown = ", ".join(shape.word.unknown_parts + shape.trigram.unknown_parts)
    return f"search index left alone and not used: {unknown} was written by a Hermes unknown to us"


def why_swap(connection: Connection, shape: Shape, indexes: Sequence[SearchIndex]) -> str | None:
    """Say why the indexes cannot stay as they are.

    Args:
        connection: A connection inside a transaction.
        shape: The file's shape.
        indexes: The indexes to have.

    Returns:
        The reason; None when what is there can stay (it may still need filling, or a trigger's text put back).
    """
    if shape.stale:
        return "they were detached after damage"
    for index in indexes:
        found = shape.word if index.name == WORD_INDEX else shape.trigram
        if found.layout is not index.layout and _differs(shape, index):
            return f"{index.name} is in layout {found.layout.value}"
        if not _same_feed(found.parts, index):
            # Even the triggers of layouts 1 and 2 on the word index: a change to a long tool row takes more out of the
            # index than is in it, and neither SQLite nor a later count of rows tells.
            return f"{index.name} was fed by other triggers than its layout needs"
        if lacks_parts(shape, index.name):
            return f"{index.name} lacks a part of itself"
    return _why_markers_lie(connection, shape)


def swap(connection: Connection, indexes: Sequence[SearchIndex]) -> None:
    """Replace the search indexes by empty ones and say, by markers, which ids have to be filled in.

    Args:
        connection: A connection inside a write transaction.
        indexes: The new indexes; both of them, always.
    """
    _take_down(connection, inspect(connection), indexes)
    for index in indexes:
        if index.view is not None:
            connection.exec_driver_sql(index.view)
        connection.exec_driver_sql(index.table)
        for text in index.triggers.values():
            connection.exec_driver_sql(text)
    drop_markers(
        connection,
        keys.STALE_KEY, keys.OPTIMIZE_KEY, keys.TOOL_HIGH_WATER_KEY, keys.STORAGE_VERSION_KEY,
        keys.HIGH_WATER_KEY, keys.PROGRESS_KEY, "fts_rebuild_deferral",
    )  # fmt: skip
    lowest, high_water = (
        connection.exec_driver_sql(f"SELECT {end}(id) FROM messages").scalar_one() for end in ("MIN", "MAX")
    )
    if high_water is not None and indexes[0].layout is not Layout.INLINE:
        set_marker(connection, keys.HIGH_WATER_KEY, high_water)
        set_marker(connection, keys.PROGRESS_KEY, min(0, lowest - 1))


def discard_ancient(connection: Connection, indexes: Sequence[SearchIndex]) -> None:
    """Take down search objects that no known release made, on a file older than all of them.

    There, an unknown text is not a newer Hermes's; later revisions could not tell any more.

    Args:
        connection: A connection inside a write transaction, on a file below the first known schema.
        indexes: The indexes whose names count.
    """
    shape = inspect(connection)
    if hands_off(shape):
        _take_down(connection, shape, indexes)
        connection.exec_driver_sql("INSERT OR REPLACE INTO state_meta (key, value) VALUES (?, '1')", (keys.STALE_KEY,))


def narrow_update_triggers(connection: Connection, shape: Shape) -> None:
    """Keep layout 0's update triggers from firing for columns they do not index.

    Every later step that touches a message would otherwise index it again, or fail where FTS5 is missing; and so would
    later triggers. The new texts are those that release 0.20.0 puts there.

    Args:
        connection: A connection inside a write transaction.
        shape: The file's shape.
    """
    for found in (shape.word, shape.trigram):
        name = f"{found.name}_update"
        stored = shape.objects.get(("trigger", name), "")
        broad = f"CREATE TRIGGER {name} AFTER UPDATE ON messages BEGIN"
        if found.parts.get(name) == "0" and stored.startswith(broad):
            narrow = f"CREATE TRIGGER {name}\nAFTER UPDATE OF content, tool_name, tool_calls ON messages BEGIN"
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
            connection.exec_driver_sql(stored.replace(broad, narrow, 1))


def detach_foreign_tokenizer(connection: Connection, shape: Shape, report: UpgradeReport) -> None:
    """Take the triggers of ``messages_fts_cjk`` off when its tokenizer is not here, as Hermes does.

    With them, every insert on this SQLite fails with "no such tokenizer".

    Args:
        connection: A connection inside a write transaction.
        shape: The file's shape.
        report: Where to say so.
    """
    if not needs_foreign_tokenizer(connection, shape):
        return
    detach_foreign(connection, shape)
    report.note(
        "messages_fts_cjk detached: its tokenizer is not available here, and its triggers made every write fail "
        "(Hermes rebuilds it on a host that has the tokenizer)"
    )


def capable(connection: Connection, shape: Shape, report: UpgradeReport) -> bool:
    """Say whether this SQLite can make search indexes.

    Args:
        connection: A connection inside a transaction.
        shape: The file's shape.
        report: Where to say what it lacks.
    """
    able = probe(connection, shape)
    for name in ("fts5", "trigram"):
        if not getattr(able, name):
            report.leave_pending(
                f"search indexes: this SQLite ({able.sqlite_version}) has no {name}: {REMEDIES[name]}; "
                "then run the upgrade again"
            )
            return False
    return True


def retire(connection: Connection, shape: Shape, names: Sequence[str]) -> None:
    """Unhook virtual tables without reading them (they may be damaged, huge, or of a missing tokenizer).

    DROP TABLE would empty the shadow tables in one long transaction, and fails on an index that cannot be opened. So
    the tables' rows go from the schema, and the shadow tables, ordinary ones now, are renamed.

    Args:
        connection: A connection inside a write transaction.
        shape: The file's shape.
        names: The virtual tables.
    """
    unhook(connection, *names)
    with plain_renames(connection):
        for name in names:
            for shadow in shadow_tables(shape, name):
                parked = _free_name(shape, shadow)
                connection.exec_driver_sql(f"ALTER TABLE {quoted(shadow)} RENAME TO {quoted(parked)}")


def unhook(connection: Connection, *names: str) -> None:
    """Take virtual tables out of the schema; what they kept their data in stays, as ordinary tables.

    Args:
        connection: A connection inside a write transaction.
        names: The virtual tables.
    """
    with editable_schema(connection):
        for name in names:
            connection.exec_driver_sql(
                "DELETE FROM sqlite_master WHERE type = 'table' AND name = ? AND sql LIKE 'CREATE VIRTUAL TABLE%'",
                (name,),
            )


def shadow_tables(shape: Shape, name: str) -> list[str]:
    """List the tables in which an index keeps its data.

    Args:
        shape: The file's shape.
        name: The virtual table, which itself may be gone.
    """
    found = []
    for suffix, columns in _SHADOW_COLUMNS.items():
        live = shape.columns.get(f"{name}_{suffix}", {}).keys()
        # A content table has one column per indexed column; the others are fixed.
        if columns == live or (suffix == "content" and columns <= live):
            found.append(f"{name}_{suffix}")
    return found


def _why_markers_lie(connection: Connection, shape: Shape) -> str | None:
    """Say why the fill markers cannot describe what is in the indexes; None when they can, or there are none."""
    if keys.PROGRESS_KEY in shape.meta and keys.HIGH_WATER_KEY not in shape.meta:
        return "a fill marker was left alone"
    if shape.rebuild is not None:
        progress, high_water = shape.rebuild
        if keys.PROGRESS_KEY not in shape.meta:
            return "a fill was pending without its position"
        gap = "SELECT 1 FROM {}_docsize WHERE id > ? AND id <= ? LIMIT 1"
        for name in (WORD_INDEX, TRIGRAM_INDEX):
            if connection.exec_driver_sql(gap.format(name), (progress, high_water)).first() is not None:
                return f"messages that count as not indexed are in {name}"
    return None


def _layout(shape: Shape, name: str) -> Layout:
    return shape.word.layout if name == WORD_INDEX else shape.trigram.layout


def _differs(shape: Shape, index: SearchIndex) -> bool:
    stored = shape.objects.get(("table", index.name))
    return stored is None or text_digest(stored) != text_digest(index.table)


def _same_feed(parts: Mapping[str, str], index: SearchIndex) -> bool:
    return set(parts) >= set(index.triggers) and set(parts.values()) == {index.layout.value}


def _take_down(connection: Connection, shape: Shape, indexes: Sequence[SearchIndex]) -> None:
    for index in indexes:
        for action in ("insert", "delete", "update"):
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {index.name}_{action}")
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {index.name}_src")
    retire(connection, shape, [index.name for index in indexes])


def _free_name(shape: Shape, shadow: str) -> str:
    name, number = f"{TRASH_PREFIX}{shadow}", 1
    while shape.has("table", name):
        number += 1
        name = f"{TRASH_PREFIX}{number}_{shadow}"
    return name
