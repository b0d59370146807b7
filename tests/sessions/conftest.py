"""Stores that the tests of sessions change."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes_store import HermesStore


@pytest.fixture
def store(empty_file: Path, tmp_path: Path) -> Iterator[HermesStore]:
    with HermesStore.open(shutil.copyfile(empty_file, tmp_path / "state.db")) as opened:
        yield opened


@pytest.fixture
def plain(store: HermesStore) -> Callable[..., list[Any]]:
    """Run SQL on the file as another program would, without foreign keys."""

    def run(statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(store.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    return run


@pytest.fixture
def say(plain: Callable[..., list[Any]]) -> Callable[..., None]:
    """Write a message as another program would."""

    def write(session_id: str, content: str = "hello", timestamp: Any = 1_780_000_000.0, **columns: Any) -> None:
        values = {"session_id": session_id, "role": "user", "content": content, "timestamp": timestamp} | columns
        plain(f"INSERT INTO messages ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", *values.values())

    return write
