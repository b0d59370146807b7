"""Reading files of every released schema with one set of models.

An older file lacks columns and tables that the models name. For each table that lacks something, a temporary view of
the same name shadows it on the connection and adds what is missing, with the default that Hermes gives it. SQLite
looks for names in ``temp`` first and flattens such plain views, so the file's own indexes are used as before, nothing
is written, and the same statements run on every schema.

The views belong to one connection. They are made again whenever SQLite's schema counter has moved, because another
process may have upgraded the file meanwhile.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.schema import DefaultClause

from hermes_store.edges import lineage_views
from hermes_store.sqlite.shape import ColumnShape, Shape, inspect
from hermes_store.sqlite.temporary import temporary_objects
from hermes_store.sqlite.vocabulary import make_vocabulary

_COOKIE = "hermes_store_cookie"
_SHAPE = "hermes_store_shape"
_VIEWS = "hermes_store_views"


def fit_connection(connection: Connection, metadata: MetaData) -> Shape:
    """Make the models' names readable on this connection, whatever the file's schema.

    Call it outside a transaction. When nothing changed since the last call it costs one PRAGMA.

    Args:
        connection: A connection on which no transaction has begun.
        metadata: The tables that must be readable.

    Returns:
        The shape of the file at this moment.
    """
    raw: Any = connection.connection.driver_connection
    info = connection.info
    cookie = raw.execute("PRAGMA main.schema_version").fetchone()[0]
    if info.get(_COOKIE) != cookie:
        shape = inspect(connection)
        connection.rollback()
        statements = shadow_views(shape, metadata)
        with temporary_objects(raw):
            if _COOKIE not in info:
                make_vocabulary(raw)
                make_lineage_views(raw)
            for name in info.pop(_VIEWS, ()):
                raw.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
            for statement in statements.values():
                raw.execute(statement)
        info.update({_COOKIE: shape.schema_cookie, _SHAPE: shape, _VIEWS: tuple(statements)})
    return cast("Shape", info[_SHAPE])


def current_shape(connection: Connection) -> Shape:
    """Look at the file inside a transaction; only at what may have changed since the connection was fitted.

    Args:
        connection: A connection, fitted or not.
    """
    return inspect(connection, connection.info.get(_SHAPE))


def lacking(connection: Connection, shape: Shape, metadata: MetaData) -> str | None:
    """Name a table that lacks columns, or is missing; None for a complete file.

    Args:
        connection: A connection; what was found out when it was fitted is not found out again.
        shape: The file's shape.
        metadata: The tables that must be there.
    """
    info = connection.info
    found = info[_VIEWS] if info.get(_COOKIE) == shape.schema_cookie else shadow_views(shape, metadata)
    return next(iter(found), None)


def shadow_views(shape: Shape, metadata: MetaData) -> dict[str, str]:
    """Say which temporary views make a file look like the current schema.

    Args:
        shape: The file's shape.
        metadata: The tables that must be readable.

    Returns:
        Table name to the ``CREATE TEMP VIEW`` statement; empty for a complete file.
    """
    statements = {}
    for table in metadata.tables.values():
        live = shape.columns.get(table.name)
        if live is None:
            empty = ", ".join(f"NULL AS {quoted(column.name)}" for column in table.columns)
            statements[table.name] = f"CREATE TEMP VIEW {quoted(table.name)} AS SELECT {empty} WHERE 0"
        elif missing := [column.name for column in table.columns if column.name not in live]:
            statements[table.name] = _completed(table, live, missing)
    return statements


def make_lineage_views(driver_connection: Any) -> None:
    """Make the views of `hermes_store.edges` on a connection, if they are not there.

    Args:
        driver_connection: The driver's connection.
    """
    for name, select in lineage_views().items():
        driver_connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS {quoted(name)} AS {select}")


def quoted(name: str) -> str:
    """Quote an identifier for SQLite.

    Args:
        name: A table or column name, taken from the file or the models.
    """
    return '"' + name.replace('"', '""') + '"'


def _completed(table: Table, live: dict[str, ColumnShape] | Any, missing: list[str]) -> str:
    columns = [quoted(name) for name in live]
    for name in missing:
        default = table.columns[name].server_default
        literal = str(default.arg) if isinstance(default, DefaultClause) else "NULL"
        columns.append(f"{literal} AS {quoted(name)}")
    return f"CREATE TEMP VIEW {quoted(table.name)} AS SELECT {', '.join(columns)} FROM main.{quoted(table.name)}"
