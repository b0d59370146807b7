"""What one word or phrase of a query asks of a text, worked out once and shared by all routes.

A `Needle` names the kind of the term (which decides its route and its folding), the pieces an index can look up, and
whether its punctuation has to be there too. It is pure data; the statement builders and the Python evaluation read it.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

from hermes_store.search.scripts import STOPS, fold_words, has_unspaced, runs
from hermes_store.search.scripts import spellings as spellings_of
from hermes_store.search.syntax import Leaf, Prefix

_SEPARATORS = re.compile(f"[\\s{STOPS}]+")


class Kind(enum.Enum):
    """How a term is looked for."""

    WORD = "word"
    """Words of spaced scripts: whole words, in order."""
    SUBSTRING = "substring"
    """Text with a character of an unspaced script: anywhere in a text."""
    SIGNS = "signs"
    """Punctuation or emoji alone: anywhere, exactly as typed."""


@dataclass(frozen=True, slots=True)
class Needle:
    """One word or phrase, ready to be looked for.

    Attributes:
        leaf: The node of the query.
        kind: How it is looked for.
        chunks: The text cut at blanks and at punctuation of unspaced scripts.
        parts: Its runs of letters and digits, in order; empty for signs.
        literal: True when a chunk has more to it than its run: punctuation that must be there as well.
        prefix: True when the last word may go on.
    """

    leaf: Leaf
    kind: Kind
    chunks: tuple[str, ...]
    parts: tuple[str, ...]
    literal: bool
    prefix: bool

    @property
    def text(self) -> str:
        """The chunks with single blanks between them."""
        return " ".join(self.chunks)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The ways in which the whole text may be stored."""
        return spellings_of(self.text)


@functools.lru_cache(maxsize=1024)
def needle(leaf: Leaf) -> Needle:
    """Work out what a word or phrase asks for.

    Args:
        leaf: A term, prefix or phrase of a normalised query.
    """
    text = leaf.text
    chunks = tuple(chunk for chunk in _SEPARATORS.split(text) if chunk) or (text,)
    if has_unspaced(text):
        kind, parts = Kind.SUBSTRING, tuple(part for chunk in chunks for part in runs(chunk))
    else:
        # Folding first: the combining marks of a decomposed spelling are no punctuation.
        kind, parts = Kind.WORD, tuple(part for chunk in chunks for part in runs(fold_words(chunk)))
    if not parts:
        return Needle(leaf, Kind.SIGNS, (text,), (), literal=False, prefix=False)
    fold = fold_words if kind is Kind.WORD else str
    literal = any(runs(fold(chunk)) != [fold(chunk)] for chunk in chunks)
    return Needle(leaf, kind, chunks, parts, literal, prefix=isinstance(leaf, Prefix))
