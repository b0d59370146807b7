"""The revisions themselves: where they are, what each adds, and which one a file without a stamp has reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection

from hermes_store.errors import UpgradeError
from hermes_store.migrations.report import UpgradeReport
from hermes_store.sqlite.shape import Shape

#: Alembic's stamp lives in a table of our own name: the application that imports us may use ``alembic_version``.
VERSION_TABLE = "hermes_store_version"


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of the chain.

    Attributes:
        id: Its id, such as ``h22`` (reaches Hermes schema 22) or ``hs01`` (ours).
        summary: What it adds, in a line.
    """

    id: str
    summary: str


def make_config() -> Config:
    """Make an Alembic configuration that finds the revisions, in a wheel or in the repository, without any ini file."""
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def script_location() -> Path:
    """The folder with ``env.py`` and the revisions: inside the installed package, or beside it in the repository."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise UpgradeError(f"the revisions are missing from this installation ({package}); install hermes-store again")


@cache
def chain() -> tuple[Script, ...]:
    """All revisions, oldest first; read from disk once per process."""
    return tuple(ScriptDirectory.from_config(make_config()).walk_revisions())[::-1]


def stamped_revision(connection: Connection, shape: Shape) -> str | None:
    """Read a file's stamp.

    Args:
        connection: A connection of the file.
        shape: Its shape.

    Returns:
        The revision's id, or None.
    """
    if not shape.has("table", VERSION_TABLE):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
    return None if row is None else str(row[0])


def missing_pieces(script: Script, shape: Shape) -> list[str]:
    """List what a revision makes and a file does not have.

    Args:
        script: The revision.
        shape: The file's shape.

    Returns:
        Names such as ``table x``, ``column x.y``, ``index x``; empty when the file has all of it.
    """
    module: Any = script.module
    missing = [f"table {name}" for name in getattr(module, "TABLES", {}) if not shape.has("table", name)]
    for table, columns in getattr(module, "COLUMNS", {}).items():
        missing += [f"column {table}.{name}" for name in columns if not shape.has_column(table, name)]
    missing += [f"index {name}" for name in getattr(module, "INDEXES", {}) if not shape.has("index", name)]
    missing += [f"trigger {name}" for name in getattr(module, "TRIGGERS", {}) if not shape.has("trigger", name)]
    return missing


def recognise(shape: Shape, revisions: Sequence[Script]) -> str | None:
    """Say which revision a file has reached, by its shape alone.

    Search objects do not count: files of every schema up to 31 are around with every layout.

    Args:
        shape: The file's shape.
        revisions: All revisions, oldest first.

    Returns:
        The last revision of which, and of all before it, nothing is missing; None when even the first is incomplete.
    """
    reached = None
    for script in revisions:
        if missing_pieces(script, shape):
            break
        reached = script.revision
    return reached


def apply_again(connection: Connection, revisions: Sequence[Script], report: UpgradeReport) -> None:
    """Run revisions that are already stamped once more; each does only what is missing.

    Args:
        connection: A connection inside a write transaction.
        revisions: The revisions, oldest first.
        report: Where they say what they did.
    """
    context = MigrationContext.configure(connection, opts={"report": report, "version_table": VERSION_TABLE})
    with Operations.context(context):
        for script in revisions:
            script.module.upgrade()
