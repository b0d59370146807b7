"""Putting a corpus into a file of any schema, as fast as SQLite takes it.

The file is new and nobody else's yet, so triggers and secondary indexes come off, rows go in by the thousand, and
everything is put back from its own stored text; the search indexes are filled once, at the end. What a schema has no
column for is left out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine

from hermes_store.seeding.conversations import Row, SeedSession
from hermes_store.seeding.needles import Planter
from hermes_store.sqlite.activity import activity_fault, refill
from hermes_store.sqlite.decoded import ENCODED, TEXT_QUEUE, drain, text_index_fault
from hermes_store.sqlite.engine import BEGIN_OPTION
from hermes_store.sqlite.shape import Layout, Shape, inspect
from hermes_store.sqlite.views import quoted

SeedProgress = Callable[[str, int, int], None]

#: Messages per transaction: large enough for speed, small enough that a rollback journal stays small.
_BATCH = 20_000
#: Bytes of encoded text that are decoded in one transaction.
_DECODED_AT_ONCE = 8 * 1024 * 1024


class CorpusWriter:
    """Writes conversations into a fresh file.

    Args:
        engine: An engine of the file.
        planter: Where needles go.
        progress: Called with what is being done, how much is done, and how much there is.
    """

    def __init__(self, engine: Engine, planter: Planter, progress: SeedProgress) -> None:
        self._engine = engine
        self._planter = planter
        self._progress = progress
        #: SHA-256 over the logical content, in the order of writing.
        self.digest = hashlib.sha256()
        self.sessions = 0
        self.messages = 0
        self.writing_seconds = 0.0
        self.indexing_seconds = 0.0

    def write(self, conversations: Iterable[list[SeedSession]], messages: int) -> None:
        """Write conversations until there are enough messages, then index them.

        Args:
            conversations: The conversations, endless.
            messages: How many messages to write; the last conversation is cut off there.
        """
        with self._engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
            raw: Any = connection.connection.driver_connection
            raw.execute("PRAGMA synchronous=OFF")  # a corpus that a power cut ruins is seeded again
            raw.execute("PRAGMA cache_size=-65536")
            shape = inspect(connection)
            connection.rollback()
            started = time.perf_counter()
            with _bare_tables(connection, shape):
                self._write_rows(connection, shape, conversations, messages)
                self.writing_seconds = time.perf_counter() - started
                started = time.perf_counter()
                self._progress("indexing", 0, 0)
            _fill_search_indexes(connection, shape)
            _index_decoded_texts(connection, shape)
            _note_activity(connection, shape)
            self.indexing_seconds = time.perf_counter() - started

    def _write_rows(
        self, connection: Connection, shape: Shape, conversations: Iterable[list[SeedSession]], messages: int
    ) -> None:
        session_columns, message_columns = (
            [name for name in names if shape.has_column(table, name)]
            for table, names in (("sessions", _SESSION_COLUMNS), ("messages", _MESSAGE_COLUMNS))
        )
        prompts: set[str] = set()
        session_rows: list[tuple[Any, ...]] = []
        message_rows: list[tuple[Any, ...]] = []

        def flush() -> None:
            with connection.begin():
                raw: Any = connection.connection.driver_connection
                raw.executemany(_insert("sessions", session_columns), session_rows)
                raw.executemany(_insert("messages", message_columns), message_rows)
            session_rows.clear()
            message_rows.clear()
            self._progress("writing", self.messages, messages)

        for conversation in conversations:
            for session in conversation:
                del session.messages[max(0, messages - self.messages) :]
                self._place(session)
                self._store_prompt(connection, shape, session.row, prompts)
                session_rows.append(tuple([session.row.get(name, _DEFAULTS.get(name)) for name in session_columns]))
                message_rows.extend(
                    tuple([message.get(name) for name in message_columns]) for message in session.messages
                )
            if len(message_rows) >= _BATCH or self.messages >= messages:
                flush()
            if self.messages >= messages:
                return

    def _place(self, session: SeedSession) -> None:
        """Number messages, plant needles, keep the session's counters true, and add to the digest."""
        live = 0
        for message in session.messages:
            self.messages += 1
            message["id"] = message["display_order"] = self.messages
            content, needles = self._planter.plant(self.messages - 1, message["role"], message["content"])
            message["content"] = content
            if needles:
                self._planter.note(self.messages, needles)
            message["message_uid"] = f"{self.messages:032x}"
            live += message["active"]
            self.digest.update(
                f"{message['role']}\0{content}\0{message['timestamp']!r}\0{message['active']}\n".encode()
            )
        self.sessions += 1
        session.row["message_count"] = live
        if session.messages:
            session.row["last_activity_at"] = session.messages[-1]["timestamp"]
        session.row["input_tokens"] = 900 * len(session.messages)
        session.row["output_tokens"] = 120 * len(session.messages)
        self.digest.update(repr(sorted((k, v) for k, v in session.row.items() if v is not None)).encode())

    def _store_prompt(self, connection: Connection, shape: Shape, row: Row, known: set[str]) -> None:
        """From schema 25 on, a prompt is stored once, under its hash."""
        if not shape.has("table", "system_prompts"):
            return
        prompt = row.pop("system_prompt")
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        row["system_prompt_hash"] = digest
        if digest not in known:
            known.add(digest)
            with connection.begin():
                connection.exec_driver_sql(
                    "INSERT OR IGNORE INTO system_prompts (hash, prompt) VALUES (?, ?)", (digest, prompt)
                )


_SESSION_COLUMNS = (
    "id", "source", "model", "model_config", "system_prompt", "system_prompt_hash", "parent_session_id", "started_at",
    "ended_at", "end_reason", "message_count", "tool_call_count", "input_tokens", "output_tokens", "title", "cwd",
    "archived", "pinned", "hidden", "rewind_count", "user_id", "session_key", "chat_id", "chat_type", "last_activity_at",
)  # fmt: skip
_MESSAGE_COLUMNS = (
    "id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "finish_reason",
    "active", "compacted", "display_order", "message_uid",
)  # fmt: skip
_DEFAULTS: Row = {"rewind_count": 0, "archived": 0, "pinned": 0, "hidden": 0}


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


@contextmanager
def _bare_tables(connection: Connection, shape: Shape) -> Iterator[None]:
    """Take triggers and secondary indexes of the big tables off, and put them back from their own texts."""
    taken = [
        (kind, name, sql) for (kind, name), sql in shape.objects.items()
        if kind == "trigger" or (kind == "index" and " ON messages" in " ".join(sql.split()).replace("ON sessions", " ON messages"))
    ]  # fmt: skip
    with connection.begin():
        for kind, name, _ in taken:
            connection.exec_driver_sql(f"DROP {kind} {quoted(name)}")
    yield
    for kind in ("index", "trigger"):
        for _, _, sql in [one for one in taken if one[0] == kind]:
            with connection.begin():
                connection.exec_driver_sql(sql)


def _note_activity(connection: Connection, shape: Shape) -> None:
    if activity_fault(shape) is None:
        with connection.begin():
            refill(connection)


def _index_decoded_texts(connection: Connection, shape: Shape) -> None:
    if text_index_fault(shape) is not None:
        return
    with connection.begin():
        connection.exec_driver_sql(
            f"INSERT INTO {TEXT_QUEUE} (message_id) SELECT m.id FROM messages AS m WHERE {ENCODED}"
        )
    moved = 1
    while moved:
        with connection.begin():
            moved = drain(connection, _DECODED_AT_ONCE)


def _fill_search_indexes(connection: Connection, shape: Shape) -> None:
    for index in (shape.word, shape.trigram):
        if index.layout is Layout.ABSENT:
            continue
        with connection.begin():
            if index.layout is Layout.INLINE:
                connection.exec_driver_sql(
                    f"INSERT INTO {index.name} (rowid, content) SELECT id, COALESCE(content, '') || ' ' ||"
                    " COALESCE(tool_name, '') || ' ' || COALESCE(tool_calls, '') FROM messages"
                )
            else:
                connection.exec_driver_sql(f"INSERT INTO {index.name} ({index.name}) VALUES ('rebuild')")
