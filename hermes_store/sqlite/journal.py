"""Which journal a new file gets; an existing file keeps the one it has, always.

Switching the mode of a file that other processes have open is how files get damaged, so nothing here ever touches an
existing file. A new file gets a write-ahead log, except

* on SQLite builds with the WAL-reset bug (3.7.0 to 3.51.2, apart from 3.44.6+ and 3.50.7+), which can lose commits
  when several processes checkpoint at once; the releases of Hermes draw the same line;
* on network and 9p/virtiofs mounts, where the shared memory that a write-ahead log needs does not work between hosts.

There it gets a rollback journal, and the log says so once per process and reason.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

from hermes_store.sqlite.engine import make_engine

log = logging.getLogger("hermes_store.sqlite")

#: File systems on which several hosts (or host and guest) can have the file open without sharing memory.
SHARED_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "9p", "virtiofs", "fuse.sshfs", "ceph", "glusterfs",
     "fuse.glusterfs", "lustre", "beegfs", "gpfs", "ocfs2", "gfs2", "afs", "drvfs", "fuse.s3fs", "fuse.rclone",
     "vboxsf", "fuse.vmhgfs-fuse", "prl_fs"}
)  # fmt: skip

_MOUNTINFO = Path("/proc/self/mountinfo")
_said: set[str] = set()


def wal_is_safe(version: tuple[int, int, int]) -> bool:
    """True when this SQLite build is free of the WAL-reset bug.

    Args:
        version: The library's version, such as ``(3, 50, 7)``.
    """
    if version < (3, 7, 0) or version > (3, 51, 2):
        return True
    return (3, 44, 6) <= version < (3, 45, 0) or (3, 50, 7) <= version < (3, 51, 0)


def file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """Name the type of the file system a path is on.

    Args:
        path: A file or folder; it need not exist.
        mountinfo: The text of ``/proc/self/mountinfo``; read from there when not given.

    Returns:
        Such as ``"ext4"``, or None where the operating system does not tell (anything but Linux).
    """
    if mountinfo is None:
        try:
            mountinfo = _MOUNTINFO.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
    target = os.path.realpath(path)
    best, found = "", None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth field, see proc(5)
            continue
        mount = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = mount in {"/", target} or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):  # a later line of the same mount point covers the earlier one
            best, found = mount, right.split()[0]
    return found


def journal_mode_for_new_file(path: Path, version: tuple[int, int, int]) -> str:
    """Choose the journal of a file that does not exist yet.

    Args:
        path: Where it will be.
        version: The SQLite library's version.

    Returns:
        ``"wal"`` or ``"delete"``; in the second case the log has said why, once.
    """
    if not wal_is_safe(version):
        number = ".".join(map(str, version))
        _say_once(
            f"SQLite {number} has the WAL-reset bug: new files get a rollback journal (3.51.3 or newer is free of it)"
        )
        return "delete"
    kind = file_system(path.parent)
    if kind in SHARED_FILE_SYSTEMS:
        _say_once(f"new files on a {kind} mount get a rollback journal: a write-ahead log does not work there")
        return "delete"
    return "wal"


def create_file(path: Path, *, driver: ModuleType | None = None) -> None:
    """Create an empty database that only its owner can read, with the right journal.

    Args:
        path: The file to create; missing parent folders are made, 0700.
        driver: The DBAPI module to use.

    Raises:
        FileExistsError: Somebody else created it first.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite would create the file with the process's umask, readable by others for a moment.
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    engine = make_engine(path, driver=driver)
    try:
        module: Any = driver or sqlite3
        mode = journal_mode_for_new_file(path, module.sqlite_version_info)
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            granted = raw.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
        if granted != mode:
            _say_once(f"journal mode {mode} was refused for a new file, which keeps {granted}")
    finally:
        engine.dispose()


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        log.warning("%s", message)
