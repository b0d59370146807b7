"""What was said before and after a hit."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, bindparam, select

from hermes_store.content import decode
from hermes_store.search.records import ContextMessage
from hermes_store.search.rows import MESSAGES, beginning, listed, m, neighbour, visible

_shown = MESSAGES.alias("shown")

#: Characters of a message shown as context (as many as Hermes shows).
CONTEXT_LENGTH = 200


def contexts(
    connection: Connection, hits: Sequence[ContextMessage], *, include_inactive: bool
) -> Mapping[int, tuple[ContextMessage, ...]]:
    """Read the messages around hits, with one statement.

    Args:
        connection: The connection.
        hits: The hits themselves, as context shows them.
        include_inactive: Count rewound messages in.

    Returns:
        Message id to the visible message before it, itself, and the one after it, of the same session by id.
    """
    if not hits:
        return {}
    found = {hit.id: [hit] for hit in hits}
    statement = context_statement(include_inactive=include_inactive)
    for hit_id, id_, role, content in connection.execute(statement, {"ids": json.dumps(list(found))}).all():
        found[hit_id].append(as_context(id_, role, decode(content).text))
    return {hit_id: tuple(sorted(messages, key=_by_id)) for hit_id, messages in found.items()}


def as_context(id_: int, role: object, text: str) -> ContextMessage:
    """Show a message as context does.

    Args:
        id_: Its id.
        role: Who speaks, as stored.
        text: Its decoded text.
    """
    return ContextMessage(id_, str(role), text[:CONTEXT_LENGTH])


_by_id = operator.attrgetter("id")


@functools.cache
def context_statement(*, include_inactive: bool) -> Select[Any]:
    """Ask for the messages beside hits, whose ids are the parameter ``ids``, a JSON list.

    Args:
        include_inactive: Count rewound messages in.
    """

    def nearest(side: ColumnElement[bool], order: ColumnElement[int]) -> ScalarSelect[int]:
        return (
            select(neighbour.c.id)
            .where(
                neighbour.c.session_id == m.c.session_id, side, visible(neighbour, include_inactive=include_inactive)
            )
            .order_by(order)
            .limit(1)
            .scalar_subquery()
        )

    around = (
        select(
            m.c.id.label("hit"),
            nearest(neighbour.c.id < m.c.id, neighbour.c.id.desc()).label("before"),
            nearest(neighbour.c.id > m.c.id, neighbour.c.id.asc()).label("after"),
        )
        .where(m.c.id.in_(listed(bindparam("ids"))))
        .cte("around")
    )
    content = beginning(_shown.c.content, CONTEXT_LENGTH)
    return select(around.c.hit, _shown.c.id, _shown.c.role, content.label("content")).join_from(
        around, _shown, _shown.c.id.in_([around.c.before, around.c.after])
    )
