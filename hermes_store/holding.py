"""Holding a lock for the length of a block: taken before it, refreshed beside it, given back after it.

A thread refreshes the lock, so the block may do what it likes meanwhile, also in an event loop. The thread cannot stop
the block when the lock is lost (somebody took it after a long sleep, or it reached the end of its total life); so it
notes it: `Held.check` raises at once, the end of the block raises in any case. Nothing runs on unlocked unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from hermes_store.errors import LockHeldError, LockLostError
from hermes_store.process import uptime
from hermes_store.records import LockInfo

log = logging.getLogger("hermes_store.locks")

#: Seconds between two refreshes at most, as in Hermes.
_INTERVAL = 60.0
#: Seconds between two looks at the clocks: after a step of the wall clock Hermes would count the lock as expired.
_LOOK = 1.0
#: Seconds between two tries to take a lock that is held.
_PAUSE = (0.5, 1.0)

Result = TypeVar("Result")


class Lease(Protocol):
    """What holding needs of a lock repository."""

    def make_holder(self, agent: str = ...) -> str:
        """Write a new holder's text."""

    def acquire(
        self, session_id: str, holder: str, ttl: float = ..., *, max_life: float = ..., reentrant: bool = ...
    ) -> LockInfo:
        """Take the lock."""

    def refresh(self, session_id: str, holder: str, ttl: float = ..., *, max_life: float = ...) -> LockInfo:
        """Go on holding it."""

    def release(self, session_id: str, holder: str) -> bool:
        """Give it back."""


def until_free(attempt: Callable[[], Result], wait: float, pause: Callable[[float], object] = time.sleep) -> Result:
    """Try until a lock is free.

    Args:
        attempt: Takes it.
        wait: Seconds to go on trying; 0 tries once.
        pause: Sleeps for so many seconds.

    Returns:
        What the attempt returned.

    Raises:
        LockHeldError: It was held all the time.
    """
    started = time.monotonic()
    while True:
        try:
            return attempt()
        except LockHeldError as error:
            remaining = started + wait - time.monotonic()
            if remaining <= 0:
                raise
            # It may end by its own time sooner than the next look is due.
            pause(min(random.uniform(*_PAUSE), remaining, max(error.left, 0.01)))  # noqa: S311 - jitter, no secret


class Held:
    """A lock for the length of a ``with`` or ``async with`` block; made by ``hold``, used once.

    Args:
        lease: Where the lock is.
        session_id: What to lock.
        holder: Who holds it; None makes a new holder's text.
        agent: The name in a new text.
        ttl: Seconds the lock lasts without a refresh.
        wait: Seconds to wait for it.
        max_life: Seconds it lasts at most, with all refreshes.
        reentrant: Whether the holder may have it already; then the block does not give it back.
    """

    def __init__(
        self,
        lease: Lease,
        session_id: str,
        *,
        holder: str | None,
        agent: str,
        ttl: float,
        wait: float,
        max_life: float,
        reentrant: bool,
    ) -> None:
        self._lease, self._session_id, self._holder = lease, session_id, holder
        self._agent, self._ttl, self._wait = agent, ttl, wait
        self._max_life, self._reentrant = max_life, reentrant
        self._info: LockInfo | None = None
        self._lost: LockLostError | None = None
        self._confirmed = 0.0
        self._pid = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._state = threading.Lock()
        self._used = self._abandoned = self._left = False

    @property
    def info(self) -> LockInfo:
        """The lock, as of the last refresh.

        Raises:
            RuntimeError: The block has not begun.
        """
        if self._info is None:
            raise RuntimeError("the lock is not held yet; use: with store.locks.hold(...) as held")
        return self._info

    @property
    def holder(self) -> str:
        """Who holds it: what the lock's row says."""
        return self.info.holder

    @property
    def lost(self) -> LockLostError | None:
        """Why the lock is not to be relied on now; None while it is."""
        if self._lost is not None:
            return self._lost
        if self._info is None or (overdue := uptime() - self._confirmed - self._info.left) < 0:
            return None
        return self._loss(f"could not be refreshed in time: it ran out {overdue:.1f} s ago")

    def check(self) -> None:
        """Go on only while the lock is held.

        Raises:
            LockLostError: It is not.
        """
        if (lost := self.lost) is not None:
            raise lost

    def __enter__(self) -> Self:
        with self._state:
            if self._used:
                raise RuntimeError("this lock was held before; call hold() for each block")
            self._used = True
        self._info = until_free(self._take, self._wait, self._stop.wait)
        self._confirmed, self._pid = uptime(), os.getpid()
        thread = threading.Thread(target=self._keep, name="hermes-store-lock", daemon=True)
        try:
            thread.start()
        except BaseException:  # no room for a thread: a lock that nobody refreshes is not kept
            self._leave_quietly()
            raise
        self._thread = thread
        with self._state:
            unwanted = self._abandoned
        if unwanted:
            self._leave_quietly()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            lost = self._leave()
        except Exception as failure:
            if error is None:
                raise
            # The block's own error matters more; the lock ends by its time.
            log.warning("a lock could not be given back: %s", type(failure).__name__)
            error.add_note(f"the lock on {self._session_id!r} could not be given back: {type(failure).__name__}")
            return
        if lost is None:
            return
        if error is None:
            raise lost
        if error is not lost:
            error.add_note(str(lost))

    async def __aenter__(self) -> Self:
        entering = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: it stops waiting, or gives back what it took.
            with self._state:
                self._abandoned = True
            self._stop.set()
            await asyncio.wait([entering])
            if not entering.cancelled() and entering.exception() is None:
                await asyncio.to_thread(self._leave_quietly)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leaving = asyncio.ensure_future(asyncio.to_thread(self.__exit__, kind, error, traceback))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError as cancelled:
            await asyncio.wait([leaving])  # a cancelled task gives its lock back all the same
            if (failure := leaving.exception()) is not None:
                cancelled.add_note(str(failure))
            raise

    def _take(self) -> LockInfo:
        if self._abandoned:
            raise LockLostError(f"nobody waits for the lock on {self._session_id!r} any more")
        # Made anew for each try: a holder's age counts from its making.
        holder = self._lease.make_holder(self._agent) if self._holder is None else self._holder
        return self._lease.acquire(
            self._session_id, holder, self._ttl, max_life=self._max_life, reentrant=self._reentrant
        )

    def _keep(self) -> None:
        """Refresh until told to stop, or until the lock is lost for good; runs in a thread."""
        interval = min(_INTERVAL, self._ttl / 3)
        due, offset = uptime() + interval, time.time() - uptime()
        while not self._stop.wait(min(_LOOK, interval)):
            now = uptime()
            if now < due and abs(time.time() - now - offset) < _LOOK:
                continue
            try:
                self._info = self._refresh()
            except LockLostError as lost:
                self._lost = lost
                return
            except Exception as error:  # noqa: BLE001 - a busy or broken file; until it answers the lock is as it was
                log.warning("a lock could not be refreshed: %s", type(error).__name__)
                continue
            self._confirmed = now
            due, offset = uptime() + interval, time.time() - uptime()

    def _refresh(self) -> LockInfo:
        return self._lease.refresh(self._session_id, self.holder, self._ttl, max_life=self._max_life)

    def _leave(self) -> LockLostError | None:
        """Stop refreshing and give the lock back.

        Returns:
            Why it was not held to the end; None when it was.
        """
        with self._state:
            again, self._left = self._left, True
        if again or os.getpid() != self._pid:
            return None  # after a fork the lock is the parent's
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self.info.reentered:  # whoever took it first gives it back
            if self._lost is None:
                try:
                    self._info = self._refresh()
                except LockLostError as lost:
                    self._lost = lost
            return self._lost
        released = self._lease.release(self._session_id, self.holder)
        if self._lost is None and not released:
            self._lost = self._loss("was taken over, or removed, before the block ended")
        return self._lost

    def _leave_quietly(self) -> None:
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - whoever calls this has an error of its own to raise
            log.warning("a lock could not be given back: %s", type(error).__name__)

    def _loss(self, what: str) -> LockLostError:
        return LockLostError(
            f"the lock on {self._session_id!r} {what}; stop, and look at the session before you go on",
            session_id=self._session_id,
            holder=self.holder,
        )
