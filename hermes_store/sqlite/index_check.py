"""Can a search index be read? Asked without the write lock, and of a file that may be read only.

FTS5's own check is a statement that writes, so it keeps all other writers out for as long as it takes, and it raises
false alarms where another SQLite library has filled the index. Reading the pages of the tables that hold an index, and
then every entry of it, finds what a search or a trigger would stumble over.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from hermes_store.sqlite.capabilities import probe
from hermes_store.sqlite.damage import INDEX_PARTS, first_damage, is_damage, lacks_parts
from hermes_store.sqlite.decoded import is_index_failure
from hermes_store.sqlite.gaps import incomplete_indexes
from hermes_store.sqlite.shape import Layout, Shape, inspect

_ENTRIES = "SELECT count(*), sum(doc), sum(cnt) FROM temp.hs_check_entries"


def index_fault(engine: Engine, name: str) -> str | None:
    """Say what is wrong with the word or substring index, or with how it is fed; reads all of it.

    Args:
        engine: An engine of the file.
        name: The index.

    Returns:
        The reason, to be read after the index's name; None when nothing is wrong.
    """
    with engine.connect() as connection:
        shape = inspect(connection)
        return stated_fault(shape, name) or _read_fault(connection, shape, name)


def stated_fault(shape: Shape, name: str) -> str | None:
    """Say what is wrong as far as the file's shape tells; reads nothing.

    Args:
        shape: The file's shape.
        name: The index.

    Returns:
        The reason, to be read after the index's name; None when nothing is wrong.
    """
    found = shape.word if name == shape.word.name else shape.trigram
    if found.layout is Layout.ABSENT:
        return "is missing"
    if found.unknown:
        return None  # a newer Hermes knows what it has made
    if shape.stale:
        return "was detached after damage"
    if not found.fed_consistently:
        return "is not fed by what its layout needs"
    return "lacks a part of itself" if lacks_parts(shape, name) else None


def _read_fault(connection: Connection, shape: Shape, name: str) -> str | None:
    if not probe(connection, shape).fts5vocab:
        return None
    try:
        # Gone again with the transaction. Made first: where a damaged page was read, nothing can be made any more.
        connection.exec_driver_sql(f"CREATE VIRTUAL TABLE temp.hs_check_entries USING fts5vocab(main, {name}, row)")
        for part in INDEX_PARTS:
            damage = first_damage(connection.exec_driver_sql(f"PRAGMA main.quick_check({name}_{part})").scalars())
            if damage is not None:
                return f"is damaged ({damage})"
        connection.exec_driver_sql(_ENTRIES).one()
        if name in incomplete_indexes(connection, shape):
            return "lacks messages"
    except DatabaseError as error:
        if not is_damage(error) and not is_index_failure(error):
            raise
        return "is damaged"
    finally:
        connection.rollback()
    return None
