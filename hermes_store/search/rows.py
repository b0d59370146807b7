"""Which messages a search may show, and which of them each kind of term covers.

Pure expressions over ``messages AS m`` joined to ``sessions AS s``. Visibility is one predicate, used for hits and for
their context alike. The names are never qualified with a schema: on older files temporary views stand in their place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)

from hermes_store.models import HermesSession, Message
from hermes_store.search.filters import FilterForm

MESSAGES = cast("Table", Message.__table__)
SESSIONS = cast("Table", HermesSession.__table__)

# Made once: an alias costs more to make than most statements cost to run.
m = MESSAGES.alias("m")
s = SESSIONS.alias("s")
#: A message beside ``m``.
neighbour = MESSAGES.alias("neighbour")
_copy = MESSAGES.alias("copy")

#: Messages with their sessions; a message without a session is not shown, as in Hermes.
SOURCE = m.join(s, s.c.id == m.c.session_id)

#: Sources of sessions that layout 3 keeps out of its substring index.
UNINDEXED_SOURCES = ("cron", "subagent")
_DELEGATE_MARKER = "_delegate_from"


@functools.cache
def visible(row: FromClause, *, include_inactive: bool) -> ColumnElement[bool]:
    """Say which messages may be shown at all.

    Live rows are, and those that compaction archived; rewound rows are not. A row that compaction archived while its
    copy lives on in the same session is the same message once more, and is left to the copy.

    Args:
        row: ``messages`` under any name.
        include_inactive: Show rewound rows and archived originals as well.
    """
    shown = row.c.display_kind.is_distinct_from("hidden")
    return shown if include_inactive else and_(shown, in_history(row))


@functools.cache
def in_history(row: FromClause) -> ColumnElement[bool]:
    """Say which messages are part of what happened, shown or not: once each, and never one that was rewound.

    Args:
        row: ``messages`` under any name.
    """
    live = or_(row.c.active == 1, row.c.active.is_(None))  # Hermes takes NULL for 1, and heals it when it opens a file
    return or_(live, and_(row.c.active == 0, row.c.compacted == 1, ~_lives_on(row)))


def _lives_on(row: FromClause) -> ColumnElement[bool]:
    """A copy keeps its original's uid (schema 31), and before there were uids its time, speaker and text."""
    # A literal, not a parameter: only then does SQLite see that its partial index on live rows serves.
    same_place = and_(_copy.c.session_id == row.c.session_id, _copy.c.active == literal_column("1"))
    by_uid = exists().where(same_place, _copy.c.message_uid == row.c.message_uid)
    by_text = exists().where(
        same_place,
        _copy.c.timestamp == row.c.timestamp,
        _copy.c.role == row.c.role,
        _copy.c.content.is_not_distinct_from(row.c.content),
        _copy.c.tool_calls.is_not_distinct_from(row.c.tool_calls),
    )
    return or_(by_uid, by_text)


@functools.cache
def allowed(form: FilterForm) -> ColumnElement[bool]:
    """Say which messages a search may return, whatever it searches for.

    Args:
        form: Which restrictions there are; their values are parameters.
    """
    conditions = [visible(m, include_inactive=form.include_inactive), session_allowed(s, form)]
    if form.roles:
        conditions.append(_named(m.c.role, "roles"))
    if form.session_ids:
        # By the message's own column, which the indexes of every layout begin with.
        conditions.append(_named(m.c.session_id, "session_ids"))
    if form.after:
        conditions.append(m.c.timestamp >= bindparam("after"))
    if form.before:
        conditions.append(m.c.timestamp < bindparam("before"))
    return and_(*conditions)


def session_allowed(session: FromClause, form: FilterForm) -> ColumnElement[bool]:
    """Say which sessions a search may show.

    Args:
        session: ``sessions`` under any name.
        form: Which restrictions there are; their values are parameters.
    """
    conditions: list[ColumnElement[bool]] = [true()]
    if not form.include_archived:
        conditions.append(func.coalesce(session.c.archived, 0) == 0)
    if not form.include_hidden:
        conditions.append(func.coalesce(session.c.hidden, 0) == 0)
    if form.sources:
        conditions.append(_named(session.c.source, "sources"))
    if form.exclude_sources:
        conditions.append(~_named(session.c.source, "exclude_sources"))
    return and_(*conditions)


@functools.cache
def in_substring_index() -> ColumnElement[bool]:
    """Say which messages layout 3 keeps in its substring index."""
    return and_(m.c.role != literal_column("'tool'"), ~_unindexed_session())


@functools.cache
def asked_for(form: FilterForm) -> ColumnElement[bool] | None:
    """Say which of the other messages a caller asks for by name, so that substring search covers them as well.

    Naming the role ``tool`` asks for tool messages, naming sessions for everything in them, and naming sources for the
    sessions of those sources that the index leaves out.

    Args:
        form: Which restrictions there are.

    Returns:
        The condition, None when nothing is asked for.
    """
    if form.session_ids:
        return ~in_substring_index()
    asked = []
    if form.tool_role:
        asked.append(m.c.role == "tool")
    if form.sources:
        asked.append(_unindexed_session())
    return and_(~in_substring_index(), or_(*asked)) if asked else None


@functools.cache
def covered(form: FilterForm) -> ColumnElement[bool]:
    """Say which messages substring search covers: those of the index and those asked for.

    Args:
        form: Which restrictions there are.
    """
    asked = asked_for(form)
    return in_substring_index() if asked is None else or_(in_substring_index(), asked)


def among(value: ColumnElement[Any], members: Iterable[str] | Iterable[int]) -> ColumnElement[bool]:
    """Say that a value is one of a list of any length (SQLite limits the number of parameters).

    Args:
        value: The column.
        members: Texts or whole numbers.
    """
    return value.in_(listed(literal(json.dumps(list(members)))))


def live_messages(session: FromClause) -> ColumnElement[int]:
    """Count the live messages of a session; Hermes takes NULL for live.

    Two ranges of an index: a function of the column would be worked out for each message.

    Args:
        session: ``sessions`` under any name.
    """
    count = select(func.count()).where(m.c.session_id == session.c.id)
    return count.where(m.c.active == 1).scalar_subquery() + count.where(m.c.active.is_(None)).scalar_subquery()


def beginning(content: ColumnElement[Any], characters: int) -> ColumnElement[Any]:
    """Read no more of a content than is shown, if it is text.

    Structured content begins with a NUL character, where length() ends: it is needed whole to be decoded.

    Args:
        content: The column.
        characters: How many are shown.
    """
    return case((func.length(content) == 0, content), else_=func.substr(content, 1, characters))


def listed(members: ColumnElement[str]) -> Select[Any]:
    """Give the members of a list that is one parameter.

    Args:
        members: A JSON list.
    """
    return select(func.json_each(members).table_valued("value").c.value)


def _named(value: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    return value.in_(listed(bindparam(parameter)))


@functools.cache
def _unindexed_session() -> ColumnElement[bool]:
    config = case((func.json_valid(s.c.model_config) == 1, s.c.model_config), else_="{}")
    delegated = and_(
        func.instr(s.c.model_config, _DELEGATE_MARKER) > 0,  # reading JSON takes many times longer
        func.json_extract(config, f"$.{_DELEGATE_MARKER}").is_not(None),
    )
    return or_(s.c.source.in_(UNINDEXED_SOURCES), func.coalesce(delegated, false()))
