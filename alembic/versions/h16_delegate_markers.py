"""Delegate markers on old subagent sessions (schema 16, release 0.17.0).

Before this schema nothing in a child session said that it was a subagent's. A child is tagged with
``_delegate_from`` if it has no title, is no tool run, no branch and no reset, and is not the continuation of a
compressed parent (it started more than a second before the parent's end). Hermes's own step also tags sessions
without a parent (``__orphaned__``), which hides genuine conversations for good; this one never does.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure

revision = "h16"
down_revision = "h14"
branch_labels = None
depends_on = None

INDEXES = {
    "idx_sessions_source_id": "CREATE INDEX idx_sessions_source_id ON sessions(source, id)",
}


def upgrade() -> None:
    """Make the file at least this schema."""
    ensure.indexes(INDEXES)
    if ensure.is_due(before=16):
        _tag_delegates()
    ensure.reached(16)


def downgrade() -> None:
    """Refuse: Hermes owns what this revision made."""
    ensure.refuse_downgrade(revision)


#: End reasons after which the next session of the same chat is a conversation of its own (Hermes's list).
_RESET_REASONS = (
    "'session_reset', 'session_switch', 'idle', 'daily', 'suspended', 'resume_pending_expired', 'new_session'"
)

#: SQLite's libraries disagree about JSON in a blob, and about what follows a NUL; neither is what Hermes writes.
_IS_OBJECT = """
    CASE WHEN typeof(model_config) <> 'text' OR instr(model_config, char(0)) > 0 OR NOT json_valid(model_config) THEN 0
    ELSE json_type(model_config) = 'object' END
"""

_HAS_NO_MARKER = """
    json_extract(COALESCE(model_config, '{}'), '$._delegate_from') IS NULL
    AND json_extract(COALESCE(model_config, '{}'), '$._branched_from') IS NULL
    AND json_extract(COALESCE(model_config, '{}'), '$._reset_from') IS NULL
"""


def _tag_delegates() -> None:
    bind = op.get_bind()
    live = {row[0] for row in bind.exec_driver_sql("SELECT name FROM pragma_table_info('sessions')")}
    key = ("NULLIF({0}.session_key, '')" if "session_key" in live else "NULL").format
    same_chat = (
        f"({key('c')} = {key('p')} OR ({key('c')} IS NULL AND {key('p')} IS NULL AND c.started_at >= p.ended_at))"
    )
    unmarked = f"""
        SELECT c.id FROM sessions AS c JOIN sessions AS p ON p.id = c.parent_session_id AND p.id <> c.id
        WHERE NULLIF(trim(c.title), '') IS NULL AND c.source <> 'tool'
          AND NOT COALESCE(p.end_reason = 'branched' AND c.started_at >= p.ended_at, 0)
          AND NOT COALESCE(p.end_reason = 'compression' AND c.started_at >= p.ended_at - 1, 0)
          AND NOT COALESCE(p.end_reason IN ({_RESET_REASONS}) AND {same_chat}, 0)
    """
    tagged = bind.exec_driver_sql(
        "UPDATE sessions SET model_config ="
        " json_set(COALESCE(model_config, '{}'), '$._delegate_from', parent_session_id)"
        f" WHERE id IN ({unmarked}) AND CASE WHEN model_config IS NULL THEN 1 WHEN {_IS_OBJECT} THEN {_HAS_NO_MARKER} END"
    ).rowcount
    broken = bind.exec_driver_sql(
        "SELECT count(*) FROM sessions WHERE parent_session_id IS NOT NULL AND model_config IS NOT NULL"
        f" AND NOT {_IS_OBJECT}"
    ).scalar_one()
    if tagged:
        ensure.report().note(f"{tagged} subagent sessions of old releases were marked as such")
    if broken:
        ensure.report().note(f"{broken} child sessions have a model_config that is no JSON object; left as they are")
