"""Changing what was said: rewinding and restoring, editing, deleting.

Nobody else may work on the session meanwhile: a compressor would bring back what it has read already, and a turn under
way would answer what is gone. Copies that compaction made are one message: a restore brings back one of them at most,
and a deletion takes all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session

from hermes_store.errors import ConflictError, InvalidMessageError, NotFoundError
from hermes_store.message_reading import rows, to_record
from hermes_store.models import Message
from hermes_store.records import MessageInfo, Rewind
from hermes_store.search.rows import MESSAGES, SESSIONS, listed
from hermes_store.transcript import (
    AMONG_IDS,
    LIVE,
    OF_SESSION,
    recount,
    require_open,
    require_session,
    require_unlocked,
    rows_of,
    run,
    set_flags,
)

_BY_ID = rows().where(Message.id == bindparam("message"))
_LIVE_COPY = (
    rows().where(OF_SESSION, LIVE, Message.message_uid == bindparam("uid")).order_by(Message.id.desc()).limit(1)
)
_LIVE_FROM = select(MESSAGES.c.id).where(OF_SESSION, LIVE, MESSAGES.c.id >= bindparam("first")).order_by(MESSAGES.c.id)
_LAST_LIVE = select(func.max(MESSAGES.c.id)).where(OF_SESSION, LIVE)
_FATES = (
    select(MESSAGES.c.id, MESSAGES.c.message_uid, func.coalesce(MESSAGES.c.active, 1) + MESSAGES.c.compacted)
    .where(OF_SESSION)
    .order_by(MESSAGES.c.id.desc())
)
_COUNT_REWIND = (
    update(SESSIONS)
    .where(SESSIONS.c.id == bindparam("owner"))
    .values(rewind_count=func.coalesce(SESSIONS.c.rewind_count, 0) + 1)
)
_named = MESSAGES.alias("named")
_UIDS = select(_named.c.message_uid).where(
    _named.c.id.in_(listed(bindparam("ids"))), _named.c.session_id == bindparam("owner")
)
_WITH_COPIES = select(MESSAGES.c.id).where(OF_SESSION, or_(AMONG_IDS, MESSAGES.c.message_uid.in_(_UIDS)))
_DELETE = delete(MESSAGES).where(AMONG_IDS)
_CHANGE = update(MESSAGES).where(MESSAGES.c.id == bindparam("this"))


def find(session: Session, message_id: int) -> Any:
    """Read a row, whatever became of it.

    Args:
        session: Where to read.
        message_id: Its id.

    Raises:
        NotFoundError: There is no such message.
    """
    row = session.execute(_BY_ID, {"message": message_id}).first()
    if row is None:
        raise NotFoundError(f"there is no message {message_id}")
    return row


def rewind(session: Session, session_id: str, message_id: int, *, holder: str | None) -> Rewind:
    """Take back a message of the user and all that came after it; see `MessageRepository.rewind`.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        message_id: The user's message.
        holder: Who asks, if they hold a lock of it.
    """
    session.flush()
    require_open(session, session_id)
    target = _find_in(session, session_id, message_id)
    if target.role != "user":
        raise InvalidMessageError(f"message {message_id} is not the user's; rewind to one that is")
    if target.active != 1:
        copy = session.execute(_LIVE_COPY, {"owner": session_id, "uid": target.message_uid}).first()
        if copy is None and target.compacted == 1:
            raise ConflictError(f"message {message_id} was compacted; rewind to one after the summary")
        target = copy or target
    require_unlocked(session, session_id, holder)
    taken = [row.id for row in rows_of(session, _LIVE_FROM, owner=session_id, first=target.id)]
    set_flags(session, taken, active=0, compacted=0)
    run(session, _COUNT_REWIND, owner=session_id)
    recount(session, session_id)
    head = session.execute(_LAST_LIVE, {"owner": session_id}).scalar()
    return Rewind(session_id=session_id, message=to_record(find(session, target.id)), ids=tuple(taken), head_id=head)


def restore(session: Session, session_id: str, first: int, *, holder: str | None) -> tuple[int, ...]:
    """Make rewound messages live again; see `MessageRepository.restore`.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        first: The first message to bring back.
        holder: Who asks, if they hold a lock of it.
    """
    session.flush()
    require_open(session, session_id)
    require_unlocked(session, session_id, holder)
    fates = rows_of(session, _FATES, owner=session_id)
    # A message that lives on or is archived elsewhere in the session is there already; of several that were rewound,
    # the last one stands for it.
    there = {uid for _, uid, kept in fates if kept and uid}
    back = []
    for id_, uid, kept in fates:
        if not kept and id_ >= first and uid not in there:
            back.append(id_)
        if uid:
            there.add(uid)
    back.reverse()
    set_flags(session, back, active=1, compacted=0)
    recount(session, session_id)
    return tuple(back)


def edit(
    session: Session, session_id: str, message_id: int, values: Mapping[str, Any], *, holder: str | None
) -> MessageInfo:
    """Change a message in its place; see `MessageRepository.edit`.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        message_id: The message.
        values: New values of columns, by their attributes, as they are stored.
        holder: Who asks, if they hold a lock of it.
    """
    session.flush()
    _find_in(session, session_id, message_id)
    require_unlocked(session, session_id, holder)
    if values:
        columns = {Message.__mapper__.columns[name].name: value for name, value in values.items()}
        run(session, _CHANGE.values(**columns), this=message_id)
    recount(session, session_id)
    return to_record(find(session, message_id))


def remove(session: Session, session_id: str, message_ids: Collection[int], *, holder: str | None) -> int:
    """Delete messages with their copies; see `MessageRepository.delete`.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        message_ids: The messages.
        holder: Who asks, if they hold a lock of it.
    """
    session.flush()
    require_session(session, session_id)
    require_unlocked(session, session_id, holder)
    doomed = {row.id for row in rows_of(session, _WITH_COPIES, owner=session_id, ids=json.dumps(list(message_ids)))}
    if lost := set(message_ids) - doomed:
        raise NotFoundError(f"session {session_id!r} has no message {min(lost)}")
    gone = run(session, _DELETE, ids=json.dumps(sorted(doomed)))
    recount(session, session_id)
    return gone


def _find_in(session: Session, session_id: str, message_id: int) -> Any:
    require_session(session, session_id)
    row = session.execute(_BY_ID, {"message": message_id}).first()
    if row is None or row.session_id != session_id:
        raise NotFoundError(f"session {session_id!r} has no message {message_id!r}")
    return row
