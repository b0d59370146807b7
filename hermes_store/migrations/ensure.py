"""The steps revisions are made of: each makes something so, and does nothing where it already is.

Hermes changes the same file, before, between and after our upgrades. A revision therefore never assumes what the last
one left: it looks, adds what is missing, and leaves alone what is right or what it does not know. Running every
revision again on an upgraded file is how `hermes_store.migrations` reconciles it.

Every statement goes through ``exec_driver_sql``, one at a time: ``text()`` would take the colons of a trigger for bind
parameters, and a script would commit half-way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from alembic import op
from sqlalchemy import Connection

from hermes_store.errors import NotAStoreError, UpgradeError
from hermes_store.migrations.report import UpgradeReport
from hermes_store.migrations.schema_edits import plain_renames
from hermes_store.sqlite.views import quoted

#: What our own names begin with; whatever has such a name makes room for us.
_OURS = ("hs_", "ix_hs_")


def tables(creates: Mapping[str, str]) -> None:
    """Create the tables that are missing, and complete those that lack columns.

    Args:
        creates: Table name to its CREATE text.

    Raises:
        NotAStoreError: A table is there under the name, but without columns that no table can do without.
    """
    for name, create in creates.items():
        if _stored("table", name) is None:
            op.get_bind().exec_driver_sql(create)
        else:
            columns({name: _declarations(create)})


def columns(declarations: Mapping[str, Mapping[str, str]]) -> None:
    """Add the columns that are missing, at the end of their tables, as Hermes does.

    Args:
        declarations: Table name to column name to its declaration (type, NOT NULL, DEFAULT).
    """
    bind = op.get_bind()
    for table, wanted in declarations.items():
        live = {row[0] for row in bind.exec_driver_sql("SELECT name FROM pragma_table_info(?, 'main')", (table,))}
        for name, declaration in wanted.items():
            if name in live:
                continue
            if declaration is _UNADDABLE:
                raise NotAStoreError(f"table {table} has no column {name}, so it is not the table Hermes makes")
            bind.exec_driver_sql(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {declaration}")


def indexes(creates: Mapping[str, str]) -> None:
    """Create the indexes that are missing; one that is there under the name is left as it is.

    Args:
        creates: Index name to its CREATE text.
    """
    for name, create in creates.items():
        if _stored("index", name) is None:
            op.get_bind().exec_driver_sql(create)


def triggers(creates: Mapping[str, str]) -> None:
    """Give triggers exactly these texts; Hermes compares them byte by byte at every open and replaces what differs.

    Args:
        creates: Trigger name to its CREATE text.
    """
    exactly("trigger", creates)


def exactly(kind: str, creates: Mapping[str, str], bind: Connection | None = None) -> bool:
    """Give objects of a kind exactly these texts; one that has another is dropped first.

    Args:
        kind: ``trigger`` or ``view``; of ours, whose names say so by their prefix, also ``table`` or ``index``.
        creates: Name to its CREATE text.
        bind: A connection inside a write transaction; that of the revision when not given.

    Returns:
        Whether there was anything to do.
    """
    bind = bind or op.get_bind()
    wrong = {name: create for name, create in creates.items() if _stored(kind, name, bind) != create}
    for name, create in wrong.items():
        if name.startswith(_OURS):
            make_room(bind, name)
        elif _stored(kind, name, bind) is not None:
            bind.exec_driver_sql(f"DROP {kind} {quoted(name)}")
        bind.exec_driver_sql(create)
    return bool(wrong)


def make_room(bind: Connection, name: str) -> None:
    """Drop whatever has a name that is ours by its prefix.

    Args:
        bind: A connection inside a write transaction.
        name: The name.
    """
    for kind in ("table", "view", "index", "trigger"):
        if _stored(kind, name, bind) is not None:
            bind.exec_driver_sql(f"DROP {kind} {quoted(name)}")


def primary_key(table: str, key: Sequence[str], create: str, *, order_by: str) -> None:
    """Rebuild a small table whose primary key is an older one; SQLite cannot change a key in place.

    Columns the CREATE text does not know are kept, at the end. Where two old rows now share a key, the last in the
    given order wins. NULL in a column that is NOT NULL now becomes the column's default, or '' where it has none.

    Args:
        table: The table.
        key: The columns of the right key, in order.
        create: The table's CREATE text.
        order_by: An ORDER BY expression over the old rows.
    """
    bind = op.get_bind()
    live = {row[0]: row for row in bind.exec_driver_sql(f"SELECT * FROM {_TABLE_INFO}", (table,))}
    if [name for name, row in sorted(live.items(), key=lambda item: item[1][2]) if row[2]] == list(key):
        return
    old = f"hs_old_{table}"
    others = [
        (str(kind), str(name), str(sql))
        for kind, name, sql in bind.exec_driver_sql(
            "SELECT type, name, sql FROM main.sqlite_master"
            " WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL",
            (table,),
        )
    ]
    with plain_renames(bind):
        bind.exec_driver_sql(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(old)}")
    bind.exec_driver_sql(create)
    fresh = {row[0]: row for row in bind.exec_driver_sql(f"SELECT * FROM {_TABLE_INFO}", (table,))}
    sources = []
    for name, (_, kind, _, not_null, default) in live.items():
        if name not in fresh:
            declaration = f"{kind}{' NOT NULL' if not_null else ''}{f' DEFAULT ({default})' if default else ''}"
            bind.exec_driver_sql(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {declaration}")
        replacement = (fresh[name][4] or "''") if name in fresh and fresh[name][3] else "NULL"
        sources.append(f"COALESCE({quoted(name)}, {replacement})")
    targets = ", ".join(quoted(name) for name in live)
    bind.exec_driver_sql(
        f"INSERT OR REPLACE INTO {quoted(table)} ({targets})"
        f" SELECT {', '.join(sources)} FROM {quoted(old)} ORDER BY {order_by}"
    )
    bind.exec_driver_sql(f"DROP TABLE {quoted(old)}")
    for kind, name, sql in others:
        if _stored(kind, name) is None:
            bind.exec_driver_sql(sql)
    report().note(f"{table}: primary key rebuilt as ({', '.join(key)})")


def is_due(before: int) -> bool:
    """Say whether a data step of Hermes still has to be done on this file.

    Args:
        before: The step belongs to files whose stored ``schema_version`` is below this.

    Returns:
        False without a version row: Hermes takes such a file for new and skips all its data steps; so do we.
    """
    stored = stored_version(op.get_bind())
    return stored is not None and stored < before


def reached(version: int, *, last: bool = False) -> None:
    """Advance ``schema_version``, whose data steps up to here are done in this very transaction; never lower it.

    Args:
        version: The Hermes schema version that this revision completes.
        last: True for the newest one. A file with rows but no version row gets its row only then; with a lower
            number, Hermes would run data steps that it skips on such files.
    """
    bind = op.get_bind()
    stored = stored_version(bind)
    if stored is not None:
        if stored < version:
            bind.exec_driver_sql("UPDATE schema_version SET version = ?", (version,))
    elif last or is_empty(bind):
        bind.exec_driver_sql("DELETE FROM schema_version")
        bind.exec_driver_sql("INSERT INTO schema_version (version) VALUES (?)", (version,))


def meta_default(key: str, value: str) -> None:
    """Set a ``state_meta`` key that is not there yet.

    Args:
        key: The key.
        value: Its value, if nobody has set one.
    """
    bind = op.get_bind()
    if bind.exec_driver_sql("SELECT 1 FROM state_meta WHERE key = ?", (key,)).first() is None:
        bind.exec_driver_sql("INSERT INTO state_meta (key, value) VALUES (?, ?)", (key, value))


def stored_version(bind: Connection) -> int | None:
    """Read the version that Hermes acts on: the first row of ``schema_version``.

    Args:
        bind: The connection.

    Returns:
        The number; None when there is no row, or none that holds a number.
    """
    row = bind.exec_driver_sql("SELECT version FROM schema_version ORDER BY rowid LIMIT 1").first()
    if row is None:
        return None
    return int(row[0]) if isinstance(row[0], int) or (isinstance(row[0], str) and row[0].isdecimal()) else None


def is_empty(bind: Connection) -> bool:
    """True when the file holds no conversation at all.

    Args:
        bind: The connection.
    """
    return all(
        bind.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is None for table in ("sessions", "messages")
    )


def database_folder() -> Path | None:
    """The folder of the file that is being upgraded; None for a database in memory."""
    shown = op.get_bind().exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'").scalar_one()
    return Path(shown).parent if shown else None


def report() -> UpgradeReport:
    """The report of the upgrade that is running; a throw-away one when Alembic was started by something else."""
    found = op.get_context().opts.get("report")
    return found if isinstance(found, UpgradeReport) else UpgradeReport()


def refuse_downgrade(revision: str) -> None:
    """Refuse to take away what Hermes owns.

    Args:
        revision: The revision that was to be undone.

    Raises:
        UpgradeError: Always.
    """
    raise UpgradeError(
        f"{revision} cannot be undone: the tables and columns up to schema 31 belong to Hermes, and an older release "
        "works on the newer file. Only the hs revisions can be reversed; to go back further, restore the backup"
    )


#: Declaration of a column that ADD COLUMN cannot give to a table with rows (part of a key, or no default).
_UNADDABLE = "?"
_TABLE_INFO = "(SELECT name, type, pk, \"notnull\", dflt_value FROM pragma_table_info(?, 'main'))"


def _declarations(create: str) -> dict[str, str]:
    """What ADD COLUMN needs to complete a table that was made with fewer columns."""
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.execute(create)
        table = scratch.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL").fetchone()[0]
        declarations = {}
        for _, name, kind, not_null, default, key in scratch.execute(f"PRAGMA table_info({quoted(table)})"):
            words = [kind, "NOT NULL" if not_null else "", f"DEFAULT {default}" if default is not None else ""]
            possible = default is not None or not (not_null or key)
            declarations[name] = " ".join(filter(None, words)) if possible else _UNADDABLE
        return declarations


def _stored(kind: str, name: str, bind: Connection | None = None) -> str | None:
    row = (
        (bind or op.get_bind())
        .exec_driver_sql("SELECT sql FROM main.sqlite_master WHERE type = ? AND name = ?", (kind, name))
        .first()
    )
    return None if row is None else str(row[0])
