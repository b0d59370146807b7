"""What an upgrade tells its caller: progress while it runs, and a report at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a long piece of work.

    Attributes:
        phase: ``check``, ``backup``, ``revision``, ``identify`` (message uids), ``index``, ``merge``,
            ``decode`` (texts for their index) or ``clean``.
        done: How much is done, in the phase's own units (messages, pages, bytes).
        total: How much there is; 0 when it is not known.
        detail: What exactly, such as a revision's id.
    """

    phase: str
    done: int
    total: int
    detail: str = ""


ProgressCallback = Callable[[Progress], None]


def silent(_progress: Progress) -> None:
    """Nobody asked to be told."""


@dataclass(slots=True)
class UpgradeReport:
    """What an upgrade found and did.

    Attributes:
        path: The file.
        before: The revision the file was at: its stamp, or what its shape was recognised as (``~h22``), or None.
        after: The revision it is at now.
        created: The file did not exist and was made.
        changed: Anything at all was written to it.
        backup: The backup beside it; None when none was needed or wanted.
        rows_before: Rows per canonical table before.
        rows_after: The same afterwards.
        notes: What was done or found that a user should know; never message text.
        pending: What could not be finished here, with the remedy; the next upgrade goes on with it.
        seconds: How long it took.
    """

    path: Path | None = None
    before: str | None = None
    after: str | None = None
    created: bool = False
    changed: bool = False
    backup: Path | None = None
    rows_before: dict[str, int] = field(default_factory=dict)
    rows_after: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, text: str) -> None:
        """Add a note, once.

        Args:
            text: The note.
        """
        if text not in self.notes:
            self.notes.append(text)

    def leave_pending(self, text: str) -> None:
        """Add something that is left to do, once.

        Args:
            text: What, and the remedy.
        """
        if text not in self.pending:
            self.pending.append(text)
