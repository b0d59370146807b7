"""The built wheel works on its own: another environment, another folder, no repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from fixture_files import Released

ROOT = Path(__file__).parents[2]

USE = """
import json, logging, sys
host = logging.getLogger("host"); host.setLevel(logging.INFO)
import hermes_store
from hermes_store import HermesStore, migrations
path = sys.argv[1]
report = migrations.upgrade(path)
with HermesStore.open(path) as store:
    hits = [hit.id for hit in store.search("docker").hits]
    listed = len(store.sessions.list())
root = logging.getLogger()
print(json.dumps({
    "file": hermes_store.__file__, "after": report.after, "hits": hits, "listed": listed,
    "host_enabled": not host.disabled and host.isEnabledFor(logging.INFO), "root_handlers": len(root.handlers),
}))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with nothing but the wheel and what it needs."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "-q", "install", f"{wheel}[cli]"], check=True, capture_output=True)
    return python


def run(python: Path, *arguments: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HERMES"))}
    done = subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_revisions_types_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "hermes_store/py.typed" in names
    assert "hermes_store/_alembic/env.py" in names
    assert sum(name.startswith("hermes_store/_alembic/versions/h") for name in names) >= 12
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "alembic/"))]


def test_upgrade_and_search_work_from_another_folder(installed: Path, released: Released, tmp_path: Path) -> None:
    path = released("v22-0.19.0.db")
    result = json.loads(run(installed, "-c", USE, str(path), cwd=tmp_path))
    assert not result["file"].startswith(str(ROOT))
    assert result["after"].startswith("hs")
    assert result["hits"]
    assert result["listed"] > 10
    assert result["host_enabled"]
    assert result["root_handlers"] == 0


def test_the_command_works_from_another_folder(installed: Path, released: Released, tmp_path: Path) -> None:
    path = released("v16-0.17.0.db")
    command = str(installed.with_name("hermes-store"))
    shown = subprocess.run([command, "upgrade", str(path)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "~h16 -> hs" in shown.stdout
    found = subprocess.run(
        [command, "search", str(path), "docker", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout)["hits"]


def test_a_store_can_be_made_without_the_extras(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "bare"
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "-q", "install", str(wheel)], check=True, capture_output=True)
    made = "import sys; from hermes_store import HermesStore; HermesStore.open(sys.argv[1], migrate='auto').close()"
    run(python, "-c", made, str(tmp_path / "new.db"), cwd=tmp_path)
    refused = subprocess.run([python.with_name("hermes-store"), "--help"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "pip install 'hermes-store[cli]'" in refused.stderr
