"""Which route serves which term, and the statements that propose messages.

A plan is made from the query's tree, the caller's restrictions, the file's shape and how frequent the short terms are;
it reads nothing. Its statements only *propose* messages: every message that answers the query is among them, exclusions
are left out, and what is proposed is judged by `hermes_store.search.verify`. There are two proposals:

* *ranked*: one MATCH on one index gives ids with their relevance, best first. What else the query asks for is a
  condition on those ids.
* *rest*: every other message that may answer, newest first, as one set of ids. It holds what the ranked index cannot
  see: words glued to unspaced scripts, JSON-escaped text, messages not indexed yet or on purpose. A page that the
  ranked proposal fills does without it. Sorting by time makes everything one set.

A term of one or two characters is looked up by ranges of trigrams; one that is in very many messages is found sooner by
walking from the newest message on. An index that is missing, stale or of a shape nobody knows is not believed: scanning
takes its place, and the plan says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select

from hermes_store.search import grams
from hermes_store.search import match as match_texts
from hermes_store.search.filters import Filters
from hermes_store.search.like import MAX_TERMS, has_case
from hermes_store.search.records import PendingRebuild
from hermes_store.search.rows import asked_for
from hermes_store.search.scripts import spellings
from hermes_store.search.sets import (
    DECODED,
    GRAM,
    LIKE,
    TRIGRAM,
    WALK,
    WORD,
    Asked,
    Both,
    Encoded,
    Grams,
    Match,
    MessageSet,
    Parameters,
    Queued,
    Scan,
    ShortScan,
    Unindexed,
    both,
    either,
    is_listed,
    ordered_statement,
    ranked_statement,
    routes,
)
from hermes_store.search.syntax import And, Leaf, Node, Not, Or, Phrase, Prefix, Query, Term, leaves, positive
from hermes_store.search.terms import Kind, needle
from hermes_store.sqlite.decoded import TEXT_INDEX, TEXT_QUEUE, text_index_fault
from hermes_store.sqlite.shape import TRIGRAM_INDEX, IndexShape, Layout, Shape

LEFT_OUT_NOTE = (
    "terms in unspaced scripts are not looked for in tool results and in cron and delegated sessions; "
    "name the role tool, the source or the sessions to search those too"
)
#: Waiting messages up to which they are simply read.
FEW_QUEUED = 200
UPGRADE_NOTE = (
    "terms of one or two characters are looked for by reading every message; `hermes-store upgrade` ends that"
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A statement that proposes messages.

    Attributes:
        statement: Ids and scores, best first (ranked; the parameter ``take`` limits them), or ids in the order asked
            for (rest).
        parameters: The values of its parameters.
        told: What else a proposed message has to be, as far as the statement does not say so.
        routes: The routes it takes.
        degraded: Why it scans although an index could have served, or None.
    """

    statement: Select[Any]
    parameters: Mapping[str, object]
    told: tuple[MessageSet, ...]
    routes: frozenset[str]
    degraded: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a search needs to run.

    Attributes:
        query: The parsed query.
        filters: The caller's restrictions.
        able: What can be asked of the indexes.
        covered: True when only messages that substring search covers can answer.
        routes: Each positive term with its route.
        ranked: The ranked proposal, if there is one.
        notes: What was cut or left out.
    """

    query: Query
    filters: Filters
    able: Abilities
    covered: bool
    routes: tuple[tuple[Leaf, str], ...]
    ranked: Proposal | None
    notes: tuple[str, ...]
    _planner: _Planner = field(repr=False)

    @property
    def needs_letters(self) -> bool:
        """True when the rest needs to know which accented letters the substring indexes hold."""
        terms = leaves(self._planner.root)
        return any(needle(leaf).kind is Kind.WORD and self.able.in_trigrams(leaf) for leaf in terms)

    def rest(self, letters: str = "") -> Proposal | None:
        """Propose the other messages that may answer; None when no message is allowed at all.

        It is made when it is asked for, because most pages do without it.

        Args:
            letters: The accented letters that the substring indexes hold, if it `needs_letters`.
        """
        if self.filters.allow_nothing:
            return None
        return self._planner.rest(with_main=self.ranked is None, letters=letters)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What can be asked of a file's indexes.

    Attributes:
        unusable: Route (``word``, ``trigram``, ``decoded``) to the reason why its index must not be asked.
        grams: Short terms can be looked up.
        ends: They have to be looked for at the ends of texts, too.
        decoded: The index of decoded texts can be asked.
        queued: How many messages wait to be moved into it, `FEW_QUEUED` at most.
        pending: How far an unfinished index has come.
    """

    unusable: Mapping[str, str]
    grams: bool
    ends: bool
    decoded: bool
    queued: int
    pending: PendingRebuild | None

    def looked_up(self, leaf: Leaf) -> bool:
        """Tell whether the substring index can look a term up by itself.

        Args:
            leaf: A term, prefix or phrase.
        """
        return needle(leaf).kind is not Kind.SIGNS and match_texts.has_trigrams(leaf) and TRIGRAM not in self.unusable

    def is_short(self, leaf: Leaf) -> bool:
        """Tell whether a term is looked up by ranges of trigrams.

        Args:
            leaf: A term, prefix or phrase.
        """
        return self.grams and needle(leaf).kind is not Kind.SIGNS and not match_texts.has_trigrams(leaf)

    def in_trigrams(self, leaf: Leaf) -> bool:
        """Tell whether the substring index is asked for a term, in one way or the other.

        Args:
            leaf: A term, prefix or phrase.
        """
        return self.looked_up(leaf) or self.is_short(leaf)

    def can_count(self, leaf: Leaf) -> bool:
        """Tell whether an index knows in how many messages a term is.

        Args:
            leaf: A term, prefix or phrase.
        """
        if needle(leaf).kind is Kind.WORD:
            return WORD not in self.unusable
        return needle(leaf).kind is Kind.SUBSTRING and self.in_trigrams(leaf)


def abilities(shape: Shape, *, fts5: bool, trigram: bool, damaged: Iterable[str] = (), queued: int = 0) -> Abilities:
    """Find out what can be asked of a file's search indexes.

    Args:
        shape: The file's shape.
        fts5: The SQLite library has FTS5.
        trigram: It has the trigram tokenizer.
        damaged: Routes whose index has just failed.
        queued: How many messages wait to be moved into the index of decoded texts.
    """
    unusable = {}
    for route, index in ((WORD, shape.word), (TRIGRAM, shape.trigram)):
        reason = "is damaged" if route in damaged else _fault(index, shape, fts5=fts5, trigram=trigram)
        if reason:
            unusable[route] = f"the index {index.name} {reason}"
    fault = "is damaged" if DECODED in damaged else text_index_fault(shape)
    # A file may well be without our own index: then what is encoded is read, and nothing is to be said.
    if fts5 and trigram and fault and (shape.has("table", TEXT_QUEUE) or DECODED in damaged):
        unusable[DECODED] = f"the index {TEXT_INDEX} {fault}"
    return Abilities(
        unusable=unusable,
        grams=TRIGRAM not in unusable and grams.has_vocabulary(shape),
        ends=shape.trigram.layout is not Layout.INLINE,
        decoded=fts5 and trigram and fault is None,
        queued=queued,
        pending=PendingRebuild(*shape.rebuild) if shape.rebuild else None,
    )


def terms_to_count(query: Query, filters: Filters, able: Abilities) -> Sequence[Leaf]:
    """Name the terms whose frequency decides how they are looked for: short ones, and all when time is the order.

    Args:
        query: The parsed query.
        filters: The caller's restrictions.
        able: What can be asked of the indexes.
    """
    found = [leaf for leaf in dict.fromkeys(leaves(positive(query.root))) if able.can_count(leaf)]
    if filters.sort == "rank":
        return [leaf for leaf in found if needle(leaf).kind is Kind.SUBSTRING and able.is_short(leaf)]
    return found


def make_plan(query: Query, filters: Filters, able: Abilities, frequencies: Mapping[Leaf, int], frequent: int) -> Plan:
    """Plan a search.

    Args:
        query: The parsed query.
        filters: The caller's restrictions.
        able: What can be asked of the indexes.
        frequencies: In how many messages each of the `terms_to_count` is, about.
        frequent: In how many a term has to be so that a walk from the newest message on finds a page sooner.
    """
    planner = _Planner(query, filters, able, frequencies, frequent)
    notes = query.notes
    if planner.covered_only and filters.session_ids is None:
        notes = (*notes, LEFT_OUT_NOTE)
    if planner.covered_only and TRIGRAM not in able.unusable and not able.grams and planner.has_short_terms:
        notes = (*notes, UPGRADE_NOTE)
    named = tuple((leaf, planner.route(leaf)) for leaf in dict.fromkeys(leaves(planner.root)))
    ranked = planner.ranked() if filters.sort == "rank" and not filters.allow_nothing else None
    return Plan(query, filters, able, planner.covered_only, named, ranked, notes, planner)


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
        self, query: Query, filters: Filters, able: Abilities, frequencies: Mapping[Leaf, int], frequent: int
    ) -> None:
        self.root = positive(query.root)
        # One term of an unspaced script, even an excluded one, limits the whole query to the messages that substring
        # search covers: elsewhere nobody could tell whether it is there.
        self.covered_only = any(needle(leaf).kind is Kind.SUBSTRING for leaf in leaves(query.root))
        self._filters = filters
        self._form = filters.form
        self._able = able
        self._frequencies = frequencies
        self._frequent = frequent
        self._parameters = Parameters(filters.parameters)
        self._letters = ""
        if able.pending is not None:
            self._parameters.values |= {"indexed": able.pending.indexed, "total": able.pending.total}

    @property
    def has_short_terms(self) -> bool:
        """True when a term of an unspaced script is too short for the substring index."""
        return any(
            needle(leaf).kind is Kind.SUBSTRING and not match_texts.has_trigrams(leaf) for leaf in leaves(self.root)
        )

    def route(self, leaf: Leaf) -> str:
        """Choose the route of a term.

        Args:
            leaf: A term, prefix or phrase.
        """
        kind = needle(leaf).kind
        if kind is Kind.WORD and WORD not in self._able.unusable:
            return WORD
        if kind is Kind.SUBSTRING and self._able.looked_up(leaf):
            return TRIGRAM
        if kind is Kind.SUBSTRING and self._able.is_short(leaf):
            return WALK if self._frequencies.get(leaf, 0) >= self._frequent else GRAM
        return LIKE

    def ranked(self) -> Proposal | None:
        """Propose the messages that one MATCH finds, best first; None when no index can rank the query."""
        for route in (WORD, TRIGRAM):
            rankable, others = self._split(route)
            if rankable is None:
                continue
            found = self._match(route, rankable)
            listed: tuple[MessageSet, ...] = ()
            told: tuple[MessageSet, ...] = ()
            if others is not None:
                other = self._main(others)
                listed, told = ((other,), ()) if is_listed(other) else ((), (other,))
            statement = ranked_statement(found, listed, in_sessions=self._form.session_ids)
            return Proposal(
                statement,
                self._parameters.values,
                told,
                frozenset({route}).union(*map(routes, listed + told)),
                in_words(self._missed(others)) if others is not None else None,
            )
        return None

    def rest(self, *, with_main: bool, letters: str) -> Proposal:
        """Propose, in the order of time, what the ranked proposal does not see.

        Args:
            with_main: Propose everything, because there is no ranked proposal.
            letters: Accented letters that the substring indexes hold.
        """
        self._letters = letters
        missed = self._missed(self.root) if with_main else []
        taken = {self.route(leaf) for leaf in leaves(self.root)}
        if taken == {LIKE}:  # a scan looks at everything
            sets: list[MessageSet] = [self._main(self.root)]
        else:
            sets = [*self._everywhere(with_main=with_main), *self._beyond_indexes()]
            missed += self._missed_widely()
        some = either(sets)
        oldest = self._filters.sort == "oldest"
        return Proposal(
            ordered_statement(
                some, self._form, covered=self.covered_only, oldest=oldest, frequent=self._is_frequent(self.root)
            ),
            self._parameters.values,
            (),
            routes(some),
            in_words(missed),
        )

    def _main(self, node: Node) -> MessageSet:
        """Each term by its route; terms that share one are looked up together."""
        return self._sets(node, together=True)

    def _everywhere(self, *, with_main: bool) -> list[MessageSet]:
        """Besides what the routes find: words glued to unspaced scripts, and text stored as JSON escapes."""
        terms = list(leaves(self.root))
        if WORD not in self._able.unusable and all(
            leaf.text.isascii() and self._able.looked_up(leaf) for leaf in terms
        ):
            main = [self._main(self.root)] if with_main else []
            return [*main, self._match(TRIGRAM, self.root), self._decoded(self.root)]
        if len(terms) > MAX_TERMS:
            return [Scan(self.root, LIKE)]
        # One term may stand in plain text and another in escaped JSON, so here each has a set of its own.
        return [self._sets(self.root, together=False)]

    def _sets(self, node: Node, *, together: bool) -> MessageSet:
        """Build the set of a tree; with ``together``, terms of one index are one MATCH."""
        if isinstance(node, Not):
            raise TypeError("a proposal has no exclusions")
        route = self._only_route(node)
        if together and route in _ONE_STATEMENT:
            return self._together(route, node)
        if isinstance(node, Term | Prefix | Phrase):
            return self._anywhere(node)
        kind = Or if isinstance(node, Or) else And
        read = self._commoner(node.parts) if kind is And else frozenset()
        groups: dict[str, list[Node]] = {}
        sets: list[MessageSet] = []
        for part in node.parts:
            route = self._only_route(part)
            if together and route in _ONE_STATEMENT:
                groups.setdefault(route, []).append(part)
            elif part in read:
                sets.append(Scan(part, GRAM))
            else:
                sets.append(self._sets(part, together=together))
        sets += [
            self._together(route, group[0] if len(group) == 1 else kind(tuple(group)))
            for route, group in groups.items()
        ]
        return either(sets) if kind is Or else both(sets)

    def _only_route(self, node: Node) -> str | None:
        """The route of all terms of a tree, None when there are several."""
        taken = {self.route(leaf) for leaf in leaves(node)}
        return taken.pop() if len(taken) == 1 else None

    def _commoner(self, parts: Iterable[Node]) -> frozenset[Node]:
        """The short terms that are looked for in the messages of the rarest one only."""
        short = [part for part in parts if isinstance(part, Term | Prefix | Phrase) and self.route(part) == GRAM]
        rarest = min(short, key=lambda leaf: self._frequencies.get(leaf, 0), default=None)
        return frozenset(part for part in short if part != rarest)

    def _anywhere(self, leaf: Leaf) -> MessageSet:
        """All messages that may hold a term, wherever an index has them."""
        if self.route(leaf) == WALK:
            return self._read(leaf)
        if needle(leaf).kind is Kind.WORD and WORD in self._able.unusable:
            return Scan(leaf, LIKE)
        found: list[MessageSet] = []
        if self._able.looked_up(leaf):
            found.append(self._match(TRIGRAM, leaf))
        elif self._able.is_short(leaf):
            found.append(self._grams(GRAM, leaf, ends=self._able.ends))
        else:
            return Scan(leaf, LIKE)
        if self.route(leaf) == WORD:
            found.append(self._match(WORD, leaf))
        return either([*found, self._decoded(leaf)])

    def _read(self, leaf: Leaf) -> MessageSet:
        """A frequent short term, looked for in each message on the way."""
        forms = spellings(needle(leaf).parts[0])
        if len(needle(leaf).parts) > 1 or any(map(has_case, forms)):
            return Scan(leaf, WALK)
        return ShortScan(self._parameters.forms(forms), len(forms))

    def _is_frequent(self, node: Node) -> bool:
        """Tell whether a tree's terms are in so many messages that a walk finds a page sooner."""
        counted = [self._frequencies.get(leaf, 0) for leaf in leaves(node)]
        return bool(self._frequent) and (max if isinstance(node, Or) else min)(counted) >= self._frequent

    def _decoded(self, node: Node) -> MessageSet:
        """The messages whose text is stored in an encoded form."""
        if not self._able.decoded:
            return Both((Encoded(), Scan(node, LIKE)))
        # What waits for the index is read; when that is much, what cannot answer is left out by a scan.
        waiting: list[MessageSet] = []
        if self._able.queued:
            few = self._able.queued < FEW_QUEUED
            waiting = [Queued() if few else Both((Queued(), Scan(node, DECODED)))]
        if all(map(self._able.looked_up, leaves(node))):
            return either([self._match(DECODED, node), *waiting])
        (leaf,) = leaves(node)
        return either([self._grams(DECODED, leaf, ends=False), *waiting])

    def _beyond_indexes(self) -> list[MessageSet]:
        """What no index holds: messages that the caller asks for by name, and those an unfinished index still lacks."""
        scan = Scan(self.root, LIKE)
        found: list[MessageSet] = []
        if asked_for(self._form) is not None:
            found.append(Both((Asked(self._form), scan)))
        if self._able.pending is not None:
            found.append(Both((Unindexed(), scan)))
        return found

    def _together(self, route: str, node: Node) -> MessageSet:
        """Look up terms of one route together."""
        return Scan(node, LIKE) if route == LIKE else self._match(route, node)

    def _match(self, route: str, node: Node) -> Match:
        text = match_texts.word_match(node) if route == WORD else match_texts.trigram_match(node, self._letters)
        return Match(route, self._parameters.match(text))

    def _grams(self, route: str, leaf: Leaf, *, ends: bool) -> Grams:
        return Grams(route, self._parameters.grams(grams.ranges(leaf, self._letters)), ends)

    def _split(self, route: str) -> tuple[Node | None, Node | None]:
        """Take out of the query what one index can rank: all of it, or some of the parts that must all hold."""
        if self._only_route(self.root) == route:
            return self.root, None
        if not isinstance(self.root, And):
            return None, self.root
        mine = [part for part in self.root.parts if self._only_route(part) == route]
        others = [part for part in self.root.parts if self._only_route(part) != route]
        return (_joined(mine) if mine else None), _joined(others)

    def _missed(self, node: Node) -> list[str]:
        """Why terms are scanned for although there should be an index for them."""
        unusable = self._able.unusable
        reasons = []
        for leaf in leaves(node):
            kind = needle(leaf).kind
            if kind is Kind.WORD and WORD in unusable:
                reasons.append(unusable[WORD])
            elif kind is Kind.SUBSTRING and TRIGRAM in unusable:
                reasons.append(unusable[TRIGRAM])
        return reasons

    def _missed_widely(self) -> list[str]:
        """Why the second look is a scan although there should be indexes for it."""
        reasons = []
        for leaf in leaves(self.root):
            kind = needle(leaf).kind
            if kind is Kind.SIGNS or not (match_texts.has_trigrams(leaf) or self._able.grams):
                continue
            needed = [TRIGRAM, DECODED, *([] if kind is Kind.SUBSTRING else [WORD])]
            reasons += [self._able.unusable[route] for route in needed if route in self._able.unusable]
        return reasons


#: Routes on which several terms are one statement.
_ONE_STATEMENT = (WORD, TRIGRAM, LIKE)


def _joined(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def in_words(reasons: Iterable[str | None]) -> str | None:
    """Join the reasons there are, each once; None when there is none.

    Args:
        reasons: The reasons.
    """
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None
