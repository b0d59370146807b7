"""MATCH texts: a query as FTS5 is asked for it.

Pure text. Every term is quoted, so nothing in it can be syntax; every group is bracketed, because FTS5 binds operators
otherwise than we do. Exclusions are never part of a MATCH: an index may hold more of a message than counts as its text
(JSON keys, the tail of a long tool result), and what it wrongly left out could not be brought back.
"""

from __future__ import annotations

import json
import re
import unicodedata

from hermes_store.search.scripts import runs, spellings
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or
from hermes_store.search.terms import needle

#: Characters of the shortest text the trigram tokenizer can look up.
TRIGRAM_LENGTH = 3

_NO_EXCLUSION = "a MATCH proposes messages; exclusions are judged on the messages themselves"
_ESCAPED_BLANKS = ("n", "t", "r")
_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")


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


def trigram_match(node: Node) -> str:
    """Ask the substring index for a tree of terms.

    Args:
        node: A tree without exclusions, for each term of which `has_trigrams` is true.

    Returns:
        The MATCH text; each part of a term is one phrase, in all spellings in which it may be stored.
    """
    match node:
        case And(parts) | Near(parts):
            return _all_of([trigram_match(part) for part in parts])
        case Or(parts):
            return _any_of([trigram_match(part) for part in parts])
        case Not():
            raise ValueError(_NO_EXCLUSION)
        case _:
            return _all_of([_any_of([_quoted(form) for form in spellings(part)]) for part in _long_parts(node)])


def has_trigrams(leaf: Leaf) -> bool:
    """Tell whether the substring index can look a term up: a part of it has three characters in every spelling.

    Args:
        leaf: A term, prefix or phrase.
    """
    return bool(_long_parts(leaf))


def escaped_match(node: Node) -> str:
    r"""Ask the word index for a tree of terms as ASCII-escaped JSON holds them.

    There ``漓江`` is ``\u6f13\u6c5f``, which the tokenizer cuts into the words ``u6f13 u6c5f``, and a word after a line
    break is ``\nword``, which it cuts into ``nword``.

    Args:
        node: A tree without exclusions.

    Returns:
        The MATCH text; it finds other messages too.
    """
    match node:
        case And(parts) | Near(parts):
            return _all_of([escaped_match(part) for part in parts])
        case Or(parts):
            return _any_of([escaped_match(part) for part in parts])
        case Not():
            raise ValueError(_NO_EXCLUSION)
        case _:
            sought = needle(node)
            *first, last = runs(unicodedata.normalize("NFC", sought.text))
            return _all_of([*(_escaped(run, "") for run in first), _escaped(last, " *" if sought.prefix else "")])


def _escaped(part: str, star: str) -> str:
    if part.isascii():
        return _any_of([_quoted(before + part) + star for before in ("", *_ESCAPED_BLANKS)])
    texts: dict[str, None] = {}
    for form in spellings(part):
        for cased in (form, form.lower(), form.upper(), form.capitalize()):
            escaped = json.dumps(cased)[1:-1]
            if first := _ESCAPE.search(escaped):
                # What stands before the first escape may be the end of a longer word, and is judged on the message.
                # The last word may go on: an escape ends where another character begins.
                texts[_quoted(escaped[first.start() :]) + " *"] = None
    return _any_of(list(texts))


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
