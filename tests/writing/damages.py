"""Ways to damage a file that nobody has open, and to write and look at messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from migrations.files import run
from migrations.indexes import troubles
from sqlalchemy.orm import Session

from hermes_store.models import Message

TRIGGERS = {
    f"{index}_{action}"
    for index in ("messages_fts", "messages_fts_trigram")
    for action in ("insert", "update", "delete")
}
SESSION = "written"

Damage = Callable[[Path, str], None]


def overwrite_root(path: Path, table: str) -> None:
    """Make the first page of a table's b-tree unreadable; the bytes of the file are overwritten."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    with path.open("r+b") as stored:
        stored.seek((root - 1) * size)
        stored.write(b"\x05" + b"\xff" * (size - 1))


def _statements(*statements: str) -> Damage:
    def damage(path: Path, index: str) -> None:
        # The tables that hold an index are protected against everybody but the index.
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema=ON")
            for statement in statements:
                connection.execute(statement.format(index))

    return damage


def _page(part: str) -> Damage:
    return lambda path, index: overwrite_root(path, f"{index}_{part}")


#: Each makes the triggers of the index fail, with the statement or with COMMIT.
DAMAGES: dict[str, Damage] = {
    "a page of its data": _page("data"),
    "a page of its segments": _page("idx"),
    "a page of its sizes": _page("docsize"),
    "a page of its settings": _page("config"),
    "its structure is garbage": _statements("UPDATE {0}_data SET block = x'ffffffffffffffffff' WHERE id = 10"),
    "its structure is gone": _statements("DELETE FROM {0}_data WHERE id = 10"),
    "its data is gone": _statements("DELETE FROM {0}_data"),
    "its settings are gone": _statements("DELETE FROM {0}_config"),
    "its format is unknown": _statements("UPDATE {0}_config SET v = 99"),
    "no table of data": _statements("DROP TABLE {0}_data"),
    "no table of segments": _statements("DROP TABLE {0}_idx"),
    "no table of sizes": _statements("DROP TABLE {0}_docsize"),
    "no table of settings": _statements("DROP TABLE {0}_config"),
    "no index at all": _statements("DROP TABLE {0}"),
}


def add_message(session: Session, text: str, role: str = "user", id_: int | None = None) -> int:
    """Write a message as an application does that uses the models."""
    row = Message(id=id_, session_id=SESSION, role=role, content=text, timestamp=1_700_000_000.0)
    session.add(row)
    session.flush()
    return row.id


def written(path: Path) -> list[str]:
    """The texts of all messages of the session, in the order of their ids."""
    rows = run(path, ("SELECT content FROM messages WHERE session_id = ? ORDER BY id", (SESSION,)))
    return [text for (text,) in rows]


def triggers(path: Path) -> set[str]:
    """The triggers that feed the word and the substring index."""
    rows = run(path, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    return {name for (name,) in rows} & TRIGGERS


def markers(path: Path) -> dict[str, str]:
    """The markers that say that an index misses messages."""
    return dict(run(path, "SELECT key, value FROM state_meta WHERE key IN ('fts_stale', 'fts_cjk_stale')"))


def troubles_but_lost_pages(path: Path) -> list[str]:
    """What is wrong with the indexes, apart from pages that only a damaged page told of; VACUUM gives them back."""
    return [
        trouble
        for trouble in troubles(path)
        if not all(line.startswith("***") or line.endswith("never used") for line in trouble.splitlines())
    ]
