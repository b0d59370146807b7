"""Walking from session to session: up to where a conversation began, down to where it goes on.

Builders are SQLAlchemy Core, take one id, many, or a SELECT of ids, and compose into larger statements: each is a
recursive CTE with the columns ``origin`` (the session asked about) and ``id``. They use UNION on ids, never UNION ALL:
real files hold rings and self-parents, and such a walk must end. What an edge means is `hermes_store.edges`' to say; a
tip is a column of its view ``hs_session_lineage``, which an application can join as well.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    String,
    bindparam,
    case,
    literal,
    select,
)
from sqlalchemy.orm import Session

from hermes_store.edges import EDGES
from hermes_store.search.rows import SESSIONS, listed

#: One id, many, a SELECT of ids, or a parameter that is a JSON list of them (then the statement can be made once).
Ids = str | Collection[str] | Select[Any] | BindParameter[str]

#: A parameter for statements that are made once; its value comes from `given`.
IDS = bindparam("ids", type_=String)

# Made once: an alias costs more to make than most of these walks cost to run.
_child, _parent, _edge = SESSIONS.alias("child"), SESSIONS.alias("parent"), EDGES.alias("edge")


def among(column: ColumnElement[Any], ids: Ids) -> ColumnElement[bool]:
    """Say that a column is one of some ids; the statement is the same for any number of them.

    Args:
        column: The column.
        ids: The ids.
    """
    if isinstance(ids, str):
        return column == ids
    if isinstance(ids, Select):
        return column.in_(ids)
    return column.in_(listed(ids if isinstance(ids, BindParameter) else literal(given(ids)["ids"])))


def given(ids: Iterable[str]) -> dict[str, str]:
    """Give the value of `IDS`.

    Args:
        ids: The ids.
    """
    return {"ids": json.dumps(list(ids))}


def ancestors(ids: Ids) -> CTE:
    """Walk up over edges of every kind, the sessions themselves included.

    Args:
        ids: Where to start.
    """
    walk = _start("ancestors", ids)
    return walk.union(
        select(walk.c.origin, _parent.c.id)
        .select_from(walk)
        .join(_child, _child.c.id == walk.c.id)
        .join(_parent, _parent.c.id == _child.c.parent_session_id)
    )


def descendants(ids: Ids) -> CTE:
    """Walk down over edges of every kind, the sessions themselves included.

    Args:
        ids: Where to start.
    """
    walk = _start("descendants", ids)
    return walk.union(
        select(walk.c.origin, _child.c.id).select_from(walk).join(_child, _child.c.parent_session_id == walk.c.id)
    )


def continuations(ids: Ids) -> CTE:
    """Walk down over compression edges, the sessions themselves included: the members of a conversation below them.

    Args:
        ids: Where to start.
    """
    walk = _start("continuations", ids)
    return walk.union(
        select(walk.c.origin, _edge.c.session_id)
        .select_from(walk)
        .join(_edge, _edge.c.parent_id == walk.c.id)
        .where(_edge.c.kind == "compression")
    )


def chain_upward(ids: Ids) -> Select[Any]:
    """Select ``id`` and ``continues`` of sessions and of all that they continue.

    ``continues`` is the parent over a compression edge; NULL at the head of a conversation. `continued` reads it.

    Args:
        ids: Where to start.
    """
    first = select(EDGES.c.session_id.label("id"), _continues(EDGES)).where(among(EDGES.c.session_id, ids))
    walk = first.cte("chain", recursive=True)
    walk = walk.union(
        select(_edge.c.session_id, _continues(_edge))
        .select_from(walk)
        .join(_edge, _edge.c.session_id == walk.c.continues)
    )
    return select(walk.c.id, walk.c.continues)


def continued(database: Session | Connection, ids: Collection[str]) -> dict[str, str | None]:
    """Read what sessions continue, and what that continues, up to the heads of their conversations.

    Args:
        database: Where to look.
        ids: The sessions; those that do not exist are not among the result.

    Returns:
        Session id to the session it continues; None at the head of a conversation.
    """
    return {row.id: row.continues for row in database.execute(_CHAIN, given(ids)).all()}


def upward(session_id: str, parents: Mapping[str, str | None]) -> list[str]:
    """Follow parents as far as there are any; a ring is cut where it closes.

    Args:
        session_id: Where to start.
        parents: Session id to its parent's.

    Returns:
        The line, from the session itself up; empty when it is not among those known.
    """
    line: dict[str, None] = {}
    current: str | None = session_id
    while current is not None and current in parents and current not in line:
        line[current] = None
        current = parents[current]
    return list(line)


def top(session_id: str, parents: Mapping[str, str | None]) -> str:
    """Follow parents to the top; of a ring, which has none, the smallest id stands for it.

    Args:
        session_id: Where to start.
        parents: Session id to its parent's.
    """
    line = upward(session_id, parents)
    if not line:
        return session_id
    beyond = parents[line[-1]]
    return min(line[line.index(beyond) :], key=in_bytes) if beyond in line else line[-1]


def tops(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Follow the parents of many sessions to the top, each edge once.

    Args:
        parents: Session id to its parent's.
    """
    found: dict[str, str] = {}
    for id_ in parents:
        line: list[str] = []
        current: str | None = id_
        while current is not None and current in parents and current not in found and len(line) <= len(parents):
            line.append(current)
            current = parents[current]
        if line:
            known = found[current] if current in found else top(id_, parents)
            found |= dict.fromkeys(line, known)
    return found


def _start(name: str, ids: Ids) -> CTE:
    start = select(SESSIONS.c.id.label("origin"), SESSIONS.c.id.label("id"))
    return start.where(among(SESSIONS.c.id, ids)).cte(name, recursive=True)


def _continues(edge: Any) -> ColumnElement[str | None]:
    return case((edge.c.kind == "compression", edge.c.parent_id)).label("continues")


def in_bytes(id_: str) -> bytes:
    """Give an id as SQLite compares it.

    Args:
        id_: The id.
    """
    return id_.encode(errors="surrogatepass")


def conversation_root(session: Session, session_id: str) -> str:
    """Find the session that began a session's conversation; see `LineageRepository.conversation_root`.

    Args:
        session: Where to look.
        session_id: The session; its own id comes back when it does not exist.
    """
    return top(session_id, continued(session, [session_id]))


_CHAIN = chain_upward(IDS)
