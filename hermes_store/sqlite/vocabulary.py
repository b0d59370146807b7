"""The terms of the search indexes as ordinary rows: temporary ``fts5vocab`` tables of a connection.

They hold nothing themselves, are written to no file, and look the index up by name whenever they are read, so they work
on files of every layout, on read-only ones, and on a file whose index is made anew meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes_store.sqlite.shape import TEXT_INDEX, TRIGRAM_INDEX, WORD_INDEX

#: Each occurrence of a trigram (``term``, and the message as ``doc``), and each trigram (``term``, and in how many
#: messages it is as ``doc``).
OCCURRENCES, TRIGRAMS = "hs_trigram_occurrences", "hs_trigrams"
#: Each word, and in how many messages it is.
WORDS = "hs_words"
#: Each occurrence of a trigram in the index of decoded texts.
TEXT_OCCURRENCES = "hs_text_occurrences"
_TABLES = {
    OCCURRENCES: (TRIGRAM_INDEX, "instance"),
    TRIGRAMS: (TRIGRAM_INDEX, "row"),
    WORDS: (WORD_INDEX, "row"),
    TEXT_OCCURRENCES: (TEXT_INDEX, "instance"),
}


def vocabulary_tables() -> Iterator[str]:
    """Give the statements that make the tables."""
    for name, (index, kind) in _TABLES.items():
        yield f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{name} USING fts5vocab(main, {index}, {kind})"


def make_vocabulary(driver_connection: Any) -> None:
    """Make the tables on a connection, if its SQLite has FTS5.

    Args:
        driver_connection: The driver's connection; outside a transaction, where the tables outlive each of them.
    """
    if driver_connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5vocab'").fetchone():
        for statement in vocabulary_tables():
            driver_connection.execute(statement)
