"""Terms of one or two characters, by ranges of trigrams.

The substring index holds every occurrence of such a term as the beginning of some trigram, except at the very end of a
text. ``fts5vocab`` lists the trigrams of an index in order (`hermes_store.sqlite.vocabulary`), so all those that begin
with 漓江 are a range, on files of every layout, also read-only ones. The ends of texts are in small indexes of our own
(``ix_hs_messages_…_end1`` and ``…_end2``, the last character and the last two). In layout 0 each text is followed by a
blank, so it needs none.

What is found this way is proposed, and judged like any other message.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, column, func, literal_column, select, table

from hermes_store.search.accents import accented
from hermes_store.search.match import TRIGRAM_LENGTH
from hermes_store.search.rows import MESSAGES, listed
from hermes_store.search.scripts import UNSPACED_START, spellings
from hermes_store.search.syntax import Leaf
from hermes_store.search.terms import Kind, needle
from hermes_store.sqlite.shape import Layout, Shape

END_INDEXES = tuple(f"ix_hs_messages_{name}_end{length}" for name in ("content", "tool_name") for length in (1, 2))
_ending = MESSAGES.alias("ending")
_LAST = "\U0010ffff"
_SURROGATES_START, _SURROGATES_END = 0xD800, 0xE000
# Below the first unspaced script, whatever is no letter of a Latin word: what may follow a short word. Marks and a few
# letters are among it, and a little too much is proposed.
_NOT_LETTERS = (
    ("\1", "0"), (":", "A"), ("[", "a"), ("{", "\u00aa"), ("\u00ab", "\u00b2"), ("\u00d7", "\u00d8"),
    ("\u00f7", "\u00f8"), ("\u02b0", "\u0370"), ("\u0483", "\u048a"), ("\u0559", "\u0560"), ("\u0589", "\u05d0"),
    ("\u0600", "\u0620"), ("\u064b", "\u0660"), ("\u066a", "\u066e"), ("\u06d4", "\u06e5"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where a term stands in the indexes.

    Attributes:
        trigrams: Ranges of trigrams, from the first inclusive to the second exclusive.
        last: Last characters of texts.
        last_two: Last two characters of texts.
        last_but_one: Ranges of last two characters, for a term that may stand before the last character.
    """

    trigrams: tuple[tuple[str, str], ...]
    last: tuple[str, ...]
    last_two: tuple[str, ...]
    last_but_one: tuple[tuple[str, str], ...]


def has_vocabulary(shape: Shape) -> bool:
    """Tell whether short terms can be looked up in a file whose substring index is sound.

    Args:
        shape: The file's shape.
    """
    return shape.trigram.layout is Layout.INLINE or all(shape.has("index", name) for name in END_INDEXES)


@functools.lru_cache(maxsize=1024)
def ranges(leaf: Leaf, letters: str = "") -> Ranges:
    """Work out where a short term stands.

    Args:
        leaf: A term, prefix or phrase that has letters.
        letters: Accented letters to try in words.

    Returns:
        The ranges for the part of it that is likely to be rarest, the longest.
    """
    sought = needle(leaf)
    part = max(sought.parts, key=len)
    whole_word = sought.kind is Kind.WORD and not (sought.prefix and part == sought.parts[-1])
    trigrams: dict[tuple[str, str], None] = {}
    ends: list[set[str]] = [set(), set()]
    for form in (*spellings(part), *(accented(part, letters) if sought.kind is Kind.WORD else ())):
        lower = _lowered(form)
        if len(lower) >= TRIGRAM_LENGTH:
            trigrams[lower[:TRIGRAM_LENGTH], after(lower[:TRIGRAM_LENGTH])] = None
            continue
        trigrams |= dict.fromkeys(_word_ranges(lower) if whole_word else [(lower, after(lower))])
        ends[len(lower) - 1] |= set(_cased(form))
    return Ranges(
        trigrams=tuple(trigrams),
        last=tuple(sorted(ends[0])),
        last_two=tuple(sorted(ends[1])),
        last_but_one=tuple((text, after(text)) for text in sorted(ends[0])),
    )


@functools.cache
def gram_ids(occurrences: str, slot: int) -> Select[Any]:
    """Ask for the messages in which some trigram of a range stands.

    Args:
        occurrences: Which vocabulary to look it up in, from `hermes_store.sqlite.vocabulary`.
        slot: Names the parameter, ``grams_<slot>``: a JSON list of ranges.
    """
    occurrence = table(occurrences, column("term"), column("doc"), schema="temp").alias("occurrence")
    return _in_ranges(select(occurrence.c.doc), occurrence, occurrence.c.term, f"grams_{slot}")


@functools.cache
def end_ids(slot: int) -> tuple[Select[Any], ...]:
    """Ask for the messages whose text ends with a term.

    Args:
        slot: Names the parameters: ``end1_<slot>`` and ``end2_<slot>`` (JSON lists of texts) and ``end2_from_<slot>``
            (a JSON list of ranges).
    """
    found = []
    for text in (_ending.c.content, _ending.c.tool_name):
        # Exactly the expressions and conditions of the indexes, without parameters: only then do they serve.
        kept = [_ending.c.role != literal_column("'tool'")]
        if text is _ending.c.tool_name:
            kept.append(text.is_not(None))
        last, last_two = (func.substr(text, literal_column(f"-{length}")) for length in (1, 2))
        ids = select(_ending.c.id).where(*kept)
        found += [
            ids.where(last.in_(listed(bindparam(f"end1_{slot}")))),
            ids.where(last_two.in_(listed(bindparam(f"end2_{slot}")))),
            _in_ranges(ids, _ending, last_two, f"end2_from_{slot}"),
        ]
    return tuple(found)


def _in_ranges(statement: Select[Any], source: Any, value: ColumnElement[Any], parameter: str) -> Select[Any]:
    """Join the ranges of a parameter; an outer join, because SQLite must walk the ranges and not all there is."""
    each = func.json_each(bindparam(parameter)).table_valued("value", name="span")
    first, end = (func.json_extract(each.c.value, literal_column(f"'$[{at}]'")) for at in (0, 1))
    return statement.select_from(each.outerjoin(source, and_(value >= first, value < end)))


def _word_ranges(word: str) -> list[tuple[str, str]]:
    """A word of a spaced script goes on with no letter of its own kind."""
    return [(word + first, word + end) for first, end in _NOT_LETTERS] + [(word + UNSPACED_START, after(word))]


def after(text: str) -> str:
    """Give the text right behind all texts that begin with another one.

    Args:
        text: What they begin with; not empty.
    """
    code = ord(text[-1]) + 1
    if code > ord(_LAST):
        return text + _LAST
    return text[:-1] + chr(_SURROGATES_END if _SURROGATES_START <= code < _SURROGATES_END else code)


def _lowered(text: str) -> str:
    """Fold case as the index does: character by character."""
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def _cased(text: str) -> Iterator[str]:
    """Name the ways to write a text in capitals and small letters; the ends of texts are held as they were written."""
    choices: Sequence[set[str]] = [{character, character.lower(), character.upper()} for character in text]
    return ("".join(each) for each in itertools.product(*choices))
