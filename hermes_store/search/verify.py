"""What a query means, said once, in Python: does this message answer it, and where?

Indexes and scans only propose rows. Every proposed row is read and judged here, which is what makes all routes mean the
same: an index that still holds deleted text, that holds more than layout 3 does, JSON keys, base64, or a word glued to
others, proposes too much and is put right; whatever the route, the answer is that of this module.

* A *word* matches a whole word, folded as ``unicode61`` folds. In texts that substring search covers, a character of an
  unspaced script beside it is a boundary too (``youer`` is in ``修改youer服务端``, ``cat`` is not in ``concatenate``).
* A term with an unspaced script matches anywhere, folded by width and case.
* Punctuation within a term has to be there literally, unless the caller relaxes that term.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from hermes_store.search.scripts import (
    FOLDED_STOPS,
    GAP,
    LETTER,
    fold_width,
    fold_words,
    folded_sign,
    has_unspaced,
    runs,
)
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or
from hermes_store.search.terms import Kind, Needle, needle

Span = tuple[int, int]

_TOKEN = re.compile(f"{LETTER}+")
_LETTER = re.compile(LETTER)
_BLANK = f"[\\s{FOLDED_STOPS}]"
_SIGN = re.compile(r"[!-/:-@\[-`{-~]")
_NONE: frozenset[Leaf] = frozenset()


@dataclass(slots=True)
class Field:
    """One searchable text of a message, folded when it is first asked for.

    Attributes:
        text: The decoded text.
        substring: True when substring search covers it: terms of unspaced scripts, and words glued to them.
    """

    text: str
    substring: bool
    _folded: dict[Kind, str] = field(default_factory=dict, init=False, repr=False)

    def folded(self, kind: Kind) -> str:
        """Give the text as terms of one kind compare it.

        Args:
            kind: The kind of the term.
        """
        if kind is Kind.SIGNS:
            return self.text
        if kind not in self._folded:
            self._folded[kind] = fold_words(self.text) if kind is Kind.WORD else fold_width(self.text)
        return self._folded[kind]


def matches(node: Node, fields: Sequence[Field], relaxed: AbstractSet[Leaf] = _NONE) -> bool:
    """Tell whether a message answers a query.

    Args:
        node: A normalised tree.
        fields: The searchable texts of the message.
        relaxed: Terms whose punctuation need not be there.
    """
    match node:
        case And(parts):
            return all(matches(part, fields, relaxed) for part in parts)
        case Or(parts):
            return any(matches(part, fields, relaxed) for part in parts)
        case Not(part):
            return not matches(part, fields, relaxed)
        case Near():
            return any(_is_near(node, text, relaxed) for text in fields)
        case _:
            return any(next(spans(node, text, relaxed), None) is not None for text in fields if text.text)


def spans(leaf: Leaf, text: Field, relaxed: AbstractSet[Leaf] = _NONE) -> Iterator[Span]:
    """Find where a term stands in one text.

    Args:
        leaf: A term, prefix or phrase.
        text: The text.
        relaxed: Terms whose punctuation need not be there.

    Yields:
        Start and end in ``text.folded(kind of the term)``, from left to right for each of its spellings.
    """
    sought = needle(leaf)
    return _spans(sought, text, literal=sought.literal and leaf not in relaxed)


def literal_leaves(node: Node) -> frozenset[Leaf]:
    """Name the terms whose punctuation a query requires, as far as that can be relaxed (exclusions cannot).

    Args:
        node: A normalised tree.
    """
    match node:
        case And(parts) | Or(parts):
            return _NONE.union(*(literal_leaves(part) for part in parts))
        case Near(parts):
            return frozenset(part for part in parts if needle(part).literal)
        case Not():
            return _NONE
        case _:
            return frozenset({node}) if needle(node).literal else _NONE


def _spans(sought: Needle, text: Field, *, literal: bool) -> Iterator[Span]:
    if sought.kind is Kind.SUBSTRING and not text.substring:
        return
    folded = text.folded(sought.kind)
    for finder in _finders(sought.leaf, literal=literal):
        yield from finder.spans(folded, glued=text.substring)


def _is_near(node: Near, text: Field, relaxed: AbstractSet[Leaf]) -> bool:
    """Judge as FTS5 does: no more than ``distance`` words from the end of each part to the start of the last one."""
    places: list[list[Span]] = []
    for part in node.parts:
        sought = needle(part)
        found = sorted(_spans(sought, text, literal=sought.literal and part not in relaxed))
        if not found:
            return False
        words = [word.start() for word in _TOKEN.finditer(text.folded(sought.kind))]
        places.append([(bisect.bisect_right(words, start), bisect.bisect_left(words, end)) for start, end in found])
    starts = [[start for start, _ in part] for part in places]
    return any(
        all(
            _ends_within(part, part_starts, last, node.distance)
            for part, part_starts in zip(places, starts, strict=True)
        )
        for last in sorted({start for part in starts for start in part})
    )


def _ends_within(part: list[Span], starts: list[int], last: int, distance: int) -> bool:
    before = bisect.bisect_right(starts, last)
    return before > 0 and last - part[before - 1][1] - 1 <= distance


# ----------------------------------------------------------------------------------------------------------- patterns


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds one spelling of a term in folded texts.

    Boundaries are looked at here and not in the pattern: a pattern with the classes of all scripts takes longer to make
    than most searches take to run.
    """

    pattern: re.Pattern[str]
    start: str
    """What every match starts with; to look for that first is many times faster."""
    left: bool
    right: bool
    """Whether the match must not go on to the left or right."""

    def spans(self, text: str, *, glued: bool) -> Iterator[Span]:
        """Find all places, from left to right.

        Args:
            text: A folded text.
            glued: Characters of unspaced scripts are boundaries too.
        """
        at = text.find(self.start)
        while at >= 0 and (found := self.pattern.search(text, at)):
            start, end = found.span()
            free_left = not self.left or start == 0 or not _continues(text[start - 1], glued=glued)
            if free_left and (not self.right or end == len(text) or not _continues(text[end], glued=glued)):
                yield start, end
                at = max(end, start + 1)
            else:
                at = start + 1


@functools.lru_cache(maxsize=4096)
def _continues(character: str, *, glued: bool) -> bool:
    """Tell whether a character beside a word makes it another word."""
    return _is_letter(character) and not (glued and has_unspaced(character))


@functools.lru_cache(maxsize=2048)
def _finders(leaf: Leaf, *, literal: bool) -> tuple[_Finder, ...]:
    sought = needle(leaf)
    if sought.kind is Kind.SIGNS:
        return (_Finder(re.compile(re.escape(sought.text)), sought.text, left=False, right=False),)
    gap = _BLANK if literal else GAP
    if sought.kind is Kind.SUBSTRING:
        pieces = [fold_width(piece) for piece in (sought.chunks if literal else sought.parts)]
        pattern = re.compile(_joined(pieces, gap, escape=_either_width))
        start = _SIGN.split(pieces[0], maxsplit=1)[0]
        return (_Finder(pattern, start, left=False, right=False),)
    finders = {}
    for spelling in sought.spellings:
        chunks = [folded for chunk in spelling.split(" ") if (folded := fold_words(chunk))]
        pieces = chunks if literal else [run for chunk in chunks for run in runs(chunk)]
        finders[tuple(pieces)] = _Finder(
            re.compile(_joined(pieces, gap)),
            pieces[0],
            left=_is_letter(pieces[0][0]),
            right=_is_letter(pieces[-1][-1]) and not sought.prefix,
        )
    return tuple(finders.values())


def _joined(pieces: list[str], gap: str, escape: Callable[[str], str] = re.escape) -> str:
    """Join pieces by what may stand between them: something, unless one of the two sides needs no blank."""
    body = escape(pieces[0])
    for left, right in pairwise(pieces):
        blank_needed = all(_is_letter(side) and not has_unspaced(side) for side in (left[-1], right[0]))
        body += gap + ("+" if blank_needed else "*") + escape(right)
    return body


def _either_width(piece: str) -> str:
    """A sign as typed finds its full-width form as well."""
    return "".join(
        f"[{re.escape(character)}{folded_sign(character)}]" if _SIGN.match(character) else re.escape(character)
        for character in piece
    )


def _is_letter(character: str) -> bool:
    return _LETTER.match(character) is not None
