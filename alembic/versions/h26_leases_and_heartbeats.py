"""Turn leases, gateway health, hidden sessions (schema 26, with the columns of release 0.21.0)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from alembic import op

from hermes_store.migrations import ensure

revision = "h26"
down_revision = "h25"
branch_labels = None
depends_on = None

TABLES = {
    "gateway_hygiene_state": """CREATE TABLE gateway_hygiene_state (
    session_key TEXT PRIMARY KEY,
    failure_streak INTEGER NOT NULL DEFAULT 0
)""",
    "gateway_heartbeats": """CREATE TABLE gateway_heartbeats (
    backend_id TEXT PRIMARY KEY,
    pid INTEGER NOT NULL,
    started_at REAL NOT NULL,
    last_heartbeat REAL NOT NULL,
    profile TEXT NOT NULL DEFAULT '',
    host TEXT NOT NULL DEFAULT ''
)""",
    "session_turn_leases": """CREATE TABLE session_turn_leases (
    conversation_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    acquired_at REAL NOT NULL,
    expires_at REAL NOT NULL
)""",
}

COLUMNS = {
    "sessions": {
        "git_metadata_generation": "INTEGER NOT NULL DEFAULT 0",
        "title_source": "TEXT",
        "hidden": "INTEGER NOT NULL DEFAULT 0",
    },
    "messages": {
        "_compressed_summary": "INTEGER NOT NULL DEFAULT 0",
    },
}

INDEXES = {
    "idx_session_turn_leases_expires": "CREATE INDEX idx_session_turn_leases_expires ON session_turn_leases(expires_at)",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    if ensure.is_empty(op.get_bind()):
        # Only a new file has these: they tell a fresh store from one whose history was lost.
        ensure.meta_default("store_instance_id", str(uuid.uuid4()))
        ensure.meta_default("store_created_at_utc", datetime.now(UTC).isoformat())
    ensure.reached(26)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)
