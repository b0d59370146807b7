"""What a store does for its file, rather than for what is in it: check it, mend its indexes, keep them in shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from sqlalchemy import Engine

from hermes_store.maintenance.verify import Level, VerifyReport, verify
from hermes_store.migrations.optimize import OptimizeReport, optimize
from hermes_store.migrations.preflight import require_sound
from hermes_store.migrations.rebuild import RebuildReport, rebuild_indexes
from hermes_store.migrations.report import ProgressCallback
from hermes_store.sqlite.shape import Shape
from hermes_store.writing import Writer


class Upkeep(ABC):
    """The part of `hermes_store.HermesStore` that looks after the file."""

    @property
    @abstractmethod
    def schema(self) -> Shape:
        """What the file is like: tables, columns, search indexes and their state."""

    @abstractmethod
    def _require_writer(self) -> Writer: ...

    @abstractmethod
    def _current_engine(self) -> Engine: ...

    def rebuild_index(self, progress: ProgressCallback | None = None, *, force: bool = False) -> RebuildReport:
        """Make the search indexes whole: anew if they were detached or are damaged, completed if messages are missing.

        Other programs may use the file meanwhile; a rebuild that was stopped is gone on with by calling it again.

        Args:
            progress: Called with each step.
            force: Make them anew although nothing seems to be wrong.

        Returns:
            Why they were made anew, and what is left to do.

        Raises:
            CorruptStoreError: A table is damaged; nothing was written.
            NotFoundError: The database is not a file.
            ReadOnlyError, SchemaBehindError, StoreBusyError, StoreReplacedError: As for `write`.
        """
        writer = self._require_writer()
        path, driver = writer.file()
        return rebuild_indexes(path, progress, force=force, driver=driver, timeout=writer.timeout)

    def verify(self, level: Level = "quick") -> VerifyReport:
        """Check the file; nothing is written, and no writer is kept waiting.

        Args:
            level: ``quick``: the structure of the tables, and what the file says of its indexes; ``indexes``: also all
                entries of the indexes; ``full``: also the whole file and its foreign keys.

        Returns:
            What is wrong, with a remedy for each.
        """
        return verify(self._current_engine(), level)

    def optimize(self, progress: ProgressCallback | None = None) -> OptimizeReport:
        """Merge what many small writes left in the search indexes, in steps that keep no other writer waiting.

        Args:
            progress: Called with each step.

        Returns:
            What was merged.

        Raises:
            NotFoundError: The database is not a file.
            ReadOnlyError, StoreBusyError, StoreReplacedError: As for `write`.
        """
        writer = self._require_writer()
        path, driver = writer.file()
        return optimize(path, progress, driver=driver, timeout=writer.timeout)

    def detach_damaged_indexes(self) -> tuple[str, ...]:
        """Take the search indexes off the file after a write met damage in one of them.

        `write` and `run` do it by themselves. Who uses `bind` gets the driver's own error, and calls this after rolling
        back: messages can be written then, and searches scan until `rebuild_index`.

        Returns:
            The triggers that were dropped; empty when somebody was here before.

        Raises:
            CorruptStoreError: A table is damaged, and may be what made the write fail; nothing was changed.
            ReadOnlyError, SchemaBehindError, StoreBusyError, StoreReplacedError: As for `write`.
        """
        writer = self._require_writer()
        require_sound(writer.path or Path("the file"), writer.engine, self.schema)
        return writer.detach()
