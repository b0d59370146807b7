"""Conversations in order: one entry for each head and all that continues it.

A conversation is a head (a root, a branch or a reset) with the chain of compressions that goes on from it; delegates
and tool runs are no conversations of their own. An entry says what began it from the head and where it stands from the
tip.

By activity, they come from `hermes_store.freshest`: a page costs what it shows and little of what it skips, whatever
the file holds. By start, heads come from the index on starts.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any, TypedDict

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from hermes_store.edges import ACTIVITY, EARLIEST, EDGES, LATEST, LINEAGE
from hermes_store.freshest import freshest
from hermes_store.membership import find_heads
from hermes_store.records import Kind
from hermes_store.search.filters import Moment, read_flag, read_moment, read_names
from hermes_store.search.rows import SESSIONS, m, s, visible
from hermes_store.walks import IDS, among, continuations, continued, given, in_bytes, top

#: Kinds of session that head a conversation of their own, and those that do so only when they are asked for.
HEADS: tuple[Kind, ...] = ("root", "branch", "reset")
WORKERS: tuple[Kind, ...] = ("delegate", "tool")
#: Sessions looked at with one statement.
_LARGEST_BATCH = 4096

_head = SESSIONS.alias("head")
_tip = SESSIONS.alias("tip")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilters:
    """Which conversations are wanted; see `hermes_store.sessions.SessionRepository.list`."""

    sources: Sequence[str] | None = None
    exclude_sources: Sequence[str] | None = None
    include_children: bool = False
    include_archived: bool = False
    include_hidden: bool = False
    query: str | None = None
    cwd_prefix: str | None = None
    session_key: str | None = None
    model: str | None = None
    has_messages: bool | None = None
    after: float | None = None
    before: float | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of heads."""
        return HEADS + WORKERS if self.include_children else HEADS

    def allows(self, activity: float) -> bool:
        """Tell whether a conversation of this activity is wanted; 0 for one that has none.

        Args:
            activity: Epoch seconds.
        """
        late_enough = self.after is None or (activity > 0 and activity >= self.after)
        return late_enough and (self.before is None or 0 < activity < self.before)


class ListArguments(TypedDict, total=False):
    """What `hermes_store.sessions.SessionRepository.list` takes besides a page and an order.

    Attributes:
        sources: Only conversations that began on these platforms; an empty list allows none.
        exclude_sources: None that began on these.
        include_children: Also delegates and tool runs, each as an entry of its own.
        include_archived: Also archived ones.
        include_hidden: Also hidden ones.
        query: A member's title or id holds this text, in upper or lower case, with or without its punctuation.
        cwd_prefix: The tip works in this folder or below it.
        session_key: The tip's chat.
        model: The tip's model.
        has_messages: True: a member has a message that may be shown; False: none has.
        after: Last activity from then on; an aware datetime, ISO text, epoch seconds, or relative such as ``7d``.
        before: Last activity before then.
    """

    sources: Iterable[str] | None
    exclude_sources: Iterable[str] | None
    include_children: bool
    include_archived: bool
    include_hidden: bool
    query: str | None
    cwd_prefix: str | None
    session_key: str | None
    model: str | None
    has_messages: bool | None
    after: Moment | None
    before: Moment | None


def make_list_filters(given: ListArguments) -> ListFilters:
    """Check which conversations are wanted.

    Args:
        given: The arguments.

    Raises:
        ValueError: A value has the wrong type or makes no sense; the message names the parameter.
        TypeError: There is no such argument.
    """
    now = time.time()
    checks: dict[str, Callable[[str, Any], Any]] = {
        **dict.fromkeys(("sources", "exclude_sources"), read_names),
        **dict.fromkeys(("include_children", "include_archived", "include_hidden"), read_flag),
        **dict.fromkeys(("query", "cwd_prefix", "session_key", "model"), _text),
        **dict.fromkeys(("after", "before"), lambda name, value: read_moment(name, value, now)),
        "has_messages": lambda name, value: None if value is None else read_flag(name, value),
    }
    if unknown := given.keys() - checks.keys():
        raise TypeError(f"there is no filter named {', '.join(sorted(unknown))}")
    return ListFilters(**{name: checks[name](name, value) for name, value in given.items()})


def _text(name: str, given: object) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise ValueError(f"{name} must be a string, or None for no restriction")


@dataclass(frozen=True, slots=True)
class Head:
    """A conversation in a list.

    Attributes:
        id: The head's id.
        kind: What it is to its parent; ``root`` for what stands for a ring.
    """

    id: str
    kind: Kind


def by_activity(connection: Connection, filters: ListFilters, *, expected: int, skipped: int = 0) -> Iterator[Head]:
    """Give conversations, the latest activity first, then by id; those without any come last.

    Args:
        connection: A connection inside a transaction.
        filters: Which are wanted.
        expected: How many will be asked for, about.
        skipped: How many of the first are only counted: their order among themselves may be another one.
    """
    timed = filters.after is not None or filters.before is not None
    wanted = _Wanted(connection, filters).heads
    for one in freshest(connection, wanted, expected=expected, skipped=0 if timed else skipped, exact=timed):
        if filters.after is not None and one.activity < filters.after:
            return
        if filters.allows(one.activity):
            yield Head(one.id, one.kind)


def by_start(connection: Connection, filters: ListFilters) -> Iterator[Head]:
    """Give conversations, the latest start first, then by id; those without a time that can be believed come last.

    Args:
        connection: A connection inside a transaction.
        filters: Which are wanted.
    """
    wanted = _Wanted(connection, filters)
    rings = wanted.heads(_ring_heads(connection))
    rings = {id_: rings[id_] for id_ in wanted.timely(rings)}
    started = {}
    if rings:
        starts = select(s.c.id, s.c.started_at).where(among(s.c.id, list(rings)))
        started = {row[0]: row[1] for row in connection.execute(starts)}

    def key(start: Any, id_: str) -> tuple[float, bytes]:
        usable = isinstance(start, int | float) and EARLIEST <= start <= LATEST
        return (start if usable else 0.0), in_bytes(id_)

    def regular() -> Iterator[tuple[tuple[float, bytes], Head]]:
        usable = _head.c.started_at.between(EARLIEST, LATEST)
        # One after the other: a condition in ORDER BY would keep SQLite from using the index on starts.
        for part, order in ((usable, _head.c.started_at.desc()), (not_(func.coalesce(usable, 0)), _head.c.id.desc())):
            statement = wanted.select().where(part).order_by(order, _head.c.id.desc())
            with connection.execute(statement) as rows:
                while batch := rows.fetchmany(_LARGEST_BATCH):
                    kept = wanted.timely(wanted.refined([str(row.id) for row in batch]))
                    yield from (
                        (key(row.started_at, row.id), Head(str(row.id), row.kind)) for row in batch if row.id in kept
                    )

    ringed = sorted(
        ((key(started.get(id_), id_), Head(id_, kind)) for id_, kind in rings.items()), key=_first, reverse=True
    )
    for _, head in heapq.merge(regular(), ringed, key=_first, reverse=True):
        yield head


def count(connection: Connection, filters: ListFilters) -> int:
    """Count conversations.

    Args:
        connection: A connection inside a transaction.
        filters: Which are wanted.
    """
    return sum(1 for _ in by_start(connection, filters))


def page(heads: Iterator[Head], limit: int, offset: int) -> list[Head]:
    """Take a page of a list.

    Args:
        heads: The list.
        limit: How many.
        offset: How many to leave out first.
    """
    return list(islice(heads, offset, offset + limit))


def _first(item: tuple[Any, Head]) -> Any:
    return item[0]


def _ring_heads(connection: Connection) -> list[str]:
    """Find what stands for the rings of compressions; going round one, time cannot only go on."""
    parent = SESSIONS.alias("parent")
    later = (
        select(s.c.id)
        .join(parent, and_(parent.c.id == s.c.parent_session_id, parent.c.id != s.c.id))
        .where(parent.c.end_reason == "compression", not_(func.coalesce(parent.c.started_at < s.c.started_at, 0)))
    )
    suspects = [str(id_) for id_ in connection.scalars(later)]
    if not suspects:
        return []
    parents = continued(connection, suspects)
    return sorted({head for one in suspects if one in parents and parents[head := top(one, parents)] is not None})


@cache
def _heads(kinds: tuple[Kind, ...]) -> Select[Any]:
    return (
        select(_head.c.id, EDGES.c.kind, _head.c.started_at)
        .join(EDGES, EDGES.c.session_id == _head.c.id)
        .where(EDGES.c.kind.in_(kinds))
    )


class _Wanted:
    """Applies the filters; those on activity only where it is not known already."""

    def __init__(self, connection: Connection, filters: ListFilters) -> None:
        self._connection = connection
        self._filters = filters

    def heads(self, ids: Sequence[str]) -> dict[str, Kind]:
        """Keep the heads that are wanted, and say what they are to their parents.

        Args:
            ids: Heads of any kind; what stands for a ring counts as a root.
        """
        if not ids:
            return {}
        found = self._connection.execute(self.select(ring=True).where(among(_head.c.id, IDS)), given(ids)).all()
        kept = self.refined([id_ for id_, _, _ in found])
        return {id_: "root" if kind == "compression" else kind for id_, kind, _ in found if id_ in kept}

    def select(self, *, ring: bool = False) -> Select[Any]:
        """Select ``id, kind, started_at`` of the heads that pass the filters on heads.

        Args:
            ring: Also continuations; the caller knows that they stand for a ring.
        """
        filters = self._filters
        kinds = (*filters.kinds, "compression") if ring else filters.kinds
        statement = _heads(kinds)
        if filters.sources is not None:
            statement = statement.where(among(_head.c.source, filters.sources))
        if filters.exclude_sources:
            statement = statement.where(not_(among(_head.c.source, filters.exclude_sources)))
        if not filters.include_archived:
            statement = statement.where(func.coalesce(_head.c.archived, 0) == 0)
        if not filters.include_hidden:
            statement = statement.where(func.coalesce(_head.c.hidden, 0) == 0)
        return statement

    def refined(self, ids: Sequence[str]) -> set[str]:
        """Keep the conversations that pass the filters on tips and members.

        Args:
            ids: Their heads.
        """
        kept = set(ids)
        if self._filters.query:
            kept &= self._named
        if self._at_tip and kept:
            statement = (
                select(LINEAGE.c.session_id)
                .join(_tip, _tip.c.id == LINEAGE.c.tip_id)
                .where(among(LINEAGE.c.session_id, IDS), *self._at_tip)
            )
            kept = set(self._connection.scalars(statement, given(kept)))
        if self._filters.has_messages is not None and kept:
            speaking = set(self._connection.scalars(_speaking(), given(kept)))
            kept = kept & speaking if self._filters.has_messages else kept - speaking
        return kept

    def timely(self, ids: Collection[str]) -> Collection[str]:
        """Keep the conversations whose last activity is wanted.

        Args:
            ids: Their heads.
        """
        if self._filters.after is None and self._filters.before is None:
            return ids
        found = self._connection.execute(_latest(), given(ids)).all()
        return {row.origin for row in found if self._filters.allows(row.activity)}

    @cached_property
    def _at_tip(self) -> list[ColumnElement[bool]]:
        filters = self._filters
        conditions: list[ColumnElement[bool]] = []
        if filters.session_key is not None:
            conditions.append(_tip.c.session_key == filters.session_key)
        if filters.model is not None:
            conditions.append(_tip.c.model == filters.model)
        if filters.cwd_prefix is not None:
            # By position, not LIKE: nothing in a path is a wildcard.
            folder = filters.cwd_prefix.rstrip("/")
            below = func.substr(_tip.c.cwd, 1, len(folder) + 1) == folder + "/"
            conditions.append(or_(_tip.c.cwd == folder, _tip.c.cwd == filters.cwd_prefix, below))
        return conditions

    @cached_property
    def _named(self) -> set[str]:
        """Heads of the conversations with a member whose title or id holds the query.

        Here and not in SQL, whose case folding knows ASCII only.
        """
        holds = name_matcher(self._filters.query or "")
        rows = self._connection.execute(select(s.c.id, s.c.title))
        heads: dict[str, str] = {}
        find_heads(self._connection, [str(id_) for id_, title in rows if holds(id_) or holds(title)], heads)
        return set(heads.values())


@cache
def _speaking() -> Select[tuple[str]]:
    walk = continuations(IDS)
    shown = exists().where(m.c.session_id == walk.c.id, visible(m, include_inactive=False))
    return select(walk.c.origin).where(shown).distinct()


@cache
def _latest() -> Select[Any]:
    walk = continuations(IDS)
    activity: ColumnElement[Any] = func.max(literal_column(ACTIVITY)).label("activity")
    return select(walk.c.origin, activity).join(s, s.c.id == walk.c.id).group_by(walk.c.origin)


def name_matcher(query: str) -> Any:
    """Make a test of titles and ids: they hold the query, in upper or lower case, or its letters and digits alone.

    ``an94`` is in ``AN-94``, as in Hermes.

    Args:
        query: What is looked for.
    """
    folded = query.casefold()
    bare = re.sub(r"[\W_]+", "", folded)

    def holds(name: object) -> bool:
        if not isinstance(name, str):
            return False
        name = name.casefold()
        return folded in name or bool(bare and bare in re.sub(r"[\W_]+", "", name))

    return holds
