"""Running a search: propose, judge, show.

Proposals are read lazily in their final order, judged in batches on the messages themselves, and no further than the
page needs. The order is total and made by ORDER BY or here, never by how SQLite happens to walk: (score, timestamp
descending, id descending) for ranked hits, (timestamp, id) for the others. So pages neither repeat nor skip, whatever
was dropped on the way.

An index that fails is left out and the search starts again; an error of any other kind is raised, typed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from hermes_store.content import decode
from hermes_store.search.context import contexts
from hermes_store.search.documents import Candidate, Document, proposed, read
from hermes_store.search.faults import Fault, deadline, fault_of, typed
from hermes_store.search.filters import Filters
from hermes_store.search.plan import Plan, Proposal, make_plan, unusable_indexes
from hermes_store.search.records import (
    ContextMessage,
    PlannedStatement,
    SearchHit,
    SearchPage,
    SearchPlan,
    usable_time,
)
from hermes_store.search.sets import LIKE, TRIGRAM, WORD
from hermes_store.search.snippet import snippet
from hermes_store.search.syntax import Leaf, Query, parse
from hermes_store.search.titles import matching_sessions
from hermes_store.search.verify import literal_leaves, matches
from hermes_store.sqlite.shape import Shape

log = logging.getLogger("hermes_store.search")

#: Milliseconds from which on a search is logged, unless ``HERMES_SEARCH_SLOW_MS`` says otherwise (Hermes's default).
SLOW_MS = 1000.0

RELAXED_NOTE = "relaxed: no message holds {} as typed, so only the words in it were looked for"

#: What `SearchPage.route` says when nothing had to run.
NO_ROUTE = "none"

_SMALLEST_READ, _LARGEST_READ = 32, 500


def search(
    connection: Connection,
    query: str | Query,
    filters: Filters | None = None,
    *,
    shape: Shape,
    fts5: bool = True,
    trigram: bool = True,
) -> SearchPage:
    """Find messages.

    Args:
        connection: A connection inside the caller's read transaction. On files of older schemas temporary views must
            make ``messages`` and ``sessions`` readable (`hermes_store.sqlite.views`).
        query: The query, as typed or parsed.
        filters: What to restrict the search to, from `hermes_store.search.filters.make_filters`.
        shape: The file's shape, as of this transaction.
        fts5: The SQLite library has FTS5.
        trigram: It has the trigram tokenizer.

    Returns:
        The page.

    Raises:
        QueryError: The query has nothing to search for.
        SearchTimeoutError: It took longer than ``filters.timeout``.
        StoreBusyError: Another connection holds the file.
        CorruptStoreError: The messages themselves are damaged.
        HermesStoreError: SQLite could not run the search for another reason.
    """
    started = time.monotonic()
    filters = filters or Filters()
    parsed = parse(query) if isinstance(query, str) else query
    page: SearchPage | None = None
    try:
        with deadline(connection, filters.timeout):
            page = _answer(connection, parsed, filters, shape, fts5=fts5, trigram=trigram)
    except DBAPIError as error:
        raise typed(error) from error.orig
    finally:
        milliseconds = (time.monotonic() - started) * 1000
        _log_slow(parsed, milliseconds, page)
    return replace(page, elapsed_ms=milliseconds)


def explain(
    connection: Connection,
    query: str | Query,
    filters: Filters | None = None,
    *,
    shape: Shape,
    fts5: bool = True,
    trigram: bool = True,
) -> SearchPlan:
    """Say how a search would run, without running it.

    Args:
        connection: A connection; only its dialect is used.
        query: The query, as typed or parsed.
        filters: What to restrict the search to.
        shape: The file's shape.
        fts5: The SQLite library has FTS5.
        trigram: It has the trigram tokenizer.

    Returns:
        The plan.

    Raises:
        QueryError: The query has nothing to search for.
    """
    parsed = parse(query) if isinstance(query, str) else query
    plan = make_plan(parsed, filters or Filters(), shape, unusable_indexes(shape, fts5=fts5, trigram=trigram))
    statements = []
    proposals = [
        (purpose, proposal) for purpose, proposal in (("ranked", plan.ranked), ("rest", plan.rest())) if proposal
    ]
    for purpose, proposal in proposals:
        compiled = proposal.statement.compile(connection, compile_kwargs={"render_postcompile": True})
        statements.append(PlannedStatement(purpose, str(compiled), dict(compiled.params)))
    return SearchPlan(
        query=str(parsed),
        routes=tuple((str(leaf), route) for leaf, route in plan.routes),
        statements=tuple(statements),
        degraded=_joined(proposal.degraded for _, proposal in proposals),
        pending=plan.pending,
        notes=plan.notes,
    )


class _IndexFailure(Exception):  # noqa: N818 - a signal inside this module, never seen outside
    """A search index failed under a proposal; a plan without it gives the same answer."""

    def __init__(self, routes: frozenset[str], error: DBAPIError) -> None:
        super().__init__()
        self.routes = routes
        self.error = error


def _answer(
    connection: Connection, query: Query, filters: Filters, shape: Shape, *, fts5: bool, trigram: bool
) -> SearchPage:
    # A statement over both indexes does not say which one failed: first one is left out, then the other, then both.
    suspects = [{WORD}, {TRIGRAM}, {WORD, TRIGRAM}]
    damaged: set[str] = set()
    while True:
        plan = make_plan(query, filters, shape, unusable_indexes(shape, fts5=fts5, trigram=trigram, damaged=damaged))
        try:
            found, notes = _found(connection, plan)
            break
        except _IndexFailure as failure:
            suspects = suspects[next(at for at, some in enumerate(suspects) if some & failure.routes) :]
            damaged = suspects.pop(0)
    return SearchPage(
        hits=_hits(connection, found, plan),
        sessions=matching_sessions(connection, query, filters) if filters.titles else (),
        route=found.route,
        degraded=_joined(proposal.degraded for proposal in found.ran),
        pending=plan.pending,
        notes=(*plan.notes, *notes),
        elapsed_ms=0.0,
    )


# ---------------------------------------------------------------------------------------------------- propose and judge


@dataclass(slots=True)
class _Found:
    """What one pass over the proposals has found."""

    relaxed: AbstractSet[Leaf]
    count: int = 0
    page: list[tuple[Candidate, Document]] = field(default_factory=list)
    ran: list[Proposal] = field(default_factory=list)
    #: Routes of the proposals that gave hits, that the query is ranked by, or that scanned.
    routes: set[str] = field(default_factory=set)
    #: Whether a message answers but for punctuation, and which terms such messages hold as typed.
    nearly: bool = False
    held: set[Leaf] = field(default_factory=set)

    @property
    def route(self) -> str:
        """What ran, by the names of routes; a second look into an index that found nothing is not worth naming."""
        return "+".join(route for route in (WORD, TRIGRAM, LIKE) if route in self.routes) or NO_ROUTE


def _found(connection: Connection, plan: Plan) -> tuple[_Found, tuple[str, ...]]:
    """Find with the punctuation as typed; only when nothing has it, without that of the terms that nothing holds."""
    found = _pass(connection, plan, frozenset())
    if found.count or not found.nearly:
        return found, ()
    literals = literal_leaves(plan.query.root)
    for relaxed in dict.fromkeys((literals - found.held or literals, literals)):
        found = _pass(connection, plan, relaxed)
        if found.count:
            return found, (RELAXED_NOTE.format(" and ".join(sorted(map(str, relaxed)))),)
    return found, ()


def _pass(connection: Connection, plan: Plan, relaxed: AbstractSet[Leaf]) -> _Found:
    found = _Found(relaxed)
    filters = plan.filters
    needed = filters.offset + filters.limit if filters.limit else 0
    seen: set[int] = set()
    for ranked in (True, False):
        if found.count >= needed:
            break
        proposal = plan.ranked if ranked else plan.rest()
        if proposal is None:
            continue
        before = found.count
        found.ran.append(proposal)
        with closing(_guarded(connection, proposal, ranked=ranked)) as candidates:
            size = min(max(needed, _SMALLEST_READ), _LARGEST_READ)
            while found.count < needed and (batch := list(islice(candidates, size))):
                new = [candidate for candidate in batch if candidate.id not in seen]
                seen.update(candidate.id for candidate in new)
                _judge(found, plan, new, read(connection, [candidate.id for candidate in new], filters), needed)
                size = min(size * 2, _LARGEST_READ)
        if ranked or plan.ranked is None or LIKE in proposal.routes or found.count > before:
            found.routes |= proposal.routes
    return found


def _guarded(connection: Connection, proposal: Proposal, *, ranked: bool) -> Generator[Candidate]:
    indexes = proposal.routes - {LIKE}
    try:
        yield from proposed(connection, proposal, ranked=ranked)
    except DBAPIError as error:
        if indexes and fault_of(error) is Fault.INDEX:
            raise _IndexFailure(indexes, error) from None
        raise


def _judge(found: _Found, plan: Plan, candidates: list[Candidate], documents: dict[int, Document], needed: int) -> None:
    root, literals = plan.query.root, literal_leaves(plan.query.root)
    for candidate in candidates:
        document = documents.get(candidate.id)  # None: the index still has it, the table has not
        if document is None:
            continue
        if matches(root, document.fields, found.relaxed):
            found.count += 1
            if found.count > plan.filters.offset:
                found.page.append((candidate, document))
            if found.count == needed:
                return
        elif literals and not found.count and matches(root, document.fields, literals):
            found.nearly = True
            found.held |= {leaf for leaf in literals if matches(leaf, document.fields)}


# ----------------------------------------------------------------------------------------------------------------- show


def _hits(connection: Connection, found: _Found, plan: Plan) -> tuple[SearchHit, ...]:
    filters = plan.filters
    around: Mapping[int, tuple[ContextMessage, ...]] = {}
    if filters.context:
        ids = [candidate.id for candidate, _ in found.page]
        around = contexts(connection, ids, include_inactive=filters.include_inactive)
    return tuple(
        SearchHit(
            id=candidate.id,
            session_id=_text(document.row.session_id) or "",
            role=_text(document.row.role) or "",
            snippet=snippet(plan.query.root, document.shown_fields, found.relaxed),
            timestamp=usable_time(document.row.timestamp),
            tool_name=_text(document.row.tool_name),
            source=_text(document.row.source),
            model=_text(document.row.model),
            session_started=usable_time(document.row.started_at),
            score=candidate.score,
            context=around.get(candidate.id, ()),
            problems=document.problems,
        )
        for candidate, document in found.page
    )


def _text(value: object) -> str | None:
    return None if value is None else decode(value).text


def _joined(reasons: Iterable[str | None]) -> str | None:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None


def _log_slow(query: Query, milliseconds: float, page: SearchPage | None) -> None:
    try:
        threshold = float(os.environ.get("HERMES_SEARCH_SLOW_MS", SLOW_MS))
    except ValueError:
        threshold = SLOW_MS
    if milliseconds >= threshold:
        route, count = (page.route, len(page)) if page is not None else ("failed", 0)
        log.info("search took %.0f ms: route %s, %d hits", milliseconds, route, count)
        log.debug("slow query: %s", query)
