"""Reading messages: decoded, in the order of their ids, with the rows that are visible.

A row is visible if it is live (``active`` 1) or was archived by compaction (``active`` 0, ``compacted`` 1). A rewound
row (0, 0) is not, anywhere, unless it is asked for; nor is one that Hermes marked ``hidden``.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from hermes_store.cells import Problems, read_count, read_json, read_text, read_timestamp
from hermes_store.content import decode
from hermes_store.errors import NotFoundError, no_such_session
from hermes_store.models import HermesSession, Message
from hermes_store.records import MessageInfo
from hermes_store.scope import Scope
from hermes_store.search.rows import MESSAGES, visible


class MessageRepository:
    """Reads messages."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get(self, message_id: int) -> MessageInfo:
        """Read one message, visible or not.

        Args:
            message_id: Its id.

        Raises:
            NotFoundError: There is no such message.
        """
        with self._scope.reading() as session:
            row = session.scalars(select(Message).where(Message.id == message_id)).first()
            if row is None:
                raise NotFoundError(f"there is no message {message_id}")
            return to_record(row)

    def list(
        self, session_id: str, *, include_inactive: bool = False, limit: int | None = None, offset: int = 0
    ) -> list[MessageInfo]:
        """Read a session's live messages, oldest first.

        Args:
            session_id: The session.
            include_inactive: Also rows that compaction archived and rows that were rewound.
            limit: At most so many: the latest ones.
            offset: Leave out so many of the latest ones first.

        Raises:
            NotFoundError: There is no such session.
            ValueError: Limit or offset is negative.
        """
        for name, value in (("limit", limit), ("offset", offset)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative")
        wanted = select(Message).where(Message.session_id == session_id)
        if not include_inactive:
            wanted = wanted.where(Message.active == 1, visible(MESSAGES, include_inactive=False))
        with self._scope.reading() as session:
            _require_session(session, session_id)
            # The latest N are found from the end, then turned round.
            rows = session.scalars(wanted.order_by(Message.id.desc()).limit(limit).offset(offset or None)).all()
            return [to_record(row) for row in reversed(rows)]


def to_record(row: Message) -> MessageInfo:
    """Turn a row into a record; never fails.

    Args:
        row: The row.
    """
    problems = Problems()
    content = decode(row.content)
    if content.problem:
        problems.add("content", content.problem)
    return MessageInfo(
        id=row.id,
        session_id=str(row.session_id),
        role=read_text(row.role, "role", problems),
        content=content.value,
        text=content.text,
        tool_name=read_text(row.tool_name, "tool_name", problems),
        tool_calls=read_json(row.tool_calls, "tool_calls", problems),
        tool_call_id=read_text(row.tool_call_id, "tool_call_id", problems),
        timestamp=read_timestamp(row.timestamp, "timestamp", problems),
        token_count=read_count(row.token_count, "token_count", problems),
        finish_reason=read_text(row.finish_reason, "finish_reason", problems),
        reasoning=read_text(row.reasoning, "reasoning", problems),
        active=row.active == 1,
        compacted=row.compacted == 1,
        display_kind=read_text(row.display_kind, "display_kind", problems),
        message_uid=read_text(row.message_uid, "message_uid", problems),
        problems=problems.as_tuple(),
    )


def _require_session(session: Session, session_id: str) -> None:
    if session.scalar(select(HermesSession.id).where(HermesSession.id == session_id)) is None:
        raise no_such_session(session_id)
