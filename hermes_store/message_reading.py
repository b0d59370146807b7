"""Reading rows of ``messages``: as records, as the dictionaries of a conversation, and as those of an export.

Pure but for the columns: whatever a cell holds, the row is shown, and what was wrong with it is said. Statements select
columns, never objects, so that a row is what the file holds now, not what an application's session remembers of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select, select

from hermes_store.cells import Problems, read_count, read_json, read_text, read_timestamp
from hermes_store.content import decode
from hermes_store.models import Message
from hermes_store.records import MessageInfo

_ATTRIBUTES = (
    "id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "effect_disposition",
    "timestamp", "token_count", "finish_reason", "reasoning", "reasoning_content", "reasoning_details",
    "codex_reasoning_items", "codex_message_items", "platform_message_id", "observed", "compressed_summary", "active",
    "compacted", "api_content", "display_kind", "display_metadata", "message_uid", "absorbed_message_uids",
    "tool_call_uids", "tool_call_uid",
)  # fmt: skip

Reader = Callable[[Any, str, Problems], Any]

#: How each column is read that a conversation or an export gives beside role, content and time.
_READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("tool_call_id", "tool_name", "effect_disposition", "finish_reason", "reasoning", "reasoning_content",
         "platform_message_id", "api_content", "display_kind", "message_uid", "tool_call_uid"), read_text
    ),
    **dict.fromkeys(
        ("tool_calls", "reasoning_details", "codex_reasoning_items", "codex_message_items", "display_metadata",
         "absorbed_message_uids", "tool_call_uids"), read_json
    ),
    **dict.fromkeys(("token_count", "observed", "compressed_summary"), read_count),
}  # fmt: skip
#: What a conversation's dictionaries have, beside role and content, where the row has it.
_IN_CONVERSATION = {
    "tool_calls": "tool_calls",
    "tool_call_id": "tool_call_id",
    "tool_name": "tool_name",
    "finish_reason": "finish_reason",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning_content",
    "reasoning_details": "reasoning_details",
    "codex_reasoning_items": "codex_reasoning_items",
    "codex_message_items": "codex_message_items",
    "effect_disposition": "effect_disposition",
    "api_content": "api_content",
    "display_kind": "display_kind",
    "display_metadata": "display_metadata",
    "platform_message_id": "message_id",
    "observed": "observed",
    "compressed_summary": "_compressed_summary",
    "message_uid": "message_uid",
    "absorbed_message_uids": "_absorbed_message_uids",
    "tool_call_uids": "_tool_call_uids",
    "tool_call_uid": "_tool_call_uid",
}


def rows() -> Select[Any]:
    """Select all columns of messages that a reader wants, as attributes of the row."""
    return _ROWS


_ROWS: Select[Any] = select(*(getattr(Message, name).label(name) for name in _ATTRIBUTES))


def to_record(row: Any) -> MessageInfo:
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
        active=row.active is None or row.active == 1,
        compacted=row.compacted == 1,
        display_kind=read_text(row.display_kind, "display_kind", problems),
        message_uid=read_text(row.message_uid, "message_uid", problems),
        problems=problems.as_tuple(),
    )


def to_turn(row: Any) -> dict[str, Any]:
    """Turn a row into a dictionary of the kind that model providers take; never fails.

    Args:
        row: The row.

    Returns:
        ``role`` and ``content``, and of the rest what the row has. Names with an underscore are Hermes's own; broken
        JSON of tool calls is left out, because a provider would refuse it.
    """
    problems = Problems()
    turn: dict[str, Any] = {"role": read_text(row.role, "role", problems), "content": decode(row.content).value}
    for column, name in _IN_CONVERSATION.items():
        stored = getattr(row, column)
        if stored is None or stored in {"", 0}:
            continue
        value = _READERS[column](stored, column, problems)
        if _READERS[column] is read_json and not isinstance(value, list | dict):
            continue
        turn[name] = bool(value) if column in {"observed", "compressed_summary"} else value
    timestamp = read_timestamp(row.timestamp, "timestamp", problems)
    if timestamp is not None:
        turn["timestamp"] = timestamp
    turn["_row_id"] = row.id
    return turn


def to_export(row: Any) -> dict[str, Any]:
    """Turn a row into a dictionary from which it can be made again; never fails.

    Args:
        row: The row.

    Returns:
        Columns by their names in the file, decoded, without those that are empty and without ids, which every file
        gives anew; broken JSON as the text it is.
    """
    problems = Problems()
    out: dict[str, Any] = {
        "role": read_text(row.role, "role", problems),
        "content": _plain(decode(row.content).value),
        "timestamp": read_timestamp(row.timestamp, "timestamp", problems),
        "active": int(row.active is None or row.active == 1),
        "compacted": int(row.compacted == 1),
    }
    for column, read in _READERS.items():
        value = read(getattr(row, column), column, problems)
        if value is not None and not (value == 0 and column in {"observed", "compressed_summary"}):
            out["_compressed_summary" if column == "compressed_summary" else column] = value
    return out


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
