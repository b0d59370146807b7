"""Usage per model, and asynchronous delegations (schema 22, release 0.19.0).

Files below schema 20 get one usage row per session that has counted tokens; older tables whose key lacks ``task``
are rebuilt with it.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure

revision = "h22"
down_revision = "h19"
branch_labels = None
depends_on = None

TABLES = {
    "session_model_usage": """CREATE TABLE session_model_usage (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    billing_provider TEXT NOT NULL DEFAULT '',
    billing_base_url TEXT NOT NULL DEFAULT '',
    billing_mode TEXT NOT NULL DEFAULT '',
    task TEXT NOT NULL DEFAULT '',
    api_call_count INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    estimated_cost_usd REAL NOT NULL DEFAULT 0,
    actual_cost_usd REAL NOT NULL DEFAULT 0,
    cost_status TEXT,
    cost_source TEXT,
    first_seen REAL,
    last_seen REAL,
    PRIMARY KEY (session_id, model, billing_provider, billing_base_url, billing_mode, task)
)""",
    "async_delegations": """CREATE TABLE async_delegations (
    delegation_id TEXT PRIMARY KEY,
    origin_session TEXT NOT NULL,
    origin_ui_session_id TEXT NOT NULL DEFAULT '',
    parent_session_id TEXT,
    state TEXT NOT NULL,
    dispatched_at REAL NOT NULL,
    completed_at REAL,
    updated_at REAL NOT NULL,
    event_json TEXT,
    result_json TEXT,
    delivery_state TEXT NOT NULL DEFAULT 'pending',
    delivery_attempts INTEGER NOT NULL DEFAULT 0,
    delivered_at REAL,
    owner_pid INTEGER,
    owner_started_at INTEGER,
    task_json TEXT,
    delivery_claim TEXT,
    delivery_claimed_at REAL
)""",
}

COLUMNS = {
    "sessions": {
        "compression_fallback_streak": "INTEGER NOT NULL DEFAULT 0",
        "profile_name": "TEXT",
    },
    "messages": {
        "effect_disposition": "TEXT",
        "api_content": "TEXT",
    },
}

INDEXES = {
    "idx_session_model_usage_session": "CREATE INDEX idx_session_model_usage_session ON session_model_usage(session_id)",
    "idx_session_model_usage_model": "CREATE INDEX idx_session_model_usage_model ON session_model_usage(model)",
    "idx_async_delegations_delivery": """CREATE INDEX idx_async_delegations_delivery
    ON async_delegations(delivery_state, completed_at)""",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.tables(TABLES)
    ensure.columns(COLUMNS)
    ensure.primary_key("session_model_usage", USAGE_KEY, TABLES["session_model_usage"], order_by="rowid")
    ensure.indexes(INDEXES)
    if ensure.is_due(before=20):
        _seed_usage()
    ensure.reached(22)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


USAGE_KEY = ("session_id", "model", "billing_provider", "billing_base_url", "billing_mode", "task")

_TOKENS = " + ".join(
    f"COALESCE({kind}_tokens, 0)" for kind in ("input", "output", "cache_read", "cache_write", "reasoning")
)


def _seed_usage() -> None:
    """One row per session that has counted tokens, for what was used before usage was kept per model."""
    counted = ("api_call_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
               "reasoning_tokens", "estimated_cost_usd", "actual_cost_usd")  # fmt: skip
    seeded = (
        op.get_bind()
        .exec_driver_sql(
            "INSERT OR IGNORE INTO session_model_usage (session_id, model, billing_provider, billing_base_url,"
            f" billing_mode, task, {', '.join(counted)}, cost_status, cost_source, first_seen, last_seen)"
            " SELECT id, COALESCE(model, 'unknown'), COALESCE(billing_provider, ''), COALESCE(billing_base_url, ''),"
            f" COALESCE(billing_mode, ''), '', {', '.join(f'COALESCE({name}, 0)' for name in counted)},"
            " cost_status, cost_source, started_at, COALESCE(ended_at, started_at)"
            f" FROM sessions WHERE {_TOKENS} > 0"
        )
        .rowcount
    )
    if seeded > 0:
        ensure.report().note(f"{seeded} sessions got a usage row for the tokens they had counted")
