"""Files to search in, as tests see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from hermes_store.search import SearchPage, make_filters, search
from hermes_store.sqlite.shape import Shape, inspect

START = 1_780_000_000.0


class Opened:
    """An open file and what a search needs to know of it."""

    def __init__(self, path: Path, connection: Connection, shape: Shape) -> None:
        self.path = path
        self.connection = connection
        self.shape = shape
        self.fts5 = self.trigram = True

    def search(self, query: str, **filters: Any) -> SearchPage:
        return search(
            self.connection,
            query,
            make_filters(**filters),
            shape=self.shape,
            fts5=self.fts5,
            trigram=self.trigram,
        )

    def ids(self, query: str, **filters: Any) -> list[int]:
        return [hit.id for hit in self.search(query, **filters)]

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """Run a statement behind the back of the search, and look at the file's shape again."""
        result = self.connection.exec_driver_sql(statement, values)
        self.shape = inspect(self.connection)
        return result


class Corpus(Opened):
    """A file of schema 31 and layout 3 that a test fills; Hermes's own triggers index it."""

    def session(self, name: str, **columns: Any) -> str:
        values = {"id": name, "source": "cli", "started_at": START} | columns
        self.connection.exec_driver_sql(
            f"INSERT INTO sessions ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
            tuple(values.values()),
        )
        return name

    def add(self, content: Any, *, session: str = "s", **columns: Any) -> int:
        count = self.connection.exec_driver_sql("SELECT COUNT(*) FROM messages").scalar_one()
        values = {"session_id": session, "role": "user", "content": content, "timestamp": START + count} | columns
        result = self.connection.exec_driver_sql(
            f"INSERT INTO messages ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
            tuple(values.values()),
        )
        assert result.lastrowid is not None
        return result.lastrowid

    def add_all(self, *contents: Any, **columns: Any) -> list[int]:
        return [self.add(content, **columns) for content in contents]
