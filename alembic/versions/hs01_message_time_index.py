"""An index for walking messages newest first (ours).

Search without an index, and search by time, stop at the limit instead of sorting all messages.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure

revision = "hs01"
down_revision = "h31"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_hs_messages_timestamp": "CREATE INDEX ix_hs_messages_timestamp ON messages (timestamp DESC, id DESC)",
}


def upgrade() -> None:
    """Add the index."""
    ensure.indexes(INDEXES)


def downgrade() -> None:
    """Drop the index."""
    for name in INDEXES:
        op.get_bind().exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
