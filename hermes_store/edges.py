"""What a session is to its parent, and where that leads: one classifier for every list, walk and reader.

A parent says little by itself: the child may go on with its conversation (compression), be another conversation that
grew out of it (branch, reset), or work done for it (delegate, tool). Hermes marks children in ``model_config``, and
continuations inherit that column, so a marker counts only if it names this very parent, or if the parent is missing.

The classifier is a view, ``hs_session_edges``, and so is what follows from it for one session, ``hs_session_lineage``:
written out in every statement they would fill pages, and SQLAlchemy would spend more time on them than SQLite. A
revision puts both into the file for outside readers. Our own connections have temporary views of the same names and
texts (`lineage_views`), which SQLite looks up first: they are there for files of every schema, whoever changed the
file's own.
"""

from __future__ import annotations

from sqlalchemy import Integer, Text, column, table

#: End reasons after which the next session of a chat is a conversation of its own: Hermes's list, and the reason that
#: its oldest releases gave.
RESET_REASONS = (
    "session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired", "new_session",
)  # fmt: skip
#: A continuation may be written shortly before its parent is ended (seconds); Hermes's newest publish path does.
CONTINUATION_SLACK = 1.0
#: What Hermes's step for schema 16 wrote into sessions it took for left over; many were genuine, so it says nothing.
ORPHANED = "__orphaned__"
#: Times that can be believed, epoch seconds (1970-01-02 … 2200). Numbers beyond are milliseconds or nonsense; text and
#: bytes, which SQLite sorts above all numbers, are beyond as well.
EARLIEST, LATEST = 86_400.0, 7_258_118_400.0

#: One row per session: its parent's id as it is stored, and what the session is to it.
EDGES = table("hs_session_edges", column("session_id", Text), column("parent_id", Text), column("kind", Text))

#: One row per session: also the topmost ancestor, where its conversation goes on, and how many ancestors there are.
LINEAGE = table(
    "hs_session_lineage",
    column("session_id", Text),
    column("parent_id", Text),
    column("kind", Text),
    column("root_id", Text),
    column("tip_id", Text),
    column("depth", Integer),
)


def lineage_views() -> dict[str, str]:
    """Give the views' names and the SELECT that each stands for, in the order in which they are made."""
    return {EDGES.name: _EDGES, LINEAGE.name: _LINEAGE}


def _usable(time: str) -> str:
    return f"{time} BETWEEN {EARLIEST} AND {LATEST}"


# CASE, not AND, before json_extract: SQLite may evaluate both sides of an AND, and it fails on broken JSON. Of bytes
# it may take JSON's binary form for granted, so only text is asked. Most configurations have no marker at all, and the
# first look spares them the rest.
_MARKED = f"""(
    SELECT id, parent_session_id, source, title, started_at, nullif(session_key, '') AS chat,
           coalesce(instr(model_config, '_from'), 0) AS may_be_marked,
           json_extract(config, '$._branched_from') AS branched_from,
           json_extract(config, '$._reset_from') AS reset_from,
           nullif(json_extract(config, '$._delegate_from'), '{ORPHANED}') AS delegate_from
    FROM (SELECT *, CASE WHEN instr(model_config, '_from') THEN CASE WHEN typeof(model_config) = 'text' THEN
                    CASE WHEN json_valid(model_config) THEN model_config END END END AS config FROM sessions)
)"""

# The first case is the most frequent one, told without looking at all others; those that follow would say the same.
_EDGES = f"""SELECT c.id AS session_id, c.parent_session_id AS parent_id, CASE
    WHEN p.end_reason = 'compression' AND NOT c.may_be_marked AND c.source NOT IN ('tool', 'subagent')
         AND c.started_at >= p.ended_at - {CONTINUATION_SLACK}
         AND {_usable("c.started_at")} AND {_usable("p.ended_at")} THEN 'compression'
    WHEN c.parent_session_id IS NULL OR c.parent_session_id = c.id THEN
        CASE WHEN c.delegate_from IS NOT NULL AND c.branched_from IS NULL THEN 'delegate' ELSE 'root' END
    WHEN c.branched_from = p.id OR p.id IS NULL AND c.branched_from IS NOT NULL
      OR p.end_reason = 'branched' AND c.started_at >= p.ended_at
         AND {_usable("c.started_at")} AND {_usable("p.ended_at")} THEN 'branch'
    WHEN c.reset_from = p.id OR p.id IS NULL AND c.reset_from IS NOT NULL
      OR p.end_reason IN ({", ".join(f"'{reason}'" for reason in RESET_REASONS)})
         AND (c.chat = nullif(p.session_key, '')
              OR c.chat IS NULL AND nullif(p.session_key, '') IS NULL AND c.started_at >= p.ended_at
                 AND {_usable("c.started_at")} AND {_usable("p.ended_at")}) THEN 'reset'
    WHEN c.source = 'tool' THEN 'tool'
    WHEN c.delegate_from = p.id OR p.id IS NULL AND c.delegate_from IS NOT NULL
      OR c.source = 'subagent' AND c.delegate_from IS NULL THEN 'delegate'
    WHEN p.id IS NULL THEN 'root'
    WHEN p.end_reason = 'compression' THEN CASE
        WHEN c.started_at >= p.ended_at - {CONTINUATION_SLACK}
             AND {_usable("c.started_at")} AND {_usable("p.ended_at")} THEN 'compression'
        WHEN EXISTS (
            SELECT 1 FROM {_MARKED} AS o
            WHERE o.parent_session_id = p.id AND o.id <> p.id AND o.started_at >= p.ended_at - {CONTINUATION_SLACK}
              AND {_usable("o.started_at")} AND {_usable("p.ended_at")}
              AND o.branched_from IS NOT p.id AND o.reset_from IS NOT p.id AND o.delegate_from IS NOT p.id
              AND o.source <> 'tool' AND NOT (o.source = 'subagent' AND o.delegate_from IS NULL)
        ) THEN 'delegate'
        ELSE 'compression' END
    WHEN nullif(trim(c.title), '') IS NOT NULL THEN 'branch'
    ELSE 'delegate' END AS kind
FROM {_MARKED} AS c LEFT JOIN sessions AS p ON p.id = c.parent_session_id AND p.id <> c.id"""

#: The freshest time of a session ``s`` that can be believed, 0 without one. The newest message is found by an index.
ACTIVITY = f"""max(
        coalesce((SELECT m.timestamp FROM messages AS m WHERE m.session_id = s.id AND {_usable("m.timestamp")}
                  ORDER BY m.timestamp DESC LIMIT 1), 0),
        CASE WHEN {_usable("s.last_activity_at")} THEN s.last_activity_at ELSE 0 END,
        CASE WHEN {_usable("s.started_at")} THEN s.started_at ELSE 0 END)"""

# How fresh a member is, as text that sorts like (has messages, activity, id). Times are multiplied by a power of two,
# which is exact, to whole numbers: doubles of this century have no more than 22 binary places.
_FRESHNESS = f"""printf('%d%020d%s', EXISTS (SELECT 1 FROM messages AS m WHERE m.session_id = s.id),
        CAST({ACTIVITY} * {2**22} AS INTEGER), s.id)"""

# A ring has no top; the smallest id in it stands for one. `far` takes as many steps as there are ancestors, and only in
# a ring does it get that far; UNION on ids ends every walk. A path down never comes back but to its first session,
# because each session has one parent, so leaving that out is enough to end it.
_LINEAGE = f"""SELECT e.session_id AS session_id, e.parent_id AS parent_id, e.kind AS kind,
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
                    SELECT max({_FRESHNESS}) FROM below JOIN sessions AS s ON s.id = below.id
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
FROM hs_session_edges AS e"""
