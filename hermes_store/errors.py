"""Every error this package raises, in one tree; each message says what, where and what to do.

No message text and no password ever appears in one of them: a ``state.db`` is full of private conversations, and
exception texts end up in logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class HermesStoreError(Exception):
    """Base of all errors of this package."""


class NotFoundError(HermesStoreError, LookupError):
    """A named session, message, lock or file does not exist."""


def no_such_session(session_id: str) -> NotFoundError:
    """The error for a session that is not in the file.

    Args:
        session_id: The id that was asked for.
    """
    return NotFoundError(f"there is no session {session_id!r}; list the sessions to see what there is")


def require_sessions(wanted: Iterable[str], found: Collection[str]) -> None:
    """Make sure that sessions were found.

    Args:
        wanted: Their ids.
        found: The ids that there are.

    Raises:
        NotFoundError: One of them is not among those; the message names it.
    """
    for one in wanted:
        if one not in found:
            raise no_such_session(one)


class ConflictError(HermesStoreError):
    """A value that must be unique is taken, or an identifier is ambiguous."""


class StoreBusyError(HermesStoreError, TimeoutError):
    """Somebody else held the write lock (or changed the file under a guarded read) for the whole time budget."""


class HolderError(HermesStoreError, ValueError):
    """A lock's holder is no text that can hold one, or is too old to take one."""


class LockHeldError(StoreBusyError):
    """A lock is held, and nobody can say that its holder is gone.

    Attributes:
        session_id: What it locks.
        holder: Who holds it, as written in its row.
        age: Seconds it has been held.
        left: Seconds until it may be taken over, unless it is refreshed.
        expires: The same as epoch seconds, by the wall clock.
    """

    def __init__(
        self,
        message: str,
        *,
        session_id: str = "",
        holder: str = "",
        age: float = 0.0,
        left: float = 0.0,
        expires: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.session_id, self.holder = session_id, holder
        self.age, self.left, self.expires = age, left, expires


class LockLostError(ConflictError):
    """A lock that was held is not held any more; what it protected must stop.

    Attributes:
        session_id: What it locked.
        holder: Who held it.
        taken_by: Who holds it now; None when nobody does.
    """

    def __init__(self, message: str, *, session_id: str = "", holder: str = "", taken_by: str | None = None) -> None:
        super().__init__(message)
        self.session_id, self.holder, self.taken_by = session_id, holder, taken_by


class InvalidMessageError(HermesStoreError, ValueError):
    """A message, or a change to one, holds what cannot be stored; nothing was written."""


class SessionContinuedError(ConflictError):
    """A session ended by compression: its conversation goes on elsewhere, and nothing more can be added to it.

    Attributes:
        session_id: The session.
        tip: Where its conversation goes on; the session itself when it was never continued.
    """

    def __init__(self, message: str, *, session_id: str = "", tip: str = "") -> None:
        super().__init__(message)
        self.session_id, self.tip = session_id, tip


class SchemaBehindError(HermesStoreError):
    """The file is older than the operation needs; the message names the command that upgrades it."""


class SchemaTooNewError(HermesStoreError):
    """A newer Hermes changed something this version relies on; nothing was touched."""


class QueryError(HermesStoreError, ValueError):
    """A search query holds nothing to search for."""


class CorruptIndexError(HermesStoreError):
    """A search index is damaged; the messages themselves are not affected.

    Raised out of a ``store.write()`` block, it says that the block was rolled back and that the indexes were detached:
    the same block runs when it is tried again.
    """


class CorruptStoreError(HermesStoreError):
    """A canonical table (sessions, messages, …) is damaged; nothing was written."""


class StoreReplacedError(HermesStoreError):
    """Another file, or none, is where the open one was; nothing was written, neither there nor to the old one."""


class NotAStoreError(HermesStoreError):
    """The file is no Hermes ``state.db``: zeroed, not SQLite, or another program's database."""


class ReadOnlyError(HermesStoreError):
    """The file cannot be written, or cannot be read without writing beside it."""


class UpgradeError(HermesStoreError):
    """An upgrade or downgrade was refused or could not finish; the message says what is left and how to go on."""


class MissingDependencyError(HermesStoreError, ImportError):
    """An optional package or a capability of SQLite is missing; the message names the remedy."""
