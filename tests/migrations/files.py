"""Files for the tests of upgrades: copied, upgraded, opened past our own code, and read cell by cell.

Everything here goes through one SQLite library per process: ``HERMES_STORE_TEST_DRIVER`` names another one than the
standard library's, and the whole folder can be run on it (see ``test_both_libraries.py``).
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixture_files import FIXTURES

from hermes_store import migrations
from hermes_store.models import Base

#: The SQLite library of this process, as a DBAPI module.
DRIVER: Any = importlib.import_module(os.environ.get("HERMES_STORE_TEST_DRIVER", "sqlite3"))
HEAD = migrations.history()[-1].id
#: A fresh file of the release whose schema is head.
NEWEST = "v31-iot-0.22.2.post1.db"

#: One cell: its storage class and its value, text as bytes.
Cell = tuple[str, Any]
#: Table to row id to column to cell.
Cells = dict[str, dict[int, dict[str, Cell]]]

_SEARCH = "m.name NOT GLOB 'messages_fts*' AND m.name NOT GLOB 'fts_v22_trash_*' AND m.name NOT GLOB 'hs_*'"


@dataclass(frozen=True)
class Upgraded:
    """A released file, the state it was in, and what an upgrade made of it."""

    name: str
    path: Path
    before: Cells
    objects_before: Mapping[tuple[str, str], str]
    report: migrations.UpgradeReport

    @property
    def version_before(self) -> int:
        return next(iter(self.before["schema_version"].values()))["version"][1] if self.before else 0


def copy_released(name: str, folder: Path) -> Path:
    """Copy a released file with its sidecars; skip the test where there is none."""
    if not (FIXTURES / name).exists():
        pytest.skip(f"no released files here: {FIXTURES / name} is missing")
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("", "-wal", "-journal"):
        side = FIXTURES / (name + suffix)
        if side.exists():
            shutil.copyfile(side, folder / f"state.db{suffix}")
            (folder / f"state.db{suffix}").chmod(0o600)
    return folder / "state.db"


def copy_of(path: Path, folder: Path) -> Path:
    """Copy a file that nobody has open; what a reader leaves of a log is empty."""
    log = path.with_name(path.name + "-wal")
    assert not log.exists() or log.stat().st_size == 0
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, folder / "state.db"))


def upgraded_copy(name: str, folder: Path) -> Upgraded:
    """Upgrade a copy of a released file."""
    twin = copy_released(name, folder / "before")
    with connect(twin) as connection:
        before, objects = cells(connection), stored_objects(connection)
    path = copy_released(name, folder / "home")
    return Upgraded(name, path, before, objects, upgrade(path))


def upgrade(path: Path, revision: str = "head", progress: Any = None, **options: Any) -> migrations.UpgradeReport:
    """Upgrade with this process's library."""
    return migrations.upgrade(path, revision, progress, **{"driver": DRIVER} | options)


@contextmanager
def connect(path: Path) -> Iterator[Any]:
    """Open a file as any other program would."""
    with closing(DRIVER.connect(str(path), isolation_level=None)) as connection:
        yield connection


def run(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Run statements on a file, each in a transaction of its own; give the rows of the last."""
    rows: list[tuple[Any, ...]] = []
    with connect(path) as connection:
        for statement in statements:
            parameters = (statement,) if isinstance(statement, str) else statement
            rows = connection.execute(*parameters).fetchall()
    return rows


def insert(path: Path, table: str, **cells_: Any) -> None:
    """Insert one row, without foreign keys."""
    marks = ", ".join("?" * len(cells_))
    run(path, (f"INSERT INTO {table} ({', '.join(cells_)}) VALUES ({marks})", tuple(cells_.values())))


def session(path: Path, id_: str, **cells_: Any) -> None:
    """Insert a session that has what every session has."""
    insert(path, "sessions", **{"id": id_, "source": "cli", "started_at": 1.0} | cells_)


def message(path: Path, session_id: str, content: Any = "hello", **cells_: Any) -> None:
    """Insert a message that has what every message has."""
    insert(
        path, "messages", **{"session_id": session_id, "role": "user", "content": content, "timestamp": 1.0} | cells_
    )


def content_of(path: Path) -> dict[str, bytes]:
    """The bytes of a file and of its log, if there is anything in it; nobody may have it open."""
    sides = [path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-journal")]
    return {side.name: side.read_bytes() for side in sides if side.exists() and side.stat().st_size}


def backups(path: Path) -> list[Path]:
    """Everything beside a file that looks like a backup, finished or not."""
    return [other for other in path.parent.iterdir() if "backup" in other.name]


def cells(connection: Any) -> Cells:
    """Read every cell of every table but those of the search indexes."""
    connection.text_factory = bytes
    found: Cells = {}
    tables = connection.execute(
        f"SELECT m.name FROM sqlite_master AS m WHERE m.type = 'table' AND m.rootpage > 0 AND {_SEARCH}"
    ).fetchall()
    for (stored,) in tables:
        table = stored.decode()
        columns = [row[1].decode() for row in connection.execute(f'PRAGMA table_info("{table}")')]
        selected = ", ".join(f'typeof("{column}"), "{column}"' for column in columns)
        found[table] = {
            row[0]: {
                column: (kind.decode(), value)
                for column, kind, value in zip(columns, row[1::2], row[2::2], strict=True)
            }
            for row in connection.execute(f'SELECT rowid, {selected} FROM "{table}"')
        }
    connection.text_factory = str
    return found


def stored_objects(connection: Any) -> dict[tuple[str, str], str]:
    """``(type, name)`` to the stored CREATE text."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {(kind, name): sql for kind, name, sql in rows}


def shape(path: Path) -> dict[tuple[str, str], Any]:
    """Describe a file for comparison: tables by their columns and foreign keys, everything else by its text."""
    with connect(path) as connection:
        described: dict[tuple[str, str], Any] = {}
        for (kind, name), sql in stored_objects(connection).items():
            if kind != "table" or sql.startswith("CREATE VIRTUAL TABLE"):
                described[kind, name] = sql
            elif name in Base.metadata.tables:
                columns = connection.execute(f"PRAGMA table_info({name})")
                keys = connection.execute(f"PRAGMA foreign_key_list({name})")
                described[kind, name] = (
                    {column[1]: column[2:] for column in columns},
                    # A column that was added to an existing table cannot have its foreign key.
                    {key[2:] for key in keys if key[3] != "system_prompt_hash"},
                    "AUTOINCREMENT" in sql,
                )
        return described


def hermes_objects(path: Path) -> dict[tuple[str, str], Any]:
    """The shape without what is exempt from comparison: our own objects, lazily made tables, shadow tables."""
    exempt = ("ix_hs_", "hs_", "hermes_store_version", "telegram_", "idx_telegram_")
    return {key: value for key, value in shape(path).items() if not key[1].startswith(exempt)}


def numbered(path: Path) -> bool:
    """Whether the file has a number of its own, and the one that its generation key gives."""
    number = run(path, "PRAGMA application_id")[0][0]
    generation = run(path, "SELECT value FROM state_meta WHERE key = 'db_file_generation'")
    if number:
        assert number == int(generation[0][0][:8], 16) & 0x7FFFFFFF or generation == []
    return bool(number)
