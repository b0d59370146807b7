"""Keeping upgrades apart: within this process, between processes, and from Hermes's own index rebuilds.

Three locks, always taken in this order:

1. one lock of this process, because Alembic's context is global to it;
2. a lock file of ours beside the database, so that of several processes one upgrades and the others wait;
3. Hermes's ``<file>.fts_rebuild.lock`` while search tables, views or triggers change: an exclusive ``flock`` and, in
   the file, a JSON record of the holder, by which the releases tell a live holder from a dead one.

Lock files are never removed: whoever waits on a removed file waits for nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hermes_store.errors import ReadOnlyError, StoreBusyError

#: Alembic keeps its environment in module globals: two upgrades at once in one process would mix them up.
PROCESS_LOCK = threading.RLock()

#: Seconds to wait for another process's upgrade, which may have gigabytes to index.
UPGRADE_WAIT = 3600.0
#: Seconds to wait for an index rebuild of Hermes; its own processes wait 120 s for each other.
REBUILD_WAIT = 120.0
_POLL = 0.05


@contextmanager
def upgrade_lock(path: Path, *, wait: float = UPGRADE_WAIT) -> Iterator[None]:
    """Be the only upgrade of a file, in this process and among others.

    Args:
        path: The database file.
        wait: Seconds to wait for another one to finish.

    Raises:
        StoreBusyError: It did not finish in time; the message names its process.
    """
    real = path.resolve()  # a file reached by two names is still one file
    with PROCESS_LOCK, _locked(real.with_name(real.name + ".hs_upgrade.lock"), wait, "another upgrade"):
        yield


@contextmanager
def rebuild_lock(path: Path, *, wait: float = REBUILD_WAIT) -> Iterator[None]:
    """Keep Hermes from rebuilding the search indexes of a file.

    Args:
        path: The database file.
        wait: Seconds to wait for a rebuild that is running.

    Raises:
        StoreBusyError: It did not finish in time; the message names its process.
    """
    with _locked(path.with_name(path.name + ".fts_rebuild.lock"), wait, "an index rebuild of Hermes"):
        yield


@contextmanager
def _locked(lock_path: Path, wait: float, what: str) -> Iterator[None]:
    deadline = time.monotonic() + wait
    handle = _open(lock_path)
    try:
        while not (_try_lock(handle) and _still_named(handle, lock_path)):
            if time.monotonic() >= deadline:
                raise StoreBusyError(
                    f"{what} held {lock_path} for more than {wait:.0f} s ({_holder(handle)}); try again"
                )
            time.sleep(_POLL)
            if not _still_named(handle, lock_path):  # a release breaks a dead holder's lock by replacing the file
                handle.close()
                handle = _open(lock_path)
        _write_record(handle, _own_record())
        try:
            yield
        finally:
            _write_record(handle, b"")  # a record that survives means that its holder died
            _unlock(handle)
    finally:
        handle.close()


def _open(lock_path: Path) -> IO[bytes]:
    try:
        return os.fdopen(os.open(lock_path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600), "r+b")
    except OSError as error:
        raise ReadOnlyError(
            f"{lock_path} cannot be written ({error.strerror}), so the store beside it cannot either"
        ) from error


def _own_record() -> bytes:
    record = {
        "pid": os.getpid(),
        "pidns": _pid_namespace(),
        "start_ticks": _start_ticks(os.getpid()),
        "acquired_at": time.time(),
    }
    return json.dumps(record, sort_keys=True).encode()


def _pid_namespace() -> str | None:
    """The inode of this process's PID namespace, as text: a pid means nothing in another container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]") or None
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """When a process started (field 22 of its stat): with the pid it names one process for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _write_record(handle: IO[bytes], record: bytes) -> None:
    handle.seek(0)
    handle.truncate()
    handle.write(record)
    handle.flush()


def _holder(handle: IO[bytes]) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        handle.seek(0)
        record = json.loads(handle.read(4096))
        return f"process {int(record['pid'])}, since {time.time() - float(record['acquired_at']):.0f} s"
    return "holder unknown"


def _still_named(handle: IO[bytes], lock_path: Path) -> bool:
    try:
        ours, named = os.fstat(handle.fileno()), lock_path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: IO[bytes]) -> bool:
        handle.seek(0)
        try:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(handle: IO[bytes]) -> None:
        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: IO[bytes]) -> bool:
        try:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(handle: IO[bytes]) -> None:
        fcntl.flock(handle.fileno(), fcntl.LOCK_UN)
