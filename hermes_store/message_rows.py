"""Rows of ``messages``: made from what a caller gives, before anything is written.

Pure. A message is a mapping with the names of the columns, or those of Hermes's own message dictionaries
(`_ALIASES`), and becomes one value for every column that a writer gives. What cannot be stored is refused here, with a
typed error that names the column and never the value; text is made storable here, and what that took is counted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hermes_store.content import STRUCTURED_PREFIX, replace_surrogates
from hermes_store.errors import InvalidMessageError
from hermes_store.session_rows import require_time

#: What a half surrogate pair looks like in JSON with ASCII escapes; whole pairs do too, so it only says: look closer.
_ESCAPED_SURROGATE = "\\ud"
#: Microseconds between messages of one call that have no time of their own, so that their times differ.
_STEP = 1e-6

#: Names that Hermes's message dictionaries use for columns.
_ALIASES = {
    "message_id": "platform_message_id",
    "_compressed_summary": "compressed_summary",
    "_message_uid": "message_uid",
    "_absorbed_message_uids": "absorbed_message_uids",
    "_tool_call_uids": "tool_call_uids",
    "_tool_call_uid": "tool_call_uid",
}
#: Names in what reading gives that say where a message was, not what it is.
_PLACE = frozenset({"id", "session_id", "active", "compacted"})
#: The role of rows whose ``name``, in the dictionaries of model providers, is the tool's.
_TOOL = "tool"


class NewMessage(NamedTuple):
    """One message, ready to be written.

    Attributes:
        values: A value for every column of `COLUMNS`, but for the session.
        calls: How many tool calls it makes.
        replaced: How many characters were replaced, because UTF-8 cannot hold them.
    """

    values: dict[str, Any]
    calls: int
    replaced: int

    def copy(self) -> NewMessage:
        """Give the same message once more, for a write that may have to be tried twice and names what it writes."""
        return self._replace(values=dict(self.values))


class _Text:
    """Makes text storable, and counts what that took."""

    def __init__(self) -> None:
        self.replaced = 0

    def clean(self, text: str) -> str:
        """Replace the halves of surrogate pairs."""
        text, count = replace_surrogates(text)
        self.replaced += count
        return text

    def dump(self, name: str, value: object) -> str:
        """Write JSON as Hermes does, with ASCII escapes."""
        try:
            text = json.dumps(value, allow_nan=False)
            if _ESCAPED_SURROGATE in text:
                text = json.dumps(self._cleaned(value), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessageError(f"{name} holds what JSON cannot ({type(error).__name__})") from None
        return text

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self._cleaned(key): self._cleaned(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._cleaned(inner) for inner in value]
        return value


def encode_messages(messages: Iterable[Mapping[str, Any]], now: float) -> list[NewMessage]:
    """Prepare messages that are written together.

    Args:
        messages: The messages; unknown names are refused, but for private ones (with an underscore).
        now: The time of those that have none, epoch seconds; each a microsecond after the one before.

    Raises:
        InvalidMessageError: One of them cannot be stored; its place in the list is named.
    """
    rows = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidMessageError(f"message {place} must be a mapping, not {type(message).__name__}")
        try:
            rows.append(encode_message(message, now + place * _STEP))
        except InvalidMessageError as error:
            raise InvalidMessageError(f"message {place}: {error}") from None
    return rows


def encode_message(message: Mapping[str, Any], now: float) -> NewMessage:
    """Prepare one message.

    Args:
        message: The message.
        now: Its time if it has none, epoch seconds.

    Raises:
        InvalidMessageError: It cannot be stored.
    """
    given = _by_column(message)
    role = given.pop("role", None)
    if not isinstance(role, str) or not role.strip():
        raise InvalidMessageError("role must be text, and not empty")
    text = _Text()
    values = dict(_EMPTY)
    values["role"] = text.clean(role)
    values["content"] = encode_content(given.pop("content", None), text)
    values["tool_calls"], calls = encode_tool_calls(given.pop("tool_calls", None), text)
    values["timestamp"] = _time(given.pop("timestamp", None), now)
    uid = given.pop("message_uid", None)
    values["message_uid"] = new_uid() if not uid else _words("message_uid", uid, text)
    for name, value in given.items():
        values[name] = _ENCODERS[name](name, value, text)
    return NewMessage(values, calls, text.replaced)


def encode_changes(changes: Mapping[str, Any]) -> NewMessage:
    """Prepare new values for some columns of a message that is there.

    Args:
        changes: The columns, as for a new message; not its role or name, nor where it belongs.

    Returns:
        The changed columns only, and the tool calls if they are among them.

    Raises:
        InvalidMessageError: A value cannot be stored, or a column not be changed.
    """
    given = _by_column(changes)
    if fixed := given.keys() & {"role", "message_uid"}:
        raise InvalidMessageError(
            f"{', '.join(sorted(fixed))} cannot be changed; delete the message and append another"
        )
    text = _Text()
    values: dict[str, Any] = {}
    calls = 0
    for name, value in given.items():
        if name == "content":
            values[name] = encode_content(value, text)
        elif name == "tool_calls":
            values[name], calls = encode_tool_calls(value, text)
        elif name == "timestamp":
            values[name] = _time(value, math.nan)
        else:
            values[name] = _ENCODERS[name](name, value, text)
    return NewMessage(values, calls, text.replaced)


def new_uid() -> str:
    """Make a message's uid, as the file's trigger would, but without a second write to the row."""
    return os.urandom(16).hex()


def encode_content(content: object, text: _Text | None = None) -> object:
    """Write content as Hermes stores it.

    Args:
        content: Text, a number, or the list or mapping of structured content; None for none.
        text: Where replaced characters are counted.

    Returns:
        The value for the column. A text that begins like structured content is stored as such, so that it is read
        back as the text it is.

    Raises:
        InvalidMessageError: It is bytes, or holds what JSON cannot.
    """
    text = text or _Text()
    if content is None:
        return None
    if isinstance(content, str):
        cleaned = text.clean(content)
        return STRUCTURED_PREFIX + json.dumps(cleaned) if cleaned.startswith(STRUCTURED_PREFIX) else cleaned
    if isinstance(content, bool):
        raise InvalidMessageError("content must be text, a number, a list or a mapping, not bool")
    if isinstance(content, int):
        return str(content)  # what the column makes of it, also beyond 64 bits
    if isinstance(content, float):
        if not math.isfinite(content):
            raise InvalidMessageError("content is a number that is not finite")
        return content
    if isinstance(content, list | tuple | Mapping):
        return STRUCTURED_PREFIX + text.dump("content", dict(content) if isinstance(content, Mapping) else content)
    raise InvalidMessageError(
        f"content must be text, a number, a list or a mapping, not {type(content).__name__}; decode bytes first"
    )


def encode_tool_calls(tool_calls: object, text: _Text | None = None) -> tuple[str | None, int]:
    """Write tool calls as JSON, once.

    Args:
        tool_calls: A list of calls, one call, or the JSON text of either; None for none.
        text: Where replaced characters are counted.

    Returns:
        The value for the column, and how many calls there are.

    Raises:
        InvalidMessageError: It is something else, or a text that is no JSON.
    """
    text = text or _Text()
    if isinstance(tool_calls, str):
        try:
            tool_calls = json.loads(tool_calls) if tool_calls.strip() else None
        except (ValueError, RecursionError):
            raise InvalidMessageError("tool_calls is a text that is no JSON") from None
    if tool_calls is None:
        return None, 0
    if isinstance(tool_calls, Mapping):
        return (text.dump("tool_calls", dict(tool_calls)), 1) if tool_calls else (None, 0)
    if not isinstance(tool_calls, list | tuple):
        raise InvalidMessageError(f"tool_calls must be a list of calls, not {type(tool_calls).__name__}")
    return (text.dump("tool_calls", tool_calls), len(tool_calls)) if tool_calls else (None, 0)


def _by_column(message: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in message.items():
        column = _ALIASES.get(name, name)
        if column == "name" and message.get("role") == _TOOL:
            column = "tool_name"
        if column in _KNOWN:
            if given.get(column) is None:
                given[column] = value
        elif column not in _PLACE and not (isinstance(column, str) and column.startswith("_")):
            raise InvalidMessageError(f"messages have no column {column!r} that can be given")
    return given


def _time(value: object, now: float) -> float:
    if value is None and not math.isnan(now):
        return now
    try:
        return require_time("timestamp", value)
    except (ValueError, OverflowError) as error:
        raise InvalidMessageError(str(error)) from None


def _words(name: str, value: object, text: _Text) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return text.clean(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # ids of chat platforms are numbers in some of them
    raise InvalidMessageError(f"{name} must be text, not {type(value).__name__}")


def _json(name: str, value: object, text: _Text) -> str | None:
    """JSON columns: an object is written, a text is taken for JSON that was read from such a column."""
    if not value:
        return None
    if isinstance(value, str):
        return text.clean(value)
    if isinstance(value, list | tuple | Mapping):
        return text.dump(name, dict(value) if isinstance(value, Mapping) else value)
    raise InvalidMessageError(f"{name} must be a list, a mapping or JSON text, not {type(value).__name__}")


def _flag(name: str, value: object, _: _Text) -> int:
    if value is None or (isinstance(value, int) and value in {0, 1}):
        return int(value or 0)
    raise InvalidMessageError(f"{name} must be true or false, not {type(value).__name__}")


def _whole(name: str, value: object, _: _Text) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63):
        return value
    raise InvalidMessageError(f"{name} must be a whole number, 0 or more")


_ENCODERS: dict[str, Callable[[str, Any, _Text], Any]] = {
    **dict.fromkeys(
        ("tool_call_id", "tool_name", "effect_disposition", "finish_reason", "reasoning", "reasoning_content",
         "platform_message_id", "api_content", "display_kind", "tool_call_uid"), _words
    ),
    **dict.fromkeys(
        ("reasoning_details", "codex_reasoning_items", "codex_message_items", "display_metadata",
         "absorbed_message_uids", "tool_call_uids"), _json
    ),
    "observed": _flag,
    "compressed_summary": _flag,
    "token_count": _whole,
}  # fmt: skip
#: The columns that every new row gives, by their attributes, but for its session.
COLUMNS = ("role", "content", "tool_calls", "timestamp", "message_uid", *_ENCODERS)
_KNOWN = frozenset(COLUMNS)
#: Names that mean something in a message, be it read back or new.
KNOWN_NAMES = _KNOWN | _ALIASES.keys() | _PLACE | {"name"}
_EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS) | {"observed": 0, "compressed_summary": 0}
