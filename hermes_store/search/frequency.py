"""How many messages a term is in, about, asked of the indexes before a plan is made.

``fts5vocab`` knows it for every word and trigram. Counting reads the list of the term's messages, so it stops at a
limit: beyond it, only that a term is frequent matters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, column, func, select, table

from hermes_store.search import grams
from hermes_store.search.match import TRIGRAM_LENGTH, has_trigrams
from hermes_store.search.scripts import fold_words, runs, spellings
from hermes_store.search.sets import queue
from hermes_store.search.syntax import Leaf
from hermes_store.search.terms import Kind, needle
from hermes_store.sqlite.vocabulary import TRIGRAMS, WORDS


def estimate(connection: Connection, leaf: Leaf, most: int) -> int:
    """Count the messages that hold a term, roughly, and no further than to a limit.

    Args:
        connection: A connection with the temporary vocabulary tables.
        leaf: The term. Of one with several parts the rarest counts.
        most: Where to stop counting.

    Returns:
        The number, at most the limit; the limit for signs, which no index knows.
    """
    sought = needle(leaf)
    if sought.kind is Kind.SIGNS:
        return most
    if sought.kind is Kind.WORD:
        last = len(sought.parts) - 1
        ranges = [
            {_beginning(form) if sought.prefix and at == last else _exactly(form) for form in _folded(part)}
            for at, part in enumerate(sought.parts)
        ]
        return min(_counted(connection, WORDS, some, most) for some in ranges)
    if has_trigrams(leaf):
        long = [part for part in sought.parts if len(part) >= TRIGRAM_LENGTH]
        ranges = [
            {_exactly(form[:TRIGRAM_LENGTH].lower()) for form in spellings(part)}
            | {_exactly(form[-TRIGRAM_LENGTH:].lower()) for form in spellings(part)}
            for part in long
        ]
        return min(_counted(connection, TRIGRAMS, some, most) for some in ranges)
    return _counted(connection, TRIGRAMS, grams.ranges(leaf).trigrams, most)


def waiting(connection: Connection, most: int) -> int:
    """Count the messages whose text waits to be moved into the index of decoded texts, no further than to a limit.

    Args:
        connection: A connection of a file that has the queue.
        most: Where to stop counting.
    """
    return int(connection.execute(_waiting_statement(), {"most": most}).scalar_one())


@functools.cache
def _waiting_statement() -> Select[Any]:
    return select(func.count()).select_from(select(queue.c.message_id).limit(bindparam("most")).subquery())


def _folded(part: str) -> set[str]:
    return {word for form in spellings(part) for word in runs(fold_words(form))}


def _exactly(text: str) -> tuple[str, str]:
    return text, text + "\0"


def _beginning(text: str) -> tuple[str, str]:
    return text, grams.after(text)


def _counted(connection: Connection, vocabulary: str, ranges: Iterable[tuple[str, str]], most: int) -> int:
    total = 0
    for first, end in ranges:
        with connection.execute(_count_statement(vocabulary), {"first": first, "end": end}) as counts:
            for (documents,) in counts:
                total += documents
                if total >= most:
                    return most
    return total


@functools.cache
def _count_statement(vocabulary: str) -> Select[Any]:
    terms = table(vocabulary, column("term"), column("doc"), schema="temp")
    return select(terms.c.doc).where(and_(terms.c.term >= bindparam("first"), terms.c.term < bindparam("end")))
