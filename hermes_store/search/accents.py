"""Accented letters that the substring indexes hold.

The word index folds accents away, the substring indexes keep them. A word beside an unspaced script (``咖啡café店``) is
looked for in those, so it is tried with each accented letter that is there at all, wherever it may stand. Which letters
are there is looked up: the first trigram from ``À`` on, the first one that begins with a later letter, and so on.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata

from sqlalchemy import Connection, TextClause, text

from hermes_store.search.scripts import fold_words
from hermes_store.sqlite.vocabulary import OCCURRENCES, TEXT_OCCURRENCES

#: Spellings of one word that are tried at most.
_MOST = 64
#: Where accented letters of the Latin script are, and the marks of decomposed ones.
_RANGES = (("\u00c0", "\u0250"), ("\u0300", "\u0370"), ("\u1e00", "\u1f00"))


def accented_letters(connection: Connection, *, ends: bool, decoded: bool) -> str:
    """Find the accented letters, in small letters, and combining marks, each once.

    Args:
        connection: A connection with the temporary vocabulary tables.
        ends: Look at the ends of texts as well; trigrams do not begin there.
        decoded: Look into the index of decoded texts as well.
    """
    found = connection.execute(_statement(ends=ends, decoded=decoded)).scalars()
    return "".join(sorted({letter.lower() for letter in found}))


@functools.lru_cache(maxsize=1024)
def accented(word: str, letters: str) -> tuple[str, ...]:
    """Spell a word with accented letters.

    Args:
        word: The word.
        letters: The letters to use, from `accented_letters`.

    Returns:
        The spellings that have one at least; not all of them for a long word and many letters.
    """
    plain = fold_words(word)
    marks = [letter for letter in letters if unicodedata.combining(letter)]
    others = {
        character: [letter for letter in letters if fold_words(letter) == character]
        + [character + mark for mark in marks if fold_words(mark) == ""]
        for character in set(plain)
    }
    open_places = [at for at, character in enumerate(plain) if others[character]]
    spelled = (
        "".join(replaced.get(at, character) for at, character in enumerate(plain))
        for number in range(1, len(open_places) + 1)  # few accents first
        for places in itertools.combinations(open_places, number)
        for letters_there in itertools.product(*(others[plain[at]] for at in places))
        for replaced in [dict(zip(places, letters_there, strict=True))]
    )
    return tuple(itertools.islice(spelled, _MOST))


@functools.cache
def _statement(*, ends: bool, decoded: bool) -> TextClause:
    sources = [(f"temp.{OCCURRENCES}", "term", "")]
    if decoded:
        sources.append((f"temp.{TEXT_OCCURRENCES}", "term", ""))
    if ends:
        sources += [("main.messages", f"substr(content, -{length})", " AND role <> 'tool'") for length in (1, 2)]
    walks = []
    for (table, term, only), (first, end) in itertools.product(sources, _RANGES):
        least = (
            f"SELECT (SELECT substr({term}, 1, 1) FROM {table} WHERE {term} >= {{}} AND {term} < '{end}'{only} LIMIT 1)"
        )
        walks.append(
            f"SELECT letter FROM (WITH RECURSIVE walk (letter) AS ({least.format(repr(first))} UNION ALL"
            f" {least.format('char(unicode(letter) + 1)')} FROM walk WHERE letter IS NOT NULL)"
            " SELECT letter FROM walk WHERE letter IS NOT NULL)"
        )
    return text(" UNION ALL ".join(walks))
