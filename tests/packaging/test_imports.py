"""Importing the package does nothing but define names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECK = """
import logging, os, sys, threading
before = (set(os.listdir(os.environ["HOME"])), logging.getLogger().handlers[:], threading.active_count())
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "sqlite3.connect" else None)
import hermes_store, hermes_store.migrations, hermes_store.models
assert not opened, opened
assert before == (set(os.listdir(os.environ["HOME"])), logging.getLogger().handlers[:], threading.active_count())
print("quiet")
"""


def test_importing_opens_nothing_writes_nothing_and_configures_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHECK],
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "quiet", done.stderr


def test_everything_promised_is_exported() -> None:
    import hermes_store

    assert set(hermes_store.__all__) <= set(dir(hermes_store))
    for name in (
        "HermesStore",
        "bind",
        "NotFoundError",
        "StoreBusyError",
        "SchemaBehindError",
        "SchemaTooNewError",
        "QueryError",
    ):
        assert name in hermes_store.__all__
    assert issubclass(hermes_store.NotFoundError, LookupError)
    assert issubclass(hermes_store.StoreBusyError, TimeoutError)
    assert issubclass(hermes_store.QueryError, ValueError)
    assert issubclass(hermes_store.MissingDependencyError, ImportError)
