"""Running a search: propose, judge, show.

Proposals are read lazily in their final order, judged in batches on the messages themselves, and no further than the
page needs. The order is total and made by ORDER BY or here, never by how SQLite happens to walk: (score, timestamp
descending, id descending) for ranked hits, (timestamp, id) for the others. So pages neither repeat nor skip, whatever
was dropped on the way.

An index that fails is left out and the search starts again; an error of any other kind is raised, typed.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.exc import DBAPIError

from hermes_store.content import read_text
from hermes_store.search.accents import accented_letters
from hermes_store.search.context import as_context, contexts
from hermes_store.search.documents import Document, proposed
from hermes_store.search.faults import Fault, deadline, fault_of, typed
from hermes_store.search.filters import Filters
from hermes_store.search.frequency import estimate, waiting
from hermes_store.search.plan import (
    FEW_QUEUED,
    Abilities,
    Plan,
    Proposal,
    abilities,
    in_words,
    make_plan,
    terms_to_count,
)
from hermes_store.search.records import (
    ContextMessage,
    PlannedStatement,
    SearchHit,
    SearchPage,
    SearchPlan,
    usable_time,
)
from hermes_store.search.rows import MESSAGES
from hermes_store.search.sets import DECODED, GRAM, LIKE, ROUTES, TRIGRAM, WORD
from hermes_store.search.snippet import snippet
from hermes_store.search.syntax import Leaf, Query, parse
from hermes_store.search.terms import Kind, needle
from hermes_store.search.titles import matching_sessions
from hermes_store.search.verify import literal_leaves, matches
from hermes_store.sqlite.damage import is_damage
from hermes_store.sqlite.decoded import text_index_fault
from hermes_store.sqlite.shape import Shape

_Result = TypeVar("_Result")

log = logging.getLogger("hermes_store.search")

#: Milliseconds from which on a search is logged, unless ``HERMES_SEARCH_SLOW_MS`` says otherwise (Hermes's default).
SLOW_MS = 1000.0

RELAXED_NOTE = "relaxed: no message holds {} as typed, so only the words in it were looked for"

#: Routes that ask an index, with the index that it is.
_INDEXES = {WORD: WORD, TRIGRAM: TRIGRAM, GRAM: TRIGRAM, DECODED: DECODED}

#: What `SearchPage.route` says when nothing had to run.
NO_ROUTE = "none"

#: A term is frequent when it is in more messages than this times the root of (messages asked for, times all messages).
#: Measured on 200,000 messages: looking up a message and sorting costs a few times what walking over one does.
_FREQUENT = 0.4
#: Up to how many messages `explain` counts.
_COUNTED = 1_000_000
#: Where restrictions may drop most messages, a walk finds a page sooner only if the term is in this share of them.
_FREQUENT_SHARE = 0.25


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
        connection: A connection as for `search`; terms are counted in the indexes, messages are not read.
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

    def run(able: Abilities) -> tuple[Plan, Proposal | None, dict[Leaf, int]]:
        plan = _plan(connection, parsed, filters or Filters(), able)
        counted = {leaf: _COUNTED for leaf, _ in plan.routes if able.can_count(leaf)}
        return plan, _rest(connection, plan), _counts(connection, counted)

    plan, rest, counts = _withstanding(connection, shape, run, fts5=fts5, trigram=trigram)
    statements = []
    proposals = [(purpose, some) for purpose, some in (("ranked", plan.ranked), ("rest", rest)) if some]
    for purpose, proposal in proposals:
        filled = proposal.statement.params({"take": plan.filters.limit, **proposal.parameters})
        expanded = filled.compile(connection).construct_expanded_state()
        statements.append(PlannedStatement(purpose, expanded.statement, expanded.parameters))
    return SearchPlan(
        query=str(parsed),
        routes=tuple((str(leaf), route) for leaf, route in plan.routes),
        estimates={str(leaf): count for leaf, count in counts.items()},
        statements=tuple(statements),
        degraded=in_words(proposal.degraded for _, proposal in proposals),
        pending=plan.able.pending,
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
    def run(able: Abilities) -> tuple[Plan, _Found, tuple[str, ...]]:
        plan = _plan(connection, query, filters, able)
        return plan, *_found(connection, plan)

    plan, found, notes = _withstanding(connection, shape, run, fts5=fts5, trigram=trigram)
    return SearchPage(
        hits=_hits(connection, found, plan),
        sessions=matching_sessions(connection, query, filters) if filters.titles else (),
        route=found.route,
        degraded=in_words(proposal.degraded for proposal in found.ran),
        pending=plan.able.pending,
        notes=(*plan.notes, *notes),
        elapsed_ms=0.0,
    )


def _withstanding(
    connection: Connection, shape: Shape, run: Callable[[Abilities], _Result], *, fts5: bool, trigram: bool
) -> _Result:
    """Run something with what the file's indexes can do, less those that turn out to be damaged.

    A statement over several indexes does not say which one failed: each is left out in turn, then more of them. The
    index that ranks comes late, so that every page of an answer is ranked.
    """
    suspects = [{DECODED}, {TRIGRAM}, {TRIGRAM, DECODED}, {WORD}, {WORD, DECODED}, {WORD, TRIGRAM, DECODED}]
    queued, unreadable = 0, set[str]()
    if text_index_fault(shape) is None:
        try:
            queued = waiting(connection, FEW_QUEUED)
        except DBAPIError as error:
            if not is_damage(error):
                raise
            unreadable = {DECODED}  # without its queue it cannot be believed
    damaged = unreadable
    while True:
        try:
            return run(abilities(shape, fts5=fts5, trigram=trigram, damaged=damaged, queued=queued))
        except _IndexFailure as failure:
            suspects = suspects[next(at for at, some in enumerate(suspects) if some & failure.routes) :]
            damaged = suspects.pop(0) | unreadable


def _plan(connection: Connection, query: Query, filters: Filters, able: Abilities) -> Plan:
    """Plan, having looked up how frequent the terms are of which it matters."""
    counted = terms_to_count(query, filters, able)
    if not counted:
        return make_plan(query, filters, able, {}, 0)
    messages = connection.execute(_newest_id()).scalar() or 0
    wanted = max(filters.offset + filters.limit, 1)
    frequent = int(_FREQUENT * math.sqrt(wanted * messages)) + 1
    if filters.form.selective:
        frequent = max(frequent, int(_FREQUENT_SHARE * messages))
    frequencies = _counts(connection, dict.fromkeys(counted, frequent))
    return make_plan(query, filters, able, frequencies, frequent)


def _counts(connection: Connection, most: Mapping[Leaf, int]) -> dict[Leaf, int]:
    """Count terms in the indexes, each no further than to its limit."""
    counts = {}
    for leaf, limit in most.items():
        with _index_failures({WORD if needle(leaf).kind is Kind.WORD else TRIGRAM}):
            counts[leaf] = estimate(connection, leaf, limit)
    return counts


@functools.cache
def _newest_id() -> Select[Any]:
    return select(func.max(MESSAGES.c.id))


# ---------------------------------------------------------------------------------------------------- propose and judge


@dataclass(slots=True)
class _Found:
    """What one pass over the proposals has found."""

    relaxed: AbstractSet[Leaf]
    count: int = 0
    page: list[Document] = field(default_factory=list)
    ran: list[Proposal] = field(default_factory=list)
    #: Routes of the proposals that gave hits, that the query is ranked by, or that scanned.
    routes: set[str] = field(default_factory=set)
    #: Whether a message answers but for punctuation, and which terms such messages hold as typed.
    nearly: bool = False
    held: set[Leaf] = field(default_factory=set)

    @property
    def route(self) -> str:
        """What ran, by the names of routes; a second look into an index that found nothing is not worth naming."""
        return "+".join(route for route in ROUTES if route in self.routes) or NO_ROUTE


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
        proposal = plan.ranked if ranked else _rest(connection, plan)
        if proposal is None:
            continue
        before = found.count
        found.ran.append(proposal)
        with closing(_guarded(connection, proposal, plan, ranked=ranked)) as documents:
            for document in documents:
                if document.row.id not in seen:
                    seen.add(document.row.id)
                    _judge(found, plan, document)
                    if found.count == needed:
                        break
        if ranked or plan.ranked is None or LIKE in proposal.routes or found.count > before:
            found.routes |= proposal.routes
    return found


def _rest(connection: Connection, plan: Plan) -> Proposal | None:
    letters = ""
    if plan.needs_letters:
        with _index_failures({TRIGRAM, DECODED} if plan.able.decoded else {TRIGRAM}):
            letters = accented_letters(connection, ends=plan.able.ends and plan.able.grams, decoded=plan.able.decoded)
    return plan.rest(letters)


@contextmanager
def _index_failures(routes: AbstractSet[str]) -> Iterator[None]:
    """Tell an index's failure from other errors."""
    try:
        yield
    except DBAPIError as error:
        if routes and fault_of(error) is Fault.INDEX:
            raise _IndexFailure(frozenset(routes), error) from None
        raise


def _guarded(connection: Connection, proposal: Proposal, plan: Plan, *, ranked: bool) -> Generator[Document]:
    with _index_failures({_INDEXES[route] for route in proposal.routes & _INDEXES.keys()}):
        yield from proposed(connection, proposal, plan, ranked=ranked)


def _judge(found: _Found, plan: Plan, document: Document) -> None:
    root = plan.query.root
    if matches(root, document.fields, found.relaxed):
        found.count += 1
        if found.count > plan.filters.offset:
            found.page.append(document)
    elif not found.count and (literals := literal_leaves(root)) and matches(root, document.fields, literals):
        found.nearly = True
        found.held |= {leaf for leaf in literals if matches(leaf, document.fields)}


# ----------------------------------------------------------------------------------------------------------------- show


def _hits(connection: Connection, found: _Found, plan: Plan) -> tuple[SearchHit, ...]:
    filters = plan.filters
    around: Mapping[int, tuple[ContextMessage, ...]] = {}
    if filters.context:
        shown = [as_context(document.row.id, document.row.role, document.content.text) for document in found.page]
        around = contexts(connection, shown, include_inactive=filters.include_inactive)
    return tuple(
        SearchHit(
            id=document.row.id,
            session_id=read_text(document.row.session_id) or "",
            role=read_text(document.row.role) or "",
            snippet=snippet(plan.query.root, document.shown_fields(), found.relaxed),
            timestamp=usable_time(document.row.timestamp),
            tool_name=read_text(document.row.tool_name),
            source=read_text(document.row.source),
            model=read_text(document.row.model),
            session_started=usable_time(document.row.started_at),
            score=document.score,
            context=around.get(document.row.id, ()),
            problems=document.problems,
        )
        for document in found.page
    )


def _log_slow(query: Query, milliseconds: float, page: SearchPage | None) -> None:
    try:
        threshold = float(os.environ.get("HERMES_SEARCH_SLOW_MS", SLOW_MS))
    except ValueError:
        threshold = SLOW_MS
    if milliseconds >= threshold:
        route, count = (page.route, len(page)) if page is not None else ("failed", 0)
        log.info("search took %.0f ms: route %s, %d hits", milliseconds, route, count)
        log.debug("slow query: %s", query)
