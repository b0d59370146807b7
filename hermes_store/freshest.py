"""Conversations by their last activity, met from the freshest bound on.

Bounds are quarters of an hour, from `hermes_store.sqlite.activity`. A row is a conversation, whose bound is exact, or a
session whose head is not known; such a session is led to its head, and its times are looked up. What is at least as
fresh as the next bound is final. Times of conversations with exact bounds are looked up only where their order matters:
not where one is alone in its quarter, and not in quarters that are skipped whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, func, literal_column, select

from hermes_store.edges import ACTIVITY
from hermes_store.membership import find_heads, heads_are_kept, members
from hermes_store.records import Kind
from hermes_store.search.rows import s
from hermes_store.sqlite.activity import BOUNDS, FRESHEST, FRESHEST_WITHOUT, QUARTER
from hermes_store.walks import IDS, among, given, in_bytes

#: Rows read at once: a few more than are expected to be shown, then more and more.
_MORE, _LARGEST_BATCH = 32, 4096


class Fresh(NamedTuple):
    """A conversation.

    Attributes:
        id: Its head.
        kind: What the head is to its parent.
        activity: Epoch seconds, 0 without any that can be believed; the beginning of the quarter of an hour where times
            did not have to be looked up.
    """

    id: str
    kind: Kind
    activity: float


def freshest(
    connection: Connection,
    wanted: Callable[[Sequence[str]], dict[str, Kind]],
    *,
    expected: int,
    skipped: int = 0,
    exact: bool = False,
) -> Iterator[Fresh]:
    """Give conversations, the latest activity first, then by id; those without any come last.

    Args:
        connection: A connection inside a transaction.
        wanted: Given heads, returns those that are wanted, with their kinds.
        expected: How many will be asked for, about.
        skipped: How many of the first are only counted: their order among themselves may be another one.
        exact: Look up all times.
    """
    order = _Order(connection)
    size = min(expected + _MORE, _LARGEST_BATCH)
    with connection.exec_driver_sql(_bounds(connection)) as bounds:
        while True:
            batch = bounds.fetchmany(size)
            size = min(size * 2, _LARGEST_BATCH)
            order.meet(batch, wanted)
            for one in order.ready(batch[-1][1] * QUARTER if batch else 0, skipped, exact=exact):
                yield one
                skipped -= 1
            if not batch:
                return


class _Order:
    """What is known about the conversations that were met and not given out yet."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heads: dict[str, str] = {}
        self._waiting: dict[str, Kind] = {}
        #: Conversation to the freshest time known of it; where a bound is exact, the beginning of its quarter.
        self._latest: dict[str, float] = {}
        #: Conversations of which a session may be fresher than that, within the quarter.
        self._inexact: set[str] = set()

    def meet(self, batch: Sequence[Any], wanted: Callable[[Sequence[str]], dict[str, Kind]]) -> None:
        """Learn of conversations.

        Args:
            batch: Rows (session, bound, head or None).
            wanted: As for `freshest`.
        """
        heads, latest = self._heads, self._latest
        heads |= {id_: head for id_, _, head in batch if head is not None}
        find_heads(self._connection, [id_ for id_, _, _ in batch], heads)
        met = dict.fromkeys(heads[id_] for id_, _, _ in batch if id_ in heads)
        fresh = wanted([head for head in met if head not in latest])
        self._waiting |= fresh
        latest |= dict.fromkeys(fresh, 0.0)
        for _, bound, head in batch:
            if head in latest and bound * QUARTER > latest[head]:
                latest[head] = max(latest[head], (bound - 1) * QUARTER)
                self._inexact.add(head)
        unknown = [(id_, bound) for id_, bound, head in batch if head is None and heads.get(id_) in latest]
        if unknown:
            self._look_up_sessions(unknown)

    def _look_up_sessions(self, sessions: Sequence[tuple[str, int]]) -> None:
        """Look up the times of sessions whose bounds may be too high.

        First of one session of each conversation, the one with the freshest bound: hardly any other can still be
        fresher after that. Where its bound turns out too high, all members of the conversation are looked at.
        """
        heads, latest = self._heads, self._latest
        first = {heads[id_]: (id_, bound) for id_, bound in reversed(sessions)}
        for is_first in (True, False):
            some = [(id_, bound) for id_, bound in sessions if (first[heads[id_]][0] == id_) is is_first]
            self._note([id_ for id_, bound in some if bound * QUARTER > latest[heads[id_]]])
        stale = [head for head, (_, bound) in first.items() if latest[head] < (bound - 1) * QUARTER]
        if stale:
            found = members(self._connection, stale)
            heads |= found
            self._note(list(found))

    def _note(self, ids: Sequence[str]) -> None:
        if ids:
            for id_, activity in self._connection.execute(_activities(), given(ids)).all():
                head = self._heads[id_]
                self._latest[head] = max(self._latest[head], activity)

    def ready(self, horizon: float, skipped: int, *, exact: bool) -> Iterator[Fresh]:
        """Give out what nothing that was not met yet can come before.

        Args:
            horizon: The time that is later than any of those.
            skipped: As for `freshest`.
            exact: As for `freshest`.
        """
        quarters: dict[int, list[str]] = {}
        for id_ in self._waiting:
            if self._latest[id_] >= horizon:
                quarters.setdefault(int(self._latest[id_] // QUARTER), []).append(id_)
        in_order = [quarters[quarter] for quarter in sorted(quarters, reverse=True)]
        ordered: list[str] = []
        for ids in in_order:
            skipped -= len(ids)
            if exact or (skipped < 0 and len(ids) > 1):
                ordered += ids
        self._look_up_conversations(self._inexact.intersection(ordered))
        for ids in in_order:
            ids.sort(key=self._key, reverse=True)
            for id_ in ids:
                yield Fresh(id_, self._waiting.pop(id_), self._latest[id_])

    def _look_up_conversations(self, heads: Collection[str]) -> None:
        if heads:
            self._inexact.difference_update(heads)
            for head, activity in self._connection.execute(_freshest(), given(heads)).all():
                self._latest[head] = max(self._latest[head], activity)

    def _key(self, id_: str) -> tuple[float, bytes]:
        return self._latest[id_], in_bytes(id_)


def _bounds(connection: Connection) -> str:
    return FRESHEST if heads_are_kept(connection) else FRESHEST_WITHOUT


@cache
def _activities() -> Select[Any]:
    return select(s.c.id, literal_column(ACTIVITY)).where(among(s.c.id, IDS))


@cache
def _freshest() -> Select[Any]:
    """Select conversations' heads with the activity of their freshest sessions, of those whose head is known."""
    fresh = BOUNDS.alias("fresh")
    return (
        select(BOUNDS.c.session_id, func.max(literal_column(ACTIVITY)))
        .join(fresh, and_(fresh.c.head_id == BOUNDS.c.session_id, fresh.c.quarter == BOUNDS.c.latest))
        .join(s, s.c.id == fresh.c.session_id)
        .where(among(BOUNDS.c.session_id, IDS))
        .group_by(BOUNDS.c.session_id)
    )
