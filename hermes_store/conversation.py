"""A session's live conversation as model providers take it, and with what it continues.

A compression hands the last messages on to the child session, so that read together they would be there twice. A copy
is told by its uid, or, where releases without uids wrote it, by its time, speaker and content; it stands where the
newest of them stands. A prompt that was merely asked again after the hand-over stays where it was asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from hermes_store.message_reading import rows, to_turn
from hermes_store.models import Message
from hermes_store.search.rows import MESSAGES
from hermes_store.transcript import LIVE, OF_SESSION, require_session, rows_of
from hermes_store.walks import IDS, among, continued, given, upward

_LIVE_ROWS = rows().where(OF_SESSION, LIVE).order_by(Message.id)
_CHAIN_ROWS = rows().where(among(MESSAGES.c.session_id, IDS), LIVE).order_by(Message.id)


def conversation(session: Session, session_id: str, *, include_ancestors: bool) -> list[dict[str, Any]]:
    """Read the live messages of a session, display rows that are hidden included: the model sees them.

    Args:
        session: Where to read.
        session_id: The session.
        include_ancestors: Also the sessions that it continues.

    Raises:
        NotFoundError: There is no such session.
    """
    require_session(session, session_id)
    if not include_ancestors:
        return [to_turn(row) for row in rows_of(session, _LIVE_ROWS, owner=session_id)]
    line = upward(session_id, continued(session, [session_id]))[::-1]
    place = {one: index for index, one in enumerate(line)}
    found = rows_of(session, _CHAIN_ROWS, **given(line))
    in_order = sorted(found, key=lambda row: (place[row.session_id], row.id))
    return [to_turn(row) for row in _without_replays(_without_copies(in_order))]


def _without_copies(in_order: Sequence[Any]) -> list[Any]:
    last: dict[Any, Any] = {}
    for row in in_order:
        for key in _keys(row):
            last[key] = row
    kept = []
    for row in in_order:
        copies = [last[key] for key in _keys(row)]
        if all(copy is row or copy.session_id == row.session_id for copy in copies):
            kept.append(row)
    return kept


def _keys(row: Any) -> list[Any]:
    keys: list[Any] = [(row.timestamp, row.role, row.content, row.tool_calls, row.tool_call_id)]
    return [*keys, row.message_uid] if row.message_uid else keys


def _without_replays(in_order: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    asked: dict[Any, str] = {}  # what the user said since the last answer, and in which session
    for row in in_order:
        if row.role == "user" and row.content:
            if asked.setdefault(row.content, row.session_id) != row.session_id:
                continue
        elif row.role == "assistant" and (row.content or row.tool_calls):
            asked.clear()
        kept.append(row)
    return kept
