"""Which sessions are the freshest, without looking at all of them: the table ``hs_session_activity``.

It holds one row per session. ``quarter`` is the quarter of an hour (counted from 1970) before whose end its last
activity lies: a bound, not a time, so that it is written once in a quarter of an hour rather than with every message.
``head_id`` is the session that heads its conversation. In the row of a head, ``latest`` is the highest ``quarter`` of
the conversation, so that a listing meets a conversation once and not with each of its sessions.

Triggers raise bounds. Whatever may change a head, or lower a time that a bound rests on, sets ``head_id`` to NULL for
the whole conversation: its bounds may be too high then, never too low, and its heads have to be found out. `settle`
works both out again when this package writes. Where ``head_id`` is known, the bound is exact. So a listing walks from
the freshest bound on, and looks up the exact times only of conversations whose quarter reaches into the page.

The triggers run in every program that writes the file, and must not be able to fail: no JSON, no search index, no
constraint. Without the table, or with one that lacks sessions, bounds are worked out from the sessions and messages:
the answer is the same, and takes time in proportion to the number of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Integer, Text, column, table

from hermes_store.edges import ACTIVITY, lineage_views
from hermes_store.sqlite.shape import Shape, text_digest
from hermes_store.walks import continued, tops

ACTIVITY_TABLE = "hs_session_activity"
BOUNDS = table(
    ACTIVITY_TABLE,
    column("session_id", Text),
    column("quarter", Integer),
    column("head_id", Text),
    column("latest", Integer),
    schema="main",
)
#: Seconds of the unit that bounds are counted in.
QUARTER = 900

#: Type and name of everything that must be there, with the digest of its text as the revision makes it.
_DIGESTS: Mapping[tuple[str, str], str] = {
    ("table", "hs_session_activity"): "8a99fedf50b5b11f",
    ("index", "ix_hs_session_activity_latest"): "a557eb6bcc57c250",
    ("index", "ix_hs_session_activity_head"): "0a5a95990bd3367c",
    ("trigger", "hs_activity_session_insert"): "9e74653c003827d3",
    ("trigger", "hs_activity_session_update"): "47cff5d630780784",
    ("trigger", "hs_activity_session_end"): "a2c8dbaacdf1c5bd",
    ("trigger", "hs_activity_session_edge"): "3bfcd37d77b62902",
    ("trigger", "hs_activity_session_rename"): "8d373cc288ad8108",
    ("trigger", "hs_activity_session_delete"): "fd6e0e2b63b60ac9",
    ("trigger", "hs_activity_message_insert"): "7d14220c137cbeb8",
    ("trigger", "hs_activity_message_update"): "3524bdc541b8e873",
    ("trigger", "hs_activity_message_replace"): "0ef194823b0f09be",
    ("trigger", "hs_activity_message_move"): "84129d3ee8d9bba9",
    ("trigger", "hs_activity_message_delete"): "cdf657aed4ea5480",
    ("trigger", "hs_activity_session_lower"): "93b4b760d1f10314",
    ("trigger", "hs_activity_bound"): "530c430262b37dd2",
}

#: The bound of a session ``s``; 0 where no time of it can be believed.
BOUND = f"""CASE WHEN {ACTIVITY} > 0 THEN CAST({ACTIVITY} / {QUARTER} AS INTEGER) + 1 ELSE 0 END"""
#: Conversations by their highest bounds, and the sessions whose head is not known.
FRESHEST = f"""SELECT session_id, latest AS bound, head_id FROM main.{ACTIVITY_TABLE} WHERE head_id = session_id
    UNION ALL SELECT session_id, quarter, NULL FROM main.{ACTIVITY_TABLE} WHERE head_id IS NULL
    ORDER BY bound DESC"""
#: The same worked out from the sessions.
FRESHEST_WITHOUT = f"SELECT s.id, {BOUND} AS bound, NULL FROM sessions AS s ORDER BY bound DESC"

_ROWS = f"SELECT s.id, {BOUND} FROM main.sessions AS s WHERE s.id IS NOT NULL"
_LACKING = (
    f"SELECT s.id FROM main.sessions AS s LEFT JOIN main.{ACTIVITY_TABLE} AS a ON a.session_id = s.id"
    f" WHERE s.id IS NOT NULL AND (a.quarter IS NULL OR a.quarter < {BOUND})"
)
_LEFT_OVER = (
    f"SELECT a.session_id FROM main.{ACTIVITY_TABLE} AS a"
    " WHERE NOT EXISTS (SELECT 1 FROM main.sessions AS s WHERE s.id = a.session_id)"
)
_UNSETTLED = f"SELECT session_id FROM main.{ACTIVITY_TABLE} WHERE head_id IS NULL LIMIT ?"
_SETTLE = f"UPDATE main.{ACTIVITY_TABLE} SET head_id = ? WHERE session_id = ? AND head_id IS NOT ?"
_BOUND_AGAIN = (
    f"UPDATE main.{ACTIVITY_TABLE} SET quarter = coalesce("
    f"(SELECT {BOUND} FROM main.sessions AS s WHERE s.id = session_id), 0) WHERE session_id = ?"
)
_RAISE = f"""UPDATE main.{ACTIVITY_TABLE} SET latest = (
    SELECT max(o.quarter) FROM main.{ACTIVITY_TABLE} AS o WHERE o.head_id = ?1) WHERE session_id = ?1"""
_LOOSE = (
    f"SELECT s.id FROM main.sessions AS s JOIN main.{ACTIVITY_TABLE} AS a ON a.session_id = s.id"
    f" WHERE a.head_id IS NOT NULL AND a.quarter > {BOUND}"
)
_UNLIKE = (
    f"SELECT a.session_id FROM main.{ACTIVITY_TABLE} AS a WHERE a.head_id = a.session_id AND a.latest IS NOT"
    f" (SELECT max(o.quarter) FROM main.{ACTIVITY_TABLE} AS o WHERE o.head_id = a.session_id)"
)
_CONTINUES = (
    f"SELECT session_id, CASE kind WHEN 'compression' THEN parent_id END FROM ({lineage_views()['hs_session_edges']})"
)
#: Sessions settled after a write.
_SETTLED_AT_ONCE = 200


def activity_fault(shape: Shape) -> str | None:
    """Say what is wrong with the table, its index and its triggers.

    Args:
        shape: The file's shape.

    Returns:
        The name of an object that is missing or has another text; None when all are as they should be.
    """
    for (kind, name), digest in _DIGESTS.items():
        text = shape.objects.get((kind, name))
        if text is None or text_digest(text) != digest:
            return name
    return None


def counts_agree(connection: Connection) -> bool:
    """Tell whether every session has a row, by their numbers; costs little, and need not be asked often.

    Args:
        connection: A connection of a file whose objects are as they should be.
    """
    query = f"SELECT (SELECT count(*) FROM main.sessions), (SELECT count(*) FROM main.{ACTIVITY_TABLE})"
    sessions, rows = connection.exec_driver_sql(query).one()
    return bool(sessions == rows)


def is_wrong(connection: Connection) -> bool:
    """Tell whether a row is missing or left over, a bound wrong or a head another one; looks at all sessions.

    Args:
        connection: A connection of a file whose objects are as they should be.
    """
    if any(connection.exec_driver_sql(f"{query} LIMIT 1").first() for query in (_LACKING, _LEFT_OVER, _LOOSE, _UNLIKE)):
        return True
    heads = _all_heads(connection)
    stored = connection.exec_driver_sql(f"SELECT session_id, head_id FROM main.{ACTIVITY_TABLE} WHERE head_id NOT NULL")
    return any(heads.get(session_id) != head_id for session_id, head_id in stored)


def refill(connection: Connection) -> None:
    """Make all rows anew.

    Args:
        connection: A connection inside a write transaction.
    """
    connection.exec_driver_sql(f"DELETE FROM main.{ACTIVITY_TABLE}")
    connection.exec_driver_sql(f"INSERT INTO main.{ACTIVITY_TABLE} (session_id, quarter) {_ROWS}")
    _store(connection, _all_heads(connection))


def has_unsettled(driver_connection: Any) -> bool:
    """Tell whether a head is not known.

    Args:
        driver_connection: The driver's connection of a file whose objects are as they should be.
    """
    return driver_connection.execute(_UNSETTLED, (1,)).fetchone() is not None


def settle(connection: Connection) -> None:
    """Find out heads that are not known, some of them, and with them the bounds.

    Args:
        connection: A connection inside a write transaction, on a file whose objects are as they should be, with the
            views of `hermes_store.edges`.
    """
    unknown = connection.exec_driver_sql(_UNSETTLED, (_SETTLED_AT_ONCE,)).scalars().all()
    if unknown:
        # With all that they continue: a head is forgotten by conversation, so none may be half known.
        heads = tops(continued(connection, unknown))
        connection.exec_driver_sql(_BOUND_AGAIN, [(id_,) for id_ in heads])
        _store(connection, heads)


def _all_heads(connection: Connection) -> dict[str, str]:
    return tops({row[0]: row[1] for row in connection.exec_driver_sql(_CONTINUES)})


def _store(connection: Connection, heads: Mapping[str, str]) -> None:
    if heads:
        connection.exec_driver_sql(_SETTLE, [(head, session_id, head) for session_id, head in heads.items()])
        connection.exec_driver_sql(_RAISE, [(head,) for head in set(heads.values())])
