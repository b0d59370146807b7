"""A message with those around it, and how its session began and ended.

What may be shown is one predicate, that of search; order is that of ids, here as everywhere. A message that compaction
copied is looked for where its copy lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Select, bindparam, or_, select
from sqlalchemy.orm import Session

from hermes_store.errors import NotFoundError
from hermes_store.message_reading import rows, to_record
from hermes_store.models import Message
from hermes_store.records import MessageInfo, MessageWindow
from hermes_store.search.rows import MESSAGES, visible
from hermes_store.transcript import LIVE, OF_SESSION, rows_of

#: Rows read at once while looking for messages that say something.
_BATCH = 16

_SHOWN = visible(MESSAGES, include_inactive=False)
_THIS: Select[Any] = select(Message.id).where(OF_SESSION, _SHOWN, Message.id == bindparam("anchor"))
_asked = MESSAGES.alias("asked")
_COPY = (
    select(Message.id)
    .where(
        OF_SESSION,
        LIVE,
        _SHOWN,
        Message.message_uid
        == select(_asked.c.message_uid)
        .where(_asked.c.id == bindparam("anchor"), _asked.c.session_id == bindparam("owner"))
        .scalar_subquery(),
    )
    .order_by(Message.id.desc())
    .limit(1)
)
_UP_TO = (
    rows()
    .where(OF_SESSION, _SHOWN, Message.id <= bindparam("anchor"))
    .order_by(Message.id.desc())
    .limit(bindparam("n"))
)
_AFTER = rows().where(OF_SESSION, _SHOWN, Message.id > bindparam("anchor")).order_by(Message.id).limit(bindparam("n"))


def around(session: Session, session_id: str, message_id: int, window: int) -> MessageWindow:
    """Read a message with its neighbours.

    Args:
        session: Where to read.
        session_id: The session.
        message_id: The message.
        window: How many on each side.

    Raises:
        NotFoundError: The session has no such message that may be shown.
    """
    anchor = locate(session, session_id, message_id)
    earlier = rows_of(session, _UP_TO, owner=session_id, anchor=anchor, n=window + 1)
    later = rows_of(session, _AFTER, owner=session_id, anchor=anchor, n=window)
    return MessageWindow(
        session_id=session_id,
        anchor_id=anchor,
        messages=tuple(to_record(row) for row in (*reversed(earlier), *later)),
        before=len(earlier) - 1,
        after=len(later),
    )


def anchored(
    session: Session, session_id: str, message_id: int, window: int, *, bookend: int, roles: Sequence[str] | None
) -> MessageWindow:
    """Read a message with its neighbours of some roles, and with the session's beginning and end.

    Args:
        session: Where to read.
        session_id: The session.
        message_id: The message; it is given whatever its role.
        window: How many on each side, of all roles.
        bookend: How many from the beginning and from the end.
        roles: The roles; None for all.

    Raises:
        NotFoundError: The session has no such message that may be shown.
    """
    found = around(session, session_id, message_id, window)
    first, last = found.messages[0].id, found.messages[-1].id
    kept = (one for one in found.messages if one.id == found.anchor_id or roles is None or one.role in roles)
    return MessageWindow(
        session_id=session_id,
        anchor_id=found.anchor_id,
        messages=tuple(kept),
        before=found.before,
        after=found.after,
        opening=tuple(_bookend(session, session_id, bookend, roles, before=first)),
        closing=tuple(reversed(list(_bookend(session, session_id, bookend, roles, after=last)))),
    )


def locate(session: Session, session_id: str, message_id: int) -> int:
    """Find where a message is shown: itself, or the live copy that compaction made of it.

    Args:
        session: Where to look.
        session_id: The session.
        message_id: The message.

    Raises:
        NotFoundError: The session has no such message that may be shown.
    """
    for statement in (_THIS, _COPY):
        found = session.execute(statement, {"owner": session_id, "anchor": message_id}).scalar()
        if found is not None:
            return int(found)
    raise NotFoundError(f"session {session_id!r} has no message {message_id!r} that is shown; it may have been rewound")


def _bookend(
    session: Session,
    session_id: str,
    wanted: int,
    roles: Sequence[str] | None,
    *,
    before: int | None = None,
    after: int | None = None,
) -> Iterator[MessageInfo]:
    """The outermost messages that say something: from the first one on, or from the last one back.

    What compaction wrote is no beginning of a conversation; the message after it is.
    """
    if not wanted:
        return
    statement = rows().where(
        Message.session_id == session_id, _SHOWN, Message.compressed_summary == 0, Message.content.is_not(None)
    )
    if roles is not None:
        statement = statement.where(or_(*(Message.role == role for role in roles)) if roles else Message.id.is_(None))
    if before is not None:
        statement = statement.where(Message.id < before).order_by(Message.id)
    else:
        statement = statement.where(Message.id > after).order_by(Message.id.desc())
    with session.execute(statement.execution_options(yield_per=_BATCH)) as result:
        yield from _first(wanted, (to_record(row) for row in result))


def _first(wanted: int, records: Iterable[MessageInfo]) -> Iterator[MessageInfo]:
    for record in records:
        if record.text.strip():
            yield record
            wanted -= 1
            if not wanted:
                return
