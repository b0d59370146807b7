"""Rows of ``sessions``: made from what a caller gives, and turned into records.

Everything that is written passes through here once: text without half surrogate pairs, settings as JSON, times that can
be believed, and only columns that exist.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from hermes_store.cells import Problems, read_count, read_json, read_number, read_text, read_timestamp
from hermes_store.content import replace_surrogates
from hermes_store.edges import EARLIEST, LATEST
from hermes_store.models import HermesSession, SystemPrompt
from hermes_store.records import SessionInfo

#: Columns that have parameters of their own, or that nothing but their own method sets.
_NOT_GIVEN = frozenset({"id", "parent_session_id", "title", "system_prompt_hash", "system_prompt_inline"})
_UNCOVERED = frozenset({"cron", "subagent"})


def new_row(source: str, **columns: Any) -> HermesSession:
    """Make a row for a new session.

    Args:
        source: The platform it comes from.
        columns: Other columns, by the attributes of `HermesSession`.

    Raises:
        ValueError: A value means nothing, or there is no such column.
    """
    columns.pop("system_prompt", None)
    known = {attribute.key for attribute in inspect(HermesSession).column_attrs} - _NOT_GIVEN
    if unknown := columns.keys() - known:
        raise ValueError(f"sessions have no column {', '.join(sorted(unknown))} that can be given here")
    started = columns.pop("started_at", None)
    config = encode_config(columns.pop("model_config", None))
    values = {name: _stored(name, value) for name, value in columns.items()}
    return HermesSession(
        **{
            "source": require_text("source", source),
            "created_source": source,
            "started_at": time.time() if started is None else require_time("started_at", started),
            "model_config": config,
            **values,
        }
    )


def make_id(started: float) -> str:
    """Make a session's id, in Hermes's form: date, time and six random hexadecimal digits.

    Args:
        started: When the session starts, epoch seconds; ids are in local time, as Hermes's are.
    """
    return f"{time.strftime('%Y%m%d_%H%M%S', time.localtime(started))}_{secrets.token_hex(3)}"


def store_prompt(session: Session, row: HermesSession, prompt: object) -> None:
    """Store a system prompt once, under its hash, and refer to it.

    Args:
        session: A session that holds the write lock.
        row: The new session.
        prompt: The prompt; None for none.

    Raises:
        ValueError: It is no text.
    """
    if prompt is None:
        return
    text = clean_text(require_text("system_prompt", prompt))
    key = prompt_key(text)
    if session.get(SystemPrompt, key) is None:
        session.add(SystemPrompt(hash=key, prompt=text))
        session.flush()  # before the row that refers to it
    row.system_prompt_hash = key


def prompt_key(text: str) -> str:
    """Give the hash under which a prompt is stored.

    Args:
        text: The prompt.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def encode_config(config: object) -> str | None:
    """Write settings as JSON, as Hermes does.

    Args:
        config: A mapping; None for none.

    Raises:
        ValueError: It is no mapping, or holds what JSON cannot.
    """
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ValueError(f"model_config must be a mapping, not {type(config).__name__}")  # noqa: TRY004 - as for others
    try:
        return json.dumps(dict(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model_config holds what JSON cannot: {error}") from None


def is_covered(source: str, config: object) -> bool:
    """Tell whether the substring index covers the messages of a session (layout 2 on).

    Args:
        source: Its source.
        config: Its settings, as stored.
    """
    if source in _UNCOVERED:
        return False
    try:
        settings = json.loads(config) if isinstance(config, str) else None
    except ValueError:
        return True
    return not isinstance(settings, dict) or settings.get("_delegate_from") is None


def require_text(name: str, given: object) -> str:
    """Check a text that must not be empty.

    Args:
        name: The parameter, for the message.
        given: Its value.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"{name} must be text, and not empty")
    return given


def require_time(name: str, given: object) -> float:
    """Check a moment.

    Args:
        name: The parameter, for the message.
        given: An aware datetime, or epoch seconds.

    Returns:
        Epoch seconds.

    Raises:
        ValueError: It is something else, or beyond what can be believed (1970-01-02 to 2200).
    """
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(f"{name} must be a datetime with a time zone")
        given = given.timestamp()
    if isinstance(given, bool) or not isinstance(given, int | float) or not EARLIEST <= given <= LATEST:
        raise ValueError(f"{name} must be a moment between 1970-01-02 and 2200, as aware datetime or epoch seconds")
    return float(given)


def _stored(name: str, value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if name.endswith("_at") and value is not None:
        return require_time(name, value)
    if value is None or isinstance(value, bool | int | float):
        return int(value) if isinstance(value, bool) else value
    raise ValueError(f"{name} must be text or a number, not {type(value).__name__}")


def clean_text(text: str) -> str:
    """Replace half surrogate pairs, which UTF-8 cannot hold.

    Args:
        text: The text.
    """
    return replace_surrogates(text)[0]


def to_record(row: HermesSession) -> SessionInfo:
    """Turn a row into a record; never fails.

    Args:
        row: The row, attached to its session: the system prompt may live in another table.
    """
    problems = Problems()

    def text(name: str) -> str | None:
        return read_text(getattr(row, name), name, problems)

    def whole(name: str) -> int | None:
        return read_count(getattr(row, name), name, problems)

    def instant(name: str) -> float | None:
        return read_timestamp(getattr(row, name), name, problems)

    return SessionInfo(
        id=str(row.id),
        source=text("source"),
        title=text("title"),
        title_source=text("title_source"),
        model=text("model"),
        model_config=read_json(row.model_config, "model_config", problems),
        system_prompt=text("system_prompt"),
        parent_session_id=text("parent_session_id"),
        user_id=text("user_id"),
        session_key=text("session_key"),
        display_name=text("display_name"),
        cwd=text("cwd"),
        git_branch=text("git_branch"),
        profile_name=text("profile_name"),
        started=instant("started_at"),
        ended=instant("ended_at"),
        end_reason=text("end_reason"),
        last_activity=instant("last_activity_at"),
        message_count=whole("message_count"),
        tool_call_count=whole("tool_call_count"),
        input_tokens=whole("input_tokens"),
        output_tokens=whole("output_tokens"),
        cache_read_tokens=whole("cache_read_tokens"),
        cache_write_tokens=whole("cache_write_tokens"),
        reasoning_tokens=whole("reasoning_tokens"),
        estimated_cost_usd=read_number(row.estimated_cost_usd, "estimated_cost_usd", problems),
        actual_cost_usd=read_number(row.actual_cost_usd, "actual_cost_usd", problems),
        cost_status=text("cost_status"),
        archived=row.archived == 1,
        pinned=row.pinned == 1,
        hidden=row.hidden == 1,
        problems=problems.as_tuple(),
    )
