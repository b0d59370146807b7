"""Encoded messages of every kind, what the index should hold of them, and ways to spoil the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrations.files import connect, run

from hermes_store.content import decode, decode_tool_calls

SHORT = "a text of ordinary words"
LONG = "长" * 9_000 + "末尾"


def structured(*texts: str) -> str:
    """Content of several parts, stored as Hermes does; one of them an image."""
    parts: list[Any] = [{"type": "text", "text": text} for text in texts]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40}}
    return "\0json:" + json.dumps([*parts, image])


def calls(**arguments: str) -> str:
    """Tool calls, stored as Hermes does: escaped JSON in escaped JSON."""
    return json.dumps([{"function": {"name": "write_file", "arguments": json.dumps(arguments)}}])


#: Role, content and tool calls of messages that belong in the index.
ENCODED: dict[str, tuple[str, Any, Any]] = {
    "structured content": ("user", structured("苹果派说明书", "second part"), None),
    "escaped calls": ("assistant", "plain 内容", calls(text="写入成功")),
    "both": ("assistant", structured("两者"), calls(text="都有")),
    "a long tool result": ("tool", structured(LONG), None),
    "a NUL inside": ("user", "before\0after", None),
    "broken JSON": ("user", "\0json:[{]", "[{\\u"),
    "lone surrogates": ("user", '\0json:["\\ud83d alone"]', '[{"name": "\\udc00"}]'),
    "nothing but an image": ("user", structured(), None),
    "bytes": ("user", b"\xff\x00\xfe bytes", b"\\u1234 bytes"),
    "calls and no content": ("assistant", None, calls(text="无内容")),
}
#: The same of messages that do not.
PLAIN: dict[str, tuple[str, Any, Any]] = {
    "words": ("user", SHORT, None),
    "unescaped calls": ("assistant", "plain", calls(text="ascii only")),
    "nothing": ("assistant", None, None),
    "a number": ("user", 7, None),
    "bytes": ("user", b"\xff\xfe", b"[]"),
}


def write(connection: Any, rows: dict[str, tuple[str, Any, Any]], verb: str = "INSERT") -> list[int]:
    """Add messages to the first session; give their ids."""
    statement = (
        f"{verb} INTO messages (session_id, role, content, tool_calls, timestamp)"
        " VALUES ((SELECT MIN(id) FROM sessions), ?, ?, ?, 2.0)"
    )
    return [connection.execute(statement, row).lastrowid for row in rows.values()]


def wanted(path: Path) -> dict[int, str]:
    """The decoded text of every message that belongs in the index, by a rule of its own."""
    found = {}
    with connect(path) as connection:
        connection.text_factory = lambda stored: stored.decode(errors="replace")
        for id_, role, content, tool_calls in connection.execute("SELECT id, role, content, tool_calls FROM messages"):
            escaped = "\\u" in as_text(tool_calls)
            if escaped or "\0" in as_text(content):
                text = decode(content).text[: 8_192 if role == "tool" else None]
                found[id_] = (text + ("\n" + decode_tool_calls(tool_calls).text if escaped else "")).replace(
                    "\0", " "
                ) + "\n\n"
    return found


def as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def indexed(path: Path) -> dict[int, str]:
    """What the index holds."""
    return dict(run(path, "SELECT rowid, text FROM hs_text_fts"))


def matches(path: Path, text: str) -> set[int]:
    """The messages the index finds."""
    return {id_ for (id_,) in run(path, ("SELECT rowid FROM hs_text_fts WHERE hs_text_fts MATCH ?", (f'"{text}"',)))}


def queued(path: Path) -> list[int]:
    return [id_ for (id_,) in run(path, "SELECT message_id FROM hs_text_queue ORDER BY 1")]


def statements(*sql: str) -> Callable[[Path], object]:
    return lambda path: run(path, *sql)


#: What may have happened to the index, behind everybody's back.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "its structure is garbage": statements("UPDATE hs_text_fts_data SET block = x'00112233' WHERE id = 10"),
    "its structure is gone": statements("DELETE FROM hs_text_fts_data WHERE id = 10"),
    "its leaves are garbage": statements("UPDATE hs_text_fts_data SET block = randomblob(length(block)) WHERE id > 10"),
    "its leaves are blank": statements("UPDATE hs_text_fts_data SET block = zeroblob(length(block)) WHERE id > 10"),
    "its leaves are gone": statements("DELETE FROM hs_text_fts_data WHERE id > 10"),
    "its texts are gone": statements("DELETE FROM hs_text_fts_content"),
    "its data table was dropped": statements("DROP TABLE hs_text_fts_data"),
    "its lookup table was dropped": statements("DROP TABLE hs_text_fts_idx"),
    "its texts' table was dropped": statements("DROP TABLE hs_text_fts_content"),
    "its settings' table was dropped": statements("DROP TABLE hs_text_fts_config"),
    "it was dropped": statements("DROP TABLE hs_text_fts"),
    "its parts are orphaned": statements(
        "PRAGMA writable_schema=ON", "DELETE FROM sqlite_master WHERE name = 'hs_text_fts'"
    ),
}
