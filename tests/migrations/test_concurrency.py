"""Many upgrades at once, of one file or of several, in threads and in processes; and Hermes's own lock beside ours."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import releases
from fixture_files import FRESH, Released
from migrations.files import HEAD, copy_released, upgrade
from migrations.indexes import troubles

from hermes_store import migrations
from hermes_store.errors import StoreBusyError
from hermes_store.migrations.filelock import rebuild_lock, upgrade_lock

V22 = "v22-0.19.0.db"

UPGRADE = """
import importlib, json, sys
from hermes_store import migrations
report = migrations.upgrade(sys.argv[1], driver=importlib.import_module(sys.argv[2]))
print(json.dumps([report.before, report.after, report.changed, report.created]))
"""
#: Holds one of our locks until its standard input is closed.
HOLD = """
import sys
from pathlib import Path
from hermes_store.migrations import filelock
with getattr(filelock, sys.argv[2])(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
#: Does the same with Hermes's own lock, as Hermes itself takes it before it rebuilds an index.
HOLD_AS_HERMES = """
import sys
from hermes_state_common import fts_rebuild_admission
with fts_rebuild_admission(sys.argv[1], timeout_seconds=float(sys.argv[2])) as admitted:
    print("held" if admitted else "refused", flush=True)
    sys.stdin.read()
"""


def start(script: str, *arguments: str | Path, hermes: bool = False) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if hermes:
        environment |= {
            "PYTHONPATH": str(releases.HOME / "releases" / releases.V0_22_2),
            "PYTHONPYCACHEPREFIX": str(releases.HOME / "bytecode"),
        }
    python = str(releases.HOME / "venv" / "bin" / "python") if hermes else sys.executable
    command = [python, "-W", "ignore", "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


@contextmanager
def holding(script: str, *arguments: str | Path, hermes: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock until the block is left."""
    with start(script, *arguments, hermes=hermes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", process.communicate()
        try:
            yield process
        finally:
            process.communicate()


def test_six_threads_upgrade_six_files_at_once(tmp_path: Path) -> None:
    chosen = (FRESH[::2] or [None] * 6)[:6]
    paths = [tmp_path / str(number) / "state.db" for number in range(6)]
    for name, path in zip(chosen, paths, strict=True):
        if name is not None:
            copy_released(name, path.parent)
    with ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(upgrade, paths))
    assert [report.after for report in reports] == [HEAD] * 6
    assert all(report.changed and report.pending == [] for report in reports)
    assert [troubles(path) for path in paths] == [[]] * 6


@pytest.mark.parametrize("name", [V22, None], ids=["old file", "no file"])
def test_of_four_processes_that_upgrade_one_file_exactly_one_applies(name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "home" / "state.db" if name is None else copy_released(name, tmp_path / "home")
    path.parent.mkdir(exist_ok=True)
    processes = [start(UPGRADE, path, sqlite3.__name__) for _ in range(4)]
    done = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, done
    reports = [json.loads(output) for output, _ in done]
    assert [after for _, after, _, _ in reports] == [HEAD] * 4
    assert sorted(changed for _, _, changed, _ in reports) == [False, False, False, True]
    assert sum(created for _, _, _, created in reports) == (1 if name is None else 0)
    assert len(list(path.parent.glob("*.backup-*"))) == (0 if name is None else 1)
    assert troubles(path) == []


def test_waiting_for_another_upgrade_ends_with_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holding(HOLD, path, "upgrade_lock") as process:
        started = time.monotonic()
        with (
            pytest.raises(StoreBusyError, match=rf"another upgrade .*process {process.pid}\b"),
            upgrade_lock(path, wait=0.3),
        ):
            pytest.fail("two upgrades at once")
        assert 0.3 <= time.monotonic() - started < 5
    with upgrade_lock(path, wait=0.0):
        pass


def test_a_lock_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holding(HOLD, path, "upgrade_lock") as process:
        process.kill()
        process.wait()
        with upgrade_lock(path, wait=0.0):
            pass


def test_an_upgrade_gives_up_when_another_process_keeps_writing(released: Released) -> None:
    path = released(V22)
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreBusyError, match="write lock"):
            upgrade(path, timeout=0.2, backup=False)
        assert 0.2 <= time.monotonic() - started < 5
        writer.execute("ROLLBACK")
    assert path.read_bytes() == before
    assert upgrade(path).after == HEAD


def test_indexes_that_hermes_detaches_while_they_are_filled_are_laid_out_again(released: Released) -> None:
    """As a release does when a write meets damage: it drops the triggers, sets its key, and goes on without them."""
    path, detached = released(V22), []

    def detach(progress: migrations.Progress) -> None:
        if progress.phase == "index" and not detached:
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                names = db.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'messages_fts*'"
                )
                detached.extend(name for (name,) in names.fetchall())
                db.execute("BEGIN IMMEDIATE")
                for name in detached:
                    db.execute(f"DROP TRIGGER {name}")
                db.execute("INSERT INTO state_meta (key, value) VALUES ('fts_stale', '1')")
                db.execute(
                    "INSERT INTO messages (session_id, role, content, timestamp) SELECT id, 'user', 'unindexed', 1 FROM sessions"
                )
                db.execute("COMMIT")

    report = upgrade(path, progress=detach)
    assert len(detached) == 6
    assert report.pending == []
    assert troubles(path) == []
    assert not upgrade(path).changed


@pytest.mark.peer
class TestHermesOwnLock:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        releases.require(releases.V0_22_2)

    def test_hermes_waits_for_ours(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "state.db"
        with rebuild_lock(path), start(HOLD_AS_HERMES, path, "0.3", hermes=True) as hermes:
            output, errors = hermes.communicate(timeout=60)
        assert output == "refused\n"
        assert str(os.getpid()) in errors, "Hermes names the process whose record it found"
        with start(HOLD_AS_HERMES, path, "0.3", hermes=True) as hermes:
            assert hermes.communicate(timeout=60)[0] == "held\n"

    def test_ours_waits_for_hermes(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with holding(HOLD_AS_HERMES, path, "5", hermes=True) as hermes:
            pattern = rf"rebuild of Hermes .*process {hermes.pid}\b"
            with pytest.raises(StoreBusyError, match=pattern), rebuild_lock(path, wait=0.3):
                pytest.fail("an index rebuilt from two sides")
        with rebuild_lock(path, wait=0.0):
            pass

    def test_an_upgrade_goes_on_when_hermes_is_done(self, released: Released) -> None:
        path = released(V22)
        with holding(HOLD_AS_HERMES, path, "5", hermes=True):
            waiting = start(UPGRADE, path, sqlite3.__name__)
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(2)
            with closing(sqlite3.connect(path)) as db:
                hidden = "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'hidden'"
                assert db.execute(hidden).fetchone() == (0,)
        output, errors = waiting.communicate(timeout=60)
        assert json.loads(output)[1] == HEAD, errors
        assert troubles(path) == []

    def test_neither_takes_a_dead_holder_for_a_live_one(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        with holding(HOLD, path, "rebuild_lock") as ours:
            ours.kill()
            ours.wait()
            with holding(HOLD_AS_HERMES, path, "5", hermes=True) as hermes:
                hermes.kill()
                hermes.wait()
                with rebuild_lock(path, wait=0.0):
                    pass


def test_a_lock_file_is_not_left_with_a_record(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with upgrade_lock(path), rebuild_lock(path):
        records = [json.loads(lock.read_bytes()) for lock in tmp_path.glob("*.lock")]
        assert [record["pid"] for record in records] == [os.getpid()] * 2
    assert [lock.read_bytes() for lock in tmp_path.glob("*.lock")] == [b""] * 2
    assert {lock.stat().st_mode & 0o777 for lock in tmp_path.glob("*.lock")} == {0o600}
