"""Real files for every test: copies of files that released versions of Hermes wrote.

They live outside the project (``../shared/fixtures``); where they are missing, the tests that need them are skipped
and the run says so at its end. ``HERMES_STORE_FIXTURES`` names another folder.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from fixture_files import FIXTURES, HAVE_FIXTURES, Released

if os.environ.get("HERMES_STORE_TEST_SQLITE") == "pysqlite3":
    # The whole suite on another SQLite library: everything in this process that asks for sqlite3 gets it instead.
    import pysqlite3
    import pysqlite3.dbapi2

    for module in (pysqlite3, pysqlite3.dbapi2):
        for name in dir(sqlite3):
            if name.startswith("SQLITE_") and not hasattr(module, name):
                setattr(module, name, getattr(sqlite3, name))
    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2


from hermes_store import HermesStore

pytest_plugins = ["hermes_store.testing"]


@pytest.fixture
def released(tmp_path: Path) -> Released:
    """Copy a released file, with its write-ahead log if it has one, and give the path of the copy."""

    def copy(name: str) -> Path:
        source = FIXTURES / name
        if not source.exists():
            pytest.skip(f"no released files here: {source} is missing")
        target = tmp_path / "home" / "state.db"
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-journal"):
            if (side := source.with_name(source.name + suffix)).exists():
                shutil.copyfile(side, target.with_name(target.name + suffix))
                target.with_name(target.name + suffix).chmod(0o600)
        return target

    return copy


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it, as migrations build it; to be copied."""
    path = tmp_path_factory.mktemp("empty") / "state.db"
    HermesStore.open(path, migrate="auto").close()
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which SQLite was tested, and aloud when the real files were not there."""
    terminalreporter.write_line(f"SQLite {sys.modules['sqlite3'].sqlite_version} ({sys.modules['sqlite3'].__name__})")
    if not HAVE_FIXTURES:
        terminalreporter.write_sep("!", f"NO RELEASED FILES in {FIXTURES}: every test on a real file was skipped")
