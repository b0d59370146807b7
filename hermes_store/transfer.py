"""Sessions with their messages as plain data, out of one file and into another.

An export is what `json` can write: a dictionary for each session, of its columns by their names in the file, its
``messages`` with decoded content, and its ``usage`` by model; the form that Hermes's own exports have. An import adds
what is not there yet, and nothing twice: a session is known by its id and start, a message by its uid, or where it has
none by its time, speaker and words. What is imported and exported again is the same.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import Table, bindparam, insert, select, update
from sqlalchemy.orm import Session

from hermes_store.cells import Problems, read_timestamp
from hermes_store.edges import EARLIEST
from hermes_store.errors import InvalidMessageError, require_sessions
from hermes_store.message_reading import rows, to_export
from hermes_store.message_rows import KNOWN_NAMES, NewMessage, encode_message
from hermes_store.models import Message, SessionModelUsage, SystemPrompt
from hermes_store.records import ImportReport
from hermes_store.search.rows import MESSAGES, SESSIONS, in_history
from hermes_store.session_rows import clean_text, prompt_key, require_text
from hermes_store.titles import LONGEST, clean_title, settle_title
from hermes_store.transcript import OF_SESSION, insert_rows, recount, rows_of, run
from hermes_store.walks import among

_USAGE = cast("Table", SessionModelUsage.__table__)
_PROMPTS = cast("Table", SystemPrompt.__table__)
#: Columns of a session that an export gives otherwise, or that follow from its messages.
_NOT_COPIED = frozenset(
    {"id", "title", "parent_session_id", "system_prompt", "system_prompt_hash", "message_count", "tool_call_count"}
)
_COPIED = frozenset(column.name for column in SESSIONS.columns) - _NOT_COPIED
_KNOWN = _COPIED | _NOT_COPIED | {"messages", "usage"}

_ALL_SESSIONS = select(SESSIONS).order_by(SESSIONS.c.id)
_USAGE_OF = select(_USAGE).where(_USAGE.c.session_id == bindparam("owner"))
_PROMPT = select(_PROMPTS.c.prompt).where(_PROMPTS.c.hash == bindparam("key"))
_EVERYTHING = rows().where(OF_SESSION).order_by(Message.id)
_HISTORY = rows().where(OF_SESSION, in_history(MESSAGES)).order_by(Message.id)
_KNOWN_MESSAGES = select(
    MESSAGES.c.message_uid,
    MESSAGES.c.timestamp,
    MESSAGES.c.role,
    MESSAGES.c.content,
    MESSAGES.c.tool_calls,
    MESSAGES.c.tool_call_id,
).where(OF_SESSION)
_SET_PARENT = update(SESSIONS).where(SESSIONS.c.id == bindparam("this"))


def export(session: Session, session_ids: Collection[str] | None, *, include_inactive: bool) -> list[dict[str, Any]]:
    """Read sessions as plain data.

    Args:
        session: Where to read.
        session_ids: The sessions; None for all.
        include_inactive: Also messages that were rewound, and originals that compaction copied.

    Raises:
        NotFoundError: There is no such session.
    """
    statement = _ALL_SESSIONS if session_ids is None else _ALL_SESSIONS.where(among(SESSIONS.c.id, session_ids))
    found = {str(row["id"]): row for row in session.execute(statement).mappings()}
    require_sessions(session_ids or (), found)
    return [_document(session, id_, row, include_inactive=include_inactive) for id_, row in found.items()]


def _document(session: Session, id_: str, row: Mapping[Any, Any], *, include_inactive: bool) -> dict[str, Any]:
    document = {str(name): _plain(value) for name, value in row.items() if name != "system_prompt_hash"}
    document["system_prompt"] = _shared(session, row["system_prompt_hash"]) or document["system_prompt"]
    document["tool_names"] = _shared(session, row["tool_names"]) or document["tool_names"]
    usage = session.execute(_USAGE_OF, {"owner": id_}).mappings().all()
    document["usage"] = [
        {str(name): _plain(value) for name, value in one.items() if name != "session_id"} for one in usage
    ]
    messages = rows_of(session, _EVERYTHING if include_inactive else _HISTORY, owner=id_)
    document["messages"] = [to_export(message) for message in messages]
    live = [one for one in document["messages"] if one["active"]]
    calls = [one.get("tool_calls") for one in live]
    document["message_count"] = len(live)
    document["tool_call_count"] = sum(
        len(one) if isinstance(one, list) else int(isinstance(one, dict)) for one in calls if one
    )
    return document


def _shared(session: Session, key: object) -> str | None:
    return None if key is None else cast("str | None", session.execute(_PROMPT, {"key": key}).scalar())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value


@dataclass(slots=True)
class Incoming:
    """One session that is to be imported, checked.

    Attributes:
        id: Its id.
        values: Its columns.
        start: When it started, if that is known.
        title: Its title.
        parent: Its parent.
        prompt: Its system prompt.
        usage: Its usage by model.
        messages: Its messages, in order.
        active, compacted: What became of each of them.
    """

    id: str
    values: dict[str, Any]
    start: float | None
    title: str | None
    parent: str | None
    prompt: str | None
    usage: list[dict[str, Any]]
    messages: list[NewMessage]
    active: list[int]
    compacted: list[int]


@dataclass(slots=True)
class _Progress:
    sessions: list[str] = field(default_factory=list)
    messages: int = 0
    skipped_sessions: list[str] = field(default_factory=list)
    skipped_messages: int = 0
    conflicts: dict[str, str] = field(default_factory=dict)
    detached: dict[str, str] = field(default_factory=dict)
    retitled: dict[str, str] = field(default_factory=dict)


def prepare(documents: Iterable[Mapping[str, Any]]) -> tuple[list[Incoming], tuple[str, ...]]:
    """Check what is to be imported, before anything is written.

    Args:
        documents: Sessions as `export` gives them.

    Returns:
        The sessions, and the names in them that mean nothing here.

    Raises:
        InvalidMessageError: One of them cannot be stored; the message says which.
    """
    unknown: set[str] = set()
    prepared = []
    for place, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise InvalidMessageError(f"session {place} must be a mapping, not {type(document).__name__}")
        try:
            prepared.append(_prepare_session(document, unknown))
        except ValueError as error:
            raise InvalidMessageError(f"session {place}: {error}") from None
    return prepared, tuple(sorted(unknown))


def _prepare_session(document: Mapping[str, Any], unknown: set[str]) -> Incoming:
    unknown.update(str(name) for name in document if name not in _KNOWN and not str(name).startswith("_"))
    values = {name: _cell(name, document[name]) for name in _COPIED if document.get(name) is not None}
    values["source"] = require_text("source", document.get("source"))
    messages = list(document.get("messages") or ())
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidMessageError(f"message {place} must be a mapping, not {type(message).__name__}")
    start = own_start = read_timestamp(document.get("started_at"), "started_at", Problems())
    if start is None:
        times = (read_timestamp(one.get("timestamp"), "timestamp", Problems()) for one in messages)
        start = min((one for one in times if one is not None), default=EARLIEST)
    incoming = Incoming(
        id=require_text("id", document.get("id")),
        values=values,
        start=own_start,
        title=document.get("title"),
        parent=document.get("parent_session_id"),
        prompt=document.get("system_prompt"),
        usage=[
            {name: _cell(name, one[name]) for name in _USAGE.columns.keys() if one.get(name) is not None}  # noqa: SIM118 - a collection
            for one in document.get("usage") or ()
        ],
        messages=[],
        active=[],
        compacted=[],
    )
    # Never the time of the import: doing it again would take everything for something new.
    latest = values["started_at"] = start
    for place, message in enumerate(messages):
        try:
            ready = _prepare_message(message, latest, unknown)
        except ValueError as error:
            raise InvalidMessageError(f"message {place}: {error}") from None
        latest = ready.values["timestamp"]
        incoming.messages.append(ready)
        active = message.get("active")
        incoming.active.append(int(active is None or bool(active)))
        incoming.compacted.append(int(bool(message.get("compacted")) and active is not None and not active))
    return incoming


def _prepare_message(message: Mapping[str, Any], latest: float, unknown: set[str]) -> NewMessage:
    known = {name: value for name, value in message.items() if name in KNOWN_NAMES}
    unknown.update(str(name) for name in message if name not in KNOWN_NAMES and not str(name).startswith("_"))
    calls = known.get("tool_calls")
    broken = None
    if isinstance(calls, str):
        try:
            json.loads(calls)
        except (ValueError, RecursionError):
            broken, known["tool_calls"] = clean_text(calls), None  # as broken as it was: nothing is lost
    ready = encode_message(known, latest)
    if broken is not None:
        ready.values["tool_calls"] = broken
    return ready


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool | int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidMessageError(f"{name} is a number that is not finite")
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    raise InvalidMessageError(f"{name} must be text or a number, not {type(value).__name__}")


def import_sessions(session: Session, incoming: Iterable[Incoming], unknown: tuple[str, ...]) -> ImportReport:
    """Add what is not there yet.

    Args:
        session: A session that holds the write lock.
        incoming: The sessions.
        unknown: Names in them that mean nothing here, for the report.
    """
    session.flush()
    done = _Progress()
    parents: dict[str, str] = {}
    for one in incoming:
        there = session.execute(select(SESSIONS.c.started_at).where(SESSIONS.c.id == one.id)).first()
        if there is None:
            _add_session(session, one, done)
            if one.parent is not None:
                parents[one.id] = one.parent
        elif one.id not in done.sessions and one.start not in {None, there[0]}:
            done.conflicts[one.id] = "another session has this id: it started at another time"
            continue
        _add_messages(session, one, done, is_new=there is None)
    for id_, parent in parents.items():
        if session.execute(select(SESSIONS.c.id).where(SESSIONS.c.id == parent)).first() is None:
            done.detached[id_] = parent
        else:
            run(session, _SET_PARENT, this=id_, parent_session_id=parent)
    session.expire_all()
    return ImportReport(
        sessions=tuple(done.sessions),
        messages=done.messages,
        skipped_sessions=tuple(done.skipped_sessions),
        skipped_messages=done.skipped_messages,
        conflicts=done.conflicts,
        detached=done.detached,
        retitled=done.retitled,
        unknown=unknown,
    )


def _add_session(session: Session, one: Incoming, done: _Progress) -> None:
    values = one.values | {"id": one.id}
    if one.prompt:
        text = clean_text(require_text("system_prompt", one.prompt))
        values["system_prompt_hash"] = prompt_key(text)
        if _shared(session, values["system_prompt_hash"]) is None:
            session.execute(insert(_PROMPTS), {"hash": values["system_prompt_hash"], "prompt": text})
    cleaned = clean_title(one.title[:LONGEST]) if isinstance(one.title, str) else None
    if cleaned is not None:
        values["title"] = settle_title(session, one.id, cleaned, "suffix")
        if values["title"] != one.title:
            done.retitled[one.id] = values["title"]
    # Before its messages: the triggers of the search indexes look at it.
    session.execute(insert(SESSIONS), values)
    if one.usage:
        for usage in one.usage:
            session.execute(insert(_USAGE), usage | {"session_id": one.id})
    done.sessions.append(one.id)


def _add_messages(session: Session, one: Incoming, done: _Progress, *, is_new: bool) -> None:
    places = list(range(len(one.messages)))
    if not is_new:
        known = rows_of(session, _KNOWN_MESSAGES, owner=one.id)
        uids = {row.message_uid for row in known if row.message_uid}
        words = Counter((row.timestamp, row.role, row.content, row.tool_calls, row.tool_call_id) for row in known)
        places = [place for place in places if not _is_known(one.messages[place].values, uids, words)]
    done.messages += len(places)
    done.skipped_messages += len(one.messages) - len(places)
    if not is_new and not places:
        done.skipped_sessions.append(one.id)
        return
    insert_rows(
        session,
        one.id,
        [one.messages[place] for place in places],
        active=[one.active[place] for place in places],
        compacted=[one.compacted[place] for place in places],
    )
    recount(session, one.id)


def _is_known(values: Mapping[str, Any], uids: set[str], words: Counter[Any]) -> bool:
    key = tuple(values[name] for name in ("timestamp", "role", "content", "tool_calls", "tool_call_id"))
    if values["message_uid"] in uids:
        words[key] -= 1
        return True
    if words[key] > 0:
        words[key] -= 1
        return True
    return False
