"""What a stored message says: its text without the encoding it is stored in.

Hermes stores structured content as a NUL character, ``json:`` and JSON with ASCII escapes, and tool calls as JSON whose
arguments are JSON once more. Searching, snippets, context and exports all want the words in it, so there is one
decoder. It is pure and total: whatever a column holds, there is a text, and what could not be read is said, not raised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: What structured content begins with, in every release.
STRUCTURED_PREFIX = "\0json:"
#: What tells tool calls with text beyond ASCII: the beginning of a JSON escape.
JSON_ESCAPE = "\\u"

BROKEN_JSON = "broken JSON"
UNDECODABLE = "undecodable text"

#: Parts of these kinds are media; what stands in them are addresses and base64, not words.
_MEDIA = re.compile(r"image|audio|video|file|document", re.IGNORECASE)
#: Keys whose values are the format's own words.
_FORMAL_KEYS = frozenset({"type", "id", "call_id", "mime_type", "media_type", "cache_control"})
#: Characters from which on a run of base64 letters is taken for data; the longest hash in use has 128.
_DATA_LENGTH = 200
_DATA = re.compile(rf"data:[\w.+-]*/?[\w.+-]*[;,]|[A-Za-z0-9+/_-]{{{_DATA_LENGTH},}}={{0,2}}\Z")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Decoded(NamedTuple):
    """A stored value and the text that is in it.

    Attributes:
        text: The words: text parts joined by line breaks, without images and other data. Valid Unicode, always.
        value: The value that was stored: text, a number, or the list or dict of structured content.
        problem: Why the value could not be read as it was meant, or None. The text is then the raw one.
    """

    text: str
    value: Any
    problem: str | None = None


def decode(content: object) -> Decoded:  # noqa: PLR0911 - one for each kind of value
    """Give the text of a ``messages.content`` value; never raises.

    Args:
        content: What the column holds: text, NULL, or whatever else SQLite let in.

    Returns:
        The decoded value; broken JSON keeps its raw text and says so in ``problem``.
    """
    if type(content) is str and content.isascii() and not content.startswith(STRUCTURED_PREFIX):
        return Decoded(content, content)  # most are, and a page decodes hundreds
    if content is None:
        return Decoded("", None)
    if isinstance(content, bytes | bytearray | memoryview):
        return Decoded(bytes(content).decode(errors="replace"), bytes(content), UNDECODABLE)
    if not isinstance(content, str):
        return Decoded(str(content), content)
    text, problem = _readable(content)
    if not content.startswith(STRUCTURED_PREFIX):
        return Decoded(text, text, problem)
    try:
        value = json.loads(content[len(STRUCTURED_PREFIX) :])
    except (ValueError, RecursionError):
        return Decoded(text, text, BROKEN_JSON)
    return Decoded(_joined(_words(value)), value, problem)


def read_text(value: object) -> str | None:
    """Give a short text (a name, an id, a role) as valid Unicode; never raises.

    Args:
        value: What the column holds: text, NULL, or whatever else SQLite let in.
    """
    if value is None or (type(value) is str and value.isascii()):
        return value
    return decode(value).text


def decode_tool_calls(tool_calls: object) -> Decoded:
    """Give the text of a ``messages.tool_calls`` value: each tool's name and the values of its arguments.

    Args:
        tool_calls: What the column holds: JSON text, NULL, or whatever else SQLite let in.

    Returns:
        The decoded calls; broken JSON keeps its raw text and says so in ``problem``. Never raises.
    """
    raw = decode(tool_calls)
    if not isinstance(raw.value, str) or not raw.text.strip():
        return raw
    try:
        value = json.loads(raw.text)
    except (ValueError, RecursionError):
        return Decoded(raw.text, raw.value, raw.problem or BROKEN_JSON)
    lines = [line for call in (value if isinstance(value, list) else [value]) for line in _call_words(call)]
    return Decoded(_joined(iter(lines)), value, raw.problem)


def _call_words(call: object) -> Iterator[str]:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping) or "arguments" not in function:
        yield from _words(call)
        return
    yield str(function.get("name") or "")
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            yield arguments
            return
    # An argument may well be called "type" or "id", so nothing in here is a formal key.
    yield from _words(arguments, formal=frozenset())


def _words(value: object, *, formal: frozenset[str] = _FORMAL_KEYS) -> Iterator[str]:
    """Walk a JSON value in order, without recursion: how deep it is nested is not ours to decide."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not _DATA.match(item):
                yield item
        elif isinstance(item, Mapping):
            text = item.get("text")
            if isinstance(text, str) and isinstance(item.get("type"), str):
                yield text
            elif not (formal and _MEDIA.search(str(item.get("type", "")))):
                waiting.extend(inner for key, inner in reversed(list(item.items())) if key not in formal)
        elif isinstance(item, list):
            waiting.extend(reversed(item))
        elif item is not None:
            yield json.dumps(item)


def replace_surrogates(text: str) -> tuple[str, int]:
    """Replace halves of surrogate pairs, which UTF-8 cannot hold.

    Args:
        text: The text.

    Returns:
        Valid Unicode, and how many characters were replaced.
    """
    try:
        text.encode()  # much faster than looking for them
    except UnicodeEncodeError:
        return _SURROGATES.subn("\ufffd", text)
    return text, 0


def _joined(lines: Iterator[str]) -> str:
    return replace_surrogates("\n".join(line for line in lines if line))[0]


def _readable(text: str) -> tuple[str, str | None]:
    """Replace lone surrogates, and note a subclass of str: the driver's mark of bytes that are no UTF-8."""
    valid, replaced = replace_surrogates(text)
    return str(valid), UNDECODABLE if replaced or type(text) is not str else None
