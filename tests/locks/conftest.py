"""A store with one session, a plain look at its locks, clocks that can be set, and other processes."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hermes_store import HermesStore, migrations, process
from hermes_store.process import Here

SESSION = "20260501_101500_ab12cd"
TABLES = {"compression_locks": "session_id", "session_turn_leases": "conversation_id"}


@dataclass(frozen=True)
class Rows:
    """The lock tables of a file, read and written as another program would."""

    path: Path

    def all(self, table: str = "compression_locks") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(f"SELECT {TABLES[table]}, holder, acquired_at, expires_at FROM {table}").fetchall()

    def one(self, table: str = "compression_locks") -> tuple[str, float, float]:
        ((_, holder, acquired, expires),) = self.all(table)
        return holder, acquired, expires

    def put(self, holder: str, acquired: Any, expires: Any, table: str = "compression_locks") -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", (SESSION, holder, acquired, expires))

    def clear(self) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            for table in TABLES:
                db.execute(f"DELETE FROM {table}")


class Clock:
    """The clocks that this process reads; other processes keep the true ones."""

    def __init__(self) -> None:
        self._wall = self._uptime = 0.0
        self._true = process.here

    def step(self, seconds: float) -> None:
        """Set the wall clock."""
        self._wall += seconds

    def go_on(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._wall += seconds
        self._uptime += seconds

    def here(self) -> Here:
        now = self._true()
        uptime = None if now.uptime is None else now.uptime + self._uptime
        return replace(now, wall=now.wall + self._wall, uptime=uptime)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("locks") / "state.db"
    migrations.upgrade(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', 1777630500.0)", (SESSION,))
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path / "state.db"))


@pytest.fixture
def store(path: Path) -> Iterator[HermesStore]:
    with HermesStore.open(path) as opened:
        yield opened


@pytest.fixture
def rows(path: Path) -> Rows:
    return Rows(path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(process, "here", made.here)
    return made
