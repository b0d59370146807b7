"""Gateway peers, git facts, and compaction in place (schema 17, release 0.18.0)."""

from __future__ import annotations

from hermes_store.migrations import ensure

revision = "h17"
down_revision = "h16"
branch_labels = None
depends_on = None

COLUMNS = {
    "sessions": {
        "session_key": "TEXT",
        "chat_id": "TEXT",
        "chat_type": "TEXT",
        "thread_id": "TEXT",
        "git_branch": "TEXT",
        "git_repo_root": "TEXT",
        "compression_failure_cooldown_until": "REAL",
        "compression_failure_error": "TEXT",
    },
    "messages": {
        "compacted": "INTEGER NOT NULL DEFAULT 0",
    },
}

INDEXES = {
    "idx_sessions_session_key": """CREATE INDEX idx_sessions_session_key
    ON sessions(session_key, started_at DESC)""",
    "idx_sessions_gateway_peer": """CREATE INDEX idx_sessions_gateway_peer
    ON sessions(source, user_id, chat_id, chat_type, thread_id, started_at DESC)""",
    "idx_sessions_handoff_state": """CREATE INDEX idx_sessions_handoff_state
    ON sessions(handoff_state, started_at)""",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    ensure.reached(17)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)
