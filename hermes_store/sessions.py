"""Reading sessions, and listing them as conversations.

A conversation is a head (a root, a branch or a reset) and the chain of compressions that goes on from it. A listing
has one entry for each: what began it from the head, where it stands now from the tip. Delegates and tool runs are no
conversations of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Integer, and_, func, literal, or_, select
from sqlalchemy.orm import Session, aliased

from hermes_store.cells import Problems, read_count, read_json, read_number, read_text, read_timestamp
from hermes_store.content import decode
from hermes_store.errors import ConflictError, NotFoundError, no_such_session
from hermes_store.lineage import choose_tip, continuations, kinds
from hermes_store.models import HermesSession, Message
from hermes_store.records import Kind, SessionInfo, SessionSummary
from hermes_store.scope import Scope

#: Kinds of session that head a conversation of their own.
HEADS: tuple[Kind, ...] = ("root", "branch", "reset")
_PREVIEW_CHARACTERS = 63

Order = Literal["activity", "started"]


class SessionRepository:
    """Reads sessions and lists conversations."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get(self, session_id: str) -> SessionInfo:
        """Read one session.

        Args:
            session_id: Its id.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            row = session.scalars(select(HermesSession).where(HermesSession.id == session_id)).first()
            if row is None:
                raise no_such_session(session_id)
            return to_record(row)

    def resolve(self, name: str) -> str:
        """Find the session that is meant by an id, the beginning of one, or a title.

        Args:
            name: The id, at least four characters of its beginning, or the title (upper and lower case count as one
                if nothing matches exactly).

        Returns:
            The session's id.

        Raises:
            NotFoundError: Nothing matches.
            ConflictError: Several sessions match; the message names some.
        """
        exact = HermesSession.id == name
        prefix = func.substr(HermesSession.id, 1, len(name)) == name
        folded = func.lower(HermesSession.title) == name.lower()
        tries = [exact, HermesSession.title == name] + ([prefix] if len(name) >= 4 else []) + [folded]  # noqa: PLR2004 - as documented
        with self._scope.reading() as session:
            for condition in tries:
                found = session.scalars(select(HermesSession.id).where(condition).limit(4)).all()
                if len(found) == 1:
                    return str(found[0])
                if found:
                    shown = ", ".join(str(one) for one in found[:3])
                    raise ConflictError(f"{name!r} can mean several sessions ({shown}); give more of the id")
        raise NotFoundError(f"no session has the id or title {name!r}")

    def list(
        self,
        limit: int = 20,
        offset: int = 0,
        *,
        sources: Sequence[str] | None = None,
        exclude_sources: Sequence[str] | None = None,
        order: Order = "activity",
        include_children: bool = False,
        include_archived: bool = False,
        include_hidden: bool = False,
        query: str | None = None,
    ) -> list[SessionSummary]:
        """List conversations, newest first.

        Args:
            limit: At most so many.
            offset: Leave out so many first.
            sources: Only heads from these sources; an empty list means none.
            exclude_sources: No heads from these sources.
            order: By last activity, or by when the conversation started.
            include_children: Also delegates and tool runs, each as an entry of its own.
            include_archived: Also archived ones.
            include_hidden: Also hidden ones.
            query: Only those with a member whose title or id holds this text, in upper or lower case.

        Returns:
            The entries; one per conversation.

        Raises:
            ValueError: Limit or offset is negative, or the order is unknown.
        """
        for name, value in (("limit", limit), ("offset", offset)):
            if value < 0:
                raise ValueError(f"{name} must not be negative")
        if order not in {"activity", "started"}:
            raise ValueError(f"order must be 'activity' or 'started', not {order!r}")
        with self._scope.reading() as session:
            heads = _conversations(
                sources=sources,
                exclude_sources=exclude_sources,
                include_children=include_children,
                include_archived=include_archived,
                include_hidden=include_hidden,
                query=query,
            ).subquery()
            by = heads.c.activity if order == "activity" else heads.c.started
            page = session.execute(
                select(heads.c.id, heads.c.kind, heads.c.activity)
                .order_by(_sortable(by).desc(), heads.c.id.desc())
                .limit(limit)
                .offset(offset)
            ).all()
            return [_summary(session, row) for row in page]


def _conversations(
    *,
    sources: Sequence[str] | None,
    exclude_sources: Sequence[str] | None,
    include_children: bool,
    include_archived: bool,
    include_hidden: bool,
    query: str | None,
) -> Any:
    """Select ``id, kind, started, activity`` of the heads that pass the filters."""
    every = kinds().cte("kinds")
    head = aliased(HermesSession)
    members = (
        select(every.c.id.label("head_id"), every.c.id.label("id"))
        .where(every.c.kind != "compression" if include_children else every.c.kind.in_(HEADS))
        .cte("members", recursive=True)
    )
    below = every.alias()
    members = members.union(
        select(members.c.head_id, below.c.id)
        .select_from(members)
        .join(below, and_(below.c.parent_id == members.c.id, below.c.kind == "compression"))
    )
    # One pass over an index of messages per member; a newest timestamp that is text sorts above all numbers.
    newest = (
        select(Message.session_id, func.max(Message.timestamp).label("newest"))
        .where(func.typeof(Message.timestamp).in_(("real", "integer")))
        .group_by(Message.session_id)
        .cte("newest")
    )
    member = aliased(HermesSession)
    activity = (
        select(members.c.head_id, func.max(func.coalesce(newest.c.newest, member.started_at)).label("activity"))
        .select_from(members)
        .join(member, member.id == members.c.id)
        .outerjoin(newest, newest.c.session_id == members.c.id)
        .group_by(members.c.head_id)
        .cte("activity")
    )
    kind = every.alias()
    statement = (
        select(head.id, kind.c.kind, head.started_at.label("started"), activity.c.activity)
        .join(activity, activity.c.head_id == head.id)
        .join(kind, kind.c.id == head.id)
    )
    if sources is not None:
        statement = statement.where(head.source.in_(sources))
    if exclude_sources:
        statement = statement.where(head.source.not_in(exclude_sources))
    if not include_archived:
        statement = statement.where(head.archived == 0)
    if not include_hidden:
        statement = statement.where(head.hidden == 0)
    if query:
        named = aliased(HermesSession)
        holds: ColumnElement[bool] = or_(
            named.title.icontains(query, autoescape=True), named.id.icontains(query, autoescape=True)
        )
        matching = select(members.c.head_id).join(named, named.id == members.c.id).where(holds)
        statement = statement.where(head.id.in_(matching))
    return statement


def _sortable(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Order numbers by size and put what is no number last."""
    return func.iif(func.typeof(value).in_(("real", "integer")), value, literal(-1, Integer))


def _summary(session: Session, row: Any) -> SessionSummary:
    head = session.get_one(HermesSession, row.id)
    tip_id = (
        choose_tip(head.id, session.execute(continuations(head.id)).all()) if head.ended_at is not None else head.id
    )
    tip = session.get_one(HermesSession, tip_id)
    problems = Problems()
    return SessionSummary(
        id=tip.id,
        root_id=head.id,
        kind=cast("Kind", row.kind),
        source=read_text(head.source, "source", problems),
        title=read_text(tip.title, "title", problems) or read_text(head.title, "title", problems),
        model=read_text(tip.model, "model", problems),
        started=read_timestamp(head.started_at, "started_at", problems),
        last_activity=read_timestamp(row.activity, "last_activity", problems),
        end_reason=read_text(tip.end_reason, "end_reason", problems),
        message_count=read_count(tip.message_count, "message_count", problems),
        archived=head.archived == 1,
        pinned=head.pinned == 1,
        hidden=head.hidden == 1,
        preview=_preview(session, head.id),
        problems=problems.as_tuple(),
    )


def _preview(session: Session, session_id: str) -> str | None:
    first = session.scalars(
        select(Message.content)
        .where(Message.session_id == session_id, Message.role == "user", Message.content.is_not(None))
        .order_by(Message.id)
        .limit(1)
    ).first()
    if first is None:
        return None
    line = " ".join(decode(first).text.split())
    return line if len(line) <= _PREVIEW_CHARACTERS else line[: _PREVIEW_CHARACTERS - 3] + "..."


def to_record(row: HermesSession) -> SessionInfo:
    """Turn a row into a record; never fails.

    Args:
        row: The row, attached to its session: the system prompt may live in another table.
    """
    problems = Problems()

    def text(name: str) -> str | None:
        return read_text(getattr(row, name), name, problems)

    def count(name: str) -> int | None:
        return read_count(getattr(row, name), name, problems)

    def instant(name: str) -> float | None:
        return read_timestamp(getattr(row, name), name, problems)

    return SessionInfo(
        id=str(row.id),
        source=text("source"),
        title=text("title"),
        title_source=text("title_source"),
        model=text("model"),
        model_config=read_json(row.model_config, "model_config", problems),
        system_prompt=text("system_prompt"),
        parent_session_id=text("parent_session_id"),
        user_id=text("user_id"),
        session_key=text("session_key"),
        display_name=text("display_name"),
        cwd=text("cwd"),
        git_branch=text("git_branch"),
        profile_name=text("profile_name"),
        started=instant("started_at"),
        ended=instant("ended_at"),
        end_reason=text("end_reason"),
        last_activity=instant("last_activity_at"),
        message_count=count("message_count"),
        tool_call_count=count("tool_call_count"),
        input_tokens=count("input_tokens"),
        output_tokens=count("output_tokens"),
        cache_read_tokens=count("cache_read_tokens"),
        cache_write_tokens=count("cache_write_tokens"),
        reasoning_tokens=count("reasoning_tokens"),
        estimated_cost_usd=read_number(row.estimated_cost_usd, "estimated_cost_usd", problems),
        actual_cost_usd=read_number(row.actual_cost_usd, "actual_cost_usd", problems),
        cost_status=text("cost_status"),
        archived=row.archived == 1,
        pinned=row.pinned == 1,
        hidden=row.hidden == 1,
        problems=problems.as_tuple(),
    )
