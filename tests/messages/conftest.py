"""A migrated file with one session, and a plain look at what is in it, as another program would have."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hermes_store import HermesStore, migrations

SESSION = "20260501_101500_ab12cd"
STRICT_CHECKS = (
    "INSERT INTO messages_fts(messages_fts, rank) VALUES('integrity-check', 1)",
    "INSERT INTO messages_fts_trigram(messages_fts_trigram, rank) VALUES('integrity-check', 1)",
)


@dataclass(frozen=True)
class Plain:
    """Reads and writes a file with nothing but sqlite3."""

    path: Path

    def all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> Any:
        ((value,),) = self.all(sql, *values)
        return value

    def flags(self, session_id: str = SESSION) -> list[tuple[Any, ...]]:
        """Id, content, active, compacted."""
        return self.all(
            "SELECT id, content, active, compacted FROM messages WHERE session_id = ? ORDER BY id", session_id
        )

    def counters(self, session_id: str = SESSION) -> tuple[int, int]:
        ((messages, calls),) = self.all("SELECT message_count, tool_call_count FROM sessions WHERE id = ?", session_id)
        return messages, calls

    def check(self) -> None:
        """The file is whole, its indexes hold exactly its messages, and every session's counters are true."""
        with closing(sqlite3.connect(self.path)) as db, db:
            for statement in STRICT_CHECKS:
                db.execute(statement)
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            for id_, messages, calls in db.execute(
                "SELECT id, message_count, tool_call_count FROM sessions"
            ).fetchall():
                live = db.execute(
                    "SELECT count(*), coalesce(sum(json_array_length(tool_calls)), 0) FROM messages"
                    " WHERE session_id = ? AND active = 1",
                    (id_,),
                ).fetchone()
                assert (messages, calls) == live, id_


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("messages") / "state.db"
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
def plain(path: Path) -> Plain:
    return Plain(path)


def call(name: str, call_id: str = "call_1", **arguments: Any) -> dict[str, Any]:
    """One tool call, as model providers write it."""
    import json

    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def turns(*texts: str, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for text in texts]
