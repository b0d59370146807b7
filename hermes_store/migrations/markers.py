"""Setting and removing the keys of ``state_meta`` that say what state indexes and long work are in."""

from __future__ import annotations

from sqlalchemy import Connection


def set_marker(connection: Connection, key: str, value: int | str) -> None:
    """Set a key, whether it is there or not.

    Args:
        connection: A connection inside a write transaction.
        key: The key.
        value: Its value; stored as text, as Hermes does.
    """
    connection.exec_driver_sql(
        "INSERT INTO state_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )


def drop_markers(connection: Connection, *keys: str) -> None:
    """Remove the keys that are there; even a DELETE that finds nothing takes the write lock.

    Args:
        connection: A connection.
        keys: The keys.
    """
    for key in keys:
        if connection.exec_driver_sql("SELECT 1 FROM state_meta WHERE key = ?", (key,)).first() is not None:
            connection.exec_driver_sql("DELETE FROM state_meta WHERE key = ?", (key,))
