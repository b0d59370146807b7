"""Putting another transcript in the place of a live one: replacing, compacting in place, going on in a child session.

Nothing is deleted, and each message is to be found exactly once afterwards. What leaves the live conversation is
archived (compaction) or rewound (replacing). What is carried over, or arrived while the summary was being written, gets
a copy that keeps its ``message_uid``; the original is set to rewound, because the copy stands for it.

A compressor reads `watermark` when it begins. Rows above it are those that it has not seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from hermes_store.errors import ConflictError, InvalidMessageError
from hermes_store.message_reading import rows
from hermes_store.message_rows import COLUMNS, NewMessage, new_uid
from hermes_store.models import HermesSession
from hermes_store.records import Replacement
from hermes_store.search.rows import MESSAGES, SESSIONS
from hermes_store.session_rows import make_id, new_row, require_text, store_prompt
from hermes_store.sqlite.views import quoted
from hermes_store.transcript import (
    AMONG_IDS,
    LIVE,
    OF_SESSION,
    insert_rows,
    recount,
    require_compressor,
    require_open,
    require_unlocked,
    rows_of,
    run,
    set_flags,
)

_LIVE_ROWS = (
    select(
        MESSAGES.c.id,
        MESSAGES.c.role,
        MESSAGES.c.content,
        MESSAGES.c.tool_calls,
        MESSAGES.c.tool_call_id,
        MESSAGES.c.timestamp,
        MESSAGES.c.message_uid,
    )
    .where(OF_SESSION, LIVE)
    .order_by(MESSAGES.c.id)
)
_WATERMARK = select(func.coalesce(func.max(MESSAGES.c.id), 0)).where(OF_SESSION, LIVE)
_NEWER = select(MESSAGES.c.id).where(OF_SESSION, MESSAGES.c.id > bindparam("above")).order_by(MESSAGES.c.id)
_FULL_ROWS = rows().where(AMONG_IDS)
_HIGHEST = select(func.coalesce(func.max(MESSAGES.c.id), 0))

#: What a copy gets anew; the rest it takes over, columns that this version does not know included.
_OF_ITS_OWN = frozenset({"id", "session_id", "active", "compacted", "display_order"})
#: What a continuation takes over from the session before it.
_INHERITED = (
    "user_id", "session_key", "chat_id", "chat_type", "thread_id", "display_name", "origin_json", "profile_name",
    "transport_profile", "cwd", "git_branch", "git_repo_root", "tool_names", "pinned", "archived", "auto_archived",
    "hidden",
)  # fmt: skip
_MARKERS = ("_branched_from", "_reset_from", "_delegate_from")


def watermark(session: Session, session_id: str) -> int:
    """Say which live message of a session is the last one.

    Args:
        session: Where to look.
        session_id: The session.

    Returns:
        Its id; 0 when there is none.
    """
    return int(session.execute(_WATERMARK, {"owner": session_id}).scalar_one())


def replace(session: Session, session_id: str, messages: Sequence[NewMessage], *, holder: str | None) -> Replacement:
    """Put other messages in the place of a session's live ones, from where they differ.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        messages: The whole new transcript.
        holder: Who asks, if they hold a lock of it.

    Raises:
        NotFoundError: There is no such session.
        SessionContinuedError: It ended by compression.
        LockHeldError: Somebody else works on it.
    """
    session.flush()
    require_open(session, session_id)
    require_unlocked(session, session_id, holder)
    live = rows_of(session, _LIVE_ROWS, owner=session_id)
    same = 0
    for row, message in zip(live, messages, strict=False):
        if not _says_the_same(row, message):
            break
        same += 1
    kept = tuple(row.id for row in live[:same])
    dropped = tuple(row.id for row in live[same:])
    copies = _find_carried(session, live, messages[same:], stays=kept)
    set_flags(session, dropped, active=0, compacted=0)
    ids = insert_rows(session, session_id, messages[same:])
    recount(session, session_id)
    return Replacement(
        session_id=session_id,
        ids=(*kept, *ids),
        kept=kept,
        dropped=dropped,
        copies={old: ids[place] for old, place in copies.items()},
    )


def archive_and_compact(
    session: Session,
    session_id: str,
    messages: Sequence[NewMessage],
    *,
    above: int | None,
    tail: int,
    holder: str | None,
) -> Replacement:
    """Archive a session's live messages and put a summary in their place.

    Args:
        session: A session that holds the write lock.
        session_id: The session.
        messages: What stands for them.
        above: The watermark; what is above it stays, behind the new messages. None: everything is archived.
        tail: How many of the new messages, at the end, are the last ones that the compressor saw.
        holder: Who holds the compression lock.

    Raises:
        NotFoundError: There is no such session.
        SessionContinuedError: It ended by compression.
        LockLostError: The holder does not hold the lock.
        LockHeldError: Somebody else does.
    """
    session.flush()
    require_open(session, session_id)
    require_compressor(session, session_id, holder)
    live = rows_of(session, _LIVE_ROWS, owner=session_id)
    seen = [row for row in live if above is None or row.id <= above]
    copies = _find_carried(session, live, messages, ends=seen[len(seen) - tail :])
    late = [row.id for row in live if above is not None and row.id > above and row.id not in copies]
    set_flags(session, [*copies, *late], active=0, compacted=0)
    set_flags(session, [row.id for row in seen if row.id not in copies], active=0, compacted=1)
    ids = insert_rows(session, session_id, messages)
    late_ids = _clone(session, session_id, late)
    recount(session, session_id)
    return Replacement(
        session_id=session_id,
        ids=(*ids, *late_ids),
        kept=(),
        dropped=tuple(row.id for row in live),
        copies={old: ids[place] for old, place in copies.items()} | dict(zip(late, late_ids, strict=True)),
    )


def publish_child(
    session: Session,
    session_id: str,
    messages: Sequence[NewMessage],
    *,
    child: Mapping[str, Any],
    above: int | None,
    up_to: int | None,
    tail: int,
    holder: str | None,
) -> Replacement:
    """End a session by compression and go on in a new one, in one transaction.

    Args:
        session: A session that holds the write lock.
        session_id: The session that ends.
        messages: What the new one begins with.
        child: ``id``, ``source``, ``model`` and other columns of the new session; the rest is its parent's.
        above: The watermark; what is above it goes along, behind the new messages. None: nothing does.
        up_to: The highest id that goes along; what is above that is in the new messages already.
        tail: How many of the new messages, at the end, are the last ones that the compressor saw.
        holder: Who holds the compression lock.

    Raises:
        NotFoundError: There is no such session.
        SessionContinuedError: It ended by compression already.
        ConflictError: It ended otherwise, or the new id is taken.
        LockLostError: The holder does not hold the lock.
        LockHeldError: Somebody else does.
    """
    if not messages:
        raise InvalidMessageError("a continuation must begin with at least one message: the summary")
    session.flush()
    require_open(session, session_id)
    require_compressor(session, session_id, holder)
    parent = session.get_one(HermesSession, session_id, populate_existing=True)
    if parent.ended_at is not None:
        raise ConflictError(f"session {session_id} ended ({parent.end_reason}); reopen it to go on with it")
    now = time.time()
    new_id = _add_child(session, parent, child, now)
    live = rows_of(session, _LIVE_ROWS, owner=session_id)
    seen = [row for row in live if above is None or row.id <= above]
    copies = _find_carried(session, live, messages, ends=seen[len(seen) - tail :])
    late = [
        row.id
        for row in live
        if above is not None and row.id > above and (up_to is None or row.id <= up_to) and row.id not in copies
    ]
    set_flags(session, [*copies, *late], active=0, compacted=0)
    ids = insert_rows(session, new_id, messages)
    late_ids = _clone(session, new_id, late)
    run(
        session,
        update(SESSIONS).where(SESSIONS.c.id == bindparam("this")),
        this=session_id, ended_at=now, end_reason="compression",
    )  # fmt: skip
    recount(session, session_id)
    recount(session, new_id)
    return Replacement(
        session_id=new_id,
        ids=(*ids, *late_ids),
        kept=tuple(row.id for row in live if row.id not in copies and row.id not in late),
        dropped=(*copies, *late),
        copies={old: ids[place] for old, place in copies.items()} | dict(zip(late, late_ids, strict=True)),
    )


def _add_child(session: Session, parent: HermesSession, given: Mapping[str, Any], now: float) -> str:
    if fixed := given.keys() & {"started_at", "ended_at", "end_reason", "parent_session_id"}:
        raise ValueError(
            f"{', '.join(sorted(fixed))} of a continuation cannot be given: it begins now, where its parent ends"
        )
    columns = {name: getattr(parent, name) for name in _INHERITED} | dict(given)
    source = columns.pop("source", None) or parent.source
    new_id = columns.pop("id", None) or make_id(now)
    config = columns.pop("model_config", None)
    prompt = columns.pop("system_prompt", None)
    columns.setdefault("model", parent.model)
    settings = _config(parent, source, config)
    _require_continuation(parent, source, settings or {})
    row = new_row(source, model_config=settings, started_at=now, **columns)
    row.id, row.parent_session_id = require_text("id", new_id), parent.id
    if session.get(HermesSession, new_id) is not None:
        raise ConflictError(f"there is a session {new_id} already")
    if prompt is None:
        row.system_prompt_hash, row.system_prompt_inline = parent.system_prompt_hash, parent.system_prompt_inline
    else:
        store_prompt(session, row, prompt)
    session.add(row)
    session.flush()  # before its messages: the triggers of the search indexes look at it
    return str(row.id)


def _require_continuation(parent: HermesSession, source: str, config: Mapping[str, Any]) -> None:
    """Make sure, before anything is written, that the child is what a compression makes: its parent gone on with."""
    marked = [name for name in _MARKERS if config.get(name) == parent.id]
    if source == "tool" or marked or (source == "subagent" and not config.get("_delegate_from")):
        why = f"model_config has {marked[0]}" if marked else f"its source is {source}"
        raise ConflictError(f"the new session would not continue {parent.id}: {why}")


def _config(parent: HermesSession, source: str, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A continuation's settings: its parent's, without what that was to *its* parent.

    Hermes takes a marker on a continuation for its own and would not find the continuation. Only a subagent's keeps
    it, because without one the source alone says that it is a new piece of work.
    """
    try:
        inherited = json.loads(parent.model_config) if parent.model_config else {}
    except (ValueError, TypeError):
        inherited = {}
    if not isinstance(inherited, dict):
        inherited = {}
    markers = {name: inherited.pop(name) for name in _MARKERS if name in inherited}
    config = inherited if given is None else dict(given)
    if source == "subagent":
        origin = markers.get("_delegate_from") or parent.parent_session_id
        if origin:
            config.setdefault("_delegate_from", origin)
    return config or None


def _says_the_same(row: Any, message: NewMessage) -> bool:
    new = message.values
    return (
        row.role == new["role"]
        and row.tool_call_id == new["tool_call_id"]
        and _same_text(row.content, new["content"])
        and _same_json(row.tool_calls, new["tool_calls"])
    )


def _same_text(stored: object, new: object) -> bool:
    return stored == new or (new is not None and stored == str(new))


def _same_json(stored: object, new: str | None) -> bool:
    """Other writers may have spaced their JSON otherwise."""
    if stored == new:
        return True
    if not isinstance(stored, str) or new is None:
        return not stored and new is None
    try:
        return bool(json.loads(stored) == json.loads(new))
    except ValueError:
        return False


def _find_carried(
    session: Session,
    live: Sequence[Any],
    messages: Sequence[NewMessage],
    *,
    stays: Collection[int] = (),
    ends: Sequence[Any] = (),
) -> dict[int, int]:
    """Find which live rows live on in the new messages, word for word, and make those true copies of them.

    A row lives on in the message that has its uid or, if that is nobody's, its time or its place at the end. A message
    that says something else is another one, whatever uid it came with: the original stays in the archive, to be found.

    Args:
        session: Where to read the rows whole.
        live: The live rows.
        messages: The new messages.
        stays: Rows that stay live, and so need no copy.
        ends: The rows that the last messages may be, in order.

    Returns:
        Row id to the message's place.
    """
    by_uid = {row.message_uid: row for row in live if row.message_uid}
    by_time: dict[Any, list[Any]] = {}
    for row in live:
        by_time.setdefault(row.timestamp, []).append(row)
    at_end = {len(messages) - back: row for back, row in enumerate(reversed(ends), 1)}
    carried: dict[int, int] = {}
    gone = set(stays)
    for place, message in enumerate(messages):
        named = by_uid.get(message.values["message_uid"])
        likely = (at_end.get(place), *by_time.get(message.values["timestamp"], ())) if named is None else (named,)
        for row in likely:
            if row is not None and row.id not in gone and _says_the_same(row, message):
                carried[row.id] = place
                gone.add(row.id)
                break
        else:
            if named is not None:
                message.values["message_uid"] = new_uid()
    for row in rows_of(session, _FULL_ROWS, ids=json.dumps(list(carried))):
        values = messages[carried[row.id]].values
        values.update({name: getattr(row, name) for name in COLUMNS if values[name] is None})
        values |= {"message_uid": row.message_uid or values["message_uid"], "timestamp": row.timestamp}
    return carried


def _clone(session: Session, session_id: str, ids: Collection[int]) -> list[int]:
    """Copy rows behind all others, byte by byte, as live ones; columns that this version does not know as well."""
    if not ids:
        return []
    connection = session.connection()
    found = connection.exec_driver_sql("SELECT name FROM pragma_table_info('messages')").scalars()
    taken = ", ".join(quoted(name) for name in found if name not in _OF_ITS_OWN)
    above = int(session.execute(_HIGHEST).scalar_one())
    connection.exec_driver_sql(
        f"INSERT INTO messages ({taken}, session_id, active, compacted) SELECT {taken}, ?, 1, 0 FROM messages "
        "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
        (session_id, json.dumps(list(ids))),
    )
    return [row.id for row in rows_of(session, _NEWER, owner=session_id, above=above)]
