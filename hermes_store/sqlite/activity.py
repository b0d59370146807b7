"""Which sessions are the freshest, without looking at all of them: the table ``hs_session_activity``.

It holds one row per session, with the quarter of an hour (counted from 1970) before whose end its last activity lies.
That is a bound, not a time: a listing walks the sessions from the freshest bound on, looks up the exact activity of
those it meets, and stops when no bound can beat what it has. So the plain triggers that feed the table only ever raise
a bound, write a session's row once in a quarter of an hour rather than with every message, and need not notice when
messages go. They run in every program that writes the file, and must not be able to fail: no JSON, no search index, no
constraint.

Without the table, or with one that lacks sessions, the bounds are worked out from the sessions and messages: the answer
is the same, and takes time in proportion to the number of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from hermes_store.edges import ACTIVITY
from hermes_store.sqlite.shape import Shape, text_digest

ACTIVITY_TABLE = "hs_session_activity"
#: Seconds of the unit that bounds are counted in.
QUARTER = 900

#: Type and name of everything that must be there, with the digest of its text as the revision makes it.
_DIGESTS: Mapping[tuple[str, str], str] = {
    ("table", ACTIVITY_TABLE): "af08b464ff6a9491",
    ("index", "ix_hs_session_activity_quarter"): "74f6601f4145acfc",
    ("trigger", "hs_activity_session_insert"): "f49951044b8c5d30",
    ("trigger", "hs_activity_session_update"): "47cff5d630780784",
    ("trigger", "hs_activity_session_rename"): "236bf6989dc7797d",
    ("trigger", "hs_activity_session_delete"): "2c950db4acd38fa3",
    ("trigger", "hs_activity_message_insert"): "7d14220c137cbeb8",
    ("trigger", "hs_activity_message_update"): "3524bdc541b8e873",
}

#: The bound of a session ``s``; 0 where no time of it can be believed.
BOUND = f"""CASE WHEN {ACTIVITY} > 0 THEN CAST({ACTIVITY} / {QUARTER} AS INTEGER) + 1 ELSE 0 END"""
_ROWS = f"SELECT s.id, {BOUND} FROM main.sessions AS s WHERE s.id IS NOT NULL"
_LACKING = (
    f"SELECT s.id FROM main.sessions AS s LEFT JOIN main.{ACTIVITY_TABLE} AS a ON a.session_id = s.id"
    f" WHERE s.id IS NOT NULL AND (a.quarter IS NULL OR a.quarter < {BOUND})"
)
_LEFT_OVER = (
    f"SELECT a.session_id FROM main.{ACTIVITY_TABLE} AS a"
    " WHERE NOT EXISTS (SELECT 1 FROM main.sessions AS s WHERE s.id = a.session_id)"
)


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
    """Tell whether a session has no row or too low a bound, or a row no session; looks at all sessions.

    Args:
        connection: A connection of a file whose objects are as they should be.
    """
    return any(connection.exec_driver_sql(f"{query} LIMIT 1").first() for query in (_LACKING, _LEFT_OVER))


def refill(connection: Connection) -> None:
    """Make all rows anew.

    Args:
        connection: A connection inside a write transaction.
    """
    connection.exec_driver_sql(f"DELETE FROM main.{ACTIVITY_TABLE}")
    connection.exec_driver_sql(f"INSERT INTO main.{ACTIVITY_TABLE} (session_id, quarter) {_ROWS}")
