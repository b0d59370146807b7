"""Locks on a session and leases on a turn, by Hermes's own protocol, so that both sides respect each other.

``compression_locks`` has a row for each session that is being compressed, ``session_turn_leases`` one for each
conversation with a turn under way. Whoever inserts the row holds the lock, until it is deleted or ``expires_at`` has
passed; a refresh by the holder moves that. There is no waiting in the database: a lock that is held is an error that
says who holds it, since when and how long still.

The invariant: a row is replaced only when its holder is provably dead or its time is up (`hermes_store.holders`), and
looking and replacing happen in one write transaction. Builders are pure; `LeaseRepository` runs them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import Delete, Insert, Select, Update, delete, insert, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import InstrumentedAttribute, Session

from hermes_store import process
from hermes_store.cells import Problems, read_text, read_timestamp
from hermes_store.errors import HolderError, LockHeldError, LockLostError, no_such_session
from hermes_store.holders import DEFAULT_TTL, age_of, judge, make_holder, read_holder
from hermes_store.holding import Held, until_free
from hermes_store.models import CompressionLock, HermesSession, SessionTurnLease
from hermes_store.process import Here
from hermes_store.records import LockInfo
from hermes_store.scope import OpenScope, Scope
from hermes_store.walks import among, conversation_root

log = logging.getLogger("hermes_store.locks")

#: Seconds a lock lasts at most, with all refreshes: one that hangs must not renew for ever.
MAX_LIFE = 3600.0

LeaseTable = type[CompressionLock] | type[SessionTurnLease]


def key_of(table: LeaseTable) -> InstrumentedAttribute[str]:
    """The column that says what a row locks.

    Args:
        table: Which locks.
    """
    return table.session_id if issubclass(table, CompressionLock) else table.conversation_id


def rows(table: LeaseTable) -> Select[*tuple[Any, ...]]:
    """Select ``key, holder, acquired_at, expires_at`` of all locks, in the order of their keys.

    Args:
        table: Which locks.
    """
    key = key_of(table)
    return select(key.label("key"), table.holder, table.acquired_at, table.expires_at).order_by(key)


def take(table: LeaseTable, key: str, holder: str, acquired: float, expires: float) -> Insert:
    """Insert the row of a lock that is free.

    Args:
        table: Which locks.
        key: What to lock.
        holder: Who holds it.
        acquired: Since when, epoch seconds.
        expires: Until when, epoch seconds.
    """
    return insert(table).values(
        {key_of(table): key, table.holder: holder, table.acquired_at: acquired, table.expires_at: expires}
    )


def renew(table: LeaseTable, key: str, holder: str, acquired: float, expires: float) -> Update:
    """Move the times of a holder's own row, expired or not.

    Args:
        table: Which locks.
        key: What it locks.
        holder: Who holds it.
        acquired: Since when, in the wall clock of today.
        expires: Until when, epoch seconds.
    """
    own = update(table).where(key_of(table) == key, table.holder == holder)
    return own.values(acquired_at=acquired, expires_at=expires)


def free(table: LeaseTable, key: str, holder: str) -> Delete:
    """Delete a holder's own row.

    Args:
        table: Which locks.
        key: What it locks.
        holder: Who holds it.
    """
    return delete(table).where(key_of(table) == key, table.holder == holder)


def free_sessions(session_ids: Sequence[str]) -> tuple[Delete, Delete]:
    """Delete whatever locks sessions that are being deleted; a new session of the same id would begin locked.

    Args:
        session_ids: The sessions.

    Returns:
        A statement for each of the two tables.
    """
    return (
        delete(CompressionLock).where(among(CompressionLock.__table__.c.session_id, session_ids)),
        delete(SessionTurnLease).where(among(SessionTurnLease.__table__.c.conversation_id, session_ids)),
    )


def conversation_of(session: Session, session_id: str) -> str:
    """Say under which id the turns of a session are locked: all sessions of a compression chain share their turns.

    Args:
        session: Where to look.
        session_id: Any session of the chain.
    """
    return conversation_root(session, session_id)


def require_free(session: Session, session_id: str) -> None:
    """Make sure that nobody compresses a session at this moment.

    Args:
        session: A session that holds the write lock.
        session_id: The session.

    Raises:
        LockHeldError: Somebody does.
    """
    found = LeaseRepository(OpenScope(session), CompressionLock).get(session_id)
    if found is not None and not found.is_free:
        raise _held(found, "", process.here())


class LeaseRepository:
    """Takes, refreshes and releases the locks of one table.

    Args:
        scope: Where statements run.
        table: Which locks.
    """

    def __init__(self, scope: Scope, table: LeaseTable) -> None:
        self._scope = scope
        self._table = table
        self._in_transaction = isinstance(scope, OpenScope)

    def make_holder(self, agent: str = "hermes-store") -> str:
        """Write a holder's text for this process and thread: one for each lock that is taken.

        When this process dies, whoever wants the lock next takes it over at once, Hermes too. A lock taken with any
        other text lasts until its time is up.

        Args:
            agent: A name for who is at work.

        Raises:
            HolderError: The name is empty, or has characters other than letters, digits, ``_``, ``.`` and ``-``.
        """
        return make_holder(process.here(), agent)

    def acquire(
        self,
        session_id: str,
        holder: str,
        ttl: float = DEFAULT_TTL,
        *,
        wait: float = 0.0,
        max_life: float = MAX_LIFE,
        reentrant: bool = False,
    ) -> LockInfo:
        """Take a lock that is free, or whose holder is dead or out of time.

        Args:
            session_id: What to lock.
            holder: Who takes it; see `make_holder`. Its age counts from its making.
            ttl: Seconds it lasts without a refresh.
            wait: Seconds to wait for it.
            max_life: Seconds it may last at most, with all refreshes.
            reentrant: Whether it is all right that the same holder has it already; then it is refreshed.

        Returns:
            The lock.

        Raises:
            LockHeldError: Somebody holds it; the error says who, since when and until when.
            NotFoundError: There is no such session.
            HolderError: The holder is no text, an empty one, or was made longer ago than a lock may last.
            ValueError: A number of seconds makes no sense.
        """
        _require_holder(holder)
        _require_seconds(ttl, wait, max_life)
        if wait and self._in_transaction:
            raise ValueError("waiting inside a transaction keeps everybody else from writing; use store.locks to wait")

        def attempt() -> LockInfo:
            with self._scope.writing() as session:
                _require_session(session, session_id)
                key = self._key(session, session_id)
                return self._take(session, key, holder, ttl, max_life=max_life, reentrant=reentrant)

        return until_free(attempt, wait)

    def refresh(
        self, session_id: str, holder: str, ttl: float = DEFAULT_TTL, *, max_life: float = MAX_LIFE
    ) -> LockInfo:
        """Go on holding a lock, also one that ran out but that nobody took.

        Args:
            session_id: What it locks.
            holder: Who holds it.
            ttl: Seconds it lasts from now.
            max_life: Seconds it may last at most, with all refreshes.

        Returns:
            The lock.

        Raises:
            LockLostError: The holder has it no more, or has had it as long as a lock may last.
            HolderError: The holder is no text, or an empty one.
            ValueError: A number of seconds makes no sense.
        """
        _require_holder(holder)
        _require_seconds(ttl, 0.0, max_life)
        with self._scope.writing() as session:
            return self._renew(session, self._key(session, session_id), holder, ttl, max_life=max_life)

    def release(self, session_id: str, holder: str) -> bool:
        """Give a lock back; may be repeated.

        Args:
            session_id: What it locks.
            holder: Who holds it.

        Returns:
            False when the holder had it no more.

        Raises:
            HolderError: The holder is no text, or an empty one.
        """
        _require_holder(holder)
        with self._scope.writing() as session:
            return _changed(session, free(self._table, self._key(session, session_id), holder))

    def holder(self, session_id: str) -> str | None:
        """Say who holds a lock.

        Args:
            session_id: What it locks.

        Returns:
            The holder's text; None when the lock is free to take.
        """
        found = self.get(session_id)
        return None if found is None or found.is_free else found.holder

    def get(self, session_id: str) -> LockInfo | None:
        """Read a lock, whatever its holder is worth.

        Args:
            session_id: What it locks.

        Returns:
            The lock; None when nobody took it, or it was given back.
        """
        with self._scope.reading() as session:
            return self._read(session, self._key(session, session_id), process.here())

    def list(self) -> list[LockInfo]:
        """All locks, in the order of what they lock."""
        with self._scope.reading() as session:
            here = process.here()
            return [_info(row, here) for row in session.execute(rows(self._table))]

    def hold(
        self,
        session_id: str,
        holder: str | None = None,
        ttl: float = DEFAULT_TTL,
        *,
        wait: float = 0.0,
        max_life: float = MAX_LIFE,
        reentrant: bool = False,
        agent: str = "hermes-store",
    ) -> Held:
        """Hold a lock for the length of a block, refreshed by a thread.

            with store.locks.hold(session_id) as held:
                ...
                held.check()  # raises when the lock was lost meanwhile

        Args:
            session_id: What to lock.
            holder: Who takes it; None makes a new holder's text.
            ttl: Seconds it lasts without a refresh.
            wait: Seconds to wait for it.
            max_life: Seconds it lasts at most: a block that hangs loses it.
            reentrant: Whether it is all right that the same holder has it already; the block then leaves it held.
            agent: The name in a new holder's text.

        Returns:
            A context manager for ``with`` and for ``async with``, where nothing blocks the event loop. Entering raises
            what `acquire` raises; leaving raises `LockLostError` when the lock was lost.

        Raises:
            RuntimeError: This is a unit of work, whose changes nobody sees before it ends.
            HolderError: The holder is no text, or an empty one.
            ValueError: A number of seconds makes no sense.
        """
        if self._in_transaction:
            raise RuntimeError("a lock taken in this transaction is seen only when it ends; use store.locks.hold")
        if holder is not None:
            _require_holder(holder)
        elif reentrant:
            raise HolderError("nobody has the holder that is made for this block; give one to re-enter with")
        _require_seconds(ttl, wait, max_life)
        return Held(
            self, session_id, holder=holder, agent=agent, ttl=ttl, wait=wait, max_life=max_life, reentrant=reentrant
        )

    def _key(self, session: Session, session_id: str) -> str:
        return session_id if issubclass(self._table, CompressionLock) else conversation_of(session, session_id)

    def _take(
        self, session: Session, key: str, holder: str, ttl: float, *, max_life: float, reentrant: bool
    ) -> LockInfo:
        here = process.here()  # after the wait for the write lock: what counts is now
        found = self._read(session, key, here)
        if found is not None:
            if reentrant and found.holder == holder:
                return self._renew(session, key, holder, ttl, max_life=max_life, reentered=True)
            if not found.is_free:
                raise _held(found, holder, here)
            log.info("a lock is taken over from a holder that is %s", found.state)
            session.execute(free(self._table, key, found.holder))
        age = age_of(holder, None, here)
        if age >= max_life:
            raise HolderError(f"this holder was made {age:.0f} s ago; make a new one for each lock with make_holder()")
        expires = here.wall + min(ttl, max_life - age)
        session.execute(take(self._table, key, holder, here.wall - age, expires))
        return _info((key, holder, here.wall - age, expires), here)

    def _renew(
        self, session: Session, key: str, holder: str, ttl: float, *, max_life: float, reentered: bool = False
    ) -> LockInfo:
        here = process.here()
        row = session.execute(rows(self._table).where(key_of(self._table) == key)).first()
        if row is None or row.holder != holder:
            by = None if row is None else row.holder
            raise _lost(key, holder, f"taken over by {by!r}" if by else "taken over and given back, or removed", by)
        age = age_of(holder, _number(row.acquired_at), here)
        if age >= max_life:
            raise _lost(key, holder, f"held for {age:.0f} s, the {max_life:.0f} s it may last", None)
        acquired, expires = here.wall - age, here.wall + min(ttl, max_life - age)
        session.execute(renew(self._table, key, holder, acquired, expires))
        return _info((key, holder, acquired, expires), here, reentered=reentered)

    def _read(self, session: Session, key: str, here: Here) -> LockInfo | None:
        row = session.execute(rows(self._table).where(key_of(self._table) == key)).first()
        return None if row is None else _info(row, here)


class LockRepository(LeaseRepository):
    """Locks on the compression of a session, and beside them the leases on turns.

    Attributes:
        turns: The same for ``session_turn_leases``, by the id of the session at the root of the compression chain.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope, CompressionLock)
        self.turns = LeaseRepository(scope, SessionTurnLease)


def _info(row: Any, here: Here, *, reentered: bool = False) -> LockInfo:
    key, holder, acquired, expires = row
    problems = Problems()
    text = read_text(holder, "holder", problems) or ""
    standing = judge(text, _number(acquired), _number(expires), here)
    return LockInfo(
        session_id=key,
        holder=text,
        state=standing.state,
        age=standing.age,
        left=standing.left,
        acquired=read_timestamp(acquired, "acquired_at", problems),
        expires=read_timestamp(expires, "expires_at", problems),
        pid=read_holder(text).pid,
        reentered=reentered,
        problems=problems.as_tuple(),
    )


def _held(lock: LockInfo, holder: str, here: Here) -> LockHeldError:
    same = lock.holder == holder
    how = {"live": "a process that runs", "unknown": "a process that cannot be seen from here"}[lock.state]
    remedy = "if that is meant, pass reentrant=True" if same else "try again, or wait for it with wait="
    return LockHeldError(
        f"{lock.session_id!r} is locked by {'this same holder' if same else how} ({lock.holder}) for {lock.age:.0f} s, "
        f"and for {lock.left:.0f} s more unless refreshed; {remedy}",
        session_id=lock.session_id,
        holder=lock.holder,
        age=lock.age,
        left=lock.left,
        expires=here.wall + lock.left,
    )


def _lost(key: str, holder: str, why: str, taken_by: str | None) -> LockLostError:
    return LockLostError(
        f"the lock on {key!r} is lost ({why}); stop, and look at the session before you go on",
        session_id=key,
        holder=holder,
        taken_by=taken_by,
    )


def _changed(session: Session, statement: Delete | Update) -> bool:
    return cast("CursorResult[Any]", session.execute(statement)).rowcount > 0


def _number(value: Any) -> float | None:
    """A cell as Hermes compares it: any finite number, plausible or not."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _require_session(session: Session, session_id: str) -> None:
    # Hermes takes any id, and the lock of one that is misspelled protects nothing.
    known = select(HermesSession.id).where(HermesSession.id == session_id)
    if not session_id or session.scalar(known) is None:
        raise no_such_session(session_id)


def _require_holder(holder: str) -> None:
    if not isinstance(holder, str) or not holder.strip():
        raise HolderError("a lock needs a holder: a text that nobody else uses; make one with make_holder()")
    try:
        holder.encode()
    except UnicodeEncodeError:
        raise HolderError("the holder's text is not valid Unicode; make one with make_holder()") from None


def _require_seconds(ttl: float, wait: float, max_life: float) -> None:
    for name, value in (("ttl", ttl), ("max_life", max_life)):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
    if ttl > max_life:
        raise ValueError(f"ttl ({ttl:g} s) is longer than the lock may last at all (max_life, {max_life:g} s)")
    if not math.isfinite(wait) or wait < 0:
        raise ValueError(f"wait must be a number of seconds, 0 or more, not {wait!r}")
