"""Many processes write one file, among them a released Hermes, and are killed: every message that was promised is there."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import releases
from migrations.files import run, session
from migrations.indexes import troubles

from hermes_store import HermesStore

APPENDER = Path(__file__).with_name("appender.py")
#: The appender on the SQLite library of this process.
START = f"""
import importlib, runpy, sys
if {sqlite3.__name__!r} != "sqlite3":
    import pysqlite3, pysqlite3.dbapi2
    sys.modules["sqlite3"], sys.modules["sqlite3.dbapi2"] = pysqlite3, pysqlite3.dbapi2
    import sqlite3
runpy.run_path({str(APPENDER)!r}, run_name="__main__")
"""
#: Reads and searches until it is told to stop; prints how often.
READ = """
import select, sys
from hermes_store import HermesStore
rounds, last = 0, 0
with HermesStore.open(sys.argv[1], migrate="off", read_only=True) as store:
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        page = store.search("appendedword", limit=5, sort="newest")
        assert page.degraded is None, page.degraded
        with store.read() as unit:
            count = unit.session.connection().exec_driver_sql("SELECT count(*) FROM messages").scalar_one()
        assert count >= last
        last, rounds = count, rounds + 1
print(rounds)
"""
#: A release appends beside us, through its own session store.
PEER = """
db.create_session("peer", "cli", model="m")
print("ready", flush=True)
sys.stdin.readline()
for number in range({number}):
    print(db.append_message("peer", "user", f"appendedword peer n{{number:06d}}x"), flush=True)
"""
WRITERS, APPENDS = 8, 40


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of ours; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def texts_by_id(path: Path, session_id: str) -> dict[int, str]:
    return dict(run(path, ("SELECT id, content FROM messages WHERE session_id = ? ORDER BY id", (session_id,))))


def contend(path: Path, journal: str, record: Any, appends: int, *, peer: bool) -> None:
    assert run(path, f"PRAGMA journal_mode={journal}") == [(journal,)]
    names = [f"writer{number}" for number in range(WRITERS)]
    for name in names:
        session(path, name)
    before = run(path, "SELECT count(*) FROM messages")[0][0]
    with ExitStack() as stack:
        readers = [stack.enter_context(started("-c", READ, str(path))) for _ in range(2)]
        writers = [stack.enter_context(started("-c", START, str(path), name, str(appends))) for name in names]
        beside = []
        if peer:
            code = PEER.format(number=appends)
            beside.append(stack.enter_context(releases.running(releases.V0_22_2, path, code)))
        for process in (*readers, *writers, *beside):
            wait_until_ready(process)
        for process in (*writers, *beside):
            tell(process)
        said = [writer.communicate(timeout=300)[0] for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * WRITERS
        of_peer = [line for process in beside for line in process.communicate(timeout=300)[0].splitlines()]
        assert [int(reader.communicate(timeout=60)[0]) > 0 for reader in readers] == [True, True]
    waits = []
    for name, lines in zip(names, said, strict=True):
        ids = [int(line.split()[0]) for line in lines.splitlines()]
        waits += [float(line.split()[1]) for line in lines.splitlines()]
        assert ids == sorted(set(ids))
        assert list(texts_by_id(path, name)) == ids
        assert [text.split()[2] for text in texts_by_id(path, name).values()] == [f"n{n:06d}x" for n in range(appends)]
    if peer:
        ids = [int(line) for line in of_peer[:appends]]
        assert list(texts_by_id(path, "peer")) == ids == sorted(set(ids))
    after = run(path, "SELECT count(*) FROM messages")[0][0]
    assert after - before == (WRITERS + peer) * appends
    assert troubles(path) == []
    waits.sort()
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    record("journal", journal)
    for name, value in (("p50", p50), ("p99", p99), ("longest", waits[-1])):
        record(name, round(value, 3))
    sys.stdout.write(
        f"{WRITERS} writers x {appends}, {journal}: p50 {p50:.3f} s, p99 {p99:.3f} s, longest {waits[-1]:.3f} s\n"
    )
    assert waits[-1] < 60


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_eight_writers_and_two_readers_share_a_file(path: Path, journal: str, record_property: Any) -> None:
    contend(path, journal, record_property, APPENDS, peer=False)


@pytest.mark.peer
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_release_writes_beside_eight_of_ours(path: Path, journal: str, record_property: Any) -> None:
    contend(path, journal, record_property, APPENDS, peer=True)


@pytest.mark.full
@pytest.mark.peer
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_five_hundred_appends_each(path: Path, journal: str, record_property: Any) -> None:
    contend(path, journal, record_property, 500, peer=True)


def kill_and_check(path: Path, kills: int, journal: str) -> None:
    """Kill an appender again and again, at any moment, and look at what it had promised by then."""
    run(path, f"PRAGMA journal_mode={journal}")
    chance, promised, name = random.Random(kills), 0, "killed"
    session(path, name)
    known: dict[int, str] = {}
    for _ in range(kills):
        with started("-c", START, str(path), name, "100000") as process:
            wait_until_ready(process)
            tell(process)
            assert process.stdout is not None
            time.sleep(chance.uniform(0.0, 0.4))
            process.kill()
            # A line that was cut off was not said.
            lines = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            process.wait()
            assert process.returncode == -signal.SIGKILL
        ids = [int(line.split()[0]) for line in lines]
        promised += len(ids)
        found = texts_by_id(path, name)
        assert known.items() <= found.items()
        assert set(ids) <= found.keys()
        # At most the one that was being written when the kill came was not said.
        assert len(found) - len(known) - len(ids) in {0, 1}
        known = found
        with closing(sqlite3.connect(path)) as connection:
            for index in ("messages_fts", "messages_fts_trigram"):
                connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 0)")
            connection.rollback()
    assert promised > kills
    assert troubles(path) == []
    with HermesStore.open(path, migrate="off", read_only=True) as store:
        page = store.search("appendedword", limit=len(known) + 10)
        assert {hit.id for hit in page} == set(known)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_killed_appender_kept_its_promises(path: Path, journal: str) -> None:
    kill_and_check(path, 10, journal)


@pytest.mark.full
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_two_hundred_kills_lose_nothing(path: Path, journal: str) -> None:
    kill_and_check(path, 100, journal)
