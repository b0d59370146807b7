"""Which conversations are old enough to go, or to be put away.

A conversation is as old as its last activity. None goes that is pinned, still open, or without a time that can be
believed; nor one that others stem from which stay: a branch keeps the conversation it branched from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, literal_column, select
from sqlalchemy.orm import Session

from hermes_store.edges import ACTIVITY, EDGES
from hermes_store.listing import HEADS, WORKERS
from hermes_store.search.rows import s
from hermes_store.walks import tops

DAY = 86_400.0


@dataclass(slots=True)
class _Conversation:
    source: str
    head_kind: str
    activity: float = 0.0
    pinned: bool = False
    open: bool = False
    archived: bool = False
    parent: str | None = None


def cutoffs(now: float, days: float, per_source: Mapping[str, float | None]) -> dict[str | None, float]:
    """Turn ages into moments.

    Args:
        now: Epoch seconds.
        days: Age for every source that has no rule of its own.
        per_source: Source to its age in days; None keeps everything of it.

    Returns:
        Source to the moment before which a conversation is old; under None that of all other sources.

    Raises:
        ValueError: An age is no number of days, 0 or more.
    """
    for name, value in [("older_than_days", days), *per_source.items()]:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise ValueError(f"{name} must be a number of days, 0 or more, not {value!r}")
    moments: dict[str | None, float] = {None: now - days * DAY}
    return moments | {source: float("-inf") if age is None else now - age * DAY for source, age in per_source.items()}


def prunable(session: Session, moments: Mapping[str | None, float], sources: Sequence[str] | None) -> list[str]:
    """Name the heads of conversations that may be deleted.

    Args:
        session: Where to look.
        moments: What `cutoffs` gave.
        sources: Only of these; None for all.

    Returns:
        Heads of conversations, in the order of their ids. What works for them goes with them.
    """
    found = _conversations(session)
    kept: list[str] = []
    for id_, one in found.items():
        old = 0 < one.activity < moments.get(one.source, moments[None])
        chosen = sources is None or one.source in sources
        # A delegate that was never ended is left over, not at work: it goes with whom it worked for, if that goes.
        busy = one.open and one.head_kind in HEADS
        if not (old and chosen) or one.pinned or busy:
            kept.append(id_)
    stay = set(kept)
    while kept:
        above = found[kept.pop()].parent
        if above is not None and above not in stay:
            stay.add(above)
            kept.append(above)
    return sorted(id_ for id_, one in found.items() if id_ not in stay and not one.open)


def stale(session: Session, moment: float) -> list[str]:
    """Name the heads of conversations that were idle for long, to be archived; open ones may be among them.

    Args:
        session: Where to look.
        moment: Epoch seconds; what was active since is not stale.

    Returns:
        Heads of conversations that are neither pinned nor archived, in the order of their ids.
    """
    return sorted(
        id_
        for id_, one in _conversations(session).items()
        if 0 < one.activity < moment and one.head_kind in HEADS and not one.pinned and not one.archived
    )


def _conversations(session: Session) -> dict[str, _Conversation]:
    """Gather all sessions of the file into their conversations; takes time in proportion to their number."""
    rows = session.execute(_members()).all()
    continues = {str(row.id): row.parent_id if row.kind == "compression" else None for row in rows}
    heads = tops(continues)
    found: dict[str, _Conversation] = {}
    for row in rows:
        if heads[row.id] == row.id:
            found[row.id] = _Conversation(str(row.source), row.kind if row.kind in WORKERS else HEADS[0])
    for row in rows:
        one = found[heads[row.id]]
        one.activity = max(one.activity, row.activity)
        one.pinned |= row.pinned == 1
        one.open |= row.ended_at is None
        one.archived |= row.archived == 1
        if heads[row.id] == row.id and row.parent_id in heads and heads[row.parent_id] != row.id:
            one.parent = heads[row.parent_id]
    return found


def _members() -> Select[tuple[object, ...]]:
    return (
        select(
            s.c.id,
            s.c.source,
            s.c.pinned,
            s.c.archived,
            s.c.ended_at,
            EDGES.c.parent_id,
            EDGES.c.kind,
            literal_column(ACTIVITY).label("activity"),
        )
        .join(EDGES, EDGES.c.session_id == s.c.id)
        .order_by(s.c.id)
    )
