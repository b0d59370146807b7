"""The first schema of a released Hermes (0.13.0 and 0.14.0): sessions, messages, state, and layout 0 of the indexes.

On a file with history this creates what is missing and makes titles unique, for which duplicate titles are renamed:
the newest session keeps the title, the others become "… #2", "… #3" in order of age, newest first.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure
from hermes_store.migrations.search_objects import SearchIndex, create_on_empty_file, discard_ancient
from hermes_store.sqlite.shape import Layout

revision = "h11"
down_revision = None
branch_labels = None
depends_on = None

TABLES = {
    "schema_version": """CREATE TABLE schema_version (
    version INTEGER NOT NULL
)""",
    "sessions": """CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    model TEXT,
    model_config TEXT,
    system_prompt TEXT,
    parent_session_id TEXT REFERENCES sessions(id),
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0,
    billing_provider TEXT,
    billing_base_url TEXT,
    billing_mode TEXT,
    estimated_cost_usd REAL,
    actual_cost_usd REAL,
    cost_status TEXT,
    cost_source TEXT,
    pricing_version TEXT,
    title TEXT,
    api_call_count INTEGER DEFAULT 0,
    handoff_state TEXT,
    handoff_platform TEXT,
    handoff_error TEXT
)""",
    "messages": """CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    timestamp REAL NOT NULL,
    token_count INTEGER,
    finish_reason TEXT,
    reasoning TEXT,
    reasoning_content TEXT,
    reasoning_details TEXT,
    codex_reasoning_items TEXT,
    codex_message_items TEXT
)""",
    "state_meta": """CREATE TABLE state_meta (
    key TEXT PRIMARY KEY,
    value TEXT
)""",
}

INDEXES = {
    "idx_sessions_source": "CREATE INDEX idx_sessions_source ON sessions(source)",
    "idx_sessions_parent": "CREATE INDEX idx_sessions_parent ON sessions(parent_session_id)",
    "idx_sessions_started": "CREATE INDEX idx_sessions_started ON sessions(started_at DESC)",
    "idx_messages_session": "CREATE INDEX idx_messages_session ON messages(session_id, timestamp)",
    "idx_sessions_title_unique": "CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL",
}

SEARCH = (
    SearchIndex(
        name="messages_fts",
        layout=Layout.INLINE,
        table="""CREATE VIRTUAL TABLE messages_fts USING fts5(
    content
)""",
        triggers={
            "messages_fts_insert": """CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END""",
            "messages_fts_delete": """CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
    DELETE FROM messages_fts WHERE rowid = old.id;
END""",
            "messages_fts_update": """CREATE TRIGGER messages_fts_update AFTER UPDATE ON messages BEGIN
    DELETE FROM messages_fts WHERE rowid = old.id;
    INSERT INTO messages_fts(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END""",
        },
    ),
    SearchIndex(
        name="messages_fts_trigram",
        layout=Layout.INLINE,
        table="""CREATE VIRTUAL TABLE messages_fts_trigram USING fts5(
    content,
    tokenize='trigram'
)""",
        triggers={
            "messages_fts_trigram_insert": """CREATE TRIGGER messages_fts_trigram_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts_trigram(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END""",
            "messages_fts_trigram_delete": """CREATE TRIGGER messages_fts_trigram_delete AFTER DELETE ON messages BEGIN
    DELETE FROM messages_fts_trigram WHERE rowid = old.id;
END""",
            "messages_fts_trigram_update": """CREATE TRIGGER messages_fts_trigram_update AFTER UPDATE ON messages BEGIN
    DELETE FROM messages_fts_trigram WHERE rowid = old.id;
    INSERT INTO messages_fts_trigram(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END""",
        },
    ),
)


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    _make_titles_unique()
    ensure.indexes(INDEXES)
    if ensure.is_due(before=11):
        discard_ancient(op.get_bind(), SEARCH)
    create_on_empty_file(op.get_bind(), SEARCH, ensure.report())
    ensure.reached(11)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


def _make_titles_unique() -> None:
    bind = op.get_bind()
    if bind.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'idx_sessions_title_unique'").first():
        return
    # By rowid, and compared inside SQLite: a title may hold bytes that are no valid UTF-8.
    duplicates = bind.exec_driver_sql(
        "SELECT MIN(rowid) FROM sessions WHERE title IS NOT NULL GROUP BY title HAVING count(*) > 1 ORDER BY title"
    ).scalars()
    renamed = sum(_number_older_ones(rowid) for rowid in duplicates.all())
    if renamed:
        ensure.report().note(f"{renamed} sessions had the title of another one and got a number behind it")


def _number_older_ones(rowid: int) -> int:
    """Rename all but the newest session of those that share one's title."""
    bind = op.get_bind()
    # Timestamps may be anything in an old file; typeof() keeps numbers and text apart in the order.
    older = bind.exec_driver_sql(
        "SELECT rowid FROM sessions WHERE title = (SELECT title FROM sessions WHERE rowid = ?)"
        " ORDER BY typeof(started_at) IN ('real', 'integer') DESC, started_at DESC, rowid DESC LIMIT -1 OFFSET 1",
        (rowid,),
    ).scalars()
    numbered = "SELECT title || ' #' || ? FROM sessions WHERE rowid = ?"
    number, renamed = 2, 0
    for one in older.all():
        while bind.exec_driver_sql(f"SELECT 1 FROM sessions WHERE title = ({numbered})", (number, one)).first():
            number += 1
        bind.exec_driver_sql(f"UPDATE sessions SET title = ({numbered}) WHERE rowid = ?", (number, one, one))
        renamed += 1
    return renamed
