"""The query language: any string in, one small tree out.

A query is parsed once; every route (word index, substring index, scan, another engine) is compiled from the same tree
and therefore means the same. The parser is total: operators that dangle are dropped, what was opened is closed at the
end, and everything that is not an operator, a quote or a bracket is text to be found. The one error is a query with
nothing positive in it.

===================  =================================================================================================
``docker deploy``    both words; ``AND`` between them says the same
``a OR b c``         ``OR`` binds last: a, or both b and c
``a NOT b c``        ``NOT`` takes away the next word, phrase or bracket: a and c, without b
``(a OR b) c``       brackets group
``"old plan"``       the words in that order; ``"old plan"*`` lets the last one go on
``deploy*``          words that begin so
``NEAR(a b, 5)``     at most five words between them (ten, when no number is given)
``run.py``, ``C++``  text with punctuation: its words in order, and the punctuation itself
``->``, ``🚀``       nothing but punctuation or emoji: found as it is
===================  =================================================================================================

Operators are words of their own in capital letters. Punctuation of the unspaced scripts (``、。「」``) separates words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hermes_store.errors import QueryError
from hermes_store.search.scripts import STOPS, runs

#: Characters of a query that are read; what comes after them is cut off (Hermes's own limit).
MAX_LENGTH = 2048
#: Brackets within brackets that group; deeper ones are read as blanks. FTS5's own parser gives up near forty.
MAX_DEPTH = 12
#: Words that ``NEAR`` allows in between when the query does not say (FTS5's default).
NEAR_DISTANCE = 10
_MAX_NEAR_DISTANCE = 1_000_000

CUT_NOTE = f"the query is longer than {MAX_LENGTH} characters and was cut"
DEPTH_NOTE = f"brackets nested more than {MAX_DEPTH} deep were ignored"
BARE_NOT_NOTE = "an alternative that only excludes (OR NOT …) was left out"


@dataclass(frozen=True, slots=True)
class Term:
    """One word, with whatever punctuation is written into it."""

    text: str

    def __str__(self) -> str:
        # A quoted text reads back as the same words where the bare one would read as something else.
        bare = self.text not in _OPERATORS and not self.text.endswith("*") and not set(self.text) & set('()"')
        return self.text if bare else _quoted(self.text)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Words, the last of which may go on."""

    text: str

    def __str__(self) -> str:
        return f"{_quoted(self.text) if ' ' in self.text else Term(self.text)}*"


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words in this order, with nothing but blanks and punctuation between them."""

    text: str

    def __str__(self) -> str:
        return _quoted(self.text)


@dataclass(frozen=True, slots=True)
class Near:
    """Words and phrases with at most ``distance`` words between them, in any order."""

    parts: tuple[Leaf, ...]
    distance: int

    def __str__(self) -> str:
        return f"NEAR({' '.join(map(str, self.parts))}, {self.distance})"


@dataclass(frozen=True, slots=True)
class And:
    """All of the parts."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of the parts."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({part})" if isinstance(part, And) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """Everything but the part."""

    part: Node

    def __str__(self) -> str:
        return f"NOT ({self.part})" if isinstance(self.part, And | Or | Not) else f"NOT {self.part}"


Leaf = Term | Prefix | Phrase
Node = Leaf | Near | And | Or | Not

_OPERATORS = frozenset({"AND", "OR", "NOT"})


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query.

    Attributes:
        text: What was typed, without control characters and blanks around it.
        root: The tree; whatever it finds holds at least one of its positive leaves.
        notes: What of the query was cut or left out.
    """

    text: str
    root: Node
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.root)


def parse(text: str) -> Query:
    """Read a query.

    Args:
        text: Any string.

    Returns:
        The query, normalised.

    Raises:
        QueryError: Nothing positive is left to search for: blanks, operators alone, or exclusions alone.
    """
    notes: list[str] = []
    clean = _BLANKS.sub(" ", text).strip()
    if len(clean) > MAX_LENGTH:
        clean = _cut(clean)
        notes.append(CUT_NOTE)
    if not runs(clean):
        return Query(clean, _punctuation_alone(clean), tuple(notes))
    tokens = list(_tokens(clean, notes))
    root = normalise(_Parser(tokens).alternatives(), notes)
    if root is None:
        raise QueryError("nothing to search for: the query has only operators or exclusions; add a word to be found")
    return Query(clean, root, tuple(notes))


def normalise(node: Node, notes: list[str] | None = None) -> Node | None:
    """Bring a tree into the one shape that compilers expect.

    Nested ANDs and ORs are flattened and doubled parts dropped, ``NOT NOT`` disappears, an exclusion stands only beside
    something positive, and a sign between words (``foo - bar``) is no condition.

    Args:
        node: Any tree.
        notes: Takes up what had to be left out.

    Returns:
        The tree, or None when nothing positive is left.
    """
    simple = _simplified(node, notes if notes is not None else [])
    return None if simple is None or isinstance(simple, Not) else _settled(simple)


def positive(node: Node) -> Node:
    """Drop the exclusions of a normalised tree: every row it finds is also found by what is left.

    Args:
        node: A normalised tree.
    """
    match node:
        case And(parts):
            kept = tuple(positive(part) for part in parts if not isinstance(part, Not))
            return kept[0] if len(kept) == 1 else And(kept)
        case Or(parts):
            return Or(tuple(positive(part) for part in parts))
        case _:
            return node


def leaves(node: Node) -> Iterator[Leaf]:
    """Walk the words and phrases of a tree from left to right, excluded ones too.

    Args:
        node: Any tree.
    """
    match node:
        case And(parts) | Or(parts) | Near(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part):
            yield from leaves(part)
        case _:
            yield node


# --------------------------------------------------------------------------------------------------------- characters

# Control and format characters (bidirectional marks, zero-width spaces, BOM), lone surrogates, every kind of blank. The
# joiners of Persian and emoji and the soft hyphen stay: they are inside words.
_BLANKS = re.compile(
    "[\x00-\x20\x7f-\xa0\u0600-\u0605\u061c\u1680\u180e\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    "\ufff9-\ufffb\ud800-\udfff]+"
)
_SEPARATORS = re.compile(f"[ {STOPS}]+")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', " ") + '"'


def _cut(text: str) -> str:
    """Cut at a blank; a single endless word is cut where it is and becomes a prefix."""
    end = text.rfind(" ", 1, MAX_LENGTH + 1)
    return text[:end] if end > 0 else text[: MAX_LENGTH - 1] + "*"


def _punctuation_alone(text: str) -> Node:
    """Signs alone are searched as they are; quotes are quotes even here."""
    signs = " ".join(text.replace('"', " ").split())
    if not signs:
        raise QueryError("nothing to search for: the query is empty; add a word to be found")
    return Phrase(signs)


# ------------------------------------------------------------------------------------------------------------- tokens

_OPEN, _CLOSE = "(", ")"
_NEAR = re.compile(r"NEAR *\(")
_WORD_END = re.compile(rf'[ "{STOPS}]')
_OPERATOR = re.compile(rf'(AND|OR|NOT)(?=[ "(){STOPS}]|\Z)')


def _tokens(text: str, notes: list[str]) -> Iterator[str | Leaf | Near]:
    """Cut a query into operators and brackets (strings) and what is to be found (nodes)."""
    depth = ignored = 0
    at = 0
    while at < len(text):
        if separator := _SEPARATORS.match(text, at):
            at = separator.end()
        elif near := _NEAR.match(text, at):
            node, at = _near(text, near.end())
            yield from node
        elif operator := _OPERATOR.match(text, at):
            yield operator[1]
            at = operator.end()
        elif text[at] == _OPEN:
            if depth >= MAX_DEPTH:
                ignored += 1
                notes.extend([DEPTH_NOTE] if DEPTH_NOTE not in notes else [])
            else:
                depth += 1
                yield _OPEN
            at += 1
        elif text[at] == _CLOSE and ignored:
            ignored -= 1
            at += 1
        elif text[at] == _CLOSE and depth:
            depth -= 1
            yield _CLOSE
            at += 1
        elif text[at] == '"':
            leaf, at = _phrase(text, at)
            yield from leaf
        else:
            end = _word_end(text, at, grouped=bool(depth or ignored))
            yield _word(text[at:end])
            at = end


def _word_end(text: str, start: int, *, grouped: bool) -> int:
    """Find where a word ends. Brackets belong to it when they open and close within it, as in ``main()``."""
    limit = match.start() if (match := _WORD_END.search(text, start)) else len(text)
    opened: list[int] = []
    for at in range(start, limit):
        if text[at] == _OPEN:
            opened.append(at)
        elif text[at] == _CLOSE:
            if opened:
                opened.pop()
            elif grouped and at > start:
                return at
    return opened[0] if opened and opened[0] > start else limit


def _word(text: str) -> Leaf:
    body = text[:-1]
    return Prefix(body) if text.endswith("*") and runs(body[-1:]) else Term(text)


def _phrase(text: str, start: int) -> tuple[list[Leaf], int]:
    end = text.find('"', start + 1)
    end = len(text) if end < 0 else end
    body = " ".join(text[start + 1 : end].split())
    end += 1
    if text[end : end + 1] == "*":
        return ([Prefix(body)] if runs(body) else []), end + 1
    return ([Phrase(body)] if body and not _SEPARATORS.fullmatch(body) else []), end


def _near(text: str, start: int) -> tuple[list[Near | Leaf], int]:
    end = text.find(_CLOSE, start)
    end = len(text) if end < 0 else end
    body = text[start:end]
    distance = NEAR_DISTANCE
    if number := re.search(r", *(\d+) *\Z", body, re.ASCII):
        distance = min(int(number[1][:9]), _MAX_NEAR_DISTANCE)
        body = body[: number.start()]
    parts: list[Leaf] = []
    for token in _tokens(body.replace(_OPEN, " "), []):
        if isinstance(token, Term | Prefix) and (words := token.text.strip(",;")) and runs(words):
            parts.append(type(token)(words))
        elif isinstance(token, Phrase) and runs(token.text):
            parts.append(token)
    unique = tuple(dict.fromkeys(parts))
    return [Near(unique, distance)] if len(unique) > 1 else list(unique), end + 1


# ------------------------------------------------------------------------------------------------------------- grammar


class _Parser:
    """Recursive descent over the tokens; its depth is bounded by `MAX_DEPTH`."""

    def __init__(self, tokens: list[str | Leaf | Near]) -> None:
        self._tokens = tokens
        self._at = 0

    def alternatives(self) -> Node:
        """Read parts joined by OR up to a closing bracket or the end."""
        parts = [self._together()]
        while self._next() == "OR":
            self._at += 1
            parts.append(self._together())
        return Or(tuple(parts))

    def _together(self) -> Node:
        parts: list[Node] = []
        while (found := self._next()) not in (None, "OR", _CLOSE):
            if found == "AND":
                self._at += 1
            else:
                parts.append(self._unit())
        return And(tuple(parts))

    def _unit(self) -> Node:
        found = self._tokens[self._at]
        self._at += 1
        if found == "NOT":
            while self._next() in ("NOT", "AND"):
                self._at += 1
            if self._next() in (None, "OR", _CLOSE):
                return And(())
            return Not(self._unit())
        if found == _OPEN:
            inner = self.alternatives()
            self._at += self._next() == _CLOSE
            return inner
        if isinstance(found, str):
            raise AssertionError(f"{found} read as a word")  # noqa: TRY004 - the callers rule this out
        return found

    def _next(self) -> str | Leaf | Near | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None


def _simplified(node: Node, notes: list[str]) -> Node | None:
    match node:
        case Not(part):
            inner = _simplified(part, notes)
            if inner is None:
                return None
            return inner.part if isinstance(inner, Not) else Not(inner)
        case And(parts):
            return _simplified_and(_flat(parts, And, notes))
        case Or(parts):
            return _simplified_or(_flat(parts, Or, notes), notes)
        case _:
            return node


def _flat(parts: tuple[Node, ...], kind: type[And | Or], notes: list[str]) -> list[Node]:
    flat: dict[Node, None] = {}
    for part in parts:
        simple = _simplified(part, notes)
        if isinstance(simple, And | Or) and type(simple) is kind:
            flat.update(dict.fromkeys(simple.parts))
        elif simple is not None:
            flat[simple] = None
    return list(flat)


def _simplified_and(parts: list[Node]) -> Node | None:
    if any(not isinstance(part, Not) and not _is_sign(part) for part in parts):
        parts = [part for part in parts if not _is_sign(part.part if isinstance(part, Not) else part)]
    if len(parts) > 1 and all(isinstance(part, Not) for part in parts):
        # Nothing but exclusions is one exclusion: whoever stands around it decides whether that is enough.
        return Not(Or(tuple(part.part for part in parts if isinstance(part, Not))))
    return _one_or(And, parts)


def _simplified_or(parts: list[Node], notes: list[str]) -> Node | None:
    kept: list[Node] = [part for part in parts if not isinstance(part, Not)]
    if kept and len(kept) < len(parts):
        notes.append(BARE_NOT_NOTE)
        parts = kept
    elif not kept and len(parts) > 1:
        return Not(And(tuple(part.part for part in parts if isinstance(part, Not))))
    return _one_or(Or, parts)


def _settled(node: Node) -> Node:
    """Signs that are left are conditions, which in print only quotes make of them."""
    match node:
        case And(parts) | Or(parts):
            settled = tuple(dict.fromkeys(_settled(part) for part in parts))
            return settled[0] if len(settled) == 1 else type(node)(settled)
        case Not(part):
            return Not(_settled(part))
        case Term(text) if not runs(text):
            return Phrase(text)
        case _:
            return node


def _one_or(kind: Callable[[tuple[Node, ...]], Node], parts: list[Node]) -> Node | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _is_sign(node: Node) -> bool:
    """Tell a bare sign (``-``, ``&``, ``->``) from something one searches for: words, emoji, anything in quotes."""
    return (
        isinstance(node, Term)
        and all(character.isascii() or unicodedata.category(character)[0] == "P" for character in node.text)
        and not runs(node.text)
    )
