"""MATCH texts: a query as FTS5 is asked for it.

Pure text. Every term is quoted, so nothing in it can be syntax; every group is bracketed, because FTS5 binds operators
otherwise than we do. Exclusions are never part of a MATCH: an index may hold more of a message than counts as its text
(JSON keys, the tail of a long tool result), and what it wrongly left out could not be brought back.
"""

from __future__ import annotations

from hermes_store.search.accents import accented
from hermes_store.search.scripts import spellings
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or
from hermes_store.search.terms import Kind, needle

#: Characters of the shortest text the trigram tokenizer can look up.
TRIGRAM_LENGTH = 3

_NO_EXCLUSION = "a MATCH proposes messages; exclusions are judged on the messages themselves"


def word_match(node: Node) -> str:
    """Ask the word index for a tree of words.

    Args:
        node: A tree without exclusions, all of whose terms are words.

    Returns:
        The MATCH text: each phrase in all spellings in which it may be stored.
    """
    match node:
        case And(parts):
            return _all_of([word_match(part) for part in parts])
        case Or(parts):
            return _any_of([word_match(part) for part in parts])
        case Near():
            return _near(node)
        case Not():
            raise ValueError(_NO_EXCLUSION)
        case _:
            return _any_of(_phrases(node))


def trigram_match(node: Node, letters: str = "") -> str:
    """Ask the substring index for a tree of terms.

    Args:
        node: A tree without exclusions, for each term of which `has_trigrams` is true.
        letters: Accented letters to try in words; the index keeps them.

    Returns:
        The MATCH text; each part of a term is one phrase, in all spellings in which it may be stored.
    """
    match node:
        case And(parts) | Near(parts):
            return _all_of([trigram_match(part, letters) for part in parts])
        case Or(parts):
            return _any_of([trigram_match(part, letters) for part in parts])
        case Not():
            raise ValueError(_NO_EXCLUSION)
        case _:
            letters = letters if needle(node).kind is Kind.WORD else ""
            forms = [(*spellings(part), *accented(part, letters)) for part in _long_parts(node)]
            return _all_of([_any_of([_quoted(form) for form in each]) for each in forms])


def has_trigrams(leaf: Leaf) -> bool:
    """Tell whether the substring index can look a term up: a part of it has three characters in every spelling.

    Args:
        leaf: A term, prefix or phrase.
    """
    return bool(_long_parts(leaf))


def _phrases(leaf: Leaf) -> list[str]:
    sought = needle(leaf)
    star = " *" if sought.prefix else ""
    return [_quoted(form) + star for form in sought.spellings]


def _near(node: Near) -> str:
    """FTS5 takes no alternatives inside NEAR, so there is one NEAR for each spelling."""
    forms = [_phrases(part) for part in node.parts]
    rows = [[form[min(at, len(form) - 1)] for form in forms] for at in range(max(map(len, forms)))]
    return _any_of([f"NEAR({' '.join(row)}, {node.distance})" for row in rows])


def _long_parts(leaf: Leaf) -> tuple[str, ...]:
    parts = needle(leaf).parts
    return tuple(part for part in parts if min(map(len, spellings(part))) >= TRIGRAM_LENGTH)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _all_of(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({' AND '.join(texts)})"


def _any_of(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({' OR '.join(texts)})"
