"""Is this a store, may we touch it, and is it sound? Asked before the first byte of an upgrade is written.

Nothing here writes. The structure check reads the canonical tables whole, so it runs only when there is something
to upgrade.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DatabaseError

from hermes_store.errors import CorruptStoreError, NotAStoreError, SchemaTooNewError
from hermes_store.models import Base
from hermes_store.sqlite.damage import first_damage, is_damage
from hermes_store.sqlite.engine import driver_error
from hermes_store.sqlite.readonly import explain_open_error
from hermes_store.sqlite.shape import TRASH_PREFIX, Shape, inspect
from hermes_store.sqlite.views import quoted

#: The newest schema version of Hermes that the revisions reach.
NEWEST_KNOWN = 31

_DIALECT = sqlite.dialect()

#: Columns without which a table of that name is not Hermes's.
_ESSENTIAL = {
    "sessions": {"id": "TEXT", "source": "TEXT", "started_at": "REAL"},
    "messages": {"id": "INTEGER", "session_id": "TEXT", "role": "TEXT", "content": "TEXT", "timestamp": "REAL"},
}
#: Tables that parts of Hermes create on their own, before there are sessions.
_OTHER_TABLES_OF_HERMES = frozenset(
    {
        "delivery_obligations",
        "telegram_dm_topic_mode",
        "telegram_dm_topic_bindings",
        "hermes_store_version",
    }
)
_OTHER_PREFIXES = ("sqlite_", "hosted_room", "messages_fts", TRASH_PREFIX, "hs_")


def require_store(path: Path, engine: Engine) -> Shape:
    """Check that a file is a Hermes store, or an empty database that can become one.

    Args:
        path: The file.
        engine: An engine of it.

    Returns:
        Its shape.

    Raises:
        NotAStoreError: It is zeroed, no SQLite database, or another program's.
        CorruptStoreError: Its schema cannot be read.
    """
    try:
        with engine.connect() as connection:
            shape = inspect(connection)
    except DatabaseError as error:
        raise explain_open_error(path, error) from error
    for table, essential in _ESSENTIAL.items():
        live = shape.columns.get(table)
        wrong = [] if live is None else [n for n, kind in essential.items() if n not in live or live[n].type != kind]
        if wrong:
            raise NotAStoreError(
                f"{path}: its table {table} is not the one Hermes makes (column {wrong[0]}); nothing was changed"
            )
    known = set(Base.metadata.tables) | _OTHER_TABLES_OF_HERMES
    tables = {name for kind, name in shape.objects if kind == "table"}
    strange = sorted(name for name in tables - known if not name.startswith(_OTHER_PREFIXES))
    if not set(_ESSENTIAL) <= tables and strange:
        shown = ", ".join(strange[:3])
        raise NotAStoreError(f"{path} is another program's database (it has {shown}); nothing was changed")
    return shape


def require_known(path: Path, shape: Shape) -> bool:
    """Check what a newer Hermes left of the columns and keys we rely on.

    Args:
        path: The file.
        shape: Its shape.

    Returns:
        True when the file is newer than everything we know, and yet holds all that we need.

    Raises:
        SchemaTooNewError: A column or a key we rely on is gone or changed.
    """
    if shape.schema_version is None or shape.schema_version <= NEWEST_KNOWN:
        return False
    for table in Base.metadata.tables.values():
        live = shape.columns.get(table.name, {})
        for column in table.columns:
            found = live.get(column.name)
            if found is None:
                raise _too_new(path, shape, f"{table.name} has no column {column.name}")
            if found.type.upper() != column.type.compile(dialect=_DIALECT).upper():
                raise _too_new(path, shape, f"the type of {table.name}.{column.name} is {found.type}")
        key = [name for name, column in sorted(live.items(), key=lambda i: i[1].primary_key) if column.primary_key]
        if table.name != "schema_version" and key != [column.name for column in table.primary_key.columns]:
            raise _too_new(path, shape, f"the primary key of {table.name} is ({', '.join(key)})")
    return True


def require_sound(path: Path, engine: Engine, shape: Shape) -> None:
    """Read the canonical tables whole and check their structure.

    Search indexes are not looked at: an upgrade makes them anew from the messages.

    Args:
        path: The file.
        engine: An engine of it.
        shape: Its shape.

    Raises:
        CorruptStoreError: A table is damaged.
    """
    tables = [name for name in Base.metadata.tables if name in shape.columns]
    with engine.connect() as connection:
        for table in tables:
            damage = _damage(path, connection, table)
            if damage is not None:
                raise CorruptStoreError(
                    f"{path}: table {table} is damaged ({damage}); nothing was changed: "
                    "restore a backup, or recover the file with SQLite's .recover"
                )


def _damage(path: Path, connection: Connection, table: str) -> str | None:
    try:
        return first_damage(connection.exec_driver_sql(f"PRAGMA main.quick_check({quoted(table)})").scalars())
    except DatabaseError as error:
        if is_damage(error):  # of a page without which the check cannot go on
            return driver_error(error)[1]
        raise explain_open_error(path, error) from error


def _too_new(path: Path, shape: Shape, what: str) -> SchemaTooNewError:
    return SchemaTooNewError(
        f"{path} is at Hermes schema {shape.schema_version} (known here: up to {NEWEST_KNOWN}) and {what}; "
        "nothing was touched: update hermes-store"
    )
