"""Reading one cell of a row that anybody may have written.

A column's declared type binds nobody in SQLite: a timestamp can hold text, a JSON column a broken string. Each reader
here returns a usable value or None, and says in a word what was wrong, so that records can show the row and flag it.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from hermes_store.edges import EARLIEST, LATEST
from hermes_store.sqlite.engine import UndecodableText


class Problems:
    """Collects what was wrong with the cells of one row, as ``column: what``."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, column: str, what: str) -> None:
        """Note a problem.

        Args:
            column: The column's name.
            what: What is wrong with its value, without the value.
        """
        self._found.append(f"{column}: {what}")

    def as_tuple(self) -> tuple[str, ...]:
        """All problems, in the order they were found."""
        return tuple(self._found)


def read_timestamp(value: Any, column: str, problems: Problems) -> float | None:
    """Read an instant.

    Args:
        value: The cell.
        column: Its name, for the flag.
        problems: Where to note what is wrong.

    Returns:
        Epoch seconds; None for NULL and for what is no instant.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        problems.add(column, f"{type(value).__name__} instead of a number")
    elif not math.isfinite(value):
        problems.add(column, "not finite")
    elif not EARLIEST <= value <= LATEST:
        problems.add(column, "no plausible number of seconds since 1970")
    else:
        return float(value)
    return None


def read_text(value: Any, column: str, problems: Problems) -> str | None:
    """Read text.

    Args:
        value: The cell.
        column: Its name, for the flag.
        problems: Where to note what is wrong.

    Returns:
        The text; other types in their written form, bytes decoded with replacement.
    """
    if value is None:
        return None
    if isinstance(value, UndecodableText):
        problems.add(column, "not valid UTF-8")
        return str(value)
    if isinstance(value, str):
        return value
    problems.add(column, f"{type(value).__name__} instead of text")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def read_count(value: Any, column: str, problems: Problems) -> int | None:
    """Read a whole number.

    Args:
        value: The cell.
        column: Its name, for the flag.
        problems: Where to note what is wrong.

    Returns:
        The number; None for NULL and for what is none.
    """
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    problems.add(column, f"{type(value).__name__} instead of a whole number")
    return None


def read_number(value: Any, column: str, problems: Problems) -> float | None:
    """Read a number.

    Args:
        value: The cell.
        column: Its name, for the flag.
        problems: Where to note what is wrong.

    Returns:
        The number; None for NULL and for what is none.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    problems.add(column, f"{type(value).__name__} instead of a number")
    return None


def read_json(value: Any, column: str, problems: Problems) -> Any:
    """Read JSON.

    Args:
        value: The cell.
        column: Its name, for the flag.
        problems: Where to note what is wrong.

    Returns:
        The decoded value; None for NULL; the raw text when it is no JSON.
    """
    text = read_text(value, column, problems)
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        problems.add(column, "no valid JSON")
        return text


def aware(seconds: float | None) -> datetime | None:
    """Turn an instant into an aware datetime, in UTC.

    Args:
        seconds: Epoch seconds, as a record holds them.
    """
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
