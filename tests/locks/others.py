"""Other processes: some just live, some hold a lock of a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from locks.conftest import SESSION

#: Holds the lock of a session until its input ends.
HOLD = """
import sys
from hermes_store import HermesStore
with HermesStore.open(sys.argv[1]) as store, store.locks.hold(sys.argv[2], ttl=float(sys.argv[3])) as held:
    print(held.holder, flush=True)
    sys.stdin.read()
"""
#: Starts a program in a process-id namespace of its own.
APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@contextmanager
def holding(path: Path, *, ttl: float = 300.0, prefix: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """A process that holds the lock with our library.

    Yields:
        Its id here, and its holder's text.
    """
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLD, str(path), SESSION, str(ttl)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()  # before its input ends, which would let it give the lock back


@contextmanager
def sleeping() -> Iterator[int]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def dead_pid() -> int:
    """The id of a process that has ended and been waited for."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    state = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if state.read_text().rpartition(")")[2].split()[0] == "T":
            break
        time.sleep(0.01)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def require_namespaces() -> None:
    """Skip where no process-id namespace can be made."""
    try:
        done = subprocess.run([*APART, "true"], capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no namespaces here: {error}")
    if done.returncode:
        pytest.skip(f"no namespaces here: {done.stderr.decode(errors='replace').strip()}")
