"""``driver=``: another SQLite library in a process of its own, as a program that uses nothing else would run it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_files import STORES
from migrations.files import DRIVER, copy_released, run, upgrade
from migrations.indexes import STRUCTURED, troubles, write_every_kind

TESTS = Path(__file__).parents[1]
#: One file per layout and mixture, and one of each journal.
CHOSEN = [name for name in STORES if name.startswith(("v11", "v22", "v25", "v30", "v31", "upgrade/u", "journal/"))]
CHOSEN += [name for name in STORES if "partial" in name or name.startswith("cjk/v26")]

SCRIPT = """
import sys
from pathlib import Path
import pysqlite3, sqlite3
from migrations.files import DRIVER, HEAD, content_of, copy_released, upgrade
from migrations.indexes import troubles, write_every_kind
assert DRIVER is pysqlite3 and DRIVER is not sqlite3, DRIVER
for number, name in enumerate(sys.argv[2:]):
    path = copy_released(name, Path(sys.argv[1]) / str(number))
    report = upgrade(path)
    assert report.after == HEAD and report.pending == [], report
    assert troubles(path) == [], (name, troubles(path))
    before = content_of(path)
    assert not upgrade(path).changed
    assert content_of(path) == before
    write_every_kind(path)
    assert troubles(path) == [], (name, troubles(path))
print("upgraded with", DRIVER.sqlite_version)
"""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pysqlite3") is None, reason="pysqlite3 is not installed here"),
    pytest.mark.skipif(DRIVER.__name__ != "sqlite3", reason="this run is on the other library already"),
]


def upgraded_elsewhere(folder: Path, *names: str) -> str:
    """Upgrade files with pysqlite3 in another process: two libraries in one break each other's locks."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(folder), *names],
        env=os.environ | {"PYTHONPATH": str(TESTS), "HERMES_STORE_TEST_DRIVER": "pysqlite3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("group", [CHOSEN[::3], CHOSEN[1::3], CHOSEN[2::3]], ids=["1", "2", "3"])
def test_files_are_upgraded_and_stay_whole(group: list[str], tmp_path: Path) -> None:
    if not group:
        pytest.skip("no released files here")
    assert "upgraded with 3." in upgraded_elsewhere(tmp_path, *group)


def test_what_one_library_began_the_other_finishes(tmp_path: Path) -> None:
    if not CHOSEN:
        pytest.skip("no released files here")
    path = copy_released("v22-0.19.0.db", tmp_path)
    upgrade(path, "h25")
    write_every_kind(path)
    done = subprocess.run(
        [sys.executable, "-c", ("import sys, pysqlite3; from hermes_store import migrations;"
         "print(migrations.upgrade(sys.argv[1], driver=pysqlite3).after)"), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # What the other library made of structured content is its own affair; on all else both agree.
    assert troubles(path) == []
    assert run(path, f"SELECT count(*) FROM ({STRUCTURED})")[0][0] > 0
    assert not upgrade(path).changed
