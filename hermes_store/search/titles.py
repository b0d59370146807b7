"""Sessions whose title or id answers a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, false, func, or_, select

from hermes_store.content import decode
from hermes_store.search import like
from hermes_store.search.filters import Filters
from hermes_store.search.records import SessionHit, usable_time
from hermes_store.search.rows import among, s, session_allowed
from hermes_store.search.scripts import fold_words
from hermes_store.search.syntax import Query, positive
from hermes_store.search.verify import Field, matches

_PUNCTUATION = re.compile(r"[\W_]+")
# Punctuation that SQL takes out of a title, so that AB12 finds AB-12.
_SQUEEZED = "-_ ./:#"
_BATCH = 100


def matching_sessions(connection: Connection, query: Query, filters: Filters) -> tuple[SessionHit, ...]:
    """Find sessions by title or by the beginning of their id, the latest first.

    A title answers as a message would, or when what was typed is a piece of it, case and punctuation ignored.

    Args:
        connection: The connection.
        query: The query.
        filters: What to restrict the sessions to; those on messages (roles, times) do not apply.
    """
    hits: list[SessionHit] = []
    with connection.execute(sessions_statement(query, filters), filters.parameters) as found:
        for batch in found.partitions(_BATCH):
            hits += (hit for row in batch if (hit := _hit(row, query)))
            if len(hits) >= filters.limit:
                break
    return tuple(hits[: filters.limit])


def sessions_statement(query: Query, filters: Filters) -> Select[Any]:
    """Ask for the sessions whose title or id may answer.

    Args:
        query: The query.
        filters: What to restrict the sessions to.
    """
    conditions = [session_allowed(s, filters.form)]
    if filters.session_ids is not None:
        conditions.append(among(s.c.id, filters.session_ids))
    may_answer = or_(
        like.may_match(positive(query.root), (s.c.title,)), *_squeezed_conditions(query), _id_condition(query)
    )
    return (
        select(s.c.id, s.c.title, s.c.source, s.c.started_at)
        .where(*conditions, may_answer)
        .order_by(s.c.started_at.desc(), s.c.id.desc())
    )


def _hit(row: Any, query: Query) -> SessionHit | None:
    title = None if row.title is None else decode(row.title).text
    identity = decode(row.id).text
    answers = identity.lower().startswith(query.text.lower()) or (
        title is not None
        and (matches(query.root, (Field(title, substring=True),)) or _squeezed_within(query.text, title))
    )
    if not answers:
        return None
    source = None if row.source is None else decode(row.source).text
    return SessionHit(identity, title, source, usable_time(row.started_at))


def _squeezed(text: str) -> str:
    return _PUNCTUATION.sub("", fold_words(text))


def _squeezed_within(text: str, title: str) -> bool:
    piece = _squeezed(text)
    return bool(piece) and piece in _squeezed(title)


def _squeezed_conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if piece := _squeezed(query.text):
        title: ColumnElement[Any] = s.c.title
        for sign in _SQUEEZED:
            title = func.replace(title, sign, "")
        yield like.contains(title, piece)


def _id_condition(query: Query) -> ColumnElement[bool]:
    if " " in query.text:
        return false()
    pattern = re.sub(r"([\\%_])", r"\\\1", query.text)
    return s.c.id.like(f"{pattern}%", escape="\\")
