"""Every kind of bad row that real files hold, for testing what reads them.

Written with plain SQL after the corpus, past the models, as other programs and old bugs write.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from hermes_store.sqlite.shape import Shape

_T = 1_770_000_000.0

#: Sessions: id, source, title, started_at, model_config, parent_session_id.
_SESSIONS: tuple[tuple[Any, ...], ...] = (
    ("bad_text_time", "cli", "Text for a time", "yesterday", None, None),
    ("bad_infinite_time", "cli", "Infinite time", float("inf"), None, None),
    ("bad_blob_time", "cli", "Blob for a time", b"\x00\xff", None, None),
    ("bad_millisecond_time", "cli", "Milliseconds", _T * 1000, None, None),
    ("bad_broken_config", "cli", "Broken config", _T + 1, '{"_branched_from": ', None),
    ("bad_list_config", "cli", "Config is a list", _T + 2, "[1, 2]", None),
    ("bad_number_config", "cli", "Config is a number", _T + 3, "42", None),
    ("bad_self_parent", "cli", "Own parent", _T + 4, None, "bad_self_parent"),
    ("bad_ring_a", "cli", "Ring A", _T + 5, None, "bad_ring_c"),
    ("bad_ring_b", "cli", "Ring B", _T + 6, None, "bad_ring_a"),
    ("bad_ring_c", "cli", "Ring C", _T + 7, None, "bad_ring_b"),
    ("bad_dangling_parent", "cli", "Parent is gone", _T + 8, None, "nobody"),
    ("bad_dangling_delegate", "subagent", None, _T + 9, '{"_delegate_from": "nobody"}', "nobody"),
    ("bad_orphaned", "cli", None, _T + 10, '{"_delegate_from": "__orphaned__"}', None),
    ("bad_duplicate_a", "cli", "Same title", _T + 11, None, None),
    ("bad_duplicate_b", "cli", "Same title", _T + 12, None, None),
    ("bad_duplicate_c", "cli", "Same title", _T + 13, None, None),
)

#: Messages of the session `bad_text_time`: role, content, tool_calls, timestamp.
_MESSAGES: tuple[tuple[Any, ...], ...] = (
    ("user", "a plain row among bad ones", None, _T),
    ("assistant", "broken calls", '[{"function": ', _T + 1),
    ("assistant", "calls that are text", "please call ls", _T + 2),
    ("assistant", "calls that are no list", '{"name": "ls"}', _T + 3),
    ("user", "text for a time", None, "2026-01-01"),
    ("user", "infinite time", None, float("inf")),
    ("user", "blob for a time", None, b"\x01\x02"),
    ("user", "milliseconds", None, _T * 1000),
    ("user", "a NUL\0in the middle", None, _T + 4),
    ("user", '\0json:[{"type": "text", "text": "multimodal \\u82f9\\u679c"}]', None, _T + 5),
    ("user", "\0json:{broken", None, _T + 6),
    ("robot", "an unknown role", None, _T + 7),
    ("", "an empty role", None, _T + 8),
    ("user", b"bytes \xff\xfe", None, _T + 9),
    ("user", 3.5, None, _T + 10),
    ("user", None, None, _T + 11),
)


def write_bad_rows(connection: Connection, shape: Shape) -> int:
    """Write one row of each bad kind.

    Args:
        connection: A connection inside a write transaction, with foreign keys off.
        shape: The file's shape.

    Returns:
        How many messages were written.
    """
    raw: Any = connection.connection.driver_connection
    if shape.has("index", "idx_sessions_title_unique"):
        connection.exec_driver_sql("DROP INDEX idx_sessions_title_unique")  # a file with duplicates cannot have it
    raw.executemany(
        "INSERT INTO sessions (id, source, title, started_at, model_config, parent_session_id) VALUES (?, ?, ?, ?, ?, ?)",
        _SESSIONS,
    )
    raw.execute(
        "INSERT INTO sessions (id, source, title, started_at) VALUES ('bad_bytes_title', 'cli', CAST(x'4162ff' AS TEXT), ?)",
        (_T,),
    )
    raw.executemany(
        "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) VALUES ('bad_text_time', ?, ?, ?, ?)",
        _MESSAGES,
    )
    raw.execute(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('bad_text_time', 'user', CAST(x'6162ff' AS TEXT), ?)",
        (_T + 12,),
    )
    raw.execute(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('no_such_session', 'user', 'orphaned', ?)",
        (_T + 13,),
    )
    return len(_MESSAGES) + 2
