"""A session's transcript as it is written: rows and counters in one transaction, and nobody's work overwritten.

Statements are made once; the functions below run them on a session that holds the write lock. What is counted is always
the same: ``message_count`` is the number of a session's live rows, ``tool_call_count`` that of the calls in them.
"""

from __future__ import annotations

import functools
import json
import logging
import operator
from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    column,
    func,
    insert,
    select,
    table,
    update,
)
from sqlalchemy.orm import Session

from hermes_store.edges import LINEAGE
from hermes_store.errors import LockHeldError, LockLostError, SessionContinuedError, no_such_session
from hermes_store.locks import LeaseRepository
from hermes_store.message_rows import NewMessage
from hermes_store.models import CompressionLock, SessionTurnLease
from hermes_store.records import LockInfo
from hermes_store.scope import OpenScope
from hermes_store.search.rows import MESSAGES, SESSIONS, listed

log = logging.getLogger("hermes_store.messages")

#: In the live conversation; Hermes takes NULL for 1, and heals it when it opens a file.
LIVE: ColumnElement[bool] = func.coalesce(MESSAGES.c.active, 1) == 1
#: Of the session that is the parameter ``owner``.
OF_SESSION: ColumnElement[bool] = MESSAGES.c.session_id == bindparam("owner")
#: Of the messages that are the parameter ``ids``, a JSON list.
AMONG_IDS: ColumnElement[bool] = MESSAGES.c.id.in_(listed(bindparam("ids", type_=Text)))

#: What columns have that are not given; the others are NULL.
_DEFAULTS = {"observed": 0, "_compressed_summary": 0, "active": 1, "compacted": 0}
#: Parameters of one statement; every SQLite library takes so many.
_PARAMETERS = 999
_SEQUENCE = table("sqlite_sequence", column("name", Text), column("seq", Integer))

# Hermes's own rule for a session to which nothing can be added.
_CONTINUED = and_(SESSIONS.c.ended_at.is_not(None), func.coalesce(SESSIONS.c.end_reason, "") == "compression")
_STATE = select(_CONTINUED).where(SESSIONS.c.id == bindparam("owner"))
_TIP = select(LINEAGE.c.tip_id).where(LINEAGE.c.session_id == bindparam("owner"))
_INSERT = insert(MESSAGES)
_COUNT_UP = (
    update(SESSIONS)
    .where(SESSIONS.c.id == bindparam("owner"), ~_CONTINUED)
    .values(
        message_count=func.coalesce(SESSIONS.c.message_count, 0) + bindparam("rows"),
        tool_call_count=func.coalesce(SESSIONS.c.tool_call_count, 0) + bindparam("calls"),
    )
)
# The highest id ever given, also to a row that is gone: what AUTOINCREMENT goes by.
_LAST_ID = select(
    func.max(
        func.coalesce(select(func.max(MESSAGES.c.id)).scalar_subquery(), 0),
        func.coalesce(select(_SEQUENCE.c.seq).where(_SEQUENCE.c.name == "messages").limit(1).scalar_subquery(), 0),
    )
)


def call_count(tool_calls: ColumnElement[Any]) -> ColumnElement[int]:
    """Count the calls in a ``tool_calls`` column: a list's members, 1 for an object, 0 for what is broken.

    Args:
        tool_calls: The column.
    """
    # CASE around CASE: SQLite may evaluate what AND rules out, and its JSON functions fail on broken text.
    readable = case((func.typeof(tool_calls) == "text", func.json_valid(tool_calls)), else_=0) == 1
    kind = case((readable, func.json_type(tool_calls)))
    length = case((readable, func.json_array_length(tool_calls)), else_=0)
    return case((kind == "array", length), (and_(kind == "object", tool_calls != "{}"), 1), else_=0)


def _recounting() -> Update:
    live = and_(OF_SESSION, LIVE)
    calls = select(func.coalesce(func.sum(call_count(MESSAGES.c.tool_calls)), 0)).where(
        live, MESSAGES.c.tool_calls.is_not(None)
    )
    return (
        update(SESSIONS)
        .where(SESSIONS.c.id == bindparam("owner"))
        .values(
            message_count=select(func.count()).select_from(MESSAGES).where(live).scalar_subquery(),
            tool_call_count=calls.scalar_subquery(),
        )
    )


_RECOUNT = _recounting()
_SET_FLAGS = (
    update(MESSAGES).where(AMONG_IDS).values(active=bindparam("is_active"), compacted=bindparam("is_compacted"))
)


def append_rows(session: Session, session_id: str, messages: Sequence[NewMessage]) -> list[int]:
    """Append messages to an open session, and count them.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        messages: The messages; their order is that of their ids.

    Returns:
        The ids.

    Raises:
        NotFoundError: There is no such session.
        SessionContinuedError: It ended by compression.
    """
    session.flush()
    calls = sum(message.calls for message in messages)
    if not run(session, _COUNT_UP, owner=session_id, rows=len(messages), calls=calls):
        require_open(session, session_id)  # says why
    return insert_rows(session, session_id, messages)


def insert_rows(session: Session, session_id: str, messages: Sequence[NewMessage], **state: Sequence[int]) -> list[int]:
    """Write new rows, and leave the counting to the caller.

    Args:
        session: A session that holds the write lock.
        session_id: The session they belong to.
        messages: The messages; their order is that of their ids.
        state: ``active`` and ``compacted`` of each, when they are not simply live.

    Returns:
        The ids.
    """
    connection = session.connection()
    rows = [_stored(session_id, message.values) for message in messages]
    for name, values in state.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    if len(rows) == 1:
        ids = [int(cast("Any", connection.execute(_INSERT, rows[0])).inserted_primary_key[0])]
    elif rows:
        # Ids given beforehand: all rows go in one statement, and their place in the display needs no second write.
        first = connection.execute(_LAST_ID).scalar_one() + 1
        ids = list(range(first, first + len(rows)))
        for id_, row in zip(ids, rows, strict=True):
            row["id"] = row["display_order"] = id_
        _insert_all(connection, rows)
    else:
        ids = []
    replaced = sum(message.replaced for message in messages)
    if replaced:
        log.warning("%d characters that UTF-8 cannot hold were replaced in messages of %s", replaced, session_id)
    return ids


def recount(session: Session, session_id: str) -> None:
    """Count a session's live rows and their calls anew.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
    """
    run(session, _RECOUNT, owner=session_id)
    session.expire_all()  # what the application has loaded may have changed under it


def set_flags(session: Session, ids: Collection[int], *, active: int, compacted: int) -> None:
    """Say of rows what became of them.

    Args:
        session: A session that holds the write lock.
        ids: The rows.
        active: Whether they are in the live conversation.
        compacted: Whether compaction archived them.
    """
    if ids:
        run(session, _SET_FLAGS, ids=json.dumps(list(ids)), is_active=active, is_compacted=compacted)


def require_session(session: Session, session_id: str) -> bool:
    """Make sure that a session is there.

    Args:
        session: Where to look.
        session_id: The session.

    Returns:
        Whether nothing can be added to it, because it ended by compression.

    Raises:
        NotFoundError: There is no such session.
    """
    continued = session.execute(_STATE, {"owner": session_id}).scalar()
    if continued is None:
        raise no_such_session(session_id)
    return bool(continued)


def require_open(session: Session, session_id: str) -> None:
    """Make sure that a session is there, and that its conversation has not moved on.

    Args:
        session: Where to look.
        session_id: The session.

    Raises:
        NotFoundError: There is no such session.
        SessionContinuedError: It ended by compression; the error names where its conversation goes on.
    """
    if not require_session(session, session_id):
        return
    tip = str(session.execute(_TIP, {"owner": session_id}).scalar())
    rest = f"its conversation goes on in {tip}: write there" if tip != session_id else "reopen it to go on with it"
    raise SessionContinuedError(f"session {session_id} ended by compression; {rest}", session_id=session_id, tip=tip)


def require_unlocked(session: Session, session_id: str, holder: str | None) -> None:
    """Make sure that nobody else works on a transcript while parts of it are taken away or changed.

    A compressor would bring back what it has read already, and a turn under way would answer what is gone.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        holder: Who asks, if they hold the session's compression lock or its conversation's turn.

    Raises:
        LockHeldError: Somebody else holds one of the two.
    """
    for lock_table, what in ((CompressionLock, "is being compressed"), (SessionTurnLease, "has a turn under way")):
        lock = LeaseRepository(OpenScope(session), lock_table).get(session_id)
        if lock is not None and not lock.is_free and lock.holder != holder:
            raise LockHeldError(
                f"session {session_id} {what} (by {lock.holder}, for {lock.age:.0f} s); try again when it is done, "
                "or give the holder if it is you",
                session_id=session_id, holder=lock.holder, age=lock.age, left=lock.left, expires=lock.expires or 0.0,
            )  # fmt: skip


def require_compressor(session: Session, session_id: str, holder: str | None) -> None:
    """Make sure that a compression may be committed.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        holder: Who holds its compression lock; None to do without, if nobody else has it.

    Raises:
        LockLostError: The holder does not hold it, or not any more.
        LockHeldError: There is none, and somebody else holds it.
    """
    lock: LockInfo | None = LeaseRepository(OpenScope(session), CompressionLock).get(session_id)
    held = lock is not None and not lock.is_free
    if holder is None:
        if held:
            require_unlocked(session, session_id, None)
    elif not held or lock is None or lock.holder != holder:
        taken_by = lock.holder if lock is not None and held and lock.holder != holder else None
        raise LockLostError(
            f"the compression lock of {session_id} is not held by {holder} any more; nothing was written",
            session_id=session_id, holder=holder, taken_by=taken_by,
        )  # fmt: skip


def run(session: Session, statement: Any, **parameters: Any) -> int:
    """Run a statement that changes rows.

    Args:
        session: A session that holds the write lock.
        statement: The statement.
        parameters: Its parameters.

    Returns:
        How many rows it changed.
    """
    return cast("CursorResult[Any]", session.connection().execute(statement, parameters)).rowcount


def rows_of(session: Session, statement: Select[Any], **parameters: Any) -> Sequence[Any]:
    """Read rows with what the transaction has written so far.

    Args:
        session: Where to read.
        statement: The statement.
        parameters: Its parameters.
    """
    return session.execute(statement, parameters).all()


def _insert_all(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Write many rows with few statements.

    With one statement for each row, the search indexes would write out after each row what they have gathered so far,
    and take four times as long.
    """
    defaults = {name: _DEFAULTS.get(name) for name in rows[0]}
    names = [name for name, default in defaults.items() if any(row[name] != default for row in rows)]
    take = operator.itemgetter(*names)
    at_once = max(1, _PARAMETERS // len(names))
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        values = tuple(value for row in some for value in take(row))
        connection.exec_driver_sql(_insert_text(tuple(names), len(some)), values)


@functools.lru_cache(maxsize=8)
def _insert_text(names: tuple[str, ...], count: int) -> str:
    row = f"({', '.join('?' * len(names))})"
    return f"INSERT INTO messages ({', '.join(names)}) VALUES {', '.join([row] * count)}"


def _stored(session_id: str, values: dict[str, Any]) -> dict[str, Any]:
    row = values.copy()
    row["_compressed_summary"] = row.pop("compressed_summary")  # the only column whose attribute is called otherwise
    row["session_id"] = session_id
    return row
