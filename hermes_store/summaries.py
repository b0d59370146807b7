"""Showing conversations: what one entry of a list says, from all members of its chain.

Counts are of live messages, each once: a continuation may have taken messages of its predecessor along.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, and_, case, exists, func, literal_column, or_, select

from hermes_store.cells import Problems, read_count, read_text, read_timestamp
from hermes_store.content import decode
from hermes_store.edges import ACTIVITY, EARLIEST, LATEST, LINEAGE
from hermes_store.listing import Head
from hermes_store.records import SessionSummary
from hermes_store.search.rows import MESSAGES, beginning, live_messages, m, s, visible
from hermes_store.walks import IDS, among, continuations, given

_PREVIEW_CHARACTERS = 63
#: Characters of a message read for a preview: blanks at its beginning count.
_PREVIEW_READ = 400


def summaries(connection: Connection, heads: Sequence[Head]) -> list[SessionSummary]:
    """Show conversations; the number of statements does not depend on how many.

    Args:
        connection: A connection inside a transaction.
        heads: The conversations.
    """
    if not heads:
        return []
    ids = [head.id for head in heads]
    tips: dict[str, str] = {row[0]: row[1] for row in connection.execute(_tips(), given(ids)).all()}
    rows = {row.id: row for row in connection.execute(_rows(), given({*ids, *tips.values()})).all()}
    counted = {row.origin: row for row in connection.execute(_counts(), given(ids)).all()}
    old = [origin for origin, row in counted.items() if row.old]
    copies = {row.origin: row for row in connection.execute(_copies(), given(old)).all()}
    previews: dict[str, object] = {
        row[0]: row[1] for row in connection.execute(_previews(), given({*ids, *tips.values()})).all()
    }
    return [
        _summary(
            head,
            rows[head.id],
            rows[tips[head.id]],
            (counted[head.id], copies.get(head.id)),
            previews.get(tips[head.id]) or previews.get(head.id),
        )
        for head in heads
    ]


@cache
def _tips() -> Select[Any]:
    return select(LINEAGE.c.session_id, LINEAGE.c.tip_id).where(among(LINEAGE.c.session_id, IDS))


@cache
def _rows() -> Select[Any]:
    shown = ("id", "source", "title", "model", "cwd", "session_key", "started_at", "end_reason")
    return select(*(s.c[name] for name in (*shown, "archived", "pinned", "hidden"))).where(among(s.c.id, IDS))


@cache
def _counts() -> Select[Any]:
    """Count live messages, and those that are older than their session, and sum the writers' counters."""
    walk = continuations(IDS)
    count = select(func.count()).where(m.c.session_id == s.c.id)
    old = count.where(m.c.active == 1, m.c.timestamp < s.c.started_at)
    return (
        select(
            walk.c.origin,
            func.sum(live_messages(s)).label("messages"),
            func.sum(case((walk.c.id != walk.c.origin, old.scalar_subquery()), else_=0)).label("old"),
            func.sum(s.c.tool_call_count).label("tool_calls"),
            func.max(literal_column(ACTIVITY)).label("activity"),
        )
        .join(s, s.c.id == walk.c.id)
        .group_by(walk.c.origin)
    )


@cache
def _copies() -> Select[Any]:
    """Count live messages that a continuation took along from an earlier member; they are older than it."""
    walk = continuations(IDS)
    other = walk.alias("other")
    original = MESSAGES.alias("original")
    same = or_(
        original.c.message_uid == m.c.message_uid,
        and_(
            original.c.role.is_not_distinct_from(m.c.role),
            original.c.content.is_not_distinct_from(m.c.content),
            original.c.tool_calls.is_not_distinct_from(m.c.tool_calls),
        ),
    )
    taken_along = (
        exists()
        .where(
            other.c.origin == walk.c.origin,
            other.c.id != walk.c.id,
            original.c.session_id == other.c.id,
            original.c.active == 1,
            original.c.timestamp == m.c.timestamp,
            original.c.id < m.c.id,
            same,
        )
        .correlate(walk, m)
    )
    calls = case((func.json_valid(m.c.tool_calls) == 1, func.json_array_length(m.c.tool_calls)), else_=0)
    return (
        select(walk.c.origin, func.count().label("messages"), func.sum(calls).label("tool_calls"))
        .join(s, s.c.id == walk.c.id)
        .join(m, and_(m.c.session_id == s.c.id, m.c.active == 1, m.c.timestamp < s.c.started_at))
        .where(walk.c.id != walk.c.origin, s.c.started_at.between(EARLIEST, LATEST), taken_along)
        .group_by(walk.c.origin)
    )


@cache
def _previews() -> Select[Any]:
    first = (
        select(beginning(m.c.content, _PREVIEW_READ))
        .where(
            m.c.session_id == s.c.id,
            m.c.role == "user",
            m.c.content.is_not(None),
            visible(m, include_inactive=False),
        )
        .order_by(m.c.id)
        .limit(1)
        .scalar_subquery()
    )
    return select(s.c.id, first).where(among(s.c.id, IDS))


def _summary(head: Head, first: Any, tip: Any, counts: tuple[Any, Any], preview: object) -> SessionSummary:
    counted, copies = counts
    problems = Problems()
    calls = read_count(counted.tool_calls, "tool_call_count", problems) or 0
    return SessionSummary(
        id=str(tip.id),
        root_id=head.id,
        kind=head.kind,
        source=read_text(first.source, "source", problems),
        title=_title(tip, problems) or _title(first, problems),
        model=read_text(tip.model, "model", problems),
        cwd=read_text(tip.cwd, "cwd", problems),
        session_key=read_text(tip.session_key, "session_key", problems),
        started=read_timestamp(first.started_at, "started_at", problems),
        last_activity=counted.activity or None,
        end_reason=read_text(tip.end_reason, "end_reason", problems),
        message_count=counted.messages - (copies.messages if copies else 0),
        tool_call_count=max(calls - (copies.tool_calls if copies else 0), 0),
        archived=first.archived == 1,
        pinned=first.pinned == 1,
        hidden=first.hidden == 1,
        preview=None if preview is None else _line(decode(preview).text),
        problems=problems.as_tuple(),
    )


def _title(row: Any, problems: Problems) -> str | None:
    title = read_text(row.title, "title", problems)
    return title if title and title.strip() else None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARACTERS else line[: _PREVIEW_CHARACTERS - 3] + "..."
