"""Which sessions make up a conversation: read from ``hs_session_activity`` where it knows, walked to where not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, select

from hermes_store.sqlite.activity import BOUNDS, activity_fault, counts_agree
from hermes_store.sqlite.views import current_shape
from hermes_store.walks import IDS, among, continuations, continued, given, tops

#: A mark in ``connection.info``: under this schema cookie every session had a row in the table.
_COMPLETE = "hermes_store_activity_complete"
#: With more sessions than this whose head is not known, walking down from some heads is quicker than up from them all.
_FEW = 200


def heads_are_kept(connection: Connection) -> bool:
    """Tell whether the table of bounds and heads is as it should be, with a row for every session.

    Args:
        connection: A connection inside a transaction.
    """
    shape = current_shape(connection)
    if activity_fault(shape) is not None:
        return False
    if connection.info.get(_COMPLETE) != shape.schema_cookie and counts_agree(connection):
        connection.info[_COMPLETE] = shape.schema_cookie
    return bool(connection.info.get(_COMPLETE) == shape.schema_cookie)


def find_heads(connection: Connection, ids: Sequence[str], known: dict[str, str]) -> None:
    """Find the heads of sessions' conversations where they are not known, and note them.

    Args:
        connection: A connection inside a transaction.
        ids: The sessions.
        known: Session id to head; more are added.
    """
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        known |= tops(continued(connection, unknown))


def members(connection: Connection, heads: Collection[str]) -> dict[str, str]:
    """Find the sessions of conversations.

    Args:
        connection: A connection inside a transaction.
        heads: The conversations.

    Returns:
        Session id to the head of its conversation, the heads included.
    """
    unknown = connection.scalars(_unknown()).all() if heads_are_kept(connection) else None
    if unknown is None or len(unknown) > _FEW:
        return {row[1]: row[0] for row in connection.execute(_walked(), given(heads)).all()}
    found = {row[1]: row[0] for row in connection.execute(_kept(), given(heads)).all()}
    if unknown:
        found |= {id_: head for id_, head in tops(continued(connection, unknown)).items() if head in set(heads)}
    return found


@cache
def _kept() -> Select[Any]:
    return select(BOUNDS.c.head_id, BOUNDS.c.session_id).where(among(BOUNDS.c.head_id, IDS))


@cache
def _unknown() -> Select[Any]:
    return select(BOUNDS.c.session_id).where(BOUNDS.c.head_id.is_(None)).limit(_FEW + 1)


@cache
def _walked() -> Select[Any]:
    walk = continuations(IDS)
    return select(walk.c.origin, walk.c.id)
