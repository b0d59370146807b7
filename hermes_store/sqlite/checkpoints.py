"""Copying the write-ahead log back into the file, without ever keeping anybody waiting.

Only the passive kind: it copies what no reader needs any more and takes no lock that a writer or reader would wait
for. TRUNCATE and RESTART wait for all of them, and belong to maintenance. A log that no reader holds is used again
from its beginning after a passive checkpoint, so it does not grow; SQLite cuts it to `JOURNAL_SIZE_LIMIT`.

Logs are SQLite's own: it alone removes them, when the last connection of all programs goes, and not when the file has
been moved away.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from sqlalchemy import Connection

log = logging.getLogger("hermes_store.sqlite")

#: Writes of this process between two checkpoints; Hermes takes the same number.
WRITES_BETWEEN = 50


class Checkpoints:
    """Counts the writes of a store, and checkpoints after every so many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = 0

    @property
    def writes(self) -> int:
        """How many writes were counted."""
        return self._writes

    def count(self, connection: Connection) -> None:
        """Count a write that was committed.

        Args:
            connection: The connection that wrote; nothing is begun on it.
        """
        with self._lock:
            self._writes += 1
            due = self._writes % WRITES_BETWEEN == 0
        if due:
            checkpoint(connection)


def checkpoint(connection: Connection) -> None:
    """Copy back what can be; never fails, and does nothing on a file without a log.

    Args:
        connection: A connection on which nothing is begun.
    """
    raw: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.dbapi
    try:
        raw.execute("PRAGMA main.wal_checkpoint(PASSIVE)").fetchone()
    except errors.Error as error:  # the write itself is committed
        log.debug("the write-ahead log was not copied back: %s", type(error).__name__)
