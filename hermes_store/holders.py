"""Who holds a lock, as written in its row, and whether that still counts.

Hermes names a holder ``pid=…:pidns=…:tid=…:agent=…:nonce=…`` and reads the first two; what follows is a name to it.
Ours go on with ``start=`` (when the process started), ``boot=`` (the host and its boot) and ``up=`` (seconds since that
boot when the holder was made), so every release that frees the locks of dead processes frees ours, too, and we can
tell a reused process id, another host, and a step of the wall clock.

How a step is told. Both times in a row are of the wall clock, and Hermes goes by ``expires_at`` alone. For a holder of
ours ``acquired_at`` is written again with every refresh, as the moment ``up`` in the wall clock of that refresh. So the
difference of the two is how long after ``up`` the lock ends, whatever the wall clock does before or after.

The invariant: a holder is dead only if the kernel of its own host, boot and process-id namespace says so.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hermes_store.errors import HolderError
from hermes_store.process import Here, Life, probe
from hermes_store.records import HolderState

#: Says of a process of our own namespace, by its id and its start, whether it lives.
Ask = Callable[[int, int | None], Life]

#: Seconds a lock lasts without a refresh; Hermes's own figure.
DEFAULT_TTL = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a holder's text says; None for what it does not.

    Attributes:
        pid: Process id.
        namespace: Inode of its process-id namespace.
        start: When the process started, clock ticks since its boot.
        boot: Its host and boot.
        up: When the holder was made, seconds since that boot.
    """

    pid: int | None = None
    namespace: str | None = None
    start: int | None = None
    boot: str | None = None
    up: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a lock stands at one moment.

    Attributes:
        state: Whether its holder counts.
        age: Seconds it has been held.
        left: Seconds until it may be taken over; negative once it may.
    """

    state: HolderState
    age: float
    left: float

    @property
    def is_free(self) -> bool:
        """Whether anybody may take the lock."""
        return self.state in {"expired", "dead"}


def make_holder(here: Here, agent: str = "hermes-store") -> str:
    """Write a holder's text for this process and thread; no two are the same.

    Args:
        here: This process.
        agent: A name for who is at work.

    Raises:
        HolderError: The name is empty, or has characters other than letters, digits, ``_``, ``.`` and ``-``.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", agent):
        raise HolderError(f"agent {agent!r} cannot stand in a holder's text; use letters, digits, '_', '.' and '-'")
    fields: dict[str, Any] = {
        "pid": here.pid,
        "pidns": here.namespace,
        "tid": threading.get_ident(),
        "agent": agent,
        "nonce": secrets.token_hex(4),
        "start": here.start,
        "boot": here.boot,
        "up": None if here.uptime is None else f"{here.uptime:.3f}",
    }
    return ":".join(f"{name}={value}" for name, value in fields.items() if value is not None)


def read_holder(text: str) -> Holder:
    """Read a holder's text; never raises, whoever wrote it.

    Args:
        text: The text.
    """
    fields: dict[str, str] = {}
    for field in text.split(":"):
        name, _, value = field.partition("=")
        fields.setdefault(name, value)
    pid, start, up = (fields.get(name, "") for name in ("pid", "start", "up"))
    return Holder(
        pid=int(pid) if re.fullmatch(r"[0-9]{1,19}", pid) and int(pid) else None,
        namespace=fields.get("pidns"),
        start=int(start) if re.fullmatch(r"[0-9]{1,19}", start) else None,
        boot=fields.get("boot") or None,
        up=float(up) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", up) else None,
    )


def judge(text: str, acquired: float | None, expires: float | None, here: Here, ask: Ask = probe) -> Standing:
    """Say how a lock stands.

    Args:
        text: Its holder.
        acquired: ``acquired_at`` of its row; None if that is no number.
        expires: ``expires_at`` of its row; None if that is no number.
        here: This process, now.
        ask: Says whether a process of our namespace lives.

    Returns:
        The standing. Our own rows of this boot go by the clock since the boot, all others by the wall clock.
    """
    holder = read_holder(text)
    if expires is None:  # a row that nobody could ever judge would be held for ever
        expires = DEFAULT_TTL + acquired if acquired is not None else -math.inf
    age, left = age_of(text, acquired, here), expires - here.wall
    if made_ago(holder, here) is not None and acquired is not None:
        left = expires - acquired - age
    life = _life(holder, here, ask)
    if life == "dead":
        state: HolderState = "dead"
    elif left < 0:  # at that very second Hermes still counts it
        state = "expired"
    else:
        state = "live" if life == "alive" else "unknown"
    return Standing(state=state, age=age, left=left)


def age_of(text: str, acquired: float | None, here: Here) -> float:
    """Seconds that a lock has been held.

    Args:
        text: Its holder.
        acquired: ``acquired_at`` of its row; None if there is no row, or that is no number.
        here: This process, now.
    """
    since = made_ago(read_holder(text), here)
    if since is not None:
        return since
    return 0.0 if acquired is None else max(here.wall - acquired, 0.0)


def made_ago(holder: Holder, here: Here) -> float | None:
    """Seconds since a holder of ours was made, by the clock that never steps.

    Args:
        holder: The holder.
        here: This process, now.

    Returns:
        None for a holder of another host or boot, and for one without our stamp.
    """
    if holder.up is None or here.uptime is None or here.boot is None or holder.boot != here.boot:
        return None
    return max(here.uptime - holder.up, 0.0)


def _life(holder: Holder, here: Here, ask: Ask) -> Life:
    if holder.pid is None:
        return "unknown"
    if holder.namespace != here.namespace or (here.has_namespaces and holder.namespace is None):
        return "unknown"
    if holder.boot is not None and holder.boot != here.boot:
        return "unknown"  # another host, or this one before it restarted: which, nobody can tell
    if holder.pid == here.pid and (holder.start is None or here.start is None or holder.start == here.start):
        return "alive"
    return ask(holder.pid, holder.start)
