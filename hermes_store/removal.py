"""Deleting sessions: what goes with them, what stays, and doing it in one transaction.

What goes is a conversation, whichever member is named, because a continuation without its beginning is none; and what
worked for it (delegates and tool runs, and what those had working for them), because nobody would see it again, or
suddenly everybody. Branches and resets are conversations of their own: they stay, without a parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, cast

from sqlalchemy import CTE, ColumnElement, CursorResult, case, delete, exists, func, literal, or_, select, update
from sqlalchemy.orm import Session

from hermes_store.edges import EDGES
from hermes_store.locks import free_sessions
from hermes_store.models import HermesSession, Message, SessionModelUsage, SystemPrompt
from hermes_store.records import Removal
from hermes_store.search.rows import MESSAGES, SESSIONS
from hermes_store.walks import IDS, among, continued, given, top

_WORK = ("delegate", "tool")
_edge = EDGES.alias("edge")


def plan(session: Session, ids: Collection[str], *, detach: bool = False) -> Removal:
    """Say what deleting sessions removes.

    Args:
        session: Where to look.
        ids: The sessions.
        detach: Only these sessions rather than their conversations; the continuations stay and lose their parent.

    Returns:
        What would go.
    """
    doomed = _doomed(session, ids, detach=detach)
    children = session.scalars(
        select(SESSIONS.c.id)
        .where(among(SESSIONS.c.parent_session_id, doomed), ~among(SESSIONS.c.id, doomed))
        .order_by(SESSIONS.c.id)
    ).all()
    messages = session.scalar(select(func.count()).select_from(MESSAGES).where(among(MESSAGES.c.session_id, doomed)))
    return Removal(sessions=tuple(sorted(doomed)), detached=tuple(map(str, children)), messages=messages or 0)


def remove(session: Session, removal: Removal) -> Removal:
    """Delete what was planned, in the transaction of the plan.

    Args:
        session: A session that holds the write lock.
        removal: The plan.

    Returns:
        What went, counted by the database.
    """
    doomed = removal.sessions
    if not doomed:
        return removal
    session.expire_all()
    _detach(session, removal)
    prompts = _prompts_of(session, doomed)
    # Messages first: the triggers of the search indexes read the session's row while its messages are deleted.
    messages = _run(session, delete(Message).where(among(MESSAGES.c.session_id, doomed)))
    _run(session, delete(SessionModelUsage).where(among(cast("Any", SessionModelUsage.session_id), doomed)))
    for statement in free_sessions(doomed):
        _run(session, statement)
    gone = _run(session, delete(HermesSession).where(among(SESSIONS.c.id, doomed)))
    if gone != len(doomed):
        raise RuntimeError(f"{gone} sessions were deleted instead of {len(doomed)}")
    _drop_unused(session, prompts)
    return Removal(sessions=doomed, detached=removal.detached, messages=messages)


def _doomed(session: Session, ids: Collection[str], *, detach: bool) -> set[str]:
    parents = continued(session, ids)
    heads = {top(one, parents) for one in ids}
    if not detach:
        doomed = _with_work(session, heads)
    else:
        heads_of = select(EDGES.c.session_id, EDGES.c.kind).where(among(EDGES.c.session_id, heads))
        kinds = {str(row.session_id): row.kind for row in session.execute(heads_of)}
        hidden = {one for one in ids if kinds[top(one, parents)] in _WORK}
        work = session.scalars(
            select(EDGES.c.session_id).where(among(EDGES.c.parent_id, ids), EDGES.c.kind.in_(_WORK))
        ).all()
        doomed = set(ids) | _with_work(session, hidden | set(work))
    lost = _lost_delegates(session)
    while fresh := {one for one, owner in lost.items() if owner in doomed and one not in doomed}:
        doomed |= _with_work(session, fresh)
    return doomed


def _with_work(session: Session, ids: Iterable[str]) -> set[str]:
    """Add what continues sessions and what works for them, all the way down."""
    start = select(SESSIONS.c.id.label("id")).where(among(SESSIONS.c.id, IDS))
    walk: CTE = start.cte("doomed", recursive=True)
    walk = walk.union(
        select(_edge.c.session_id)
        .select_from(walk)
        .join(_edge, _edge.c.parent_id == walk.c.id)
        .where(_edge.c.kind.in_(("compression", *_WORK)))
    )
    return {str(one) for one in session.scalars(select(walk.c.id), given(ids))}


def _lost_delegates(session: Session) -> dict[str, str]:
    """Delegates whose parent is gone, with the session that their marker names."""
    parent = SESSIONS.alias("parent")
    has_parent = exists().where(parent.c.id == SESSIONS.c.parent_session_id, parent.c.id != SESSIONS.c.id)
    statement = (
        select(SESSIONS.c.id, _marker("_delegate_from"))
        .join(EDGES, EDGES.c.session_id == SESSIONS.c.id)
        # The text first: it spares most sessions the rest.
        .where(func.instr(SESSIONS.c.model_config, "_delegate_from") > 0, EDGES.c.kind == "delegate", ~has_parent)
    )
    return {str(row[0]): str(row[1]) for row in session.execute(statement)}


def _detach(session: Session, removal: Removal) -> None:
    """Take the parent off what stays, and keep it visible or hidden as it was.

    A delegate marker that it inherited would hide it without a parent; it is marked as a branch then, which wins. A
    continuation takes its head's flags along, so that nothing hidden comes to light.
    """
    if not removal.detached:
        return
    rows = session.execute(
        select(EDGES.c.session_id, EDGES.c.parent_id, EDGES.c.kind).where(among(EDGES.c.session_id, removal.detached))
    ).all()
    parents = continued(session, removal.detached)
    for row in rows:
        if row.kind == "compression":
            head = session.get_one(HermesSession, top(str(row.session_id), parents))
            flags = {name: 1 for name in ("archived", "hidden") if getattr(head, name) == 1}
            if flags:
                _run(session, update(HermesSession).where(SESSIONS.c.id == row.session_id).values(**flags))
        if row.kind not in _WORK:
            config = func.json_set(SESSIONS.c.model_config, "$._branched_from", row.parent_id)
            hidden = _marker("_delegate_from").is_not(None) & _marker("_branched_from").is_(None)
            _run(
                session,
                update(HermesSession).where(SESSIONS.c.id == row.session_id, hidden).values(model_config=config),
            )
    _run(
        session,
        update(HermesSession).where(among(SESSIONS.c.id, removal.detached)).values(parent_session_id=None),
    )


def _marker(name: str) -> ColumnElement[str | None]:
    """Read a lineage marker; CASE, because json_extract fails on broken JSON and AND does not keep it from that."""
    config = SESSIONS.c.model_config
    readable = case((func.typeof(config) == "text", func.json_valid(config)), else_=0)
    return case((readable == 1, func.json_extract(config, f"$.{name}")))


def _prompts_of(session: Session, ids: Collection[str]) -> set[str]:
    columns = (SESSIONS.c.system_prompt_hash, SESSIONS.c.tool_names)
    rows = session.execute(select(*columns).where(among(SESSIONS.c.id, ids)))
    return {one for row in rows for one in row if isinstance(one, str)}


def _drop_unused(session: Session, prompts: Collection[str]) -> None:
    """Remove the shared texts that no session names any more; both columns hold their hashes."""
    used = exists(
        select(literal(1)).where(
            or_(SESSIONS.c.system_prompt_hash == SystemPrompt.hash, SESSIONS.c.tool_names == SystemPrompt.hash)
        )
    )
    _run(session, delete(SystemPrompt).where(among(cast("Any", SystemPrompt.hash), prompts), ~used))


def _run(session: Session, statement: Any) -> int:
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount
