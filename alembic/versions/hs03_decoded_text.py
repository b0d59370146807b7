"""Searching what structured content and escaped tool calls say (ours).

Triggers note the ids of messages whose text is stored in an encoded form; this package decodes them and keeps their
text in an index of its own. The triggers run in every program that writes the file, so they must not be able to fail:
no index, no JSON, and no conflict that the OR clause of an outer INSERT could turn against its writer. The index is
filled, and the queue emptied, by the pending work of every upgrade.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Connection

from hermes_store.migrations import ensure
from hermes_store.migrations.text_objects import lay_out, make_anew, take_down

revision = "hs03"
down_revision = "hs02"
branch_labels = None
depends_on = None

TABLES = {
    "hs_text_queue": "CREATE TABLE hs_text_queue (message_id INTEGER PRIMARY KEY)",
}

TRIGGERS = {
    "hs_text_insert": """CREATE TRIGGER hs_text_insert AFTER INSERT ON messages
WHEN instr(new.content, char(0)) OR instr(new.tool_calls, '\\u')
BEGIN
    INSERT INTO hs_text_queue (message_id)
    SELECT new.id WHERE NOT EXISTS (SELECT 1 FROM hs_text_queue WHERE message_id = new.id);
END""",
    "hs_text_update": """CREATE TRIGGER hs_text_update AFTER UPDATE OF id, role, content, tool_calls ON messages
WHEN instr(new.content, char(0)) OR instr(new.tool_calls, '\\u')
  OR instr(old.content, char(0)) OR instr(old.tool_calls, '\\u')
BEGIN
    INSERT INTO hs_text_queue (message_id)
    SELECT old.id WHERE NOT EXISTS (SELECT 1 FROM hs_text_queue WHERE message_id = old.id);
    INSERT INTO hs_text_queue (message_id)
    SELECT new.id WHERE NOT EXISTS (SELECT 1 FROM hs_text_queue WHERE message_id = new.id);
END""",
    "hs_text_delete": """CREATE TRIGGER hs_text_delete AFTER DELETE ON messages
WHEN instr(old.content, char(0)) OR instr(old.tool_calls, '\\u')
BEGIN
    INSERT INTO hs_text_queue (message_id)
    SELECT old.id WHERE NOT EXISTS (SELECT 1 FROM hs_text_queue WHERE message_id = old.id);
END""",
}

#: It stores its text, so that what a message said is removable when the message says something else or is gone. Sizes
#: of rows are not kept: only bm25 reads them, and without it a message costs one row less.
TEXT_INDEX = "CREATE VIRTUAL TABLE hs_text_fts USING fts5(text, tokenize='trigram', columnsize=0)"


def upgrade() -> None:
    """Make the queue, its triggers and, where SQLite can, the index; what is missing starts the fill over."""
    lay_out(op.get_bind(), TABLES, TRIGGERS, TEXT_INDEX, ensure.report())


def downgrade() -> None:
    """Take all of it down, damaged or not."""
    take_down(op.get_bind(), TABLES, TRIGGERS)


def renew_text_index(connection: Connection) -> None:
    """Put an empty index in the place of one that is damaged, and start the fill over.

    Args:
        connection: A connection inside a write transaction.
    """
    make_anew(connection, TABLES, TRIGGERS, TEXT_INDEX)
