"""Who descends from whom, and as what: one classifier for every consumer, walks as recursive CTEs.

A session's parent says little by itself: the child may go on with the parent's conversation (compression), be another
conversation that grew out of it (branch, reset), or work done for it (delegate, tool). `edge_kind` decides it in SQL;
lists, tips and walks all use that one expression.

Recursive parts use UNION on ids, never UNION ALL: real files hold cycles and self-parents, and such a walk must end.
Builders are pure functions of ids; `LineageRepository` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import CTE, ColumnElement, Select, and_, case, exists, func, literal, or_, select
from sqlalchemy.orm import Session, aliased

from hermes_store.errors import no_such_session
from hermes_store.models import HermesSession, Message
from hermes_store.records import Kind
from hermes_store.scope import Scope

#: End reasons after which the next session of a chat is a conversation of its own (Hermes's list).
RESET_REASONS = (
    "session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired", "new_session",
)  # fmt: skip
#: A continuation may be written shortly before its parent is ended; Hermes's newest publish path does.
_CONTINUATION_SLACK = 1.0

SessionAlias = Any  # sqlalchemy.orm.aliased(HermesSession); its own type cannot be named across 2.0 and 2.1


def marker(session: SessionAlias, name: str) -> ColumnElement[str | None]:
    """Read a lineage marker from ``model_config``, which may be broken JSON.

    Args:
        session: An alias of `HermesSession`.
        name: The marker, such as ``_branched_from``.

    Returns:
        The id it names; NULL without one.
    """
    # CASE, not AND: SQLite may evaluate both sides of an AND, and json_extract fails on broken JSON.
    return case((func.json_valid(session.model_config) == 1, func.json_extract(session.model_config, f"$.{name}")))


def edge_kind(child: SessionAlias, parent: SessionAlias) -> ColumnElement[str]:
    """Classify a session, given its parent's row (all NULL when it has none, or it is missing).

    A marker counts if it names this parent, or if the parent is missing: a continuation inherits its parent's
    ``model_config``, so a marker that names another session says nothing about this edge.

    Args:
        child: An alias of `HermesSession`.
        parent: An alias of it, outer-joined on the child's ``parent_session_id``.

    Returns:
        One of the words of `hermes_store.records.Kind`.
    """
    no_parent = parent.id.is_(None)

    def ours(name: str) -> ColumnElement[bool]:
        value = marker(child, name)
        return and_(value.is_not(None), or_(no_parent, value == parent.id))

    after_end = child.started_at >= parent.ended_at
    child_key, parent_key = func.nullif(child.session_key, ""), func.nullif(parent.session_key, "")
    same_chat = or_(child_key == parent_key, and_(child_key.is_(None), parent_key.is_(None), after_end))
    delegated = marker(child, "_delegate_from")
    has_title = func.nullif(func.trim(child.title), "").is_not(None)
    sibling = aliased(HermesSession)
    continues = child.started_at >= parent.ended_at - _CONTINUATION_SLACK
    better_candidate = exists(
        select(literal(1))
        .select_from(sibling)
        .where(sibling.parent_session_id == parent.id, sibling.id != child.id)
        .where(sibling.started_at >= parent.ended_at - _CONTINUATION_SLACK)
        .where(marker(sibling, "_branched_from").is_(None), marker(sibling, "_reset_from").is_(None))
        .where(sibling.source.not_in(("tool", "subagent")))
    )
    return case(
        (
            no_parent,
            case((and_(delegated.is_not(None), delegated != "__orphaned__"), "delegate"), else_="root"),
        ),
        (or_(ours("_branched_from"), and_(parent.end_reason == "branched", after_end)), "branch"),
        (or_(ours("_reset_from"), and_(parent.end_reason.in_(RESET_REASONS), same_chat)), "reset"),
        (child.source == "tool", "tool"),
        (or_(ours("_delegate_from"), and_(child.source == "subagent", delegated.is_(None))), "delegate"),
        (and_(parent.end_reason == "compression", or_(continues, ~better_candidate)), "compression"),
        (and_(has_title, func.coalesce(parent.end_reason, "") != "compression"), "branch"),
        else_="delegate",
    )


def kinds(ids: Sequence[str] | None = None) -> Select[*tuple[Any, ...]]:
    """Select ``id, parent_id, kind`` of sessions.

    Args:
        ids: These sessions; None for all.
    """
    child, parent = aliased(HermesSession), aliased(HermesSession)
    statement = select(child.id, parent.id.label("parent_id"), edge_kind(child, parent).label("kind")).outerjoin(
        parent, and_(parent.id == child.parent_session_id, parent.id != child.id)
    )
    return statement if ids is None else statement.where(child.id.in_(ids))


def ancestor_ids(session_id: str) -> CTE:
    """Walk from a session up, itself included.

    Args:
        session_id: Where to start.

    Returns:
        A recursive CTE with the column ``id``.
    """
    start = select(HermesSession.id.label("id")).where(HermesSession.id == session_id)
    walk = start.cte("ancestors", recursive=True)
    parent = aliased(HermesSession)
    child = aliased(HermesSession)
    return walk.union(
        select(parent.id).select_from(walk).join(child, child.id == walk.c.id).join(
            parent, parent.id == child.parent_session_id
        )
    )  # fmt: skip


def descendant_ids(session_id: str) -> CTE:
    """Walk from a session down over edges of every kind, itself included.

    Args:
        session_id: Where to start.

    Returns:
        A recursive CTE with the column ``id``.
    """
    start = select(HermesSession.id.label("id")).where(HermesSession.id == session_id)
    walk = start.cte("descendants", recursive=True)
    child = aliased(HermesSession)
    return walk.union(select(child.id).select_from(walk).join(child, child.parent_session_id == walk.c.id))


def continuations(session_id: str) -> Select[*tuple[Any, ...]]:
    """Select the compression chain below a session: ``id, parent_id, newest, has_messages``.

    Args:
        session_id: Where to start; not part of the result.
    """
    start = select(HermesSession.id.label("id")).where(HermesSession.id == session_id)
    walk = start.cte("chain", recursive=True)
    child, parent = aliased(HermesSession), aliased(HermesSession)
    walk = walk.union(
        select(child.id)
        .select_from(walk)
        .join(parent, parent.id == walk.c.id)
        .join(child, and_(child.parent_session_id == parent.id, child.id != parent.id))
        .where(parent.end_reason == "compression", edge_kind(child, parent) == "compression")
    )
    member = aliased(HermesSession)
    newest = select(func.max(Message.timestamp)).where(Message.session_id == member.id).scalar_subquery()
    return (
        select(
            member.id,
            member.parent_session_id.label("parent_id"),
            func.coalesce(newest, member.started_at).label("newest"),
            newest.is_not(None).label("has_messages"),
        )
        .join(walk, walk.c.id == member.id)
        .where(member.id != session_id)
    )


def choose_tip(session_id: str, rows: Sequence[Any]) -> str:
    """Follow a compression chain to its end; at a fork, towards the freshest messages.

    Args:
        session_id: Where to start.
        rows: What `continuations` found.

    Returns:
        The tip's id; the session itself when it was never continued.
    """
    children: dict[str, list[Any]] = {}
    for row in rows:
        children.setdefault(row.parent_id, []).append(row)
    freshest: dict[str, tuple[bool, float, str]] = {}
    order = [session_id]
    for member in order:  # grows while it is walked; ids are unique in the rows, so a cycle cannot return
        order.extend(row.id for row in children.get(member, ()) if row.id not in order)
    own = {row.id: (bool(row.has_messages), _number(row.newest), str(row.id)) for row in rows}
    for member in reversed(order):
        below = [freshest[row.id] for row in children.get(member, ()) if row.id in freshest]
        freshest[member] = max([own.get(member, (False, 0.0, member)), *below])
    tip, seen = session_id, {session_id}
    while candidates := [row.id for row in children.get(tip, ()) if row.id not in seen]:
        tip = max(candidates, key=lambda candidate: (freshest[candidate], candidate))
        seen.add(tip)
    return tip


class LineageRepository:
    """Questions about one session's relatives."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def kind(self, session_id: str) -> Kind:
        """Say what a session is to its parent.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            return _kind(session, session_id)

    def root(self, session_id: str) -> str:
        """The oldest ancestor there is; the session itself when it has none.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        return (self.ancestors(session_id) or [session_id])[-1]

    def tip(self, session_id: str) -> str:
        """Where a session's conversation goes on, over compression edges.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            _kind(session, session_id)
            return choose_tip(session_id, session.execute(continuations(session_id)).all())

    def ancestors(self, session_id: str) -> list[str]:
        """All ancestors, from the parent up to the root.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            _kind(session, session_id)
            walk = ancestor_ids(session_id)
            rows = session.execute(
                select(HermesSession.id, HermesSession.parent_session_id).join(walk, walk.c.id == HermesSession.id)
            ).all()
        parents = {str(row[0]): row[1] for row in rows}
        line, current = [], parents.get(session_id)
        while current in parents and current != session_id and current not in line:
            line.append(str(current))
            current = parents[current]
        return line

    def descendants(self, session_id: str) -> list[str]:
        """All sessions below, over edges of every kind, in the order of their ids.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            _kind(session, session_id)
            walk = descendant_ids(session_id)
            return list(session.scalars(select(walk.c.id).where(walk.c.id != session_id).order_by(walk.c.id)))

    def children(self, session_id: str) -> dict[str, Kind]:
        """Direct children and what each is, in the order of their ids.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            _kind(session, session_id)
            below = kinds().subquery()
            rows = session.execute(
                select(below.c.id, below.c.kind).where(below.c.parent_id == session_id).order_by(below.c.id)
            ).all()
            return {str(row[0]): cast("Kind", row[1]) for row in rows}


def _kind(session: Session, session_id: str) -> Kind:
    row = session.execute(kinds([session_id])).first()
    if row is None:
        raise no_such_session(session_id)
    return cast("Kind", row.kind)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
