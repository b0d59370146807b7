"""Messages as search reads them: what is proposed, and the texts it is judged by.

`proposed` gives the ids of a proposal in their final order, lazily; `read` gives the messages themselves. A `Document`
holds the searchable text of layout 3, whatever layout the file has: of a tool result its first 8,192 characters, of a
message with structured content or escaped tool calls the decoded text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, Row, case, func, select

from hermes_store.content import Decoded, decode, decode_tool_calls
from hermes_store.search import rows
from hermes_store.search.filters import Filters
from hermes_store.search.plan import Proposal
from hermes_store.search.records import UNREADABLE_TIME, usable_time
from hermes_store.search.rows import SOURCE, TOOL_LIMIT, m, s
from hermes_store.search.verify import Field

_FIRST_BATCH = 64
_LARGEST_BATCH = 4096
_JSON_ESCAPE = "\\u"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed message.

    Attributes:
        id: Message id.
        score: Its relevance, None when it was found without one.
    """

    id: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Document:
    """A message with its searchable texts.

    Attributes:
        row: The stored values.
        content: Its content, decoded and cut as the index cuts it.
        fields: The texts by which it is judged.
    """

    row: Row[Any]
    content: Decoded
    fields: tuple[Field, ...] = field(repr=False)

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        """The texts a snippet may come from, the most telling first: tool calls in words rather than JSON."""
        calls = self.row.tool_calls
        if calls is None or _JSON_ESCAPE in str(calls):
            return self.fields
        return self.fields[0], Field(decode_tool_calls(calls).text, self.fields[-1].substring), *self.fields[1:]

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read as it was meant."""
        time_problem = None if usable_time(self.row.timestamp) is not None else UNREADABLE_TIME
        return tuple(problem for problem in (self.content.problem, time_problem) if problem)


def proposed(connection: Connection, proposal: Proposal, *, ranked: bool) -> Iterator[Candidate]:
    """Give the messages of a proposal, in their final order.

    Args:
        connection: The connection.
        proposal: What to run.
        ranked: True for ids with scores; the order among equal scores is made here.

    Yields:
        The candidates, as they are asked for.
    """
    with connection.execute(proposal.statement) as found:
        if ranked:
            yield from _best_first(connection, proposal, found)
        else:
            for batch in found.partitions(_FIRST_BATCH):
                yield from (Candidate(row[0], None) for row in batch)


def read(connection: Connection, ids: Sequence[int], filters: Filters) -> dict[int, Document]:
    """Read messages by id, with one statement.

    Args:
        connection: The connection.
        ids: Message ids; those that do not exist (an index may know more than there is) are missing in the answer.
        filters: What the caller asked for; it decides how much of a tool result counts.

    Returns:
        Message id to its document.
    """
    whole_tools = filters.roles is not None and "tool" in filters.roles
    content: ColumnElement[Any] = m.c.content
    if not whole_tools:
        # length() ends at a NUL character: structured content passes whole, and is cut when it is decoded.
        too_long = (m.c.role == "tool") & (func.length(content) > TOOL_LIMIT)
        content = case((too_long, func.substr(content, 1, TOOL_LIMIT)), else_=content)
    statement = (
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
            case((rows.covered(filters), 1), else_=0).label("covered"),
        )
        .select_from(SOURCE)
        .where(rows.among(m.c.id, ids))
    )
    return {row.id: _document(row, whole_tools=whole_tools) for row in connection.execute(statement)}


def _document(row: Any, *, whole_tools: bool) -> Document:
    covered = bool(row.covered)
    content = decode(row.content)
    if row.role == "tool" and not whole_tools:
        content = replace(content, text=content.text[:TOOL_LIMIT])
    # Layout 3 keeps tool calls out of the substring index, but for those that only decoding can read.
    escaped = isinstance(row.tool_calls, str) and _JSON_ESCAPE in row.tool_calls
    calls = decode_tool_calls(row.tool_calls) if escaped else decode(row.tool_calls)
    fields = (
        Field(content.text, covered),
        Field(decode(row.tool_name).text, covered),
        Field(calls.text, covered and escaped),
    )
    return Document(row, content, fields)


def _best_first(connection: Connection, proposal: Proposal, found: CursorResult[Any]) -> Iterator[Candidate]:
    """An index ranks but leaves equal scores in any order, so a batch ends only where the score changes."""
    size = _FIRST_BATCH
    waiting: list[Row[Any]] = []
    while batch := found.fetchmany(size):
        waiting += batch
        whole = [row for row in waiting if row.rank != waiting[-1].rank]
        waiting = waiting[len(whole) :]
        yield from _admitted(connection, proposal, whole)
        size = min(size * 2, _LARGEST_BATCH)
    yield from _admitted(connection, proposal, waiting)


def _admitted(connection: Connection, proposal: Proposal, found: list[Row[Any]]) -> Iterator[Candidate]:
    """Keep the messages that may be shown, and put them into the total order."""
    if not found:
        return
    statement = (
        select(m.c.id, m.c.timestamp)
        .select_from(SOURCE)
        .where(rows.among(m.c.id, [row.rowid for row in found]), proposal.condition)
    )
    times = {row.id: row.timestamp for row in connection.execute(statement)}
    admitted = [row for row in found if row.rowid in times]
    admitted.sort(key=lambda row: (_time_order(times[row.rowid]), row.rowid), reverse=True)
    admitted.sort(key=lambda row: row.rank)
    yield from (Candidate(row.rowid, row.rank) for row in admitted)


def _time_order(value: object) -> tuple[int, Any]:
    """Order stored times as SQLite does: NULL, numbers, text, bytes."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return (2, value.encode(errors="replace")) if isinstance(value, str) else (3, value)
