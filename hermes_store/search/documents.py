"""Messages as search reads them: what is proposed, and the texts it is judged by.

`proposed` gives the messages of a proposal in their final order, as they are asked for. A `Document` holds the
searchable text of layout 3, whatever layout the file has: of a tool result its first 8,192 characters, of a message
with structured content or escaped tool calls the decoded text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, case, func, literal_column, select

from hermes_store.content import JSON_ESCAPE, Decoded, decode, decode_tool_calls, read_text
from hermes_store.search import rows, sets
from hermes_store.search.filters import FilterForm
from hermes_store.search.plan import Plan, Proposal
from hermes_store.search.records import UNREADABLE_TIME, usable_time
from hermes_store.search.rows import SOURCE, m, s
from hermes_store.search.verify import Field
from hermes_store.sqlite.decoded import TOOL_LIMIT

#: Messages read for those that were dropped from a page.
_SPARE = 12
#: Candidates of the first look where restrictions may drop most of them, and how many times more each next look takes.
_FIRST_PICKY, _GROWTH = 500, 16
#: Messages read with one statement.
_LARGEST_READ = 500


@dataclass(frozen=True, slots=True)
class Document:
    """A proposed message with its searchable texts.

    Attributes:
        row: The stored values.
        content: Its content, decoded and cut as the index cuts it.
        fields: The texts by which it is judged.
        score: Its relevance, None when it was found without one.
    """

    row: Row[Any]
    content: Decoded
    fields: tuple[Field, ...] = field(repr=False)
    score: float | None = None

    def shown_fields(self) -> Iterator[Field]:
        """Give the texts a snippet may come from, the most telling first: tool calls in words rather than JSON."""
        content, *others = self.fields
        yield content
        calls = self.row.tool_calls
        if calls is not None and JSON_ESCAPE not in str(calls):
            yield Field(decode_tool_calls(calls).text, self.fields[-1].substring)
        yield from others

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read as it was meant."""
        time_problem = None if usable_time(self.row.timestamp) is not None else UNREADABLE_TIME
        return tuple(problem for problem in (self.content.problem, time_problem) if problem)


def proposed(connection: Connection, proposal: Proposal, plan: Plan, *, ranked: bool) -> Iterator[Document]:
    """Give the messages of a proposal that the restrictions allow, in their final order.

    Args:
        connection: The connection.
        proposal: What to run.
        plan: The plan it is from.
        ranked: True for a proposal with scores; the order among equal scores is made here.

    Yields:
        The messages, read as they are asked for. Ids that do not exist (an index may know more than there is) are
        left out.
    """
    read = _Reader(connection, proposal, plan)
    needed = plan.filters.offset + plan.filters.limit
    if ranked:
        picky = bool(proposal.told) or plan.filters.form.selective
        yield from _best_first(connection, proposal, read, needed, picky=picky)
        return
    with connection.execute(proposal.statement, proposal.parameters) as found:
        sizes = _sizes(needed)
        while batch := [row[0] for row in found.fetchmany(next(sizes))]:
            documents = read(batch)
            yield from (documents[id_] for id_ in batch if id_ in documents)


def _sizes(needed: int) -> Iterator[int]:
    """How many messages to read at once: those of the page and a few for those that are dropped, then more."""
    yield min(needed + needed // 8 + 2, _LARGEST_READ)
    size = _SPARE
    while True:
        yield size
        size = min(size * 2, _LARGEST_READ)


def _best_first(
    connection: Connection, proposal: Proposal, read: _Reader, needed: int, *, picky: bool
) -> Iterator[Document]:
    """Take the best few, then many more if they do not suffice.

    Sorting all that an index finds costs far more than keeping the best, and hardly any page needs more. An index
    leaves equal scores in any order, so what is given ends where the score changes. Where most of what is found may not
    be allowed (``picky``), many more are taken, and told apart by id before any of them is read.
    """
    seen: set[int] = set()
    take = max(needed + needed // 4 + _SPARE, _FIRST_PICKY if picky else 0)
    while True:
        parameters = {**proposal.parameters, "take": take}
        found = connection.execute(proposal.statement, parameters).all()
        whole = found if len(found) < take else [row for row in found if row.rank != found[-1].rank]
        fresh = [row for row in whole if row.rowid not in seen]
        seen.update(row.rowid for row in fresh)
        if picky:
            allowed = read.allowed([row.rowid for row in fresh])
            fresh = [row for row in fresh if row.rowid in allowed]
        yield from _in_total_order(fresh, read, needed)
        if len(found) < take:
            return
        take *= _GROWTH


def _in_total_order(found: Sequence[Row[Any]], read: _Reader, needed: int) -> Iterator[Document]:
    at, sizes = 0, _sizes(needed)
    while at < len(found):
        end = min(at + next(sizes), len(found))
        while end < len(found) and found[end].rank == found[end - 1].rank:
            end += 1
        scores = {row.rowid: row.rank for row in found[at:end]}
        documents = list(read(list(scores), scores).values())
        documents.sort(key=lambda document: (_time_order(document.row.timestamp), document.row.id), reverse=True)
        documents.sort(key=lambda document: document.score or 0.0)
        yield from documents
        at = end


class _Reader:
    """Reads messages by id, as one plan needs them."""

    def __init__(self, connection: Connection, proposal: Proposal, plan: Plan) -> None:
        self._connection = connection
        self._form = plan.filters.form
        self._covered = plan.covered
        self._told = proposal.told
        self._parameters = dict(proposal.parameters)

    def __call__(self, ids: Sequence[int], scores: dict[int, float] | None = None) -> dict[int, Document]:
        """Read messages with one statement.

        Args:
            ids: Message ids.
            scores: Their relevance.

        Returns:
            Message id to its document, for those that exist and are allowed.
        """
        found = self._connection.execute(read_statement(self._form, covered=self._covered), self._of(ids)).all()
        whole_tools = self._form.tool_role
        scores = scores or {}
        return {row.id: _document(row, scores.get(row.id), whole_tools=whole_tools) for row in found}

    def allowed(self, ids: Sequence[int]) -> set[int]:
        """Tell which messages are allowed, and in the sets that no index told of.

        Args:
            ids: Message ids.
        """
        statement = allowed_statement(self._form, self._told, covered=self._covered)
        return set(self._connection.execute(statement, self._of(ids)).scalars())

    def _of(self, ids: Sequence[int]) -> dict[str, object]:
        self._parameters["ids"] = json.dumps(list(ids))
        return self._parameters


@functools.lru_cache(maxsize=256)
def allowed_statement(form: FilterForm, told: tuple[sets.MessageSet, ...], *, covered: bool) -> Select[Any]:
    """Ask which messages are allowed, of those that are the parameter ``ids``, a JSON list.

    Args:
        form: Which restrictions there are.
        told: Sets in which they must be.
        covered: Only messages that substring search covers.
    """
    tests = _among_ids(form, covered=covered)
    return select(m.c.id).select_from(SOURCE).where(*tests, *map(sets.condition, told))


@functools.lru_cache(maxsize=256)
def read_statement(form: FilterForm, *, covered: bool) -> Select[Any]:
    """Ask for messages by id, which are the parameter ``ids``, a JSON list.

    Args:
        form: Which restrictions there are; those on tool results decide how much of them counts.
        covered: Only messages that substring search covers.
    """
    content: ColumnElement[Any] = m.c.content
    if not form.tool_role:
        # length() ends at a NUL character: structured content passes whole, and is cut when it is decoded.
        too_long = (m.c.role == "tool") & (func.length(content) > TOOL_LIMIT)
        content = case((too_long, func.substr(content, 1, TOOL_LIMIT)), else_=content)
    is_covered = literal_column("1") if covered else case((rows.covered(form), 1), else_=0)
    return (
        select(
            m.c.id,
            m.c.session_id,
            m.c.role,
            content.label("content"),
            m.c.tool_name,
            m.c.tool_calls,
            m.c.timestamp,
            s.c.source,
            s.c.model,
            s.c.started_at,
            is_covered.label("covered"),
        )
        .select_from(SOURCE)
        .where(*_among_ids(form, covered=covered))
    )


def _among_ids(form: FilterForm, *, covered: bool) -> list[ColumnElement[bool]]:
    tests = [m.c.id.in_(rows.listed(bindparam("ids"))), rows.allowed(form)]
    return [*tests, rows.covered(form)] if covered else tests


def _document(row: Row[Any], score: float | None, *, whole_tools: bool) -> Document:
    covered = bool(row.covered)
    content = decode(row.content)
    if row.role == "tool" and not whole_tools:
        content = content._replace(text=content.text[:TOOL_LIMIT])
    # Layout 3 keeps tool calls out of the substring index, but for those that only decoding can read.
    escaped = isinstance(row.tool_calls, str) and JSON_ESCAPE in row.tool_calls
    calls = decode_tool_calls(row.tool_calls).text if escaped else read_text(row.tool_calls) or ""
    fields = (
        Field(content.text, covered),
        Field(read_text(row.tool_name) or "", covered),
        Field(calls, covered and escaped),
    )
    return Document(row, content, fields, score)


def _time_order(value: object) -> tuple[int, Any]:
    """Order stored times as SQLite does: NULL, numbers, text, bytes."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return (2, value.encode(errors="replace")) if isinstance(value, str) else (3, value)
