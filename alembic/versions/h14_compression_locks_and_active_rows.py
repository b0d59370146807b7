"""Compression locks, archived sessions, and rows that can be inactive (schema 14, release 0.16.0).

Rows whose ``active`` is NULL (written by builds that added the column without its default) are invisible to every
Hermes; they become active, as Hermes does at every open.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure
from hermes_store.migrations.search_objects import narrow_update_triggers
from hermes_store.sqlite.shape import inspect

revision = "h14"
down_revision = "h13"
branch_labels = None
depends_on = None

TABLES = {
    "compression_locks": """CREATE TABLE compression_locks (
    session_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    acquired_at REAL NOT NULL,
    expires_at REAL NOT NULL
)""",
}

COLUMNS = {
    "sessions": {
        "cwd": "TEXT",
        "rewind_count": "INTEGER NOT NULL DEFAULT 0",
        "archived": "INTEGER NOT NULL DEFAULT 0",
    },
    "messages": {
        "active": "INTEGER NOT NULL DEFAULT 1",
    },
}

INDEXES = {
    "idx_compression_locks_expires": "CREATE INDEX idx_compression_locks_expires ON compression_locks(expires_at)",
    "idx_messages_session_active": """CREATE INDEX idx_messages_session_active
    ON messages(session_id, active, timestamp)""",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    _activate_null_rows()
    ensure.reached(14)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


def _activate_null_rows() -> None:
    bind = op.get_bind()
    if bind.exec_driver_sql("SELECT 1 FROM messages WHERE active IS NULL LIMIT 1").first() is None:
        return
    narrow_update_triggers(bind, inspect(bind))  # those of old files fire for this column too, and may not be able to
    healed = bind.exec_driver_sql("UPDATE messages SET active = 1 WHERE active IS NULL").rowcount
    ensure.report().note(f"{healed} messages had no active flag, which hides them, and got it")
