"""Snippets: the part of a text around its matches, the same for every route and engine.

One window of about forty words (three characters of an unspaced script count as one, so that 120 of them make a window)
is laid where most different terms stand, then most matches, then first. Matches are marked; what is left out is an
ellipsis. Only hits that are returned get a snippet.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, pairwise

from hermes_store.search.scripts import UNSPACED, fold_width, fold_words
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or
from hermes_store.search.terms import Kind, needle
from hermes_store.search.verify import Field, Span, spans

OPEN, CLOSE, ELLIPSIS = ">>>", "<<<", "..."

#: Steps of a window; a word is one, and so are up to three characters of an unspaced script.
WINDOW = 40
#: Characters to each side of it at most, whatever they are: data without blanks is one word.
_LONGEST = 300
#: Matches of a term that are looked at to place the window.
_MATCHES = 50

_STEP = re.compile(rf"[{UNSPACED}]{{1,3}}|[^\W_{UNSPACED}]+")
_ASCII_STEP = re.compile("[0-9A-Za-z]+")  # the same in plain texts, several times faster
# Half-width Katakana and Hangul, of which two characters fold to one.
_HALF_WIDTH = re.compile("[\uff66-\uffdc]")

Mark = tuple[int, int, int]
"""Start and end of a match in the text, and the number of its term."""


def snippet(node: Node, fields: Iterable[Field], relaxed: AbstractSet[Leaf] = frozenset()) -> str:
    """Show where a message answers a query.

    Args:
        node: The query's tree.
        fields: The searchable texts of the message, the most telling first.
        relaxed: Terms whose punctuation need not be there.

    Returns:
        The window with its marks; the beginning of the first text that has any when nothing matches.
    """
    best: tuple[str, list[Mark]] | None = None
    most, head = 0, ""
    terms = list(dict.fromkeys(_shown(node)))
    for text in fields:
        marks = _marks(terms, text, relaxed) if text.text else []
        kinds = len({kind for _, _, kind in marks})
        if kinds > most:
            best, most = (text.text, marks), kinds
        if most == len(terms):
            break
        head = head or text.text.strip()
    if best is None:
        return _marked(head, [], *_expanded(head, 0, 0, WINDOW))
    whole, marks = best
    first, last, size = _densest(whole, marks)
    return _marked(whole, marks, *_expanded(whole, marks[first][0], marks[last][1], WINDOW - size))


# ------------------------------------------------------------------------------------------------------------- matches


def _marks(terms: Sequence[Leaf], text: Field, relaxed: AbstractSet[Leaf]) -> list[Mark]:
    marks: list[Mark] = []
    for kind, leaf in enumerate(terms):
        found = list(islice(spans(leaf, text, relaxed), _MATCHES))
        marks.extend((start, end, kind) for start, end in _in_text(found, text, needle(leaf).kind))
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


def _in_text(found: list[Span], text: Field, kind: Kind) -> list[Span]:
    """Carry places in a folded text back to the text itself."""
    origins = _origins(text, kind) if found else None
    if origins is None:
        return found
    return [(origins[start], max(origins[end], origins[end - 1] + 1)) for start, end in found]


def _origins(field: Field, kind: Kind) -> list[int] | None:
    """Give, for each character of the folded text and for its end, where it comes from; None when nothing moved."""
    text = field.text
    if text.isascii() or kind is Kind.SIGNS:
        return None
    same_length = len(field.folded(kind)) == len(text)
    if kind is Kind.WORD:
        if same_length:  # each character folds to one or to none
            return None
        return [at for at, character in enumerate(text) if fold_words(character)] + [len(text)]
    if same_length and unicodedata.is_normalized("NFC", text) and not _HALF_WIDTH.search(text):
        return None  # nothing was joined, so each character folded to one
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
    """Choose the run of marks that fits a window and shows most; gives its first and last mark, and its steps."""
    if len(marks) == 1:
        return 0, 0, min(_steps(text, *marks[0][:2]), WINDOW)
    gaps = [_steps(text, left, right) for (left, _, _), (right, _, _) in pairwise(marks)]
    best, best_worth = (0, 0, min(_steps(text, *marks[0][:2]), WINDOW)), (0, 0)
    for first in range(len(marks)):
        last, size = first, _steps(text, *marks[first][:2])
        furthest = marks[first][0] + 2 * _LONGEST
        while last + 1 < len(marks) and size + gaps[last] <= WINDOW and marks[last + 1][1] <= furthest:
            size += gaps[last]
            last += 1
        worth = len({kind for _, _, kind in marks[first : last + 1]}), last - first
        if worth > best_worth:
            best, best_worth = (first, last, min(size, WINDOW)), worth
        if last + 1 == len(marks):
            break  # runs that begin later are parts of this one
    return best


def _steps(text: str, start: int, end: int) -> int:
    return WINDOW + 1 if end - start > 2 * _LONGEST else len(_stepping(text).findall(text, start, end))


def _expanded(text: str, start: int, end: int, room: int) -> Span:
    """Widen a window by whole words, half to the left if there is as much, and the rest to the right."""
    before, after = text[max(start - _LONGEST, 0) : start][::-1], text[end : end + _LONGEST]
    cut_before, cut_after = start > _LONGEST, end + _LONGEST < len(text)
    left, taken = _reach(before, room // 2, cut=cut_before)
    right, taken_right = _reach(after, room - taken, cut=cut_after)
    if taken + taken_right < room:
        left, _ = _reach(before, room - taken_right, cut=cut_before)
    # Signs at the very ends of a text are shown with it.
    first, last = start - left, end + right
    step = _stepping(text)
    return (0 if not step.search(text, 0, first) else first), (len(text) if not step.search(text, last) else last)


def _reach(text: str, steps: int, *, cut: bool) -> tuple[int, int]:
    """Tell how far a number of steps goes from the beginning of a text, and how many there are at most."""
    taken = list(islice(_stepping(text).finditer(text), steps))
    if cut and taken and taken[-1].end() == len(text):  # the last word goes on beyond
        return taken.pop().start(), len(taken)
    return (taken[-1].end() if taken else 0), len(taken)


def _stepping(text: str) -> re.Pattern[str]:
    return _ASCII_STEP if text.isascii() else _STEP


def _marked(text: str, marks: list[Mark], start: int, end: int) -> str:
    shown = [ELLIPSIS] if text[:start].strip() else []
    at = start
    for mark_start, mark_end, _ in marks:
        if mark_start >= at and mark_end <= end:
            shown += [text[at:mark_start], OPEN, text[mark_start:mark_end], CLOSE]
            at = mark_end
    shown += [text[at:end], ELLIPSIS if text[end:].strip() else ""]
    return "".join(shown).strip()
