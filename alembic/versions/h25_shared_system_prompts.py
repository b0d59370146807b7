"""System prompts stored once (schema 25, release 0.20.0).

Prompts move from ``sessions`` to ``system_prompts`` under the SHA-256 of their UTF-8 bytes. They are copied inside
SQLite, so not a byte of them changes.
"""

from __future__ import annotations

import hashlib

from alembic import op

from hermes_store.migrations import ensure
from hermes_store.migrations.search_objects import SearchIndex, create_on_empty_file
from hermes_store.sqlite.shape import Layout

revision = "h25"
down_revision = "h22"
branch_labels = None
depends_on = None

TABLES = {
    "system_prompts": """CREATE TABLE system_prompts (
    hash TEXT PRIMARY KEY,
    prompt TEXT NOT NULL
)""",
}

COLUMNS = {
    "sessions": {
        "system_prompt_hash": "TEXT",
        "last_activity_at": "REAL",
        "last_activity_description": "TEXT",
        "last_activity_provenance": "TEXT",
        "compression_ineffective_count": "INTEGER NOT NULL DEFAULT 0",
        "pinned": "INTEGER NOT NULL DEFAULT 0",
        "last_read_at": "REAL",
    },
    "messages": {
        "display_kind": "TEXT",
        "display_metadata": "TEXT",
    },
}

INDEXES = {
    "idx_messages_session_id": "CREATE INDEX idx_messages_session_id ON messages(session_id, id)",
    "idx_messages_assistant_calls_by_session": """CREATE INDEX idx_messages_assistant_calls_by_session
    ON messages(session_id)
    WHERE role = 'assistant' AND tool_calls IS NOT NULL""",
    "idx_sessions_system_prompt_hash": """CREATE INDEX idx_sessions_system_prompt_hash
    ON sessions(system_prompt_hash)""",
}

SEARCH = (
    SearchIndex(
        name="messages_fts",
        layout=Layout.EXTERNAL,
        table="""CREATE VIRTUAL TABLE messages_fts USING fts5(
    content,
    tool_name,
    tool_calls,
    content='messages',
    content_rowid='id'
)""",
        triggers={
            "messages_fts_insert": """CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages
WHEN (new.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                         WHERE key = 'fts_rebuild_high_water'), -1)
   OR new.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                          WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts(rowid, content, tool_name, tool_calls)
    VALUES (new.id, new.content, new.tool_name, new.tool_calls);
END""",
            "messages_fts_delete": """CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages
WHEN (old.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                         WHERE key = 'fts_rebuild_high_water'), -1)
   OR old.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                          WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content, tool_name, tool_calls)
    VALUES ('delete', old.id, old.content, old.tool_name, old.tool_calls);
END""",
            "messages_fts_update": """CREATE TRIGGER messages_fts_update
AFTER UPDATE OF content, tool_name, tool_calls ON messages
WHEN (old.content IS NOT new.content
    OR old.tool_name IS NOT new.tool_name
    OR old.tool_calls IS NOT new.tool_calls)
   AND (old.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                           WHERE key = 'fts_rebuild_high_water'), -1)
     OR old.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                            WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content, tool_name, tool_calls)
    VALUES ('delete', old.id, old.content, old.tool_name, old.tool_calls);
    INSERT INTO messages_fts(rowid, content, tool_name, tool_calls)
    VALUES (new.id, new.content, new.tool_name, new.tool_calls);
END""",
        },
    ),
    SearchIndex(
        name="messages_fts_trigram",
        layout=Layout.EXTERNAL,
        table="""CREATE VIRTUAL TABLE messages_fts_trigram USING fts5(
    content,
    tool_name,
    tool_calls,
    content='messages_fts_trigram_src',
    content_rowid='id',
    tokenize='trigram'
)""",
        view="""CREATE VIEW messages_fts_trigram_src AS
    SELECT id, role, content, tool_name, tool_calls
    FROM messages
    WHERE role <> 'tool'""",
        triggers={
            "messages_fts_trigram_insert": """CREATE TRIGGER messages_fts_trigram_insert AFTER INSERT ON messages
WHEN new.role <> 'tool'
   AND (new.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                           WHERE key = 'fts_rebuild_high_water'), -1)
     OR new.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                            WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts_trigram(rowid, content, tool_name, tool_calls)
    VALUES (new.id, new.content, new.tool_name, new.tool_calls);
END""",
            "messages_fts_trigram_delete": """CREATE TRIGGER messages_fts_trigram_delete AFTER DELETE ON messages
WHEN old.role <> 'tool'
   AND (old.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                           WHERE key = 'fts_rebuild_high_water'), -1)
     OR old.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                            WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content, tool_name, tool_calls)
    VALUES ('delete', old.id, old.content, old.tool_name, old.tool_calls);
END""",
            "messages_fts_trigram_update": """CREATE TRIGGER messages_fts_trigram_update
AFTER UPDATE OF content, tool_name, tool_calls, role ON messages
WHEN (old.content IS NOT new.content
    OR old.tool_name IS NOT new.tool_name
    OR old.tool_calls IS NOT new.tool_calls
    OR old.role IS NOT new.role)
   AND (old.id > COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                           WHERE key = 'fts_rebuild_high_water'), -1)
     OR old.id <= COALESCE((SELECT CAST(value AS INTEGER) FROM state_meta
                            WHERE key = 'fts_rebuild_progress'), -1))
BEGIN
    INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content, tool_name, tool_calls)
    SELECT 'delete', old.id, old.content, old.tool_name, old.tool_calls
    WHERE old.role <> 'tool';
    INSERT INTO messages_fts_trigram(rowid, content, tool_name, tool_calls)
    SELECT new.id, new.content, new.tool_name, new.tool_calls
    WHERE new.role <> 'tool';
END""",
        },
    ),
)


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    ensure.columns(COLUMNS)
    ensure.indexes(INDEXES)
    if ensure.is_due(before=25):
        _share_prompts()
    create_on_empty_file(op.get_bind(), SEARCH, ensure.report())
    ensure.reached(25)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


def _share_prompts() -> None:
    bind = op.get_bind()
    sessions = bind.exec_driver_sql(
        "SELECT rowid FROM sessions WHERE system_prompt IS NOT NULL AND typeof(system_prompt) = 'text'"
    ).all()
    for (rowid,) in sessions:
        # As bytes: the text may not be valid UTF-8, and must arrive as it left.
        stored = bind.exec_driver_sql("SELECT CAST(system_prompt AS BLOB) FROM sessions WHERE rowid = ?", (rowid,))
        digest = hashlib.sha256(stored.scalar_one()).hexdigest()
        bind.exec_driver_sql(
            "INSERT OR IGNORE INTO system_prompts (hash, prompt) SELECT ?, system_prompt FROM sessions WHERE rowid = ?",
            (digest, rowid),
        )
        bind.exec_driver_sql(
            "UPDATE sessions SET system_prompt_hash = ?, system_prompt = NULL WHERE rowid = ?", (digest, rowid)
        )
    if sessions:
        ensure.report().note(f"{len(sessions)} system prompts moved to a table where each text is stored once")
