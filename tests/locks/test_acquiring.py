"""Who gets a lock, who does not, and what they are told."""

from __future__ import annotations

import os
import pickle
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from locks.conftest import SESSION, Clock, Rows
from locks.others import APART, dead_pid, holding, kill, require_namespaces, sleeping, stopped
from sqlalchemy.orm import Session

from hermes_store import (
    HermesStore,
    HolderError,
    LockHeldError,
    LockLostError,
    NotFoundError,
    ReadOnlyError,
    SchemaBehindError,
    StoreBusyError,
    bind,
)
from hermes_store.locks import LeaseRepository, free_sessions
from hermes_store.models import SessionTurnLease
from hermes_store.process import here

HOUR = 3600.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so much of a process")


def of_hermes(pid: int, namespace: str | None = "ours") -> str:
    """A holder's text as a release writes it."""
    inode = here().namespace if namespace == "ours" else namespace
    return f"pid={pid}:{'' if inode is None else f'pidns={inode}:'}tid=1:agent=7f00:nonce=0badcafe"


@pytest.fixture(params=["compression", "turns"])
def locks(request: pytest.FixtureRequest, store: HermesStore) -> LeaseRepository:
    """Both kinds of locks, which follow the same rules."""
    return store.locks if request.param == "compression" else store.locks.turns


def table_of(locks: LeaseRepository) -> str:
    return locks._table.__tablename__


class TestAFreeLock:
    def test_it_is_taken_for_five_minutes(self, locks: LeaseRepository, rows: Rows) -> None:
        holder = locks.make_holder()
        lock = locks.acquire(SESSION, holder)
        stored, acquired, expires = rows.one(table_of(locks))
        assert stored == lock.holder == holder
        assert expires == lock.expires == pytest.approx(time.time() + 300, abs=5)
        assert acquired == lock.acquired == pytest.approx(time.time(), abs=5)
        assert (lock.state, lock.pid, lock.is_free, lock.problems) == ("live", os.getpid(), False, ())
        assert lock.left == pytest.approx(300, abs=1)
        assert lock.expires_at is not None
        assert lock.acquired_at is not None
        assert lock.expires_at.timestamp() == pytest.approx(expires)
        assert lock.acquired_at.timestamp() == pytest.approx(acquired)

    def test_the_two_kinds_do_not_meet(self, store: HermesStore) -> None:
        store.locks.acquire(SESSION, "one")
        store.locks.turns.acquire(SESSION, "two")
        assert (store.locks.holder(SESSION), store.locks.turns.holder(SESSION)) == ("one", "two")

    def test_it_may_be_given_any_name(self, locks: LeaseRepository) -> None:
        lock = locks.acquire(SESSION, "worker-1", 20)
        assert (lock.state, lock.pid) == ("unknown", None)
        assert locks.holder(SESSION) == "worker-1"

    def test_a_session_that_does_not_exist_cannot_be_locked(self, locks: LeaseRepository, rows: Rows) -> None:
        for nobody in ("nobody", "", None):
            with pytest.raises(NotFoundError, match="no session"):
                locks.acquire(nobody, "worker")
        assert rows.all(table_of(locks)) == []

    @pytest.mark.parametrize("holder", ["", "  ", None, 7, "\ud800"])
    def test_there_is_no_lock_without_a_holder(self, locks: LeaseRepository, holder: str, rows: Rows) -> None:
        for call in (locks.acquire, locks.refresh, locks.release, locks.hold):
            if (call, holder) != (locks.hold, None):
                with pytest.raises(HolderError, match="holder"):
                    call(SESSION, holder)
        assert rows.all(table_of(locks)) == []

    @pytest.mark.parametrize(
        "seconds",
        [
            {"ttl": 0},
            {"ttl": -1},
            {"ttl": float("inf")},
            {"ttl": float("nan")},
            {"ttl": 7200},
            {"max_life": 200},
            {"max_life": 0},
        ],
    )
    def test_a_time_that_makes_no_sense_is_refused(self, locks: LeaseRepository, seconds: dict[str, float]) -> None:
        for call in (locks.acquire, locks.refresh, locks.hold):
            with pytest.raises(ValueError, match=r"ttl|max_life"):
                call(SESSION, "worker", **seconds)

    @pytest.mark.parametrize("wait", [-1, float("inf"), float("nan")])
    def test_so_is_such_a_wait(self, locks: LeaseRepository, wait: float) -> None:
        with pytest.raises(ValueError, match="wait"):
            locks.acquire(SESSION, "worker", wait=wait)

    def test_a_holder_made_too_long_ago_takes_nothing(self, store: HermesStore, clock: Clock, rows: Rows) -> None:
        holder = store.locks.make_holder()
        clock.go_on(HOUR + 1)
        with pytest.raises(HolderError, match="make a new one"):
            store.locks.acquire(SESSION, holder)
        assert rows.all() == []


class TestALockThatIsHeld:
    def refused(self, locks: LeaseRepository, holder: str = "somebody else") -> LockHeldError:
        with pytest.raises(LockHeldError) as raised:
            locks.acquire(SESSION, holder)
        return raised.value

    def test_the_error_says_who_since_when_and_until_when(self, locks: LeaseRepository, clock: Clock) -> None:
        holder = locks.make_holder()
        lock = locks.acquire(SESSION, holder)
        clock.go_on(100)
        error = self.refused(locks)
        assert isinstance(error, StoreBusyError)
        assert (error.session_id, error.holder) == (SESSION, holder)
        assert (error.age, error.left) == (pytest.approx(100, abs=1), pytest.approx(200, abs=1))
        assert error.expires == pytest.approx(lock.expires, abs=1)
        assert all(part in str(error) for part in (SESSION, holder, "for 100 s", "wait="))

    def test_the_error_survives_pickling(self, locks: LeaseRepository) -> None:
        locks.acquire(SESSION, "worker")
        error = self.refused(locks)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.holder, copy.left) == (LockHeldError, str(error), "worker", error.left)

    def test_a_process_of_ours_that_lives_keeps_it(self, store: HermesStore, path: Path) -> None:
        with holding(path) as (_, holder):
            assert self.refused(store.locks).holder == holder
            assert store.locks.holder(SESSION) == holder

    def test_a_process_of_hermes_that_lives_keeps_it(self, locks: LeaseRepository, rows: Rows) -> None:
        with sleeping() as pid:
            rows.put(of_hermes(pid), time.time(), time.time() + 100, table_of(locks))
            assert self.refused(locks).left == pytest.approx(100, abs=1)
            lock = locks.get(SESSION)
            assert lock is not None
            assert (lock.state, lock.pid) == ("live", pid)

    @linux
    def test_another_namespace_keeps_it_dead_or_alive(self, store: HermesStore, path: Path) -> None:
        require_namespaces()
        with holding(path, prefix=APART) as (_, holder):
            # In its namespace the process has an id that here belongs to another one, or to none.
            lock = store.locks.get(SESSION)
            assert lock is not None
            assert (lock.holder, lock.state) == (holder, "unknown")
            self.refused(store.locks)
        lock = store.locks.get(SESSION)
        assert lock is not None
        assert lock.state == "unknown"

    @linux
    @pytest.mark.parametrize("change", ["other host", "other namespace"])
    def test_so_does_another_host_until_its_time_is_up(
        self, store: HermesStore, rows: Rows, clock: Clock, change: str
    ) -> None:
        boot, namespace = here().boot, here().namespace
        assert boot
        assert namespace
        holder = store.locks.make_holder().replace(f"pid={os.getpid()}:", f"pid={dead_pid()}:")
        holder = holder.replace(boot, boot[::-1]) if change == "other host" else holder.replace(namespace, "1")
        rows.put(holder, time.time(), time.time() + 100)
        assert self.refused(store.locks).holder == holder
        clock.go_on(101)
        assert store.locks.acquire(SESSION, "me").holder == "me"

    @pytest.mark.parametrize("text", ["worker-1", "pid=x", "\N{SNOWMAN}"])
    def test_so_does_whoever_cannot_be_told(self, locks: LeaseRepository, rows: Rows, text: str) -> None:
        rows.put(text, time.time(), time.time() + 100, table_of(locks))
        assert self.refused(locks).holder == text

    @linux
    def test_so_does_a_dead_process_of_hermes_that_names_no_namespace(self, locks: LeaseRepository, rows: Rows) -> None:
        rows.put(of_hermes(dead_pid(), None), time.time(), time.time() + 100, table_of(locks))
        self.refused(locks)

    def test_the_same_holder_is_refused_too_unless_it_says_so(self, locks: LeaseRepository, rows: Rows) -> None:
        locks.acquire(SESSION, "worker", 20)
        assert "reentrant" in str(self.refused(locks, "worker"))
        assert rows.one(table_of(locks))[2] == pytest.approx(time.time() + 20, abs=5)
        again = locks.acquire(SESSION, "worker", 300, reentrant=True)
        assert again.reentered
        assert again.left == pytest.approx(300, abs=1)

    def test_a_holder_that_may_have_it_already_need_not(self, locks: LeaseRepository) -> None:
        assert not locks.acquire(SESSION, "worker", reentrant=True).reentered
        with pytest.raises(LockHeldError):
            locks.acquire(SESSION, "me", reentrant=True)

    def test_of_many_threads_one_gets_it(self, path: Path) -> None:
        got: list[str] = []
        start = threading.Barrier(8)

        def run() -> None:
            start.wait()
            holder = store.locks.make_holder()
            try:
                store.locks.acquire(SESSION, holder)
            except LockHeldError:
                return
            got.append(holder)

        with HermesStore.open(path) as store:
            threads = [threading.Thread(target=run) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [store.locks.holder(SESSION)] == got

    def test_who_waits_gets_it_when_it_is_given_back(self, locks: LeaseRepository) -> None:
        locks.acquire(SESSION, "first")
        timer = threading.Timer(0.2, locks.release, (SESSION, "first"))
        timer.start()
        assert locks.acquire(SESSION, "second", wait=10).holder == "second"
        timer.join()

    def test_who_waits_too_long_is_told(self, locks: LeaseRepository) -> None:
        locks.acquire(SESSION, "first")
        began = time.monotonic()
        with pytest.raises(LockHeldError):
            locks.acquire(SESSION, "second", wait=0.3)
        assert 0.3 <= time.monotonic() - began < 5

    def test_who_waits_gets_it_when_its_time_is_up(self, locks: LeaseRepository) -> None:
        locks.acquire(SESSION, "first", 0.3)
        assert locks.acquire(SESSION, "second", wait=10).holder == "second"


class TestALockThatIsTakenOver:
    def test_a_dead_process_of_ours_loses_it_at_once(self, store: HermesStore, path: Path) -> None:
        with holding(path) as (pid, _):
            kill(pid)
        assert store.locks.holder(SESSION) is None
        lock = store.locks.get(SESSION)
        assert lock is not None
        assert lock.state == "dead"
        assert store.locks.acquire(SESSION, "me").holder == "me"

    @linux
    def test_also_one_that_nobody_waited_for(self, store: HermesStore, path: Path) -> None:
        with holding(path) as (pid, _):
            kill(pid)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert store.locks.acquire(SESSION, "me").holder == "me"

    @linux
    def test_a_dead_process_of_hermes_does(self, locks: LeaseRepository, rows: Rows) -> None:
        rows.put(of_hermes(dead_pid()), time.time(), time.time() + 300, table_of(locks))
        assert locks.acquire(SESSION, "me").holder == "me"
        assert len(rows.all(table_of(locks))) == 1

    @linux
    def test_a_process_whose_id_was_given_to_another_does(self, store: HermesStore, rows: Rows) -> None:
        with sleeping() as pid:
            mine = store.locks.make_holder()
            reused = mine.replace(f"pid={os.getpid()}:", f"pid={pid}:")  # with our start, not that one's
            rows.put(reused, time.time(), time.time() + 300)
            assert store.locks.acquire(SESSION, "me").holder == "me"

    @linux
    def test_one_that_had_our_own_id_before_us_does(self, store: HermesStore, rows: Rows) -> None:
        start = here().start
        assert start is not None
        before = store.locks.make_holder().replace(f"start={start}:", f"start={start - 5}:")
        rows.put(before, time.time(), time.time() + 300)
        assert store.locks.acquire(SESSION, "me").holder == "me"

    def test_whoever_is_out_of_time_does(self, locks: LeaseRepository, rows: Rows) -> None:
        for holder in ("worker-1", of_hermes(os.getpid()), of_hermes(1, "1"), of_hermes(1, None)):
            rows.put(holder, time.time() - 400, time.time() - 1, table_of(locks))
            assert locks.holder(SESSION) is None
            assert locks.acquire(SESSION, "me").holder == "me"
            rows.clear()

    @linux
    @pytest.mark.parametrize("step", [0, HOUR, -HOUR])
    def test_a_stopped_process_does_when_its_time_is_up_wherever_the_clock_stands(
        self, store: HermesStore, path: Path, clock: Clock, step: float
    ) -> None:
        with holding(path, ttl=2) as (pid, holder), stopped(pid):
            clock.step(step)
            with pytest.raises(LockHeldError):
                store.locks.acquire(SESSION, "me")
            assert store.locks.holder(SESSION) == holder
            time.sleep(2.2)
            assert store.locks.acquire(SESSION, "me").holder == "me"

    @pytest.mark.parametrize(
        ("acquired", "expires"), [("soon", "later"), (1.0, "later"), (b"\x00", b"\xff"), (1.0, 2.0)]
    )
    def test_a_row_that_makes_no_sense_keeps_nobody_out(
        self, locks: LeaseRepository, rows: Rows, acquired: object, expires: object
    ) -> None:
        rows.put("worker-1", acquired, expires, table_of(locks))
        (shown,) = locks.list()
        assert shown.state == "expired"
        assert shown.problems
        assert locks.acquire(SESSION, "me").holder == "me"


class TestAClockThatIsSet:
    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_no_live_holder_of_ours_is_freed_and_none_lasts_longer(
        self, locks: LeaseRepository, clock: Clock, step: float
    ) -> None:
        holder = locks.make_holder()
        locks.acquire(SESSION, holder)
        clock.step(step)
        with pytest.raises(LockHeldError) as raised:
            locks.acquire(SESSION, "me")
        assert (raised.value.age, raised.value.left) == (pytest.approx(0, abs=1), pytest.approx(300, abs=1))
        assert raised.value.expires == pytest.approx(time.time() + step + 300, abs=2)
        clock.go_on(301)
        assert locks.acquire(SESSION, "me").holder == "me"

    @pytest.mark.parametrize("steps", [(HOUR, HOUR), (HOUR, -HOUR), (-HOUR, HOUR), (-HOUR, -HOUR)])
    def test_not_even_when_it_is_set_before_and_after_a_refresh(
        self, locks: LeaseRepository, clock: Clock, rows: Rows, steps: tuple[float, float]
    ) -> None:
        holder = locks.make_holder()
        locks.acquire(SESSION, holder)
        clock.step(steps[0])
        clock.go_on(60)
        locks.refresh(SESSION, holder)
        assert rows.one(table_of(locks))[2] == pytest.approx(time.time() + steps[0] + 360, abs=2)
        clock.step(steps[1])
        clock.go_on(200)
        with pytest.raises(LockHeldError) as raised:
            locks.acquire(SESSION, "me")
        assert (raised.value.age, raised.value.left) == (pytest.approx(260, abs=1), pytest.approx(100, abs=1))
        clock.go_on(101)
        assert locks.acquire(SESSION, "me").holder == "me"

    def test_rows_of_hermes_go_by_the_wall_clock_as_it_expects(
        self, locks: LeaseRepository, clock: Clock, rows: Rows
    ) -> None:
        rows.put(of_hermes(os.getpid()), time.time(), time.time() + 300, table_of(locks))
        clock.step(-HOUR)
        clock.go_on(301)
        with pytest.raises(LockHeldError):
            locks.acquire(SESSION, "me")
        clock.step(HOUR)
        assert locks.acquire(SESSION, "me").holder == "me"


class TestRefreshing:
    def test_it_moves_the_end_and_keeps_the_beginning(self, locks: LeaseRepository, clock: Clock, rows: Rows) -> None:
        for holder in (locks.make_holder(), "worker-1"):
            first = locks.acquire(SESSION, holder)
            clock.go_on(100)
            lock = locks.refresh(SESSION, holder, 200)
            assert (lock.age, lock.left) == (pytest.approx(100, abs=1), pytest.approx(200, abs=1))
            assert lock.acquired == pytest.approx(first.acquired, abs=1)
            assert rows.one(table_of(locks)) == (holder, lock.acquired, lock.expires)
            locks.release(SESSION, holder)

    def test_late_but_unclaimed_it_is_held_again(self, locks: LeaseRepository, clock: Clock) -> None:
        holder = locks.make_holder()
        locks.acquire(SESSION, holder)
        clock.go_on(1000)
        assert locks.holder(SESSION) is None
        locks.refresh(SESSION, holder)
        assert locks.holder(SESSION) == holder

    def test_late_and_claimed_it_is_lost(self, locks: LeaseRepository, clock: Clock) -> None:
        holder = locks.make_holder()
        locks.acquire(SESSION, holder)
        clock.go_on(1000)
        locks.acquire(SESSION, "me")
        with pytest.raises(LockLostError, match="taken over by 'me'") as raised:
            locks.refresh(SESSION, holder)
        assert (raised.value.session_id, raised.value.holder, raised.value.taken_by) == (SESSION, holder, "me")
        assert locks.holder(SESSION) == "me"

    def test_what_nobody_took_cannot_be_refreshed(self, locks: LeaseRepository, rows: Rows) -> None:
        with pytest.raises(LockLostError, match="removed"):
            locks.refresh(SESSION, "worker")
        assert rows.all(table_of(locks)) == []

    @pytest.mark.parametrize("stamped", [True, False])
    def test_nobody_renews_for_ever(self, locks: LeaseRepository, clock: Clock, stamped: bool) -> None:
        holder = locks.make_holder() if stamped else "worker-1"
        locks.acquire(SESSION, holder)
        for _ in range(14):
            clock.go_on(250)
            lock = locks.refresh(SESSION, holder)
        assert (lock.age, lock.left) == (pytest.approx(3500, abs=1), pytest.approx(100, abs=1))
        clock.go_on(101)
        with pytest.raises(LockLostError, match="may last"):
            locks.refresh(SESSION, holder)
        assert locks.acquire(SESSION, "me").holder == "me"

    def test_the_longest_life_is_the_callers_to_say(self, locks: LeaseRepository, clock: Clock) -> None:
        locks.acquire(SESSION, "worker", 10, max_life=20)
        clock.go_on(9)
        locks.refresh(SESSION, "worker", 10, max_life=20)
        clock.go_on(9)
        assert locks.refresh(SESSION, "worker", 10, max_life=20).left == pytest.approx(2, abs=1)

    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_a_clock_that_is_set_does_not_end_a_life_early(
        self, locks: LeaseRepository, clock: Clock, step: float
    ) -> None:
        holder = locks.make_holder()
        locks.acquire(SESSION, holder)
        clock.step(step)
        assert locks.refresh(SESSION, holder).age == pytest.approx(0, abs=1)


class TestGivingBack:
    def test_it_is_free_at_once_and_may_be_repeated(self, locks: LeaseRepository, rows: Rows) -> None:
        locks.acquire(SESSION, "worker")
        assert locks.release(SESSION, "worker") is True
        assert locks.release(SESSION, "worker") is False
        assert locks.get(SESSION) is None
        assert rows.all(table_of(locks)) == []

    def test_nobody_gives_back_what_another_holds(self, locks: LeaseRepository) -> None:
        locks.acquire(SESSION, "worker")
        assert locks.release(SESSION, "me") is False
        assert locks.holder(SESSION) == "worker"

    def test_deleting_a_session_frees_its_locks(self, store: HermesStore, rows: Rows) -> None:
        store.locks.acquire(SESSION, "one")
        store.locks.turns.acquire(SESSION, "two")
        with store.write() as tx:
            for statement in free_sessions([SESSION, "another"]):
                tx.session.execute(statement)
        assert rows.all() == rows.all("session_turn_leases") == []


class TestInsideTransactions:
    def test_a_unit_of_work_takes_it_with_everything_else(self, store: HermesStore, rows: Rows) -> None:
        with store.write() as tx:
            tx.locks.acquire(SESSION, "worker")
            tx.meta.set("app:seen", "1")
            assert rows.all() == []
        assert rows.one()[0] == "worker"

    def test_or_not_at_all(self, store: HermesStore, rows: Rows) -> None:
        with pytest.raises(ZeroDivisionError), store.write() as tx:
            tx.locks.acquire(SESSION, "worker")
            raise ZeroDivisionError
        assert rows.all() == []

    def test_nothing_waits_in_it(self, store: HermesStore) -> None:
        with store.write() as tx, pytest.raises(ValueError, match="waiting"):
            tx.locks.acquire(SESSION, "worker", wait=1)

    def test_nothing_is_held_beyond_it(self, store: HermesStore) -> None:
        with store.write() as tx, pytest.raises(RuntimeError, match=r"store\.locks\.hold"):
            tx.locks.hold(SESSION)

    def test_who_only_reads_takes_nothing(self, store: HermesStore, rows: Rows) -> None:
        store.locks.acquire(SESSION, "worker")
        with store.read() as tx:
            for change in (tx.locks.acquire, tx.locks.refresh, tx.locks.release):
                with pytest.raises((ReadOnlyError, LockHeldError)):
                    change(SESSION, "worker")
            with pytest.raises(ReadOnlyError):
                tx.locks.turns.acquire(SESSION, "worker")
        assert rows.one()[0] == "worker"

    def test_a_store_that_only_reads_sees_them(self, path: Path, store: HermesStore) -> None:
        store.locks.acquire(SESSION, "worker")
        with HermesStore.open(path, read_only=True) as reader:
            assert reader.locks.holder(SESSION) == "worker"
            with pytest.raises(ReadOnlyError):
                reader.locks.acquire(SESSION, "me")

    def test_an_applications_session_takes_it(self, store: HermesStore, rows: Rows) -> None:
        with Session(store._engine) as session:
            unit = bind(session)
            unit.locks.acquire(SESSION, "worker")
            unit.locks.turns.acquire(SESSION, "worker")
            assert session.get(SessionTurnLease, SESSION) is not None
            session.commit()
        assert rows.one()[0] == "worker"

    def test_a_file_that_somebody_writes_to_is_busy_not_locked(self, path: Path) -> None:
        with (
            HermesStore.open(path, timeout=0.1) as store,
            closing(sqlite3.connect(path, isolation_level=None)) as other,
        ):
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusyError) as raised:
                store.locks.acquire(SESSION, "worker")
            assert not isinstance(raised.value, LockHeldError)

    @pytest.mark.parametrize("table", ["compression_locks", "session_turn_leases"])
    def test_a_file_without_the_tables_is_behind(self, path: Path, table: str) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"DROP TABLE {table}")
        with HermesStore.open(path, migrate="off") as store:
            assert store.locks.holder(SESSION) is None
            assert store.locks.turns.list() == []
            for locks in (store.locks, store.locks.turns):
                with pytest.raises(SchemaBehindError, match="upgrade"):
                    locks.acquire(SESSION, "worker")
                with pytest.raises(SchemaBehindError), locks.hold(SESSION):
                    pytest.fail("nothing runs without its lock")
