"""Showing conversations: what one entry of a list says, from all members of its chain.

Counts are of live messages, each once: a continuation may have taken messages of its predecessor along.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, String, and_, bindparam, case, exists, func, literal_column, or_, select

from hermes_store.cells import Problems, read_count, read_text, read_timestamp
from hermes_store.content import decode
from hermes_store.edges import ACTIVITY, EARLIEST, LATEST, LINEAGE
from hermes_store.listing import Head
from hermes_store.membership import members
from hermes_store.records import SessionSummary
from hermes_store.search.rows import MESSAGES, beginning, live_messages, m, s, visible
from hermes_store.walks import IDS, among, given

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
    belonging = members(connection, [head.id for head in heads])
    rows: dict[str, dict[str, Any]] = {head.id: {} for head in heads}
    for row in connection.execute(_counted(), given(belonging)).all():
        rows[belonging[row.id]][row.id] = row
    tips = _tips(connection, rows)
    shown = {row.id: row for row in connection.execute(_shown(), given({*rows, *tips.values()})).all()}
    taking = {head for head, some in rows.items() if any(row.takes_along for row in some.values())}
    copied = {id_: head for id_, head in belonging.items() if head in taking}
    copies = {row.origin: row for row in connection.execute(_copies(), _pairs(copied)).all()} if copied else {}
    return [
        _summary(head, shown[head.id], shown[tips[head.id]], rows[head.id].values(), copies.get(head.id))
        for head in heads
    ]


def _pairs(belonging: Mapping[str, str]) -> dict[str, str]:
    return {"pairs": json.dumps(belonging)}


def _tips(connection: Connection, conversations: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Find where conversations go on: where each session has one continuation, by following them.

    At a fork, where the activity of whole branches decides, the view is asked.
    """
    tips = {}
    forked = []
    for head, rows in conversations.items():
        continuation = {row.parent_session_id: id_ for id_, row in rows.items() if id_ != head}
        if len(continuation) < len(rows) - 1:
            forked.append(head)
        tip = head
        while tip in continuation:
            tip = continuation[tip]
        tips[head] = tip
    if forked:
        tips |= {row[0]: row[1] for row in connection.execute(_forked_tips(), given(forked)).all()}
    return tips


@cache
def _forked_tips() -> Select[Any]:
    return select(LINEAGE.c.session_id, LINEAGE.c.tip_id).where(among(LINEAGE.c.session_id, IDS))


@cache
def _counted() -> Select[Any]:
    """Select what is summed over a conversation; ``takes_along`` where live messages are older than their session."""
    older = exists().where(m.c.session_id == s.c.id, m.c.active == 1, m.c.timestamp < s.c.started_at)
    return select(
        s.c.id,
        s.c.parent_session_id,
        s.c.tool_call_count,
        live_messages(s).label("messages"),
        and_(s.c.parent_session_id.is_not(None), older).label("takes_along"),
        literal_column(ACTIVITY).label("activity"),
    ).where(among(s.c.id, IDS))


@cache
def _copies() -> Select[Any]:
    """Count live messages that a continuation took along from an earlier member; they are older than it."""
    pairs = func.json_each(bindparam("pairs", type_=String)).table_valued("key", "value")
    walk = select(pairs.c.key.label("id"), pairs.c.value.label("origin")).cte("belonging")
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
def _shown() -> Select[Any]:
    """Select what heads and tips say of themselves, and the beginning of the first thing that a user said."""
    columns = ("id", "source", "title", "model", "cwd", "session_key", "started_at", "end_reason")
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
    return select(*(s.c[name] for name in (*columns, "archived", "pinned", "hidden")), first.label("preview")).where(
        among(s.c.id, IDS)
    )


def _summary(head: Head, first: Any, tip: Any, counted: Collection[Any], copies: Any) -> SessionSummary:
    problems = Problems()
    calls = sum(read_count(row.tool_call_count, "tool_call_count", problems) or 0 for row in counted)
    preview = tip.preview or first.preview
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
        last_activity=max(row.activity for row in counted) or None,
        end_reason=read_text(tip.end_reason, "end_reason", problems),
        message_count=sum(row.messages for row in counted) - (copies.messages if copies else 0),
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
