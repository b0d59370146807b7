"""Is the file that is open still the one at its path?

Whoever restores a backup by renaming it into place, or deletes a file, leaves a program that has it open writing into
a file without a name: what it commits is lost, and nothing says so. Device and inode tell. They are asked of the path
with ``stat``: opening the file and closing it again would drop the locks that this process holds on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hermes_store.errors import StoreReplacedError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file was at a path.

    While a connection has the file open, its inode cannot be given to another one.

    Attributes:
        path: The path.
        device: The device it was on.
        inode: Its number there.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Look at a file.

        Args:
            path: The file.
        """
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    @property
    def is_unchanged(self) -> bool:
        """True when the same file is there."""
        return self._change() is None

    def require_unchanged(self) -> None:
        """Check that the same file is there.

        Raises:
            StoreReplacedError: It is not.
        """
        change = self._change()
        if change is not None:
            raise StoreReplacedError(
                f"{self.path} was {change} since it was opened; nothing was written: "
                "close the store and open it again, to work on what is there now"
            )

    def _change(self) -> str | None:
        try:
            now = FileIdentity.of(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "deleted"
        return None if now == self else "replaced by another file"
