"""Platform message ids (schema 13, release 0.15.0)."""

from __future__ import annotations

from hermes_store.migrations import ensure

revision = "h13"
down_revision = "h11"
branch_labels = None
depends_on = None

COLUMNS = {
    "messages": {
        "platform_message_id": "TEXT",
        "observed": "INTEGER DEFAULT 0",
    },
}

INDEXES = {
    "idx_messages_platform_msg_id": "CREATE INDEX idx_messages_platform_msg_id ON messages(session_id, platform_message_id) WHERE platform_message_id IS NOT NULL",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    ensure.reached(13)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)
