"""Laying out the decoded-text index: its queue, the triggers that feed the queue, and the index itself.

What another program dropped or changed is made again; since messages may have changed unnoticed meanwhile, the first
fill then starts over, by removing its marker in the same transaction. The index that was there stays as long as it is
whole: the fill replaces the text of every message in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from hermes_store.migrations import ensure
from hermes_store.migrations.markers import drop_markers
from hermes_store.migrations.report import UpgradeReport
from hermes_store.migrations.search_objects import capable, retire, shadow_tables, unhook
from hermes_store.sqlite.damage import lacks_parts
from hermes_store.sqlite.decoded import TEXT_FILL_KEY, TEXT_INDEX, TEXT_PARTS
from hermes_store.sqlite.shape import Shape, inspect
from hermes_store.sqlite.views import quoted


def lay_out(
    connection: Connection,
    tables: Mapping[str, str],
    triggers: Mapping[str, str],
    index: str,
    report: UpgradeReport,
) -> None:
    """Make what is missing or has another text.

    Args:
        connection: A connection inside a write transaction.
        tables: Name to CREATE text of the plain tables.
        triggers: The same of the triggers.
        index: The CREATE text of the index.
        report: Where to say what the SQLite library cannot do.
    """
    shape = inspect(connection)
    made = _make_all(connection, tables, triggers)
    if capable(connection, shape, report) and not _is_whole(shape, index):
        _replace(connection, shape, index)
        made = True
    if made:
        drop_markers(connection, TEXT_FILL_KEY)


def make_anew(connection: Connection, tables: Mapping[str, str], triggers: Mapping[str, str], index: str) -> None:
    """Put an empty index in the place of the one there is, without reading that.

    Args:
        connection: A connection inside a write transaction.
        tables: Name to CREATE text of the plain tables.
        triggers: The same of the triggers.
        index: The CREATE text of the index.
    """
    shape = inspect(connection)
    _make_all(connection, tables, triggers)
    _replace(connection, shape, index)
    drop_markers(connection, TEXT_FILL_KEY)


def take_down(connection: Connection, tables: Mapping[str, str], triggers: Mapping[str, str]) -> None:
    """Drop everything, whatever state it is in.

    DROP TABLE opens a virtual table first, and fails on a damaged one; unhooked, its parts are ordinary tables.

    Args:
        connection: A connection inside a write transaction.
        tables: The plain tables, by name.
        triggers: The triggers, by name.
    """
    shape = inspect(connection)
    for name in triggers:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quoted(name)}")
    unhook(connection, TEXT_INDEX)
    for name in (TEXT_INDEX, *shadow_tables(shape, TEXT_INDEX), *tables):
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {quoted(name)}")
    drop_markers(connection, TEXT_FILL_KEY)


def _make_all(connection: Connection, tables: Mapping[str, str], triggers: Mapping[str, str]) -> bool:
    """Give the plain objects exactly these texts; say whether that took anything."""
    made = [ensure.exactly(kind, texts, connection) for kind, texts in (("table", tables), ("trigger", triggers))]
    return any(made)


def _replace(connection: Connection, shape: Shape, index: str) -> None:
    if not shape.objects.get(("table", TEXT_INDEX), "CREATE VIRTUAL TABLE").startswith("CREATE VIRTUAL TABLE"):
        ensure.make_room(connection, TEXT_INDEX)
    retire(connection, shape, [TEXT_INDEX])
    connection.exec_driver_sql(index)


def _is_whole(shape: Shape, index: str) -> bool:
    return shape.objects.get(("table", TEXT_INDEX)) == index and not lacks_parts(shape, TEXT_INDEX, TEXT_PARTS)
