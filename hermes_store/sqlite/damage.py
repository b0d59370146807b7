"""Telling damage of a file from what only looks like it.

SQLite's checks report three kinds of thing in one list: pages that cannot be read, cells that are not what their
column declares, and search indexes. Only the first is damage of the conversations. Odd cells are bad rows, which are
shown and flagged; an index can be made again from the messages, and one that was filled by another SQLite build can be
reported as malformed although it is whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from hermes_store.sqlite.engine import driver_error
from hermes_store.sqlite.shape import CJK_INDEX, TEXT_INDEX, TRASH_PREFIX, TRIGRAM_INDEX, WORD_INDEX, Shape

#: What FTS5 appends to an index's name to name the tables that hold it; layout 0 keeps ``content`` as well.
INDEX_PARTS = ("data", "idx", "docsize", "config")

_SHADOWS = frozenset(
    f"{index}_{part}"
    for index in (WORD_INDEX, TRIGRAM_INDEX, CJK_INDEX, TEXT_INDEX)
    for part in (*INDEX_PARTS, "content")
)
_CELL_FINDINGS = ("NULL value in", "non-unique", "TEXT value in", "NUMERIC value in", "CHECK constraint failed in")


def first_damage(findings: Iterable[str]) -> str | None:
    """Find what is damage among the findings of ``PRAGMA quick_check(table)``.

    Args:
        findings: Its rows.

    Returns:
        The first one that is, on one line; None when the table is whole.
    """
    for finding in findings:
        if finding != "ok" and not any(words in finding for words in _CELL_FINDINGS):
            return " ".join(finding.split())
    return None


def lacks_parts(shape: Shape, index: str, parts: Iterable[str] = INDEX_PARTS) -> bool:
    """True when a table that holds an index is missing, so that even looking at it fails.

    Args:
        shape: The file's shape.
        index: The virtual table's name.
        parts: What it is held in.
    """
    return not all(shape.has("table", f"{index}_{part}") for part in parts)


def belongs_to_search(table: str) -> bool:
    """True for a table whose content can be made again from the messages.

    Args:
        table: A table's name.
    """
    return table in _SHADOWS or table.startswith(TRASH_PREFIX)


def is_damage(error: BaseException) -> bool:
    """True when SQLite met a page, or an index entry, that it cannot make sense of.

    Args:
        error: An exception of SQLAlchemy or of the driver.
    """
    code, text = driver_error(error)
    return "malformed" in text if code is None else code == sqlite3.SQLITE_CORRUPT
