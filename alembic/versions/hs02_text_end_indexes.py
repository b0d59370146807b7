"""Indexes on the ends of texts (ours).

The substring index holds every occurrence of a term of one or two characters as the beginning of some trigram, except
at the very end of a text, where no trigram begins any more. These small indexes hold the last character and the last
two of every text that the substring index covers, so that short terms are looked up and never scanned for.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure

revision = "hs02"
down_revision = "hs01"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_hs_messages_content_end1": """CREATE INDEX ix_hs_messages_content_end1
    ON messages (substr(content, -1)) WHERE role <> 'tool'""",
    "ix_hs_messages_content_end2": """CREATE INDEX ix_hs_messages_content_end2
    ON messages (substr(content, -2)) WHERE role <> 'tool'""",
    "ix_hs_messages_tool_name_end1": """CREATE INDEX ix_hs_messages_tool_name_end1
    ON messages (substr(tool_name, -1)) WHERE role <> 'tool' AND tool_name IS NOT NULL""",
    "ix_hs_messages_tool_name_end2": """CREATE INDEX ix_hs_messages_tool_name_end2
    ON messages (substr(tool_name, -2)) WHERE role <> 'tool' AND tool_name IS NOT NULL""",
}


def upgrade() -> None:
    """Add the indexes."""
    ensure.indexes(INDEXES)


def downgrade() -> None:
    """Drop the indexes."""
    for name in INDEXES:
        op.get_bind().exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
