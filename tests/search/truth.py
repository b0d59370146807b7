"""What a search must find, worked out the slow way: read every message, cut it into words, look.

Written from ``search-design.md`` alone and sharing no code with the product, so that an error in the one is not an
error in the other. All it takes from the product is how a query prints (``str(parse(text))``), which it reads again.

Every text is held in two shapes. For *words* it is a string in which each letter is folded as ``unicode61`` folds it
and everything else stands as it is; beside it lies a string of the same length with blanks for everything else, which
cut at the blanks gives the words. For terms with a character of an unspaced script it is NFKC in one case.
"""

# ruff: noqa: RUF001 - look-alike letters are the point

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

Span = tuple[int, int]
TOOL_LIMIT = 8192

# --------------------------------------------------------------------------------------------------------- characters

_UNSPACED_NAMES = (
    "CJK", "KANGXI", "IDEOGRAPHIC", "HANGZHOU", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "COMBINING KATAKANA",
    "HENTAIGANA", "VERTICAL KANA", "BOPOMOFO", "HANGUL", "HALFWIDTH HANGUL", "THAI", "LAO", "KHMER", "MYANMAR",
)  # fmt: skip
_WIDE_BLOCKS = ((0x3000, 0x303F), (0xFE10, 0xFE1F), (0xFE30, 0xFE4F), (0xFE50, 0xFE6F), (0xFF00, 0xFFEF))
# remove_diacritics=1 in fts5_unicode2.c: two masks over U+0300..U+0331.
_DIACRITICS = {0x300 + bit for bit in range(50) if (0x000361F8 << 32 | 0x08029FDF) >> bit & 1}


@cache
def is_letter(character: str) -> bool:
    """A character of a word to ``unicode61``: L*, N* and Co."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"


@cache
def is_unspaced(character: str) -> bool:
    """A letter, sign or mark of a script that is written without blanks; digits and punctuation are not."""
    if 0x20000 <= ord(character) <= 0x3FFFD:
        return True
    name, category = unicodedata.name(character, ""), unicodedata.category(character)
    if name.startswith(("CJK RADICAL", "KANGXI RADICAL", "CJK STROKE")):
        return True
    return name.startswith(_UNSPACED_NAMES) and category != "Nd" and category[0] in "LMN"


@cache
def is_stop(character: str) -> bool:
    """Punctuation of unspaced scripts, and blanks: what separates terms and is no text."""
    if character.isspace():
        return True
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    wide = any(first <= ord(character) <= last for first, last in _WIDE_BLOCKS)
    return (
        character in "・゠"
        or (wide and category[0] not in "LN" and not is_unspaced(character))
        or (category[0] == "P" and name.startswith(("THAI", "LAO", "KHMER", "MYANMAR")))
    )


def _fold(character: str) -> str:
    if ord(character) in _DIACRITICS:
        return ""
    folded = next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
    bare = unicodedata.normalize("NFD", folded)
    if len(bare) == 2 and bare[0].isascii() and bare[0].isalpha() and ord(bare[1]) in _DIACRITICS:
        return bare[0].lower()
    return folded


class _Table(dict[int, str]):
    """For ``str.translate``, filled as characters turn up."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self._rule(chr(code))
        return self[code]


_FOLDED = _Table(lambda c: _fold(c) if is_letter(c) or ord(c) in _DIACRITICS else c)
_LETTERS = _Table(lambda c: _fold(c) if is_letter(c) or ord(c) in _DIACRITICS else " ")
_NO_STOPS = _Table(lambda c: " " if is_stop(c) else c)


def _wide(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _half_width(text: str) -> str:
    table = {unicodedata.normalize("NFKC", chr(code)): chr(code) for code in range(0xFF66, 0xFF9E)}
    table |= {"\u3099": "ﾞ", "\u309a": "ﾟ"}
    kana = (unicodedata.normalize("NFD", c) if "ァ" <= c <= "ー" else c for c in text)
    return "".join(table.get(c, c) for c in "".join(kana))


def _spellings(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text)
    full = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in plain)
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")] + [text, plain, full, _half_width(plain)]
    return list(dict.fromkeys(forms))


# -------------------------------------------------------------------------------------------------------------- texts


class Text:
    """One searchable text of a message."""

    def __init__(self, raw: str) -> None:
        self.raw = raw

    @cached_property
    def folded(self) -> str:
        return self.raw.translate(_FOLDED)

    @cached_property
    def _letters(self) -> str:
        return self.raw.translate(_LETTERS)

    @cached_property
    def words(self) -> list[tuple[str, int, int]]:
        """The words as ``unicode61`` cuts them, with their places."""
        return [(found[0], *found.span()) for found in re.finditer(r"[^ ]+", self._letters)]

    @cached_property
    def parts(self) -> list[tuple[str, int, int]]:
        """The words cut once more where an unspaced script begins or ends."""
        parts = []
        for word, start, end in self.words:
            places = () if word.isascii() else range(1, len(word))
            cuts = [at for at in places if is_unspaced(word[at]) != is_unspaced(word[at - 1])]
            bounds = [0, *cuts, end - start]
            parts += [(word[first:last], start + first, start + last) for first, last in pairwise(bounds)]
        return parts

    @cached_property
    def word_set(self) -> frozenset[str]:
        return frozenset(self._letters.split())

    @cached_property
    def part_set(self) -> frozenset[str]:
        return self.word_set if self._letters.isascii() else self.word_set | {part for part, _, _ in self.parts}

    @cached_property
    def wide(self) -> str:
        return _wide(self.raw)

    @cached_property
    def wide_without_stops(self) -> str:
        return _wide(self.raw.translate(_NO_STOPS))

    @cached_property
    def wide_words(self) -> list[tuple[str, int, int]]:
        letters = "".join(c if is_letter(c) else " " for c in self.wide)
        return [(found[0], *found.span()) for found in re.finditer(r"[^ ]+", letters)]


_TEXTS: WeakValueDictionary[str, Text] = WeakValueDictionary()


def text_of(raw: str) -> Text:
    """The one text object for a text: copies of a file are cut into words once."""
    text = _TEXTS.get(raw)
    if text is None:
        text = _TEXTS[raw] = Text(raw)
    return text


@dataclass(frozen=True)
class Leaf:
    """A word, prefix or phrase of a query."""

    text: str
    prefix: bool

    @cached_property
    def chunks(self) -> list[str]:
        return self.text.translate(_NO_STOPS).split()

    @cached_property
    def substring(self) -> bool:
        return any(map(is_unspaced, self.text))

    @cached_property
    def signs(self) -> bool:
        return not any(is_letter(c) or is_unspaced(c) for c in self.text)

    @cached_property
    def literal(self) -> bool:
        """Whether punctuation is written into it."""
        if self.signs:
            return False
        if self.substring:
            return any(not (is_letter(c) or is_unspaced(c)) for c in unicodedata.normalize("NFC", "".join(self.chunks)))
        return any(not is_letter(c) for c in "".join(self.chunks).translate(_FOLDED))

    @cached_property
    def token_forms(self) -> list[list[str]]:
        forms = [" ".join(form.translate(_NO_STOPS).split()).translate(_LETTERS).split() for form in self._forms]
        return [list(form) for form in dict.fromkeys(tuple(form) for form in forms if form)]

    @cached_property
    def literal_patterns(self) -> list[re.Pattern[str]]:
        forms = dict.fromkeys(" ".join(form.translate(_FOLDED).split()) for form in self._forms)
        return [_joined(form.split(" "), r"\s") for form in forms]

    @cached_property
    def _forms(self) -> list[str]:
        return _spellings(" ".join(self.chunks))

    @cached_property
    def wide_pattern(self) -> re.Pattern[str]:
        runs = "".join(
            c if is_letter(c) or is_unspaced(c) else " " for c in unicodedata.normalize("NFC", " ".join(self.chunks))
        )
        return _joined([_wide(run) for run in runs.split()], r"[\W_]")

    @cached_property
    def wide_literal(self) -> re.Pattern[str]:
        return _joined([_wide(chunk) for chunk in self.chunks], r"\s")


def _joined(pieces: list[str], gap: str) -> re.Pattern[str]:
    """Two words need something between them; beside punctuation or an unspaced script a blank is of no account."""
    pattern = re.escape(pieces[0])
    for left, right in pairwise(pieces):
        both = all(is_letter(side) and not is_unspaced(side) for side in (left[-1], right[0]))
        pattern += gap + ("+" if both else "*") + re.escape(right)
    return re.compile(pattern)


def _overlapping(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    at = 0
    while found := pattern.search(text, at):
        yield found.span()
        at = found.start() + 1


def spans(leaf: Leaf, text: Text, covered: bool, literal: bool) -> Iterator[Span]:
    """Where a term stands in a text: places in ``text.wide`` or ``text.folded``, by its kind."""
    if leaf.signs:
        yield from _overlapping(re.compile(re.escape(leaf.text)), text.raw)
    elif leaf.substring:
        if covered and not literal:
            yield from _overlapping(leaf.wide_pattern, text.wide)
        elif covered:
            # A full-width comma is a separator, and it is a comma.
            yield from _overlapping(leaf.wide_literal, text.wide)
            yield from _overlapping(leaf.wide_literal, text.wide_without_stops)
    elif literal:
        for pattern in leaf.literal_patterns:
            for start, end in _overlapping(pattern, text.folded):
                if not _goes_on(text.folded, start, -1, covered) and (
                    leaf.prefix or not _goes_on(text.folded, end - 1, 1, covered)
                ):
                    yield start, end
    else:
        for form in leaf.token_forms:
            yield from _word_spans(form, leaf.prefix, text, covered)


def _goes_on(text: str, at: int, step: int, covered: bool) -> bool:
    beside = at + step
    if not 0 <= beside < len(text) or not is_letter(text[at]) or not is_letter(text[beside]):
        return False
    return not (covered and is_unspaced(text[beside]))


def _word_spans(form: list[str], prefix: bool, text: Text, covered: bool) -> Iterator[Span]:
    known = text.part_set if covered else text.word_set
    exact = form[:-1] if prefix else form
    if not known.issuperset(exact) or (prefix and not any(word.startswith(form[-1]) for word in known)):
        return
    for words in (text.words, text.parts) if known is not text.word_set else (text.words,):
        for at in range(len(words) - len(form) + 1):
            if prefix and not words[at + len(form) - 1][0].startswith(form[-1]):
                continue
            if all(words[at + n][0] == word for n, word in enumerate(exact)):
                yield words[at][1], words[at + len(form) - 1][2]


# ------------------------------------------------------------------------------------------------------------ queries

# A query as it prints: brackets stand wherever AND and OR mix, so each level has one of them.
_TOKEN = re.compile(r' *(?:(NEAR\()|([()])|"([^"]*)"(\*?)|([^ ()"]+))')


def read(printed: str) -> Any:
    """Read a printed query into nested tuples: ("and", …), ("or", …), ("not", part), ("near", distance, …), Leaf."""
    node, at = _level(printed, 0)
    if at != len(printed):
        raise AssertionError(f"cannot read the rest of {printed!r} at {at}")
    return node


def _level(printed: str, at: int) -> tuple[Any, int]:
    parts, operator, negated = [], "and", False
    while at < len(printed):
        found = _TOKEN.match(printed, at)
        if found is None:
            raise AssertionError(f"cannot read {printed!r} at {at}")
        near, bracket, quoted, star, bare = found.groups()
        if bracket == ")":
            break
        at = found.end()
        if bare in ("AND", "OR"):
            operator = bare.lower()
            continue
        if bare == "NOT":
            negated = True
            continue
        if near:
            part, at = _near(printed, at)
        elif bracket:
            part, at = _level(printed, at)
            at += 1
        else:
            part = _leaf(quoted, star, bare)
        parts.append(("not", part) if negated else part)
        negated = False
    return (parts[0] if len(parts) == 1 else (operator, *parts)), at


def _near(printed: str, at: int) -> tuple[Any, int]:
    parts = []
    while (end := re.compile(r", (\d+)\)").match(printed, at)) is None:
        # The last bare word is followed by the comma of the distance.
        found = re.compile(r' *(?:"([^"]*)"(\*?)|([^ ()"]+?)(?=, \d+\)| ))').match(printed, at)
        if found is None:
            raise AssertionError(f"cannot read {printed!r} at {at}")
        parts.append(_leaf(*found.groups()))
        at = found.end()
    return ("near", int(end[1]), *parts), end.end()


def _leaf(quoted: str | None, star: str | None, bare: str | None) -> Leaf:
    if quoted is not None:
        return Leaf(quoted, bool(star))
    assert bare is not None
    return Leaf(bare[:-1], True) if bare.endswith("*") else Leaf(bare, False)


def leaves(node: Any, *, positive_only: bool = False) -> Iterator[Leaf]:
    """All words and phrases of a query."""
    if isinstance(node, Leaf):
        yield node
    elif not (positive_only and node[0] == "not"):
        for part in node[2:] if node[0] == "near" else node[1:]:
            yield from leaves(part, positive_only=positive_only)


def answers(node: Any, fields: list[tuple[Text, bool]], relaxed: frozenset[Leaf]) -> bool:
    """Whether a message answers; ``fields`` are its texts, each with whether substring search covers it."""
    if isinstance(node, Leaf):
        literal = node.literal and node not in relaxed
        return any(True for text, covered in fields for _ in spans(node, text, covered, literal))
    if node[0] == "and":
        return all(answers(part, fields, relaxed) for part in node[1:])
    if node[0] == "or":
        return any(answers(part, fields, relaxed) for part in node[1:])
    if node[0] == "not":
        # What is excluded is never relaxed: without its punctuation it would exclude more.
        return not answers(node[1], fields, frozenset())
    return any(_close(node, text, covered, relaxed) for text, covered in fields)


def _close(node: Any, text: Text, covered: bool, relaxed: frozenset[Leaf]) -> bool:
    """At most so many words between the end of each part and the start of the last one, as FTS5 counts."""
    places = []
    for leaf in node[2:]:
        found = list(spans(leaf, text, covered, leaf.literal and leaf not in relaxed))
        if not found:
            return False
        starts = [start for _, start, _ in (text.wide_words if leaf.substring else text.words)]
        places.append([(bisect_right(starts, start), bisect_left(starts, end)) for start, end in found])
    return any(
        all(any(start <= last and last - end - 1 <= node[1] for start, end in part) for part in places)
        for last in {start for part in places for start, _ in part}
    )


# ----------------------------------------------------------------------------------------------------------- messages


def decoded(value: Any) -> str:
    """The text of a content column."""
    if isinstance(value, str) and value.startswith("\0json:"):
        try:
            return _clean(_said(json.loads(value[6:])))
        except (ValueError, RecursionError):
            return _clean([value])
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else _clean([str(value)])


def decoded_calls(value: str) -> str:
    """The names of the tools and the values of their arguments."""
    try:
        calls = json.loads(value)
    except (ValueError, RecursionError):
        return _clean([value])
    return _clean(line for call in (calls if isinstance(calls, list) else [calls]) for line in _said_by_call(call))


def _said_by_call(call: Any) -> Iterator[str]:
    function = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(function, dict) or "arguments" not in function:
        yield from _said(call)
        return
    yield str(function.get("name") or "")
    arguments = function["arguments"]
    try:
        yield from _said(json.loads(arguments) if isinstance(arguments, str) else arguments, arguments=True)
    except (ValueError, RecursionError):
        yield arguments


def _said(value: Any, *, arguments: bool = False) -> Iterator[str]:
    """The words in a JSON value: neither keys, nor the format's own words, nor media and base64."""
    if isinstance(value, str):
        if not re.match(r"data:[\w.+-]*/?[\w.+-]*[;,]|[A-Za-z0-9+/_-]{200,}={0,2}\Z", value):
            yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else _told(value, arguments=arguments):
            yield from _said(item, arguments=arguments)
    elif value is not None:
        yield json.dumps(value)


def _told(value: dict[str, Any], *, arguments: bool) -> list[Any]:
    kind = value.get("type", "")
    if isinstance(value.get("text"), str) and isinstance(kind, str) and "type" in value:
        return [value["text"]]
    if arguments:
        return list(value.values())
    if re.search("image|audio|video|file|document", str(kind), re.IGNORECASE):
        return []
    formal = ("type", "id", "call_id", "mime_type", "media_type", "cache_control")
    return [item for key, item in value.items() if key not in formal]


def _clean(lines: Iterable[str]) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", "\n".join(line for line in lines if line))


class Message:
    """A message with its session, and its searchable texts."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.id: int = row["id"]
        self.time = row["timestamp"]
        self.tool = row["role"] == "tool"
        try:
            delegate = json.loads(row.get("model_config") or "{}")["_delegate_from"]
        except (ValueError, TypeError, KeyError):
            delegate = None
        self.apart = row["source"] in ("cron", "subagent") or delegate is not None
        calls = row.get("tool_calls")
        self._escaped = isinstance(calls, str) and "\\u" in calls
        self.content = decoded(row["content"])
        self._whole = text_of(self.content)
        self._cut = text_of(self.content[:TOOL_LIMIT]) if self.tool else self._whole
        self._name = text_of(decoded(row["tool_name"]))
        self._calls = text_of(decoded_calls(calls) if self._escaped else decoded(calls))

    @property
    def texts(self) -> list[str]:
        return [text.raw for text in (self._whole, self._name, self._calls) if text.raw]

    @property
    def order(self) -> tuple[Any, ...]:
        """Time, then id; times that are no numbers as SQLite orders them."""
        if self.time is None:
            return 0, 0, self.id
        kind = 1 if isinstance(self.time, int | float) else 2 if isinstance(self.time, str) else 3
        return kind, self.time.encode() if kind == 2 else self.time, self.id

    def covered(self, given: dict[str, Any]) -> bool:
        """Whether substring search covers it: it is in layout 3's index, or is asked for by name."""
        if not self.tool and not self.apart:
            return True
        if given.get("session_ids") is not None:
            return True
        return (self.tool and "tool" in (given.get("roles") or ())) or (self.apart and given.get("sources") is not None)

    def fields(self, given: dict[str, Any]) -> list[tuple[Text, bool]]:
        covered = self.covered(given)
        content = self._whole if "tool" in (given.get("roles") or ()) else self._cut
        return [(content, covered), (self._name, covered), (self._calls, covered and self._escaped)]

    def same_as(self) -> Iterator[tuple[Any, ...]]:
        """What a copy made by compaction shares with its original."""
        row = self.row
        yield row["session_id"], row["timestamp"], row["role"], row["content"], row["tool_calls"]
        if row.get("message_uid") is not None:
            yield row["session_id"], row["message_uid"]


class Truth:
    """A file read once, which answers any number of queries."""

    def __init__(self, path: Path) -> None:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.text_factory = lambda stored: stored.decode(errors="replace")
            cursor = connection.execute("SELECT m.*, s.* FROM messages m JOIN sessions s ON s.id = m.session_id")
            names = [column[0] for column in cursor.description]
            # Of a name that both tables have, the message's comes first and counts.
            self.messages = [Message(dict(zip(reversed(names), reversed(row), strict=True))) for row in cursor]
        self._live = {key for message in self.messages if self._flag(message, "active", 1) for key in message.same_as()}

    @staticmethod
    def _flag(message: Message, name: str, default: int) -> bool:
        value = message.row.get(name, default)
        return bool(default if value is None else value)

    def _shown(self, message: Message, given: dict[str, Any]) -> bool:
        row = message.row
        if row.get("display_kind") == "hidden":
            return False
        if not given.get("include_inactive") and not self._flag(message, "active", 1):
            copied = any(key in self._live for key in message.same_as())
            if not self._flag(message, "compacted", 0) or copied:
                return False
        for flag in ("archived", "hidden"):
            if self._flag(message, flag, 0) and not given.get(f"include_{flag}"):
                return False
        for name, column in (("roles", "role"), ("sources", "source"), ("session_ids", "session_id")):
            if given.get(name) is not None and row[column] not in given[name]:
                return False
        if row["source"] in (given.get("exclude_sources") or ()):
            return False
        place = message.order[:2]
        after, before = given.get("after"), given.get("before")
        return (after is None or place >= (1, after)) and (before is None or (0, 0) < place < (1, before))

    def ids(self, printed: str, **given: Any) -> list[int]:
        """Ids of all messages that answer, oldest first."""
        node = read(printed)
        candidates = [message for message in self.messages if self._shown(message, given)]
        if any(leaf.substring for leaf in leaves(node)):
            candidates = [message for message in candidates if message.covered(given)]
        texts = [(message, message.fields(given)) for message in candidates]
        for relaxed in self._relaxations(node, texts):
            found = [message for message, fields in texts if answers(node, fields, relaxed)]
            if found:
                return [message.id for message in sorted(found, key=lambda message: message.order)]
        return []

    def _relaxations(self, node: Any, texts: list[Any]) -> Iterator[frozenset[Leaf]]:
        """As typed; only when nothing answers, without the punctuation that nothing holds; then without any."""
        yield frozenset()
        literal = frozenset(leaf for leaf in leaves(node, positive_only=True) if leaf.literal)
        if literal:
            nearly = [fields for _, fields in texts if answers(node, fields, literal)]
            held = {leaf for leaf in literal if any(answers(leaf, fields, frozenset()) for fields in nearly)}
            if 0 < len(held) < len(literal):
                yield literal - held
            yield literal
