"""What a search returns: plain frozen records, with times as they are stored.

Timestamps are epoch seconds, as in the file, with an aware ``…_at`` beside. A row whose time is no number is shown all
the same: its time is None and ``problems`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

UNREADABLE_TIME = "unreadable timestamp"


@dataclass(frozen=True, slots=True)
class ContextMessage:
    """A message around a hit, or the hit itself.

    Attributes:
        id: Message id.
        role: Who speaks.
        content: The first 200 characters of its decoded text.
    """

    id: int
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message that answers a query.

    Attributes:
        id: Message id.
        session_id: The session it belongs to.
        role: Who speaks.
        snippet: The words around the matches, each match between ``>>>`` and ``<<<``, ``...`` where text is left out.
        timestamp: When it was written, epoch seconds; None when the file holds no usable number.
        tool_name: The tool a tool message comes from.
        source: Where its session comes from.
        model: The model its session used.
        session_started: When its session started, epoch seconds.
        score: Relevance (bm25; the lower, the better); None when the hit was found without one.
        context: The visible message before it, itself, and the one after it, of the same session.
        problems: What could not be read as it was meant (broken JSON, undecodable text, …).
    """

    id: int
    session_id: str
    role: str
    snippet: str
    timestamp: float | None
    tool_name: str | None
    source: str | None
    model: str | None
    session_started: float | None
    score: float | None
    context: tuple[ContextMessage, ...]
    problems: tuple[str, ...]

    @property
    def timestamp_at(self) -> datetime | None:
        """When it was written, in UTC."""
        return _moment(self.timestamp)

    @property
    def session_started_at(self) -> datetime | None:
        """When its session started, in UTC."""
        return _moment(self.session_started)


@dataclass(frozen=True, slots=True)
class SessionHit:
    """A session whose title or id answers a query.

    Attributes:
        id: Session id.
        title: Its title, if it has one.
        source: Where it comes from.
        started: When it started, epoch seconds.
    """

    id: str
    title: str | None
    source: str | None
    started: float | None

    @property
    def started_at(self) -> datetime | None:
        """When it started, in UTC."""
        return _moment(self.started)


@dataclass(frozen=True, slots=True)
class PendingRebuild:
    """A search index that is still being filled; what it lacks is searched by scanning.

    Attributes:
        indexed: Message ids up to this one are in the index.
        total: Message ids up to this one will be when it is done; newer ones are already.
    """

    indexed: int
    total: int

    @property
    def percent(self) -> float:
        """How far the filling has come, 0 to 100."""
        return 100.0 if self.total <= 0 else round(100.0 * min(max(self.indexed, 0), self.total) / self.total, 1)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of hits, and how they were found. Iterating it gives the hits.

    Attributes:
        hits: The messages, in order.
        sessions: Sessions whose title or id matches; only with ``titles=True``.
        route: What really ran: ``word``, ``trigram``, ``like``, several joined by ``+``, or ``none``.
        degraded: Why an index was not used although the query could have, or None.
        pending: How far an unfinished index has come, or None.
        notes: What was cut, relaxed or left out.
        elapsed_ms: Milliseconds it took.
    """

    hits: tuple[SearchHit, ...]
    sessions: tuple[SessionHit, ...]
    route: str
    degraded: str | None
    pending: PendingRebuild | None
    notes: tuple[str, ...]
    elapsed_ms: float

    def __iter__(self) -> Iterator[SearchHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """One statement of a search.

    Attributes:
        purpose: What it is for: ``ranked``, ``rest``.
        sql: The SQL text.
        parameters: Its parameters.
    """

    purpose: str
    sql: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How a search would be run.

    Attributes:
        query: The query as it was understood, printed.
        routes: Each term, printed, with its route.
        estimates: Each term that an index can count, printed, with the number of messages it is in, about.
        statements: The statements that propose messages, in the order in which they run; later ones only when the
            page is not full.
        degraded: Why an index would not be used although the query could, or None.
        pending: How far an unfinished index has come, or None.
        notes: What would be cut or left out.
    """

    query: str
    routes: tuple[tuple[str, str], ...]
    estimates: Mapping[str, int]
    statements: tuple[PlannedStatement, ...]
    degraded: str | None
    pending: PendingRebuild | None
    notes: tuple[str, ...]


def usable_time(value: object) -> float | None:
    """Give a stored time as a float, None when it is none.

    Args:
        value: Whatever the column holds.
    """
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _moment(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
