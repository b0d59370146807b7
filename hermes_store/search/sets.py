"""Sets of messages, their algebra, and the statements that ask for them.

A set is either *listed* (an index enumerates its ids) or *told* (a condition tells it by looking at a message). Sets
combine to sets: as long as a conjunction has a listed member, and a disjunction only such, the result is listed too,
and no message outside of it has to be looked at.

Sets are plain values without any text that a user typed: texts are parameters, named by slots (`Parameters`). So a
statement depends on the form of a query only, is made once for each form, and SQLAlchemy compiles it once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    column,
    literal_column,
    or_,
    select,
    table,
    union_all,
)
from sqlalchemy.sql.selectable import NamedFromClause

from hermes_store.search import like, rows
from hermes_store.search.filters import FilterForm
from hermes_store.search.grams import Ranges, end_ids, gram_ids
from hermes_store.search.rows import SOURCE, m
from hermes_store.search.syntax import Node
from hermes_store.sqlite.decoded import ENCODED, TEXT_QUEUE
from hermes_store.sqlite.shape import TEXT_INDEX, TRIGRAM_INDEX, WORD_INDEX
from hermes_store.sqlite.vocabulary import OCCURRENCES, TEXT_OCCURRENCES

#: The routes, by the names that pages and plans use: word index, substring index, ranges of its trigrams, the index of
#: decoded texts, the walk from the newest message on, and the scan that takes the place of an index.
WORD, TRIGRAM, GRAM, DECODED, WALK, LIKE = ROUTES = ("word", "trigram", "gram", "decoded", "walk", "like")

#: The messages whose text waits to be moved into the index of decoded texts.
queue = table(TEXT_QUEUE, column("message_id"), schema="main").alias("queue")
#: Route to its index and the column that is asked, the index's name for any.
_INDEXES = {WORD: (WORD_INDEX, WORD_INDEX), TRIGRAM: (TRIGRAM_INDEX, TRIGRAM_INDEX), DECODED: (TEXT_INDEX, "text")}


@dataclass(frozen=True, slots=True)
class Match:
    """The messages that an index finds; the MATCH text is a parameter."""

    route: str
    slot: int


@dataclass(frozen=True, slots=True)
class Grams:
    """The messages that hold a term of one or two characters, by ranges of trigrams and by the ends of texts."""

    route: str
    slot: int
    ends: bool
    """Whether texts may end with the term; where an index holds more after each text, they do not."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The messages whose text is stored in an encoded form."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The messages whose text waits to be moved into the index of decoded texts."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The messages whose text may answer, told by reading it."""

    node: Node
    route: str


@dataclass(frozen=True, slots=True)
class ShortScan:
    """The messages that may hold a frequent short term, told by reading them; its spellings are parameters."""

    slot: int
    forms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The messages outside of the substring index that the caller asks for by name."""

    form: FilterForm


@dataclass(frozen=True, slots=True)
class Unindexed:
    """The messages that an unfinished index lacks; where it ends is a parameter."""


@dataclass(frozen=True, slots=True)
class Both:
    """The messages that are in every one of the sets."""

    sets: tuple[MessageSet, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """The messages that are in any of the sets."""

    sets: tuple[MessageSet, ...]


MessageSet = Match | Grams | Queued | Encoded | Scan | ShortScan | Asked | Unindexed | Both | Either


@dataclass(slots=True)
class Parameters:
    """The values of a statement's parameters, by name."""

    values: dict[str, object] = field(default_factory=dict)
    _slots: dict[object, int] = field(default_factory=dict)

    def match(self, text: str) -> int:
        """Take up a MATCH text.

        Args:
            text: The text.

        Returns:
            Its slot.
        """
        slot = self._slot(text)
        self.values[f"match_{slot}"] = text
        return slot

    def forms(self, spelled: tuple[str, ...]) -> int:
        """Take up the spellings of a short term.

        Args:
            spelled: The spellings.

        Returns:
            Their slot.
        """
        slot = self._slot(spelled)
        for at, form in enumerate(spelled):
            self.values |= {f"form_{slot}_{at}": form, f"escaped_{slot}_{at}": like.escaped_pattern(form)}
        return slot

    def grams(self, ranges: Ranges) -> int:
        """Take up the ranges of a short term.

        Args:
            ranges: The ranges.

        Returns:
            Their slot.
        """
        slot = self._slot(ranges)
        named = {
            "grams": ranges.trigrams,
            "end1": ranges.last,
            "end2": ranges.last_two,
            "end2_from": ranges.last_but_one,
        }
        self.values |= {f"{name}_{slot}": json.dumps(value) for name, value in named.items()}
        return slot

    def _slot(self, value: object) -> int:
        """The same value has the same slot."""
        return self._slots.setdefault(value, len(self._slots))


def both(sets: Sequence[MessageSet]) -> MessageSet:
    """Intersect sets.

    Args:
        sets: At least one.
    """
    return sets[0] if len(sets) == 1 else Both(tuple(sets))


def either(sets: Sequence[MessageSet]) -> MessageSet:
    """Unite sets.

    Args:
        sets: At least one.
    """
    return sets[0] if len(sets) == 1 else Either(tuple(sets))


def routes(some: MessageSet) -> frozenset[str]:
    """Name the routes a set takes.

    Args:
        some: The set.
    """
    match some:
        case Match(route) | Grams(route) | Scan(_, route):
            return frozenset({route})
        case Queued():
            return frozenset({DECODED})
        case ShortScan():
            return frozenset({WALK})
        case Both(members) | Either(members):
            return frozenset[str]().union(*map(routes, members))
        case _:
            return frozenset()


def is_listed(some: MessageSet) -> bool:
    """Tell whether the ids of a set can be enumerated.

    Args:
        some: The set.
    """
    match some:
        case Match() | Grams() | Queued():
            return True
        case Both(members):
            return any(map(is_listed, members))
        case Either(members):
            return all(map(is_listed, members))
        case _:
            return False


def condition(some: MessageSet) -> ColumnElement[bool]:  # noqa: PLR0911 - one for each kind of set
    """Say in SQL which messages are in a set.

    Args:
        some: The set.
    """
    match some:
        case Scan(node):
            return like.may_match(node, (m.c.content, m.c.tool_name), tool_calls=m.c.tool_calls)
        case ShortScan(slot, forms):
            spelled = [bindparam(f"form_{slot}_{at}", type_=String) for at in range(forms)]
            escaped = [bindparam(f"escaped_{slot}_{at}", type_=String) for at in range(forms)]
            return like.holds_short((m.c.content, m.c.tool_name), m.c.tool_calls, spelled, escaped)
        case Asked(form):
            asked = rows.asked_for(form)
            if asked is None:
                raise ValueError("nothing is asked for by name")
            return asked
        case Encoded():
            return literal_column(ENCODED)
        case Unindexed():
            return and_(m.c.id > bindparam("indexed"), m.c.id <= bindparam("total"))
        case Both(members):
            return and_(*map(condition, members))
        case Either(members):
            listed = [member for member in members if is_listed(member)]
            told = [condition(member) for member in members if not is_listed(member)]
            return or_(*([m.c.id.in_(_ids(listed))] if listed else []), *told)
        case _:
            return m.c.id.in_(_ids([some]))


def _ids(sets: Sequence[MessageSet]) -> Select[Any]:
    """Enumerate the ids of listed sets; one may come several times."""
    found = [ids for some in sets for ids in _enumerations(some)]
    if len(found) == 1:
        return found[0]
    # SQLite takes no brackets around the members of a compound; a subquery is the same.
    together = union_all(*found).subquery()
    return select(next(iter(together.c)))


def _enumerations(some: MessageSet) -> list[Select[Any]]:
    match some:
        case Match(route, slot):
            index = search_index(route)
            return [select(index.c.rowid).where(_matches(index, route, slot))]
        case Grams(route, slot, ends):
            occurrences = TEXT_OCCURRENCES if route == DECODED else OCCURRENCES
            return [gram_ids(occurrences, slot), *(end_ids(slot) if ends else ())]
        case Queued():
            return [select(queue.c.message_id)]
        case Either(members):
            return [ids for member in members for ids in _enumerations(member)]
        case Both(members):
            # Only listed members look messages up; the others are then told of those.
            return [select(m.c.id).where(*(condition(member) for member in members)).correlate(None)]
        case _:
            raise TypeError(f"{some} cannot be enumerated")


# ----------------------------------------------------------------------------------------------------------- statements


@functools.lru_cache(maxsize=256)
def ranked_statement(match: Match, others: tuple[MessageSet, ...], *, in_sessions: bool) -> Select[Any]:
    """Ask an index for ids with their relevance, best first; the parameter ``take`` limits them.

    Args:
        match: What the index is asked for.
        others: Listed sets in which the messages must be, too.
        in_sessions: They must be in the sessions that are the parameter ``session_ids``: a common word in few sessions
            is better not looked for in all the others.
    """
    index = search_index(match.route)
    # The sign keeps SQLite from running the MATCH once for every id.
    place = literal_column(f"+{index.name}.rowid", Integer)
    found = [_matches(index, match.route, match.slot), *(place.in_(_ids([other])) for other in others)]
    if in_sessions:
        found.append(place.in_(select(m.c.id).where(m.c.session_id.in_(rows.listed(bindparam("session_ids"))))))
    # FTS5 itself would sort all that it finds; with the sign, SQLite keeps the best ones only (1.5 times faster).
    best: ColumnElement[Any] = literal_column(f"+{index.name}.rank")
    return select(index.c.rowid, index.c.rank).where(*found).order_by(best).limit(bindparam("take"))


@functools.lru_cache(maxsize=256)
def ordered_statement(
    some: MessageSet, form: FilterForm, *, covered: bool, oldest: bool, frequent: bool
) -> Select[Any]:
    """Ask for the ids of a set's messages in the order of time.

    Args:
        some: The set.
        form: Which restrictions there are.
        covered: Only messages that substring search covers.
        oldest: Oldest first, not newest first.
        frequent: So many messages are in the set that walking all of them in the order wanted finds a page sooner than
            looking those of the set up and sorting them.
    """
    listed = is_listed(some)
    # A sign keeps SQLite from going the other way. It tests in this order: what needs no text of the message first.
    member = literal_column("+m.id", Integer).in_(_ids([some])) if listed and frequent else condition(some)
    tests = [*([rows.covered(form)] if covered else []), member, rows.allowed(form)]
    time = literal_column("+m.timestamp") if listed and not frequent else m.c.timestamp
    order = [time, m.c.id] if oldest else [time.desc(), m.c.id.desc()]
    return select(m.c.id).select_from(SOURCE).where(*tests).order_by(*order)


@functools.cache
def search_index(route: str) -> NamedFromClause:
    """Give the FTS5 table of a route.

    Args:
        route: ``word``, ``trigram`` or ``decoded``.
    """
    name, asked = _INDEXES[route]
    return table(name, column("rowid"), column("rank"), column(asked), schema="main").alias(f"{route}_index")


def _matches(index: NamedFromClause, route: str, slot: int) -> ColumnElement[bool]:
    return index.c[_INDEXES[route][1]].op("MATCH", is_comparison=True)(bindparam(f"match_{slot}"))
