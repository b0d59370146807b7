"""Which route serves which term, and the statements that propose messages.

A plan is made from the query's tree, the caller's restrictions and the file's shape; it reads nothing. Its statements
only *propose* messages: every message that answers the query is among them, exclusions are left out, and what is
proposed is judged by `hermes_store.search.verify`. There are two proposals:

* *ranked*: one MATCH on one index gives ids with their relevance, best first. What else the query asks for is a
  condition on those ids.
* *rest*: every other message that may answer, newest first, as one set of ids. It holds what the ranked index cannot
  see: words glued to unspaced scripts, JSON-escaped text, messages not indexed yet or on purpose. A page that the
  ranked proposal fills does without it. Sorting by time makes everything one set.

An index that is missing, stale or of a shape nobody knows is not believed: scanning takes its place, and the plan says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, and_, literal_column, select, true
from sqlalchemy.sql.selectable import NamedFromClause

from hermes_store.search import match as match_texts
from hermes_store.search import rows
from hermes_store.search.filters import Filters
from hermes_store.search.like import MAX_TERMS
from hermes_store.search.records import PendingRebuild
from hermes_store.search.rows import SOURCE, m
from hermes_store.search.sets import (
    LIKE,
    TRIGRAM,
    WORD,
    Listed,
    MessageSet,
    Told,
    both,
    decoded,
    either,
    matches,
    matching,
    scanned,
    search_index,
)
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or, Phrase, Prefix, Query, Term, leaves, positive
from hermes_store.search.terms import Kind, needle
from hermes_store.sqlite.shape import TRIGRAM_INDEX, IndexShape, Layout, Shape

LEFT_OUT_NOTE = (
    "terms in unspaced scripts are not looked for in tool results and in cron and delegated sessions; "
    "name the role tool, the source or the sessions to search those too"
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A statement that proposes messages.

    Attributes:
        statement: Ids and scores, best first (ranked), or ids and timestamps in the order asked for (rest).
        condition: What must hold for a proposed message besides.
        routes: The routes it takes.
        degraded: Why it scans although an index could have served, or None.
    """

    statement: Select[Any]
    condition: ColumnElement[bool]
    routes: frozenset[str]
    degraded: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a search needs to run.

    Attributes:
        query: The parsed query.
        filters: The caller's restrictions.
        routes: Each positive term with its route.
        ranked: The ranked proposal, if there is one.
        pending: How far an unfinished index has come.
        notes: What was cut or left out.
    """

    query: Query
    filters: Filters
    routes: tuple[tuple[Leaf, str], ...]
    ranked: Proposal | None
    pending: PendingRebuild | None
    notes: tuple[str, ...]
    _planner: _Planner = field(repr=False)

    def rest(self) -> Proposal | None:
        """Propose the other messages that may answer; None when no message is allowed at all.

        It is made when it is asked for, because most pages do without it.
        """
        return None if self.filters.allow_nothing else self._planner.rest(with_main=self.ranked is None)


def unusable_indexes(shape: Shape, *, fts5: bool, trigram: bool, damaged: Iterable[str] = ()) -> dict[str, str]:
    """Find out which search indexes of a file must not be asked.

    Args:
        shape: The file's shape.
        fts5: The SQLite library has FTS5.
        trigram: It has the trigram tokenizer.
        damaged: Routes whose index has just failed.

    Returns:
        Route (``word``, ``trigram``) to the reason.
    """
    reasons = {}
    for route, index in ((WORD, shape.word), (TRIGRAM, shape.trigram)):
        reason = "is damaged" if route in damaged else _fault(index, shape, fts5=fts5, trigram=trigram)
        if reason:
            reasons[route] = f"the index {index.name} {reason}"
    return reasons


def make_plan(query: Query, filters: Filters, shape: Shape, unusable: Mapping[str, str]) -> Plan:
    """Plan a search.

    Args:
        query: The parsed query.
        filters: The caller's restrictions.
        shape: The file's shape.
        unusable: The indexes that must not be asked, with the reasons.
    """
    pending = PendingRebuild(*shape.rebuild) if shape.rebuild else None
    planner = _Planner(query, filters, unusable, pending)
    notes = query.notes
    if planner.covered_only and filters.session_ids is None:
        notes = (*notes, LEFT_OUT_NOTE)
    routes = tuple((leaf, planner.route(leaf)) for leaf in dict.fromkeys(leaves(planner.root)))
    ranked = planner.ranked() if filters.sort == "rank" and not filters.allow_nothing else None
    return Plan(query, filters, routes, ranked, pending, notes, planner)


def _fault(  # noqa: PLR0911 - one per reason
    index: IndexShape, shape: Shape, *, fts5: bool, trigram: bool
) -> str | None:
    if not fts5:
        return "needs FTS5, which this SQLite lacks"
    if index.name == TRIGRAM_INDEX and not trigram:
        return "needs the trigram tokenizer, which this SQLite lacks"
    if index.layout is Layout.ABSENT:
        return "is missing"
    if shape.stale:
        return "is marked stale"
    if index.unknown:
        return "has a shape that no known release made"
    if index.name in shape.incomplete:
        return "lacks messages that belong in it"
    return None if index.fed_consistently else "is not kept up to date by the triggers it needs"


class _Planner:
    """Chooses routes and puts sets together; it holds nothing but what it was given."""

    def __init__(
        self, query: Query, filters: Filters, unusable: Mapping[str, str], pending: PendingRebuild | None
    ) -> None:
        self.root = positive(query.root)
        # One term of an unspaced script, even an excluded one, limits the whole query to the messages that substring
        # search covers: elsewhere nobody could tell whether it is there.
        self.covered_only = any(needle(leaf).kind is Kind.SUBSTRING for leaf in leaves(query.root))
        self._filters = filters
        self._unusable = unusable
        self._pending = pending
        allowed = rows.allowed(filters)
        self._allowed = and_(allowed, rows.covered(filters)) if self.covered_only else allowed

    def route(self, leaf: Leaf) -> str:
        """Choose the route of a term.

        Args:
            leaf: A term, prefix or phrase.
        """
        kind = needle(leaf).kind
        if kind is Kind.WORD and WORD not in self._unusable:
            return WORD
        if kind is Kind.SUBSTRING and self._has_trigrams(leaf):
            return TRIGRAM
        return LIKE

    def ranked(self) -> Proposal | None:
        """Propose the messages that one MATCH finds, best first; None when no index can rank the query."""
        for route in (WORD, TRIGRAM):
            rankable, others = self._split(route)
            if rankable is None:
                continue
            index = search_index(route)
            text_of = match_texts.word_match if route == WORD else match_texts.trigram_match
            found = [matches(index, route, text_of(rankable))]
            conditions = [self._allowed]
            routes = frozenset({route})
            if others is not None:
                other = self._main(others)
                routes |= other.routes
                if isinstance(other, Listed):
                    found.append(_looked_up(index, other.ids))
                else:
                    conditions.append(other.condition)
            if self._filters.session_ids is not None:
                # A common word in few sessions: better not to look at all the other messages that have it.
                ids = select(m.c.id).where(rows.among(m.c.session_id, self._filters.session_ids))
                found.append(_looked_up(index, ids))
            statement = select(index.c.rowid, index.c.rank).where(*found).order_by(index.c.rank)
            degraded = _listed(self._missed(others)) if others is not None else None
            return Proposal(statement, and_(*conditions), routes, degraded)
        return None

    def rest(self, *, with_main: bool) -> Proposal:
        """Propose, in the order of time, what the ranked proposal does not see.

        Args:
            with_main: Propose everything, because there is no ranked proposal.
        """
        main = self._main(self.root)
        sets = [main] if with_main else []
        missed = self._missed(self.root) if with_main else []
        if main.routes != {LIKE}:  # a scan alone has looked at everything already
            sets += [self._wide(), *self._beyond_indexes()]
            missed += self._missed_widely()
        statement = select(m.c.id, m.c.timestamp).select_from(SOURCE).where(self._allowed)
        if len(sets) == 1 and isinstance(sets[0], Told):
            statement = statement.where(sets[0].condition)
        else:
            statement = statement.where(either([self._enumerated(each) for each in sets]).condition)
        routes = frozenset[str]().union(*(each.routes for each in sets))
        oldest = self._filters.sort == "oldest"
        return Proposal(
            statement.order_by(*(each.asc() if oldest else each.desc() for each in (m.c.timestamp, m.c.id))),
            true(),
            routes,
            _listed(missed),
        )

    def _main(self, node: Node) -> MessageSet:
        """Each term by its route; terms that share one are looked up together."""
        return _by_route(node, self.route, _TOGETHER)

    def _wide(self) -> MessageSet:
        """The query as substrings: words glued to unspaced scripts, and text stored as JSON escapes."""
        terms = list(leaves(self.root))
        if WORD not in self._unusable and all(leaf.text.isascii() and self._has_trigrams(leaf) for leaf in terms):
            return either([matching(TRIGRAM, match_texts.trigram_match(self.root)), decoded(self.root)])
        if len(terms) > MAX_TERMS:
            return scanned(self.root)
        # One term may stand in plain text and another in escaped JSON, so here each has a set of its own.
        return _by_route(self.root, lambda _: _EACH, {_EACH: self._anywhere})

    def _anywhere(self, leaf: Node) -> MessageSet:
        """All messages that may hold a term, wherever an index has them."""
        if isinstance(leaf, And | Or | Near | Not):
            raise TypeError("terms are looked up one by one here")
        if not self._has_trigrams(leaf) or WORD in self._unusable:
            return scanned(leaf)
        sets = [matching(TRIGRAM, match_texts.trigram_match(leaf)), decoded(leaf)]
        if self.route(leaf) == WORD:
            sets.append(matching(WORD, match_texts.word_match(leaf)))
        return either(sets)

    def _beyond_indexes(self) -> list[MessageSet]:
        """What no index holds: messages that the caller asks for by name, and those an unfinished index still lacks."""
        conditions = []
        asked = rows.asked_for(self._filters)
        if asked is not None:
            conditions.append(asked)
        if self._pending is not None:
            conditions.append(and_(m.c.id > self._pending.indexed, m.c.id <= self._pending.total))
        if not conditions:
            return []
        texts = scanned(self.root)
        return [Told(and_(condition, texts.condition), texts.routes) for condition in conditions]

    def _enumerated(self, some: MessageSet) -> Listed:
        if isinstance(some, Listed):
            return some
        ids = select(m.c.id).select_from(SOURCE).where(self._allowed, some.condition)
        return Listed(ids, some.routes)

    def _split(self, route: str) -> tuple[Node | None, Node | None]:
        """Take out of the query what one index can rank: all of it, or some of the parts that must all hold."""
        if self._all_by(route, self.root):
            return self.root, None
        if not isinstance(self.root, And):
            return None, self.root
        mine = [part for part in self.root.parts if self._all_by(route, part)]
        others = [part for part in self.root.parts if not self._all_by(route, part)]
        return (_together(mine) if mine else None), _together(others)

    def _all_by(self, route: str, node: Node) -> bool:
        return all(self.route(leaf) == route for leaf in leaves(node))

    def _has_trigrams(self, leaf: Leaf) -> bool:
        return needle(leaf).kind is not Kind.SIGNS and match_texts.has_trigrams(leaf) and TRIGRAM not in self._unusable

    def _missed(self, node: Node) -> list[str]:
        """Why terms are scanned for although there should be an index for them."""
        reasons = []
        for leaf in leaves(node):
            kind = needle(leaf).kind
            if kind is Kind.WORD and WORD in self._unusable:
                reasons.append(self._unusable[WORD])
            elif kind is Kind.SUBSTRING and TRIGRAM in self._unusable and match_texts.has_trigrams(leaf):
                reasons.append(self._unusable[TRIGRAM])
        return reasons

    def _missed_widely(self) -> list[str]:
        """Why the second look is a scan although there should be indexes for it."""
        reasons = []
        for leaf in leaves(self.root):
            if needle(leaf).kind is not Kind.SIGNS and match_texts.has_trigrams(leaf):
                reasons += [self._unusable[route] for route in (WORD, TRIGRAM) if route in self._unusable]
        return reasons


_EACH = "each"
_TOGETHER: Mapping[str, Callable[[Node], MessageSet]] = {
    WORD: lambda node: matching(WORD, match_texts.word_match(node)),
    TRIGRAM: lambda node: matching(TRIGRAM, match_texts.trigram_match(node)),
    LIKE: scanned,
}


def _by_route(
    node: Node, route_of: Callable[[Leaf], str], sets_of: Mapping[str, Callable[[Node], MessageSet]]
) -> MessageSet:
    """Build the set of a tree, looking up together what shares a route (but for `_EACH`)."""
    routes = {route_of(leaf) for leaf in leaves(node)}
    if isinstance(node, Term | Prefix | Phrase) or (len(routes) == 1 and _EACH not in routes):
        return sets_of[routes.pop()](node)
    if isinstance(node, Not):
        raise TypeError("a proposal has no exclusions")
    kind = Or if isinstance(node, Or) else And
    groups: dict[str, list[Node]] = {}
    sets = []
    for part in node.parts:
        part_routes = {route_of(leaf) for leaf in leaves(part)}
        if len(part_routes) == 1 and _EACH not in part_routes:
            groups.setdefault(part_routes.pop(), []).append(part)
        else:
            sets.append(_by_route(part, route_of, sets_of))
    sets += [sets_of[route](group[0] if len(group) == 1 else kind(tuple(group))) for route, group in groups.items()]
    return either(sets) if kind is Or else both(sets)


def _looked_up(index: NamedFromClause, ids: Select[Any]) -> ColumnElement[bool]:
    """Restrict a MATCH to ids. The sign keeps SQLite from running the MATCH once for every one of them."""
    return literal_column(f"+{index.name}.rowid", Integer).in_(ids)


def _together(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _listed(reasons: list[str]) -> str | None:
    return "; ".join(dict.fromkeys(reasons)) or None
