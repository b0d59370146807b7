"""Makes the project's own environment: a venv under the project, kept between runs.

Needs nothing but Python 3.11 or newer. The venv is made anew when the Python changes, and its packages are installed
again when ``pyproject.toml`` does.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
_NEEDED = (3, 11)


def ensure(*, dev: bool) -> Path:
    """Make or update the environment.

    Args:
        dev: With the tools for testing, too.

    Returns:
        The environment's Python.
    """
    if sys.version_info < _NEEDED:
        sys.exit(f"hermes_store needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    stamp = VENV / f".installed-{'dev' if dev else 'run'}"
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted and python.exists():
        return python
    _say(f"making {VENV} (once; a minute or two)")
    if not _is_usable(python):
        venv.create(VENV, with_pip=True, clear=True)
    _pip(python, "install", "--upgrade", "pip>=25.1")  # the first pip that knows dependency groups
    _pip(
        python, "install", "--editable", f"{ROOT}[cli]", *(["--group", f"{ROOT / 'pyproject.toml'}:dev"] if dev else [])
    )
    stamp.write_text(wanted, encoding="ascii")
    return python


def _is_usable(python: Path) -> bool:
    """Whether there is an environment of this very Python already, made by whomever."""
    if not python.exists():
        return False
    version = "import sys; print(sys.version)"
    done = subprocess.run([python, "-c", version], capture_output=True, text=True, check=False)
    return done.stdout.strip() == sys.version.strip()


def _pip(python: Path, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"pip {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
