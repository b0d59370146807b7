"""``state_meta``: Hermes's key/value table, in which applications may keep keys of their own."""

from __future__ import annotations

from sqlalchemy import select

from hermes_store.errors import ReadOnlyError
from hermes_store.models import StateMeta
from hermes_store.scope import Scope
from hermes_store.sqlite.shape import SEARCH_KEYS


class MetaRepository:
    """Reads and writes ``state_meta``."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get(self, key: str, default: str | None = None) -> str | None:
        """Read a value.

        Args:
            key: Its key.
            default: What to return when there is none.
        """
        with self._scope.reading() as session:
            found = session.get(StateMeta, key)
            return default if found is None else found.value

    def set(self, key: str, value: str) -> None:
        """Write a value.

        Args:
            key: Its key.
            value: The value.

        Raises:
            ReadOnlyError: The key describes a search index; whoever sets it breaks the index's promise.
        """
        _require_free(key)
        with self._scope.writing() as session:
            session.merge(StateMeta(key=key, value=value))

    def delete(self, key: str) -> bool:
        """Remove a key.

        Args:
            key: The key.

        Returns:
            False when there was none.

        Raises:
            ReadOnlyError: The key describes a search index; whoever removes it breaks the index's promise.
        """
        _require_free(key)
        with self._scope.writing() as session:
            found = session.get(StateMeta, key)
            if found is not None:
                session.delete(found)
            return found is not None

    def items(self) -> dict[str, str | None]:
        """All keys and values, in the order of the keys."""
        with self._scope.reading() as session:
            rows = session.execute(select(StateMeta.key, StateMeta.value).order_by(StateMeta.key))
            return {row[0]: row[1] for row in rows}


def _require_free(key: str) -> None:
    if key in SEARCH_KEYS:
        raise ReadOnlyError(
            f"state_meta key {key!r} says what state a search index is in; use the upgrade to change it"
        )
