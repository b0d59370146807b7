"""A block that holds a lock: refreshed beside it, given back after it, and told when it was lost."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from locks import others
from locks.conftest import SESSION, Rows

from hermes_store import HermesStore, HolderError, LockHeldError, LockLostError, NotFoundError, StoreBusyError, holding

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so much of a process")


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def refreshers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hermes-store-lock"]


class TestABlock:
    def test_it_holds_the_lock_and_gives_it_back(self, store: HermesStore, rows: Rows) -> None:
        with store.locks.hold(SESSION, agent="importer") as held:
            assert rows.one()[0] == held.holder
            assert ":agent=importer:" in held.holder
            assert held.lost is None
            held.check()
            with pytest.raises(LockHeldError):
                store.locks.acquire(SESSION, "me")
            assert refreshers()
        assert rows.all() == []
        assert refreshers() == []

    def test_so_it_does_with_turns_and_a_name_of_its_own(self, store: HermesStore, rows: Rows) -> None:
        with store.locks.turns.hold(SESSION, "worker") as held:
            assert held.info.state == "unknown"
            assert rows.one("session_turn_leases")[0] == "worker"
        assert rows.all("session_turn_leases") == []

    def test_an_error_passes_through_and_the_lock_is_free(self, store: HermesStore, rows: Rows) -> None:
        with pytest.raises(ZeroDivisionError), store.locks.hold(SESSION):
            raise ZeroDivisionError
        assert rows.all() == []

    def test_it_does_not_begin_without_the_lock(self, store: HermesStore, rows: Rows) -> None:
        store.locks.acquire(SESSION, "me")
        with pytest.raises(LockHeldError), store.locks.hold(SESSION):
            pytest.fail("the lock is another's")
        with pytest.raises(NotFoundError), store.locks.hold("nobody"):
            pytest.fail("there is no such session")
        assert rows.one()[0] == "me"
        assert refreshers() == []

    def test_it_waits_for_the_lock_and_is_as_young_as_that(self, store: HermesStore) -> None:
        store.locks.acquire(SESSION, "me")
        timer = threading.Timer(1.2, store.locks.release, (SESSION, "me"))
        timer.start()
        with store.locks.hold(SESSION, wait=10) as held:
            assert held.info.age < 1
        timer.join()

    def test_it_is_refreshed_beside_the_block(self, store: HermesStore, rows: Rows) -> None:
        with store.locks.hold(SESSION, ttl=1.5) as held:
            first = rows.one()
            time.sleep(2.5)
            assert rows.one()[2] > first[2] + 1
            assert rows.one()[1] == pytest.approx(first[1], abs=1)  # the two clocks are not read at one instant
            assert held.info.age > 1.5
            assert held.lost is None

    def test_it_is_refreshed_at_once_when_the_clock_is_set(
        self, store: HermesStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with store.locks.hold(SESSION) as held:
            expires = rows.one()[2]
            stepped = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic, sleep=time.sleep)
            monkeypatch.setattr(holding, "time", stepped)
            until(lambda: rows.one()[2] > expires)
            assert held.lost is None

    def test_a_block_that_hangs_loses_it(self, store: HermesStore) -> None:
        with pytest.raises(LockLostError, match="may last"), store.locks.hold(SESSION, ttl=0.3, max_life=0.6) as held:
            until(lambda: "may last" in str(held.lost))
            assert store.locks.holder(SESSION) is None
            assert store.locks.acquire(SESSION, "me").holder == "me"
        assert store.locks.holder(SESSION) == "me"

    def test_what_is_held_once_is_not_held_again(self, store: HermesStore) -> None:
        lock = store.locks.hold(SESSION)
        with pytest.raises(RuntimeError, match="not held yet"):
            _ = lock.info
        with lock:
            pass
        with pytest.raises(RuntimeError, match="each block"), lock:
            pytest.fail("it was given back")

    def test_no_thread_no_lock(self, store: HermesStore, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"), store.locks.hold(SESSION):
            pytest.fail("nobody would refresh it")
        assert rows.all() == []

    def test_a_file_that_is_busy_for_a_while_costs_nothing(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with (
            caplog.at_level(logging.WARNING, "hermes_store.locks"),
            HermesStore.open(path, timeout=0.05) as store,
            closing(sqlite3.connect(path, isolation_level=None)) as other,
            store.locks.hold(SESSION, ttl=2) as held,
        ):
            other.execute("BEGIN IMMEDIATE")
            until(lambda: caplog.records)
            other.execute("ROLLBACK")
            before = held.info
            until(lambda: held.info is not before)
            held.check()
        assert {record.getMessage() for record in caplog.records} == {"a lock could not be refreshed: StoreBusyError"}

    @linux
    def test_a_process_that_was_stopped_goes_on_if_nobody_came(self, store: HermesStore, path: Path) -> None:
        with others.holding(path, ttl=0.9) as (pid, holder):
            with others.stopped(pid):
                time.sleep(1.2)
                assert store.locks.holder(SESSION) is None
            until(lambda: store.locks.holder(SESSION) == holder)


class TestALockThatWasLost:
    def lose(self, rows: Rows) -> None:
        rows.put("thief", time.time(), time.time() + 300)

    def test_the_block_can_ask(self, store: HermesStore, rows: Rows) -> None:
        with suppress(LockLostError), store.locks.hold(SESSION, ttl=0.6) as held:
            self.lose(rows)
            until(lambda: held.lost)
            with pytest.raises(LockLostError, match="thief") as raised:
                held.check()
            assert raised.value.taken_by == "thief"
            assert refreshers() == []
        assert rows.one()[0] == "thief"

    def test_its_end_raises(self, store: HermesStore, rows: Rows) -> None:
        with pytest.raises(LockLostError, match="thief"), store.locks.hold(SESSION, ttl=0.6) as held:
            self.lose(rows)
            until(lambda: held.lost)

    def test_its_end_raises_also_before_the_next_refresh(self, store: HermesStore, rows: Rows) -> None:
        for change in (self.lose, Rows.clear):
            with pytest.raises(LockLostError, match="before the block ended"), store.locks.hold(SESSION):
                change(rows)
            rows.clear()

    def test_what_check_raises_passes_through(self, store: HermesStore, rows: Rows) -> None:
        with pytest.raises(LockLostError) as raised, store.locks.hold(SESSION, ttl=0.6) as held:
            self.lose(rows)
            until(lambda: held.lost)
            held.check()
        assert not hasattr(raised.value, "__notes__")

    def test_the_blocks_own_error_comes_first_with_a_note(self, store: HermesStore, rows: Rows) -> None:
        with pytest.raises(ZeroDivisionError) as raised, store.locks.hold(SESSION):
            self.lose(rows)
            raise ZeroDivisionError
        assert "before the block ended" in raised.value.__notes__[0]

    def test_one_that_cannot_be_refreshed_is_not_relied_on_but_may_come_back(self, path: Path) -> None:
        with (
            HermesStore.open(path, timeout=0.05) as store,
            closing(sqlite3.connect(path, isolation_level=None)) as other,
            store.locks.hold(SESSION, ttl=0.6) as held,
        ):
            other.execute("BEGIN IMMEDIATE")
            until(lambda: held.lost)
            with pytest.raises(LockLostError, match="could not be refreshed in time"):
                held.check()
            other.execute("ROLLBACK")
            until(lambda: held.lost is None)

    def test_one_that_cannot_be_given_back_is_an_error(self, path: Path) -> None:
        with (
            HermesStore.open(path, timeout=0.05) as store,
            closing(sqlite3.connect(path, isolation_level=None)) as other,
        ):
            with pytest.raises(StoreBusyError), store.locks.hold(SESSION):
                other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            with pytest.raises(ZeroDivisionError) as raised, store.locks.turns.hold(SESSION):
                other.execute("BEGIN IMMEDIATE")
                raise ZeroDivisionError
            assert "StoreBusyError" in raised.value.__notes__[0]


class TestReentering:
    def test_the_outer_block_keeps_it(self, store: HermesStore, rows: Rows) -> None:
        with store.locks.hold(SESSION) as outer:
            with store.locks.hold(SESSION, outer.holder, reentrant=True) as inner:
                assert inner.info.reentered
                assert inner.holder == outer.holder
            assert rows.one()[0] == outer.holder
            with pytest.raises(LockHeldError, match="reentrant"), store.locks.hold(SESSION, outer.holder):
                pytest.fail("two would believe to hold it")
        assert rows.all() == []

    def test_the_inner_block_learns_of_a_loss(self, store: HermesStore, rows: Rows) -> None:
        store.locks.acquire(SESSION, "worker")
        with pytest.raises(LockLostError), store.locks.hold(SESSION, "worker", reentrant=True):
            rows.clear()

    def test_it_needs_the_holder(self, store: HermesStore) -> None:
        with pytest.raises(HolderError, match="re-enter"):
            store.locks.hold(SESSION, reentrant=True)

    def test_who_is_the_first_gives_it_back(self, store: HermesStore, rows: Rows) -> None:
        with store.locks.hold(SESSION, "worker", reentrant=True) as held:
            assert not held.info.reentered
        assert rows.all() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_give_back_its_parents_lock(store: HermesStore, rows: Rows) -> None:
    with store.locks.hold(SESSION) as held:
        child = multiprocessing.get_context("fork").Process(target=held.__exit__, args=(None, None, None))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert rows.one()[0] == held.holder


class TestInAnEventLoop:
    def test_it_holds_the_lock_and_gives_it_back(self, store: HermesStore, rows: Rows) -> None:
        async def main() -> None:
            async with store.locks.hold(SESSION, ttl=1.5) as held:
                await asyncio.sleep(2)
                held.check()
                assert rows.one()[0] == held.holder

        asyncio.run(main())
        assert rows.all() == []
        assert refreshers() == []

    def test_nothing_blocks_the_loop_while_it_waits(self, store: HermesStore) -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.02)
                beats += 1

        async def main() -> None:
            beating = asyncio.create_task(beat())
            with pytest.raises(LockHeldError):
                async with store.locks.hold(SESSION, wait=1):
                    pytest.fail("the lock is another's")
            beating.cancel()

        store.locks.acquire(SESSION, "me")
        asyncio.run(main())
        assert beats > 20

    def test_a_loss_is_raised(self, store: HermesStore, rows: Rows) -> None:
        async def main() -> None:
            async with store.locks.hold(SESSION):
                rows.clear()

        with pytest.raises(LockLostError):
            asyncio.run(main())

    def test_a_task_cancelled_in_the_block_gives_it_back(self, store: HermesStore, rows: Rows) -> None:
        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), store.locks.hold(SESSION):
                    await asyncio.sleep(60)

        asyncio.run(main())
        assert rows.all() == []

    def test_a_task_cancelled_while_it_waits_never_gets_it(self, store: HermesStore, rows: Rows) -> None:
        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), store.locks.hold(SESSION, wait=60):
                    pytest.fail("the lock is another's")
            store.locks.release(SESSION, "me")
            await asyncio.sleep(1.2)
            assert rows.all() == []

        store.locks.acquire(SESSION, "me")
        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 10

    def test_a_task_cancelled_while_it_is_given_the_lock_gives_it_back(
        self, path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered = threading.Event()

        async def main(store: HermesStore) -> None:
            acquire = store.locks.acquire

            def slowly(*args: object, **options: object) -> object:
                lock = acquire(*args, **options)
                entered.set()
                time.sleep(0.3)
                return lock

            monkeypatch.setattr(store.locks, "acquire", slowly)

            async def hold() -> None:
                async with store.locks.hold(SESSION):
                    pytest.fail("it was cancelled")

            task = asyncio.create_task(hold())
            await asyncio.to_thread(entered.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert rows.all() == []

        with HermesStore.open(path) as store:
            asyncio.run(main(store))
        assert refreshers() == []

    def test_a_task_cancelled_while_it_gives_it_back_does_so(
        self, path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leaving = threading.Event()

        async def main(store: HermesStore) -> None:
            release = store.locks.release

            def slowly(*args: str) -> bool:
                leaving.set()
                time.sleep(0.3)
                rows.clear()
                return release(*args)

            monkeypatch.setattr(store.locks, "release", slowly)

            async def hold() -> None:
                async with store.locks.hold(SESSION):
                    pass

            task = asyncio.create_task(hold())
            await asyncio.to_thread(leaving.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            assert "before the block ended" in raised.value.__notes__[0]

        with HermesStore.open(path) as store:
            asyncio.run(main(store))
