"""A released Hermes and we contend for the same locks, as processes beside each other.

``turns`` stands for its lease on a conversation's turn, ``compression`` for its lock on a session's compression.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import releases
from locks.conftest import SESSION, Rows
from locks.others import APART, dead_pid, holding, kill, require_namespaces

from hermes_store import HermesStore, LockHeldError, LockLostError
from hermes_store.locks import LeaseRepository

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(sys.platform != "linux", reason="the releases name their process-id namespace on Linux only"),
]

NEWEST = releases.V0_22_2
#: Releases that free the locks of dead processes of any namespace, and one that frees none.
OLDER = (releases.V0_19_0, releases.V0_20_1_2, releases.V0_21_5)

#: How the newest release takes a lock, goes on holding it, and gives it back; and how it writes who it is.
NAMES = """
import os, threading
from hermes_state_pidns import holder_namespace_token
me = f"pid={os.getpid()}{holder_namespace_token()}:tid={threading.get_ident()}:agent=7f00:nonce=0badcafe"
"""
CALLS = {
    "compression": ("db.try_acquire_compression_lock", "db.refresh_compression_lock", "db.release_compression_lock"),
    "turns": ("db.try_acquire_session_turn_lease", "db.refresh_session_turn_lease", "db.release_session_turn_lease"),
}
TABLES = {"compression": "compression_locks", "turns": "session_turn_leases"}


@pytest.fixture(params=["compression", "turns"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def locks(store: HermesStore, kind: str) -> LeaseRepository:
    return store.locks if kind == "compression" else store.locks.turns


@contextmanager
def hermes_holds(path: Path, kind: str, *, ttl: float = 300.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The newest release holds a lock; for each line of its input it refreshes it and says whether that went well.

    Yields:
        Its process, and its holder's text.
    """
    acquire, refresh, _ = CALLS[kind]
    code = (
        f"{NAMES}\nassert {acquire}({SESSION!r}, me, ttl_seconds={ttl})\nprint(me, flush=True)\n"
        f"for _ in sys.stdin:\n    print({refresh}({SESSION!r}, me, ttl_seconds={ttl}), flush=True)"
    )
    with releases.running(NEWEST, path, code) as process:
        yield process, process.stdout.readline().strip()


def refreshed(process: subprocess.Popen[str]) -> str:
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def hermes_gets(path: Path, kind: str, release: str = NEWEST) -> bool:
    """Whether a release gets the lock just now; it gives it back."""
    acquire, _, release_it = CALLS[kind]
    code = (
        "import os\nme = f'pid={os.getpid()}:tid=1:agent=7f00:nonce=0badcafe'\n"
        f"got = {acquire}({SESSION!r}, me)\npeer.LOGS[:] = [str(got)]\nif got:\n    {release_it}({SESSION!r}, me)"
    )
    (said,) = releases.call(release, path, code)["log"]
    return bool(said == "True")


class TestHermesHolds:
    def test_we_are_told_by_whom(self, path: Path, locks: LeaseRepository, kind: str) -> None:
        with hermes_holds(path, kind) as (process, holder):
            with pytest.raises(LockHeldError, match="a process that runs") as raised:
                locks.acquire(SESSION, locks.make_holder())
            assert raised.value.holder == holder == locks.holder(SESSION)
            assert f"pid={process.pid}:" in holder
            assert refreshed(process) == "True"

    def test_we_take_it_at_once_when_it_died(self, path: Path, locks: LeaseRepository, kind: str) -> None:
        with hermes_holds(path, kind) as (process, holder):
            kill(process.pid)
            process.wait()
            lock = locks.get(SESSION)
            assert lock is not None
            assert (lock.holder, lock.state) == (holder, "dead")
            locks.acquire(SESSION, locks.make_holder())

    def test_we_take_it_when_its_time_is_up_and_it_finds_out(
        self, path: Path, locks: LeaseRepository, kind: str
    ) -> None:
        with hermes_holds(path, kind, ttl=0.5) as (process, _):
            time.sleep(0.7)
            mine = locks.make_holder()
            locks.acquire(SESSION, mine)
            assert refreshed(process) == "False"
            assert locks.holder(SESSION) == mine

    def test_it_revives_what_nobody_took(self, path: Path, locks: LeaseRepository, kind: str) -> None:
        with hermes_holds(path, kind, ttl=2) as (process, holder):
            time.sleep(2.2)
            assert locks.holder(SESSION) is None
            assert refreshed(process) == "True"
            assert locks.holder(SESSION) == holder

    def test_we_get_it_when_it_is_given_back(self, path: Path, locks: LeaseRepository, kind: str) -> None:
        acquire, _, release = CALLS[kind]
        code = f"{NAMES}\nassert {acquire}({SESSION!r}, me)\nprint(flush=True)\nsys.stdin.readline()\n{release}({SESSION!r}, me)"
        with releases.running(NEWEST, path, code) as process:
            process.stdout.readline()
            with pytest.raises(LockHeldError):
                locks.acquire(SESSION, "me")
            process.stdin.write("\n")
            process.stdin.flush()
            assert locks.acquire(SESSION, "me", wait=20).holder == "me"


class TestWeHold:
    def test_it_is_refused(self, path: Path, locks: LeaseRepository, kind: str) -> None:
        with locks.hold(SESSION) as held:
            assert not hermes_gets(path, kind)
            held.check()
        assert hermes_gets(path, kind)

    @pytest.mark.parametrize("release", OLDER)
    def test_older_ones_are_too(self, path: Path, store: HermesStore, release: str) -> None:
        with store.locks.hold(SESSION) as held:
            assert not hermes_gets(path, "compression", release)
            held.check()

    def test_it_knows_who_holds_it(self, path: Path, store: HermesStore) -> None:
        with store.locks.hold(SESSION) as held:
            releases.call(NEWEST, path, f"assert db.get_compression_lock_holder({SESSION!r}) == {held.holder!r}")

    @pytest.mark.parametrize("release", [NEWEST, *OLDER[1:]])
    def test_it_takes_it_at_once_when_we_died(self, path: Path, release: str) -> None:
        with holding(path) as (pid, _):
            kill(pid)
        assert hermes_gets(path, "compression", release)

    def test_it_takes_turns_at_once_when_we_died(self, path: Path, store: HermesStore, rows: Rows) -> None:
        dead = store.locks.make_holder().replace(f"pid={os.getpid()}:", f"pid={dead_pid()}:")
        rows.put(dead, time.time(), time.time() + 300, TABLES["turns"])
        assert hermes_gets(path, "turns")

    def test_it_waits_for_a_holder_of_another_namespace(self, path: Path) -> None:
        require_namespaces()
        with holding(path, prefix=APART):
            assert not hermes_gets(path, "compression")
        assert not hermes_gets(path, "compression")

    def test_it_takes_it_when_our_time_is_up_and_we_find_out(
        self, path: Path, locks: LeaseRepository, kind: str
    ) -> None:
        mine = locks.make_holder()
        locks.acquire(SESSION, mine, 0.2)
        with hermes_holds(path, kind) as (_, holder):
            with pytest.raises(LockLostError) as raised:
                locks.refresh(SESSION, mine)
            assert raised.value.taken_by == holder
            assert locks.release(SESSION, mine) is False
            assert locks.holder(SESSION) == holder

    def test_it_may_change_the_session_when_our_process_died(self, path: Path) -> None:
        with holding(path) as (pid, _):
            kill(pid)
        releases.call(NEWEST, path, f"db.append_message({SESSION!r}, 'user', 'hello')\ndb.delete_session({SESSION!r})")


def test_of_both_sides_at_once_one_gets_it(path: Path, locks: LeaseRepository, kind: str) -> None:
    acquire, _, release = CALLS[kind]
    # Each adds one to a number only while it holds the lock; nothing is lost if never two hold it.
    number = path.with_name("number")
    number.write_text("0")
    code = f"""{NAMES}
import time
print(flush=True)
done = 0
while done < 30:
    if {acquire}({SESSION!r}, me):
        seen = int(Path({str(number)!r}).read_text())
        time.sleep(0.003)
        Path({str(number)!r}).write_text(str(seen + 1))
        {release}({SESSION!r}, me)
        done += 1
    time.sleep(0.001)
"""
    with releases.running(NEWEST, path, code) as process:
        process.stdout.readline()
        done = 0
        while done < 30:
            holder = locks.make_holder()
            try:
                locks.acquire(SESSION, holder)
            except LockHeldError:
                continue
            seen = int(number.read_text())
            time.sleep(0.003)
            number.write_text(str(seen + 1))
            assert locks.release(SESSION, holder)
            done += 1
        assert '"log"' in process.stdout.readline()
    assert number.read_text() == "60"
