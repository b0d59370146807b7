"""What the system says about processes: who we are, whether another one lives, and what time it is.

A process id alone proves nothing. It is reused, and it means something only inside its process-id namespace, on its
host, until that host restarts. So a process is told apart by four things: its id, the namespace's inode, the boot id
of the running kernel (which names the host as well), and when it started, counted from that boot.

The invariant: `probe` says ``dead`` only when the kernel says so. Whatever cannot be learned is None or ``unknown``.

Two clocks are read: the wall clock, which may be set at any time, and one that counts from the boot, through sleep,
and never steps. The second is comparable between processes, but only of one boot id.

Linux tells all of it, macOS the boot id but no start times, Windows none: there a holder lives until its time is up.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: What can be known of a process.
Life = Literal["alive", "dead", "unknown"]

#: The operating system, as `sys.platform` names it; in a variable, so that type checkers look at the code for all.
SYSTEM: str = sys.platform

#: Fields of ``/proc/PID/stat`` behind the command's name, which may itself hold blanks and brackets.
_STATE, _THREADS, _START = 0, 17, 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This process at this moment.

    Attributes:
        pid: Its id.
        namespace: Inode of its process-id namespace; None where there are none, or it cannot be read.
        has_namespaces: Whether the system has process-id namespaces, so that an id without one is ambiguous.
        boot: Names the host and its current boot; None where that cannot be known.
        start: When the process started, in clock ticks since that boot; None where that cannot be known.
        wall: Epoch seconds, by the wall clock.
        uptime: Seconds since the boot, by a clock that never steps; None without a boot id.
    """

    pid: int
    namespace: str | None
    has_namespaces: bool
    boot: str | None
    start: int | None
    wall: float
    uptime: float | None


def here() -> Here:
    """Look at this process and at both clocks; costs a few reads of ``/proc``."""
    boot = boot_id()
    return Here(
        pid=os.getpid(),
        namespace=pid_namespace(),
        has_namespaces=SYSTEM == "linux",
        boot=boot,
        start=start_time(os.getpid()),
        wall=time.time(),
        uptime=None if boot is None else uptime(),
    )


def probe(pid: int, start: int | None = None) -> Life:
    """Say whether a process of our own namespace lives.

    Args:
        pid: Its id.
        start: When it started, if that is known: a process that started at another time is not the one meant.

    Returns:
        ``dead`` only if the kernel knows no such process, or it has ended and waits for its parent to notice.
    """
    if SYSTEM == "win32":
        return "unknown"  # os.kill(pid, 0) would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass  # it exists, and belongs to somebody else
    except (OSError, OverflowError):
        return "unknown"
    stat = _stat(pid)
    if stat is None:
        return "alive"
    # A process that has ended keeps its entry until its parent asks. A leader whose other threads run on looks the
    # same but for their number.
    if stat[_STATE] in {"Z", "X", "x"} and int(stat[_THREADS]) <= 1:
        return "dead"
    return "dead" if start is not None and int(stat[_START]) != start else "alive"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot.

    Args:
        pid: A process of our own namespace.

    Returns:
        None where the system does not say.
    """
    stat = _stat(pid)
    return None if stat is None else int(stat[_START])


def pid_namespace() -> str | None:
    """The inode of our process-id namespace; None where there are none, or it cannot be read."""
    try:
        found = re.search(r"\[([0-9]+)\]", str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return None
    return found[1] if found else None


def boot_id() -> str | None:
    """Name the host and its current boot; None where that cannot be known."""
    if SYSTEM == "darwin":
        return _darwin_boot_id()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(r"[0-9a-fA-F-]{8,64}", boot):
        return None
    # In a time namespace uptime and start times are shifted; processes outside it must not compare theirs with ours.
    shift = _time_shift()
    return f"{boot}{shift:+d}" if shift else boot


def uptime() -> float:
    """Seconds since the boot, also those spent asleep; setting the wall clock does not change it."""
    # time.monotonic() leaves out sleep on both.
    name = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(SYSTEM, "")
    clock = getattr(time, name, None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on."""
    try:
        # A /proc mounted in another namespace describes other processes under the same ids.
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return None
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    whole = len(fields) > _START and fields[_THREADS].isdecimal() and fields[_START].isdecimal()
    return fields if whole else None


def _time_shift() -> int:
    """Seconds by which our time namespace shifts the clock since the boot."""
    try:
        found = re.search(r"(?m)^(?:boottime|7)\s+(-?[0-9]+)", Path("/proc/self/timens_offsets").read_text("ascii"))
    except (OSError, UnicodeDecodeError):
        return 0  # a kernel without time namespaces
    return int(found[1]) if found else 0


def _darwin_boot_id() -> str | None:
    try:
        read = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return None
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if read(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    found = text.value.decode("ascii", errors="replace")
    return found if re.fullmatch(r"[0-9a-fA-F-]{8,64}", found) else None
