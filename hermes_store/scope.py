"""Where a repository's statements run: in the caller's transaction, or in a short one of their own.

The same repository objects serve ``store.sessions.get(...)`` (one transaction per call) and ``tx.sessions.get(...)``
(inside a unit of work); only their scope differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from sqlalchemy.orm import Session


class Scope(Protocol):
    """Gives a SQLAlchemy session for the time of a call."""

    def reading(self) -> AbstractContextManager[Session]:
        """A session to read with."""

    def writing(self) -> AbstractContextManager[Session]:
        """A session that holds the write lock and commits when the block ends without an error."""


class OpenScope:
    """The scope of a unit of work: always its own session, whose transaction ends elsewhere.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The unit's session."""
        yield self._session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """The unit's session; its pending changes are sent to the database before the block ends."""
        yield self._session
        self._session.flush()
