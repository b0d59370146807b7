"""Temporary objects on connections that are somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def temporary_objects(driver_connection: Any) -> Iterator[None]:
    """Make or drop temporary views and tables, also where an application has set ``query_only``, which forbids those.

    Args:
        driver_connection: The driver's connection.
    """
    query_only = driver_connection.execute("PRAGMA query_only").fetchone()[0]
    if query_only:
        driver_connection.execute("PRAGMA query_only=OFF")
    try:
        yield
    finally:
        if query_only:
            driver_connection.execute("PRAGMA query_only=ON")
