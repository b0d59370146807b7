"""Sets of messages, and their algebra.

A set is either *listed* (an index enumerates its ids) or *told* (a condition tells it by looking at a message). Sets
combine to sets: as long as all members are listed, the result is listed too, so that no message has to be looked at.
All of it is SQLAlchemy Core; what a user typed appears in parameters only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, column, func, intersect, or_, select, table, union
from sqlalchemy.sql.selectable import NamedFromClause

from hermes_store.search import like, match
from hermes_store.search.rows import m
from hermes_store.search.syntax import Node, leaves
from hermes_store.search.terms import Kind, needle
from hermes_store.sqlite.shape import TRIGRAM_INDEX, WORD_INDEX

#: The routes, by the names that pages and plans use.
WORD, TRIGRAM, LIKE = "word", "trigram", "like"

_INDEXES = {WORD: WORD_INDEX, TRIGRAM: TRIGRAM_INDEX}


@dataclass(frozen=True, slots=True)
class Listed:
    """A set whose ids can be enumerated.

    Attributes:
        ids: A statement of one column.
        routes: The routes it takes.
    """

    ids: Select[Any]
    routes: frozenset[str]

    @property
    def condition(self) -> ColumnElement[bool]:
        """True for the messages of the set."""
        return m.c.id.in_(self.ids)


@dataclass(frozen=True, slots=True)
class Told:
    """A set whose members can only be told by looking at each message.

    Attributes:
        condition: True for the messages of the set.
        routes: The routes it takes.
    """

    condition: ColumnElement[bool]
    routes: frozenset[str]


MessageSet = Listed | Told


def scanned(node: Node) -> Told:
    """Give the messages that may answer a query, told by scanning their texts.

    Args:
        node: A tree without exclusions.
    """
    condition = like.may_match(node, (m.c.content, m.c.tool_name), tool_calls=m.c.tool_calls)
    return Told(condition, frozenset({LIKE}))


def matching(route: str, text: str) -> Listed:
    """Give the messages an index finds.

    Args:
        route: ``word`` or ``trigram``.
        text: The MATCH text.
    """
    index = search_index(route)
    return Listed(select(index.c.rowid).where(matches(index, route, text)), frozenset({route}))


def decoded(node: Node) -> Listed:
    """Give the messages whose text has to be decoded and whose escapes the word index knows.

    Args:
        node: A tree without exclusions. What it finds as plain words is left out.
    """
    text = match.escaped_match(node)
    if all(needle(leaf).kind is Kind.WORD for leaf in leaves(node)):
        # Common words are in many messages, each of which would have to be read only to be proposed twice.
        text = f"{text} NOT {match.word_match(node)}"
    found = matching(WORD, text)
    needs_decoding = or_(func.instr(m.c.content, "\0") > 0, func.instr(m.c.tool_calls, "\\u") > 0)
    return Listed(select(m.c.id).where(found.condition, needs_decoding), found.routes)


def search_index(route: str) -> NamedFromClause:
    """Give the FTS5 table of a route.

    Args:
        route: ``word`` or ``trigram``.
    """
    name = _INDEXES[route]
    return table(name, column("rowid"), column("rank"), column(name), schema="main").alias(f"{route}_index")


def matches(index: NamedFromClause, route: str, text: str) -> ColumnElement[bool]:
    """Say MATCH.

    Args:
        index: The FTS5 table of the route.
        route: ``word`` or ``trigram``.
        text: The MATCH text.
    """
    return index.c[_INDEXES[route]].op("MATCH", is_comparison=True)(text)


def both(sets: Sequence[MessageSet]) -> MessageSet:
    """Give the messages that are in every one of the sets.

    Args:
        sets: At least one.
    """
    return _combined(sets, intersect, and_)


def either(sets: Sequence[MessageSet]) -> MessageSet:
    """Give the messages that are in any of the sets.

    Args:
        sets: At least one.
    """
    return _combined(sets, union, or_)


def _combined(sets: Sequence[MessageSet], compound: Any, connective: Any) -> MessageSet:
    if len(sets) == 1:
        return sets[0]
    routes = frozenset[str]().union(*(each.routes for each in sets))
    listed = [each.ids for each in sets if isinstance(each, Listed)]
    if len(listed) < len(sets):
        return Told(connective(*(each.condition for each in sets)), routes)
    # SQLite takes no brackets around the members of a compound; a subquery is the same.
    ids = compound(*listed).subquery()
    return Listed(select(next(iter(ids.c))), routes)
