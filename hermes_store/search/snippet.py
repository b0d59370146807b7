"""Snippets: the part of a text around its matches, the same for every route and engine.

One window of about forty words (a character of an unspaced script counts a third of a word, so that 120 of them make a
window) is laid where most different terms stand, then most matches, then first. Matches are marked; what is left out is
an ellipsis. Only hits that are returned get a snippet.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, pairwise

from hermes_store.search.scripts import LETTER, UNSPACED, fold_width, fold_words
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or
from hermes_store.search.terms import Kind, needle
from hermes_store.search.verify import Field, Span, spans

OPEN, CLOSE, ELLIPSIS = ">>>", "<<<", "..."

#: Size of a window: a word counts three, a character of an unspaced script one.
WINDOW = 120
_WORD_SIZE = 3
#: Characters of a window at most, whatever they are: data without blanks is one word.
_LONGEST = 600
#: Matches that are looked at to place the window.
_MATCHES = 100

_UNIT = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}]){LETTER})+")
_UNSPACED = re.compile(f"[{UNSPACED}]")

Mark = tuple[int, int, int]
"""Start and end of a match in the text, and the number of its term."""


def snippet(node: Node, fields: Sequence[Field], relaxed: AbstractSet[Leaf] = frozenset()) -> str:
    """Show where a message answers a query.

    Args:
        node: The query's tree.
        fields: The searchable texts of the message, the most telling first.
        relaxed: Terms whose punctuation need not be there.

    Returns:
        The window with its marks; the beginning of the first text that has any when nothing matches.
    """
    best: tuple[str, list[Mark]] | None = None
    most = 0
    for text in fields:
        marks = _marks(node, text, relaxed)
        kinds = len({kind for _, _, kind in marks})
        if kinds > most:
            best, most = (text.text, marks), kinds
    if best is None:
        head = next((text.text for text in fields if text.text.strip()), "")
        return _marked(head, [], *_expanded(head, 0, 0, WINDOW))
    whole, marks = best
    first, last, size = _densest(whole, marks)
    return _marked(whole, marks, *_expanded(whole, marks[first][0], marks[last][1], WINDOW - size))


# ------------------------------------------------------------------------------------------------------------- matches


def _marks(node: Node, text: Field, relaxed: AbstractSet[Leaf]) -> list[Mark]:
    marks: list[Mark] = []
    for kind, leaf in enumerate(dict.fromkeys(_shown(node))):
        found = list(islice(spans(leaf, text, relaxed), _MATCHES))
        marks.extend((start, end, kind) for start, end in _in_text(found, text.text, needle(leaf).kind))
    return sorted(marks)


def _shown(node: Node) -> Iterator[Leaf]:
    match node:
        case And(parts) | Or(parts) | Near(parts):
            for part in parts:
                yield from _shown(part)
        case Not():
            return
        case _:
            yield node


def _in_text(found: list[Span], text: str, kind: Kind) -> list[Span]:
    """Carry places in a folded text back to the text itself."""
    origins = _origins(text, kind) if found else None
    if origins is None:
        return found
    return [(origins[start], max(origins[end], origins[end - 1] + 1)) for start, end in found]


def _origins(text: str, kind: Kind) -> list[int] | None:
    """Give, for each character of the folded text and for its end, where it comes from; None when nothing moved."""
    if text.isascii() or kind is Kind.SIGNS:
        return None
    if kind is Kind.WORD:
        if len(fold_words(text)) == len(text):  # each character folds to one or to none
            return None
        return [at for at, character in enumerate(text) if fold_words(character)] + [len(text)]
    if unicodedata.is_normalized("NFKC", text) and len(text.casefold()) == len(text):
        return None
    return [start for start, cluster in _clusters(text) for _ in fold_width(cluster)] + [len(text)]


def _clusters(text: str) -> Iterator[tuple[int, str]]:
    """Cut a text where normalisation does not join across."""
    bounds = [0, *(at for at in range(1, len(text)) if not _joins(text[at])), len(text)]
    for start, end in pairwise(bounds):
        yield start, text[start:end]


@functools.lru_cache(maxsize=4096)
def _joins(character: str) -> bool:
    first = unicodedata.normalize("NFKC", character)[:1]
    return unicodedata.combining(first) != 0 or "\u1161" <= first <= "\u11ff"


# -------------------------------------------------------------------------------------------------------------- window


def _densest(text: str, marks: list[Mark]) -> tuple[int, int, int]:
    """Choose the run of marks that fits a window and shows most; gives its first and last mark, and its size."""
    gaps = [_size(text, left, right) for (left, _, _), (right, _, _) in pairwise(marks)]
    best, best_worth = (0, 0, min(_size(text, *marks[0][:2]), WINDOW)), (0, 0)
    for first in range(len(marks)):
        last, size = first, _size(text, *marks[first][:2])
        while (
            last + 1 < len(marks) and size + gaps[last] <= WINDOW and marks[last + 1][1] - marks[first][0] <= _LONGEST
        ):
            size += gaps[last]
            last += 1
        worth = len({kind for _, _, kind in marks[first : last + 1]}), last - first
        if worth > best_worth:
            best, best_worth = (first, last, min(size, WINDOW)), worth
    return best


def _size(text: str, start: int, end: int) -> int:
    if end - start > _LONGEST:
        return WINDOW + 1
    return sum(1 if _UNSPACED.match(unit[0]) else _WORD_SIZE for unit in _UNIT.finditer(text, start, end))


def _expanded(text: str, start: int, end: int, room: int) -> Span:
    """Widen a window by whole words, half to the left if there is as much, and the rest to the right."""
    far_left, far_right = max(start - _LONGEST, 0), min(end + _LONGEST, len(text))
    before = [unit.span() for unit in _UNIT.finditer(text, far_left, start)]
    after = [unit.span() for unit in _UNIT.finditer(text, end, far_right)]
    # The outermost ones may be halves of words.
    before = before[1:] if far_left else before
    after = after[:-1] if far_right < len(text) else after
    left, room_left = _taken(text, before[::-1], room // 2)
    right, room_left = _taken(text, after, room - room // 2 + room_left)
    more, _ = _taken(text, before[::-1][left:], room_left)
    left += more
    all_left = not far_left and left == len(before)
    all_right = far_right == len(text) and right == len(after)
    start = 0 if all_left else before[::-1][left - 1][0] if left else start
    end = len(text) if all_right else after[right - 1][1] if right else end
    return start, end


def _taken(text: str, units: list[Span], room: int) -> tuple[int, int]:
    """Tell how many units fit, and what room is left."""
    taken = 0
    for start, end in units:
        size = _size(text, start, end)
        if size > room:
            break
        room -= size
        taken += 1
    return taken, room


def _marked(text: str, marks: list[Mark], start: int, end: int) -> str:
    shown = [ELLIPSIS] if text[:start].strip() else []
    at = start
    for mark_start, mark_end, _ in marks:
        if mark_start >= at and mark_end <= end:
            shown += [text[at:mark_start], OPEN, text[mark_start:mark_end], CLOSE]
            at = mark_end
    shown += [text[at:end], ELLIPSIS if text[end:].strip() else ""]
    return "".join(shown).strip()
