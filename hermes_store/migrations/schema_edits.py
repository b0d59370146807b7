"""Switches of SQLite that some changes of a schema need, each on for a block and off again after it, come what may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection


@contextmanager
def editable_schema(connection: Connection) -> Iterator[None]:
    """Let the rows of ``sqlite_master`` be deleted: the one way to unhook a table without reading a page of it.

    Args:
        connection: A connection inside a write transaction.
    """
    connection.exec_driver_sql("PRAGMA writable_schema=ON")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA writable_schema=RESET")


@contextmanager
def plain_renames(connection: Connection) -> Iterator[None]:
    """Keep RENAME from rewriting (or tripping over) views and triggers of other programs.

    Args:
        connection: A connection inside a write transaction.
    """
    connection.exec_driver_sql("PRAGMA legacy_alter_table=ON")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA legacy_alter_table=OFF")
