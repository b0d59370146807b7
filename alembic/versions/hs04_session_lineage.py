"""Lineage for outside readers, and which sessions are the freshest (ours).

Two views say what each session is to its parent, and where that leads: ``hs_session_edges`` (``session_id``,
``parent_id``, ``kind``) and ``hs_session_lineage``, which adds ``root_id``, ``tip_id`` and ``depth``. Both read nothing
but Hermes's tables; ask them for single sessions (``WHERE session_id = …``): each row of the second walks its tree.

The table ``hs_session_activity`` holds the quarter of an hour of each session's last activity, which session heads its
conversation (NULL where either has to be found out again), and of heads the latest quarter in their conversation, so
that a listing starts with the freshest. Its triggers run in every program that writes the file, so they must not be able to fail: no
search index, no JSON, no constraint, and no conflict that the OR clause of an outer INSERT could turn against its
writer.
"""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure
from hermes_store.sqlite.activity import refill

revision = "hs04"
down_revision = "hs03"
branch_labels = None
depends_on = None

TABLES = {
    "hs_session_activity": "CREATE TABLE hs_session_activity (session_id TEXT PRIMARY KEY, quarter INTEGER, head_id TEXT, latest INTEGER)",
}

INDEXES = {
    "ix_hs_session_activity_latest": """CREATE INDEX ix_hs_session_activity_latest
    ON hs_session_activity (latest DESC, session_id, head_id) WHERE head_id = session_id""",
    "ix_hs_session_activity_head": """CREATE INDEX ix_hs_session_activity_head
    ON hs_session_activity (head_id, quarter)""",
}

TRIGGERS = {
    "hs_activity_session_insert": """CREATE TRIGGER hs_activity_session_insert AFTER INSERT ON sessions
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a WHERE a.session_id = new.id);
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS s JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE s.parent_session_id = new.id);
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS p JOIN sessions AS s ON s.parent_session_id = p.id
        JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE p.id IN (new.parent_session_id) AND p.end_reason = 'compression');
    INSERT INTO hs_session_activity (session_id, quarter, head_id, latest)
    SELECT new.id, 0, CASE WHEN new.parent_session_id IS NULL THEN new.id END, 0
    WHERE NOT EXISTS (SELECT 1 FROM hs_session_activity WHERE session_id = new.id);
    UPDATE hs_session_activity SET quarter = CAST(new.started_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.started_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.started_at / 900 AS INTEGER) + 1;
    UPDATE hs_session_activity SET quarter = CAST(new.last_activity_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.last_activity_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.last_activity_at / 900 AS INTEGER) + 1;
    UPDATE hs_session_activity SET quarter = max(quarter, (
        SELECT CAST(timestamp / 900 AS INTEGER) + 1 FROM messages
        WHERE session_id = new.id AND timestamp BETWEEN 86400 AND 7258118400 ORDER BY timestamp DESC LIMIT 1))
    WHERE session_id = new.id AND EXISTS (
        SELECT 1 FROM messages WHERE session_id = new.id AND timestamp BETWEEN 86400 AND 7258118400);
END""",
    "hs_activity_session_update": """CREATE TRIGGER hs_activity_session_update AFTER UPDATE OF started_at, last_activity_at ON sessions
BEGIN
    UPDATE hs_session_activity SET quarter = CAST(new.started_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.started_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.started_at / 900 AS INTEGER) + 1;
    UPDATE hs_session_activity SET quarter = CAST(new.last_activity_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.last_activity_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.last_activity_at / 900 AS INTEGER) + 1;
END""",
    "hs_activity_session_end": """CREATE TRIGGER hs_activity_session_end AFTER UPDATE OF ended_at, end_reason ON sessions
WHEN new.ended_at IS NOT old.ended_at OR new.end_reason IS NOT old.end_reason
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS s JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE s.parent_session_id = new.id);
END""",
    "hs_activity_session_edge": """CREATE TRIGGER hs_activity_session_edge
AFTER UPDATE OF parent_session_id, source, started_at, model_config ON sessions
WHEN new.parent_session_id IS NOT old.parent_session_id OR new.source IS NOT old.source
  OR new.started_at IS NOT old.started_at OR new.model_config IS NOT old.model_config
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a WHERE a.session_id = new.id);
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS p JOIN sessions AS s ON s.parent_session_id = p.id
        JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE p.id IN (old.parent_session_id, new.parent_session_id) AND p.end_reason = 'compression');
END""",
    "hs_activity_session_rename": """CREATE TRIGGER hs_activity_session_rename AFTER UPDATE OF id ON sessions
WHEN new.id IS NOT old.id
BEGIN
    UPDATE hs_session_activity SET head_id = NULL;
    DELETE FROM hs_session_activity WHERE session_id = old.id;
    INSERT INTO hs_session_activity (session_id, quarter, head_id, latest)
    SELECT new.id, 0, CASE WHEN new.parent_session_id IS NULL THEN new.id END, 0
    WHERE NOT EXISTS (SELECT 1 FROM hs_session_activity WHERE session_id = new.id);
    UPDATE hs_session_activity SET quarter = CAST(new.started_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.started_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.started_at / 900 AS INTEGER) + 1;
    UPDATE hs_session_activity SET quarter = CAST(new.last_activity_at / 900 AS INTEGER) + 1
    WHERE session_id = new.id AND new.last_activity_at BETWEEN 86400 AND 7258118400
      AND quarter < CAST(new.last_activity_at / 900 AS INTEGER) + 1;
    UPDATE hs_session_activity SET quarter = max(quarter, (
        SELECT CAST(timestamp / 900 AS INTEGER) + 1 FROM messages
        WHERE session_id = new.id AND timestamp BETWEEN 86400 AND 7258118400 ORDER BY timestamp DESC LIMIT 1))
    WHERE session_id = new.id AND EXISTS (
        SELECT 1 FROM messages WHERE session_id = new.id AND timestamp BETWEEN 86400 AND 7258118400);
    UPDATE hs_session_activity SET head_id = NULL WHERE session_id = new.id;
END""",
    "hs_activity_session_delete": """CREATE TRIGGER hs_activity_session_delete AFTER DELETE ON sessions
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a WHERE a.session_id = old.id);
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS s JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE s.parent_session_id = old.id);
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM sessions AS p JOIN sessions AS s ON s.parent_session_id = p.id
        JOIN hs_session_activity AS a ON a.session_id = s.id
        WHERE p.id IN (old.parent_session_id) AND p.end_reason = 'compression');
    DELETE FROM hs_session_activity WHERE session_id = old.id;
END""",
    "hs_activity_message_insert": """CREATE TRIGGER hs_activity_message_insert AFTER INSERT ON messages
WHEN new.timestamp BETWEEN 86400 AND 7258118400
BEGIN
    UPDATE hs_session_activity SET quarter = CAST(new.timestamp / 900 AS INTEGER) + 1
    WHERE session_id = new.session_id AND quarter < CAST(new.timestamp / 900 AS INTEGER) + 1;
END""",
    "hs_activity_message_update": """CREATE TRIGGER hs_activity_message_update AFTER UPDATE OF session_id, timestamp ON messages
WHEN new.timestamp BETWEEN 86400 AND 7258118400
BEGIN
    UPDATE hs_session_activity SET quarter = CAST(new.timestamp / 900 AS INTEGER) + 1
    WHERE session_id = new.session_id AND quarter < CAST(new.timestamp / 900 AS INTEGER) + 1;
END""",
    "hs_activity_message_replace": """CREATE TRIGGER hs_activity_message_replace BEFORE INSERT ON messages
WHEN EXISTS (SELECT 1 FROM messages WHERE id = new.id)
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM messages AS m JOIN hs_session_activity AS a ON a.session_id = m.session_id
        WHERE m.id = new.id);
END""",
    "hs_activity_message_move": """CREATE TRIGGER hs_activity_message_move AFTER UPDATE OF session_id, timestamp ON messages
WHEN old.timestamp BETWEEN 86400 AND 7258118400
 AND (new.timestamp IS NOT old.timestamp OR new.session_id IS NOT old.session_id)
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a
        WHERE a.session_id = old.session_id AND old.timestamp >= (a.quarter - 1) * 900);
END""",
    "hs_activity_message_delete": """CREATE TRIGGER hs_activity_message_delete AFTER DELETE ON messages
WHEN old.timestamp BETWEEN 86400 AND 7258118400
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a
        WHERE a.session_id = old.session_id AND old.timestamp >= (a.quarter - 1) * 900);
END""",
    "hs_activity_session_lower": """CREATE TRIGGER hs_activity_session_lower AFTER UPDATE OF last_activity_at ON sessions
WHEN old.last_activity_at BETWEEN 86400 AND 7258118400
 AND coalesce(new.last_activity_at NOT BETWEEN old.last_activity_at AND 7258118400, 1)
BEGIN
    UPDATE hs_session_activity SET head_id = NULL WHERE head_id IN (
        SELECT a.head_id FROM hs_session_activity AS a WHERE a.session_id = new.id);
END""",
    "hs_activity_bound": """CREATE TRIGGER hs_activity_bound AFTER UPDATE OF quarter ON hs_session_activity
WHEN new.head_id IS NOT NULL
BEGIN
    UPDATE hs_session_activity SET latest = new.quarter
    WHERE session_id = new.head_id AND head_id = session_id AND (latest IS NULL OR latest < new.quarter);
END""",
}

VIEWS = {
    "hs_session_edges": """CREATE VIEW hs_session_edges AS
SELECT c.id AS session_id, c.parent_session_id AS parent_id, CASE
    WHEN p.end_reason = 'compression' AND NOT c.may_be_marked AND c.source NOT IN ('tool', 'subagent')
         AND c.started_at >= p.ended_at - 1.0
         AND c.started_at BETWEEN 86400.0 AND 7258118400.0 AND p.ended_at BETWEEN 86400.0 AND 7258118400.0 THEN 'compression'
    WHEN c.parent_session_id IS NULL OR c.parent_session_id = c.id THEN
        CASE WHEN c.delegate_from IS NOT NULL AND c.branched_from IS NULL THEN 'delegate' ELSE 'root' END
    WHEN c.branched_from = p.id OR p.id IS NULL AND c.branched_from IS NOT NULL
      OR p.end_reason = 'branched' AND c.started_at >= p.ended_at
         AND c.started_at BETWEEN 86400.0 AND 7258118400.0 AND p.ended_at BETWEEN 86400.0 AND 7258118400.0 THEN 'branch'
    WHEN c.reset_from = p.id OR p.id IS NULL AND c.reset_from IS NOT NULL
      OR p.end_reason IN ('session_reset', 'session_switch', 'idle', 'daily', 'suspended', 'resume_pending_expired', 'new_session')
         AND (c.chat = nullif(p.session_key, '')
              OR c.chat IS NULL AND nullif(p.session_key, '') IS NULL AND c.started_at >= p.ended_at
                 AND c.started_at BETWEEN 86400.0 AND 7258118400.0 AND p.ended_at BETWEEN 86400.0 AND 7258118400.0) THEN 'reset'
    WHEN c.source = 'tool' THEN 'tool'
    WHEN c.delegate_from = p.id OR p.id IS NULL AND c.delegate_from IS NOT NULL
      OR c.source = 'subagent' AND c.delegate_from IS NULL THEN 'delegate'
    WHEN p.id IS NULL THEN 'root'
    WHEN p.end_reason = 'compression' THEN CASE
        WHEN c.started_at >= p.ended_at - 1.0
             AND c.started_at BETWEEN 86400.0 AND 7258118400.0 AND p.ended_at BETWEEN 86400.0 AND 7258118400.0 THEN 'compression'
        WHEN EXISTS (
            SELECT 1 FROM (
    SELECT id, parent_session_id, source, title, started_at, nullif(session_key, '') AS chat,
           coalesce(instr(model_config, '_from'), 0) AS may_be_marked,
           json_extract(config, '$._branched_from') AS branched_from,
           json_extract(config, '$._reset_from') AS reset_from,
           nullif(json_extract(config, '$._delegate_from'), '__orphaned__') AS delegate_from
    FROM (SELECT *, CASE WHEN instr(model_config, '_from') THEN CASE WHEN typeof(model_config) = 'text' THEN
                    CASE WHEN json_valid(model_config) THEN model_config END END END AS config FROM sessions)
) AS o
            WHERE o.parent_session_id = p.id AND o.id <> p.id AND o.started_at >= p.ended_at - 1.0
              AND o.started_at BETWEEN 86400.0 AND 7258118400.0 AND p.ended_at BETWEEN 86400.0 AND 7258118400.0
              AND o.branched_from IS NOT p.id AND o.reset_from IS NOT p.id AND o.delegate_from IS NOT p.id
              AND o.source <> 'tool' AND NOT (o.source = 'subagent' AND o.delegate_from IS NULL)
        ) THEN 'delegate'
        ELSE 'compression' END
    WHEN nullif(trim(c.title), '') IS NOT NULL THEN 'branch'
    ELSE 'delegate' END AS kind
FROM (
    SELECT id, parent_session_id, source, title, started_at, nullif(session_key, '') AS chat,
           coalesce(instr(model_config, '_from'), 0) AS may_be_marked,
           json_extract(config, '$._branched_from') AS branched_from,
           json_extract(config, '$._reset_from') AS reset_from,
           nullif(json_extract(config, '$._delegate_from'), '__orphaned__') AS delegate_from
    FROM (SELECT *, CASE WHEN instr(model_config, '_from') THEN CASE WHEN typeof(model_config) = 'text' THEN
                    CASE WHEN json_valid(model_config) THEN model_config END END END AS config FROM sessions)
) AS c LEFT JOIN sessions AS p ON p.id = c.parent_session_id AND p.id <> c.id""",
    "hs_session_lineage": """CREATE VIEW hs_session_lineage AS
SELECT e.session_id AS session_id, e.parent_id AS parent_id, e.kind AS kind,
coalesce((
    WITH RECURSIVE up (id) AS (
        SELECT e.session_id
        UNION SELECT p.id FROM up JOIN sessions AS s ON s.id = up.id JOIN sessions AS p ON p.id = s.parent_session_id
    )
    SELECT s.id FROM up JOIN sessions AS s ON s.id = up.id
    WHERE s.parent_session_id IS NULL OR s.parent_session_id = s.id
       OR NOT EXISTS (SELECT 1 FROM sessions AS p WHERE p.id = s.parent_session_id)
), (
    WITH RECURSIVE up (id) AS (
        SELECT e.session_id
        UNION SELECT s.parent_session_id FROM up JOIN sessions AS s ON s.id = up.id
    ), far (id, steps) AS (
        SELECT e.session_id, (SELECT count(*) FROM up)
        UNION ALL SELECT s.parent_session_id, steps - 1 FROM far JOIN sessions AS s ON s.id = far.id WHERE steps > 0
    ), ring (id) AS (
        SELECT id FROM far WHERE steps = 0
        UNION SELECT s.parent_session_id FROM ring JOIN sessions AS s ON s.id = ring.id
    )
    SELECT min(id) FROM ring
)) AS root_id,
(
    WITH RECURSIVE path (id, steps) AS (
        SELECT e.session_id, 0
        UNION ALL
        SELECT CASE WHEN (
            SELECT count(*) FROM (SELECT 1 FROM sessions AS s WHERE s.parent_session_id = path.id LIMIT 2)
        ) < 2 THEN (
            SELECT child.session_id FROM hs_session_edges AS child
            WHERE child.parent_id = path.id AND child.kind = 'compression' AND child.session_id <> e.session_id
        ) ELSE (
            SELECT id FROM (
                SELECT child.session_id AS id, (
                    WITH RECURSIVE below (id) AS (
                        SELECT child.session_id
                        UNION SELECT deeper.session_id
                        FROM below JOIN hs_session_edges AS deeper ON deeper.parent_id = below.id
                        WHERE deeper.kind = 'compression' AND deeper.session_id <> e.session_id
                    )
                    SELECT max(printf('%d%020d%s', EXISTS (SELECT 1 FROM messages AS m WHERE m.session_id = s.id),
        CAST(max(
        coalesce((SELECT m.timestamp FROM messages AS m WHERE m.session_id = s.id AND m.timestamp BETWEEN 86400.0 AND 7258118400.0
                  ORDER BY m.timestamp DESC LIMIT 1), 0),
        CASE WHEN s.last_activity_at BETWEEN 86400.0 AND 7258118400.0 THEN s.last_activity_at ELSE 0 END,
        CASE WHEN s.started_at BETWEEN 86400.0 AND 7258118400.0 THEN s.started_at ELSE 0 END) * 4194304 AS INTEGER), s.id)) FROM below JOIN sessions AS s ON s.id = below.id
                ) AS freshness
                FROM hs_session_edges AS child
                WHERE child.parent_id = path.id AND child.kind = 'compression' AND child.session_id <> e.session_id
            ) ORDER BY freshness DESC LIMIT 1
        ) END, steps + 1 FROM path WHERE path.id IS NOT NULL
    )
    SELECT id FROM path WHERE id IS NOT NULL ORDER BY steps DESC LIMIT 1
) AS tip_id,
(
    WITH RECURSIVE up (id) AS (
        SELECT e.session_id
        UNION SELECT p.id FROM up JOIN sessions AS s ON s.id = up.id JOIN sessions AS p ON p.id = s.parent_session_id
    )
    SELECT count(*) - 1 FROM up
) AS depth
FROM hs_session_edges AS e""",
}


def upgrade() -> None:
    """Make what is missing or has another text; where that concerns the bounds, work them out anew."""
    made = [
        ensure.exactly(kind, creates)
        for kind, creates in (("table", TABLES), ("index", INDEXES), ("trigger", TRIGGERS))
    ]
    if any(made):
        refill(op.get_bind())
    ensure.exactly("view", VIEWS)


def downgrade() -> None:
    """Drop all of it."""
    for kind, names in (("view", reversed(VIEWS)), ("trigger", TRIGGERS), ("table", TABLES)):
        for name in names:
            op.get_bind().exec_driver_sql(f"DROP {kind} IF EXISTS {name}")
