"""Gateway routing and display names (schema 19, release 0.18.2).

Files below schema 18 get the gateway columns filled from ``sessions/sessions.json`` beside the file, where Hermes
kept them before; only NULL columns are filled, and a missing or broken file changes nothing.
"""

from __future__ import annotations

import json
from typing import Any

from alembic import op

from hermes_store.migrations import ensure

revision = "h19"
down_revision = "h17"
branch_labels = None
depends_on = None

TABLES = {
    "gateway_routing": """CREATE TABLE gateway_routing (
    scope TEXT NOT NULL DEFAULT '',
    session_key TEXT NOT NULL,
    entry_json TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (scope, session_key)
)""",
}

COLUMNS = {
    "sessions": {
        "display_name": "TEXT",
        "origin_json": "TEXT",
        "expiry_finalized": "INTEGER DEFAULT 0",
    },
}

INDEXES = {
    "idx_messages_active_null": """CREATE INDEX idx_messages_active_null
    ON messages(active) WHERE active IS NULL""",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    ensure.primary_key("gateway_routing", ("scope", "session_key"), TABLES["gateway_routing"], order_by="updated_at")
    if ensure.is_due(before=18):
        _fill_gateway_columns()
    ensure.reached(19)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


def _fill_gateway_columns() -> None:
    folder = ensure.database_folder()
    source = folder / "sessions" / "sessions.json" if folder else None
    if source is None or not source.is_file():
        return
    try:
        entries = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        ensure.report().note("sessions/sessions.json holds no JSON object; gateway columns were left as they are")
        return
    filled = sum(_fill_from(str(key), entry) for key, entry in entries.items())
    if filled:
        ensure.report().note(f"{filled} sessions got their gateway columns from sessions/sessions.json")


def _fill_from(key: str, entry: Any) -> int:
    """Fill one session's NULL columns; Hermes's own rules for what stands where in its file."""
    if key.startswith("_") or not isinstance(entry, dict) or not entry.get("session_id"):
        return 0
    origin = entry.get("origin")
    chat = origin if isinstance(origin, dict) else {}
    finalized = int(bool(entry.get("expiry_finalized") or entry.get("memory_flushed")))
    return (
        op.get_bind()
        .exec_driver_sql(
            "UPDATE sessions SET session_key = COALESCE(session_key, ?), chat_id = COALESCE(chat_id, ?),"
            " chat_type = COALESCE(chat_type, ?), thread_id = COALESCE(thread_id, ?),"
            " display_name = COALESCE(display_name, ?), origin_json = COALESCE(origin_json, ?),"
            " expiry_finalized = CASE WHEN ? THEN 1 ELSE expiry_finalized END WHERE id = ?",
            (
                _text(entry.get("session_key")) or _text(key),
                _text(chat.get("chat_id")),
                _text(entry.get("chat_type")),
                _text(chat.get("thread_id")),
                _text(entry.get("display_name")),
                json.dumps(origin) if isinstance(origin, dict) else None,
                finalized,
                _text(entry["session_id"]),
            ),
        )
        .rowcount
    )


def _text(value: Any) -> str | None:
    """A cell's text; numbers stand as text in these columns, and anything else has no place in them.

    Half a surrogate pair, which JSON can write but UTF-8 cannot, becomes a question mark.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).encode(errors="replace").decode()
