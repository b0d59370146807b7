"""An upgrade killed at any moment loses nothing, leaves a file that Hermes can use, and is finished by the next one."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import releases
from crash.large import LargeFile
from migrations.files import HEAD, upgrade
from migrations.indexes import troubles

#: The upgrade that gets killed: without the pauses between two steps, so that every moment is in the middle of work.
UPGRADE = """
import importlib, sys, time
from hermes_store import migrations
time.sleep = lambda seconds: None
driver = importlib.import_module(sys.argv[2])
print("ready", flush=True)
migrations.upgrade(sys.argv[1], backup=False, driver=driver)
"""
#: Kills per part; the parts can run side by side. The suite is run on a second SQLite library too: fewer there.
PARTS, KILLS, KILLS_IN_FULL = 4, 5 if sqlite3.__name__ == "sqlite3" else 1, 50


@pytest.fixture(scope="session")
def seconds(large_file: LargeFile, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the upgrade takes when nobody kills it."""
    path = large_file.copy(tmp_path_factory.mktemp("undisturbed") / "home")
    started = time.monotonic()
    assert not killed_after(path, 3600.0)
    return time.monotonic() - started


def killed_after(path: Path, delay: float) -> bool:
    """Upgrade a file and kill the upgrade after some seconds; False when it had ended before."""
    command = [sys.executable, "-W", "ignore", "-c", UPGRADE, str(path), sqlite3.__name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
    assert process.returncode in {0, -signal.SIGKILL}
    return process.returncode != 0


def kill_in_slot(
    large_file: LargeFile, folder: Path, seconds: float, chance: random.Random, slot: tuple[int, int]
) -> Path:
    """Kill an upgrade at a random moment of one slot of so many that its whole time is divided into."""
    number, slots = slot
    for _attempt in range(20):
        path = large_file.copy(folder)
        if killed_after(path, seconds * (number + chance.random()) / slots):
            return path
        shutil.rmtree(folder)
        seconds *= 0.9  # the machine has become faster since the time was taken
    pytest.fail("no upgrade could be killed before its end")


def kill_and_check(
    large_file: LargeFile, folder: Path, seconds: float, slots: range, of: int, *, peer: bool = False
) -> None:
    for number in slots:
        chance = random.Random(number)
        path = kill_in_slot(large_file, folder / str(number), seconds, chance, (number, of))
        if peer:
            assert_newest_release_can_use(path, large_file, folder / "peer")
        with closing(sqlite3.connect(path)) as db:
            large_file.assert_all_rows(db)
            large_file.assert_search_is_complete(db, chance)
        assert_finishes(path, large_file)
        shutil.rmtree(path.parent)


def assert_finishes(path: Path, large_file: LargeFile) -> None:
    report = upgrade(path, backup=False)
    assert (report.after, report.pending) == (HEAD, [])
    assert troubles(path) == []
    with closing(sqlite3.connect(path)) as db:
        large_file.assert_all_rows(db)
        assert {row[0] for row in db.execute("SELECT id FROM messages_fts_trigram_docsize")} == (
            large_file.texts.keys() - large_file.outside_trigram
        )
        large_file.assert_search_is_complete(db, random.Random(0))
    assert not upgrade(path, backup=False).changed


def assert_newest_release_can_use(path: Path, large_file: LargeFile, folder: Path) -> None:
    """Let release 0.22.2 open a copy of the file, as the kill left it, and write to it; then finish the copy."""
    shutil.copytree(path.parent, folder)
    copy = folder / path.name
    Path(f"{copy}-shm").unlink(missing_ok=True)  # a copy of shared memory is no shared memory
    answer = releases.run(releases.V0_22_2, "open", copy, "--write")
    assert releases.alarms(answer) == []
    assert releases.session_of(releases.V0_22_2) in {row[0] for row in answer["list"]}
    with closing(sqlite3.connect(copy)) as db:
        large_file.assert_all_rows(db)
    assert upgrade(copy, backup=False).pending == []
    assert troubles(copy) == []
    shutil.rmtree(folder)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finish without the pauses between two steps."""
    monkeypatch.setattr("hermes_store.migrations.steps.time.sleep", lambda seconds: None)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_upgrade_loses_nothing_and_is_finished_by_the_next(
    large_file: LargeFile, seconds: float, part: int, tmp_path: Path, no_pauses: None
) -> None:
    slots = range(part, PARTS * KILLS, PARTS)
    kill_and_check(large_file, tmp_path, seconds, slots, PARTS * KILLS)


@pytest.mark.peer
@pytest.mark.parametrize("slot", [2, 5, 8])
def test_the_newest_release_opens_what_a_killed_upgrade_left(
    large_file: LargeFile, seconds: float, slot: int, tmp_path: Path, no_pauses: None
) -> None:
    kill_and_check(large_file, tmp_path, seconds, range(slot, slot + 1), 10, peer=True)


@pytest.mark.full
@pytest.mark.peer
@pytest.mark.parametrize("part", range(PARTS))
def test_two_hundred_killed_upgrades_lose_nothing(
    large_file: LargeFile, seconds: float, part: int, tmp_path: Path, no_pauses: None
) -> None:
    kills = PARTS * KILLS_IN_FULL
    kill_and_check(large_file, tmp_path, seconds, range(part, kills, PARTS), kills, peer=True)


def test_an_upgrade_killed_again_and_again_gets_to_its_end(
    large_file: LargeFile, seconds: float, tmp_path: Path, no_pauses: None
) -> None:
    path, kills = large_file.copy(tmp_path / "home"), 0
    while killed_after(path, seconds / 3 * 1.2**kills):
        kills += 1
        with closing(sqlite3.connect(path)) as db:
            large_file.assert_all_rows(db)
    assert kills > 0
    assert_finishes_without_work(path, large_file)


def assert_finishes_without_work(path: Path, large_file: LargeFile) -> None:
    assert not upgrade(path, backup=False).changed
    assert_finishes(path, large_file)
