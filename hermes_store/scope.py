"""Where a repository's statements run: in the caller's transaction, or in a short one of their own.

The same repository objects serve ``store.sessions.get(...)`` (one transaction per call) and ``tx.sessions.get(...)``
(inside a unit of work); only their scope differs.

A write that touches ``messages`` fires the triggers of the search indexes, and one of those may be damaged. `Scope.run`
is for such writes: it can run a function again without the indexes. A ``with`` block cannot be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol, TypeVar

from sqlalchemy.orm import Session

Result = TypeVar("Result")

#: What a write is for, which says how long it may wait for the write lock: ``routine`` as long as the store was told,
#: ``transcript`` (rows that exist nowhere else) three times that, ``activity`` (what the next call says anyway) hardly.
WriteKind = Literal["routine", "transcript", "activity"]


class Scope(Protocol):
    """Gives a SQLAlchemy session for the time of a call."""

    def reading(self) -> AbstractContextManager[Session]:
        """A session to read with."""

    def writing(self, *, kind: WriteKind = "routine") -> AbstractContextManager[Session]:
        """A session that holds the write lock and commits when the block ends without an error."""

    def run(self, write: Callable[[Session], Result], *, kind: WriteKind = "routine") -> Result:
        """Run a function with such a session; once more, without the search indexes, where one of them is damaged."""


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
    def writing(self, *, kind: WriteKind = "routine") -> Iterator[Session]:  # noqa: ARG002 - the lock is held already
        """The unit's session; its pending changes are sent to the database before the block ends.

        Args:
            kind: As for `Scope.writing`; a unit of work has its lock.
        """
        yield self._session
        self._session.flush()

    def run(self, write: Callable[[Session], Result], *, kind: WriteKind = "routine") -> Result:
        """Run a function once; only the unit of work as a whole could be run again.

        Args:
            write: The function.
            kind: As for `Scope.run`.

        Returns:
            What the function returned.
        """
        with self.writing(kind=kind) as session:
            return write(session)
