"""Scan conditions: which rows of a table might answer a query, without any index.

Pure expressions over text columns. A condition never rejects a row that answers the query; it may let others through,
which `hermes_store.search.verify` then judges. SQL compares less than we do (LIKE folds ASCII case only and stops at a
NUL character), so wherever it cannot be sure, the row is let through:

* a text with letters that fold to others (accented Latin, full-width forms, combining marks) might hold any word;
* a text with a NUL character, and tool calls with JSON escapes, are read in their decoded form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from sqlalchemy import BindParameter, ColumnElement, LargeBinary, String, and_, cast, func, literal, or_, true

from hermes_store.content import JSON_ESCAPE
from hermes_store.search.scripts import fold_words, runs, spellings
from hermes_store.search.syntax import And, Leaf, Near, Node, Not, Or, leaves
from hermes_store.search.terms import Kind, needle

Texts = tuple[ColumnElement[str | None], ...]

#: Terms of a query up to which a condition pays; beyond it, each row is judged in Python (and SQLite's limit on nested
#: expressions is far).
MAX_TERMS = 40

# Accented Latin, the long s, combining marks, the Kelvin and Angstrom signs, full-width letters and digits.
_FOLDING_RANGES = (
    (0xC0, 0x24F), (0x300, 0x36F), (0x1E00, 0x1EFF), (0x212A, 0x212B), (0xFF10, 0xFF19), (0xFF21, 0xFF5A),
)  # fmt: skip
_FOLDING = f"*[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _FOLDING_RANGES)}]*"
_FULL_WIDTH = re.compile(f"[{chr(0xFF01)}-{chr(0xFF5E)}]")
_ASCII_END, _CASED_END = 0x80, 0x1EA00
_NUL = "\0"


def may_match(node: Node, texts: Texts, *, tool_calls: ColumnElement[str | None] | None = None) -> ColumnElement[bool]:
    """Say in SQL which rows might answer a query.

    Args:
        node: A query's tree; its exclusions reject nothing here.
        texts: The columns that are searched.
        tool_calls: A further column, of JSON.

    Returns:
        A condition that is true for every row that answers the query.
    """
    if sum(1 for _ in leaves(node)) > MAX_TERMS:
        return true()
    return _condition(node, texts, tool_calls)


def holds_short(
    texts: Texts,
    tool_calls: ColumnElement[str | None],
    forms: Sequence[BindParameter[str]],
    escaped: Sequence[BindParameter[str]],
) -> ColumnElement[bool]:
    """Say in SQL which rows might hold a short term without case, whose spellings are parameters.

    Args:
        texts: The columns that are searched.
        tool_calls: The column of tool calls, which count where they are escaped.
        forms: The spellings.
        escaped: LIKE patterns of the same in JSON escapes, from `escaped_pattern`.
    """
    return or_(
        *(func.instr(text, form) > 0 for text in texts for form in forms),
        *(func.instr(text, literal(_NUL, String)) > 0 for text in texts),
        *(tool_calls.like(pattern) for pattern in escaped),
    )


def escaped_pattern(form: str) -> str:
    r"""Give a LIKE pattern that finds ``漓江`` as ``\u6f13\u6c5f``, whatever number of backslashes nesting has made.

    Args:
        form: The text.
    """
    return f"%{'%'.join(_escapes(form))}%"


def has_case(text: str) -> bool:
    """Tell whether a text has letters with capitals, or ASCII, which JSON does not escape.

    Args:
        text: The text.
    """
    return any(character.isascii() or _has_foreign_case(character) for character in text)


def contains(text: ColumnElement[str | None], part: str) -> ColumnElement[bool]:
    """Say in SQL that a text holds another, case ignored as far as SQLite can.

    Args:
        text: The column.
        part: The text to be found in it.
    """
    if not has_case(part):
        return func.instr(text, part) > 0  # nothing to fold; faster than LIKE
    # LIKE knows the case of ASCII letters only: where another letter has two cases, any character will do.
    pattern = "".join(
        f"\\{character}" if character in "\\%_" else "_" if _has_foreign_case(character) else character
        for character in part
    )
    return text.like(f"%{pattern}%", escape="\\")


def _condition(node: Node, texts: Texts, tool_calls: ColumnElement[str | None] | None) -> ColumnElement[bool]:
    match node:
        case And(parts) | Near(parts):
            return and_(*(_condition(part, texts, tool_calls) for part in parts))
        case Or(parts):
            return or_(*(_condition(part, texts, tool_calls) for part in parts))
        case Not():
            return true()
        case _:
            return or_(*_leaf_conditions(node, texts, tool_calls))


def _leaf_conditions(
    leaf: Leaf, texts: Texts, tool_calls: ColumnElement[str | None] | None
) -> Iterator[ColumnElement[bool]]:
    sought = needle(leaf)
    for text in texts:
        yield _holds(text, leaf)
        yield _unsure(text, sought.kind)
    if tool_calls is None:
        return
    if sought.kind is Kind.SUBSTRING:
        yield _holds_escaped(tool_calls, leaf)
    else:
        yield _holds(tool_calls, leaf)
        yield _unsure(tool_calls, sought.kind)
        yield func.instr(tool_calls, literal(JSON_ESCAPE, String)) > 0


def _holds(text: ColumnElement[str | None], leaf: Leaf) -> ColumnElement[bool]:
    sought = needle(leaf)
    if sought.kind is Kind.SIGNS:
        return contains(text, sought.text)
    if sought.kind is Kind.SUBSTRING:
        return and_(*(or_(*(contains(text, form) for form in spellings(part))) for part in sought.parts))
    # Full-width spellings are among the texts that are let through anyway.
    forms = dict.fromkeys(tuple(runs(fold_words(form))) for form in sought.spellings if not _FULL_WIDTH.search(form))
    return or_(*(and_(*(_holds_word(text, word) for word in form)) for form in forms))


def _unsure(text: ColumnElement[str | None], kind: Kind) -> ColumnElement[bool]:
    """True for texts that SQL cannot judge."""
    unsure = func.instr(text, literal(_NUL, String)) > 0
    if kind is Kind.WORD:
        unsure = or_(unsure, text.op("GLOB")(_FOLDING))
    return or_(func.typeof(text) == "blob", and_(_beyond_ascii(text), unsure))


def _beyond_ascii(text: ColumnElement[str | None]) -> ColumnElement[bool]:
    """True for texts beyond ASCII, or with a NUL character: two lengths tell it much faster than GLOB does."""
    return func.length(cast(text, LargeBinary)) > func.length(text)


def _holds_word(text: ColumnElement[str | None], word: str) -> ColumnElement[bool]:
    if word.isascii():
        return contains(text, word)
    return and_(_beyond_ascii(text), text.op("GLOB")("*" + "".join(f"[{_unfolded(letter)}]" for letter in word) + "*"))


@functools.cache
def _unfolding() -> dict[str, str]:
    """Each character beyond ASCII with all that fold to it; letters with a case end before the range does."""
    table: dict[str, str] = {}
    for code in range(_ASCII_END, _CASED_END):
        character = chr(code)
        if (folded := fold_words(character)) and folded != character:
            table[folded] = table.get(folded, folded) + character
    return table


def _unfolded(character: str) -> str:
    return character + character.upper() if character.isascii() else _unfolding().get(character, character)


def _holds_escaped(text: ColumnElement[str | None], leaf: Leaf) -> ColumnElement[bool]:
    r"""Find ``漓江`` as ``\u6f13\u6c5f``, whatever number of backslashes nesting has made of each."""
    return and_(*(or_(*(text.like(escaped_pattern(form)) for form in spellings(part))) for part in needle(leaf).parts))


def _escapes(text: str) -> Iterator[str]:
    for character in text:
        if not character.isascii():
            units = character.encode("utf-16-be").hex()
            yield from (f"u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _has_foreign_case(character: str) -> bool:
    return not character.isascii() and (character.lower() != character or character.upper() != character)
