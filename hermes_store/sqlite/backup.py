"""Copying a database while others use it: SQLite's backup API, verified, readable by the owner only.

A file copy of a live database is damaged more often than not, and reading the file past SQLite drops this process's
locks. The copy is made under a temporary name, checked, named after its own content, and only then put in place, so
a backup that is there is a good one, and the same state is never kept twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import Engine

from hermes_store.errors import ConflictError, CorruptStoreError, UpgradeError
from hermes_store.sqlite.damage import belongs_to_search, first_damage
from hermes_store.sqlite.engine import file_uri
from hermes_store.sqlite.views import quoted

_PAGES_PER_STEP = 2_000  # 8 MiB: small enough to report progress, large enough not to slow the copy
_SPARE = 16 * 1024 * 1024  # bytes of disk that stay free beside the copy
_HASH_DIGITS = 12
_STORED_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"

BackupProgress = Callable[[int, int], None]


def backup_beside(
    engine: Engine, path: Path, *, progress: BackupProgress | None = None, driver: ModuleType | None = None
) -> Path:
    """Keep the present state of a file beside it, once per distinct state.

    Args:
        engine: An engine of the file.
        path: The file.
        progress: Called with pages copied and pages in all.
        driver: The DBAPI module to use.

    Returns:
        ``<name>.backup-<hash>``, where the hash is that of the copy's content; a file that was there already if
        this very state was kept before.

    Raises:
        UpgradeError: The disk has no room for the copy.
        CorruptStoreError: The copy did not pass its check.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.backup-", dir=path.parent)  # 0600, as mkstemp makes it
    os.close(handle)
    partial = Path(name)
    try:
        copy_database(engine, partial, progress=progress, driver=driver)
        target = path.with_name(f"{path.name}.backup-{_digest(partial)}")
        if not target.exists():
            partial.replace(target)
        return target
    finally:
        partial.unlink(missing_ok=True)


def backup_to(
    engine: Engine, target: Path, *, progress: BackupProgress | None = None, driver: ModuleType | None = None
) -> Path:
    """Write a verified copy of a database to a file that does not exist yet.

    Args:
        engine: An engine of the database.
        target: The new file.
        progress: Called with pages copied and pages in all.
        driver: The DBAPI module to use.

    Returns:
        The new file, 0600.

    Raises:
        ConflictError: The target exists.
        UpgradeError: The disk has no room for the copy.
        CorruptStoreError: The copy did not pass its check.
    """
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ConflictError(f"{target} exists; a backup never overwrites a file") from None
    try:
        copy_database(engine, target, progress=progress, driver=driver)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def copy_database(
    engine: Engine, target: Path, *, progress: BackupProgress | None = None, driver: ModuleType | None = None
) -> None:
    """Copy a database page by page into an empty file and check the copy.

    Args:
        engine: An engine of the database.
        target: An empty file.
        progress: Called with pages copied and pages in all.
        driver: The DBAPI module to use.

    Raises:
        UpgradeError: The disk has no room for the copy.
        CorruptStoreError: The copy did not pass its check.
    """
    module: Any = driver or sqlite3
    with engine.connect() as connection:
        source: Any = connection.connection.driver_connection
        size = source.execute("PRAGMA page_count").fetchone()[0] * source.execute("PRAGMA page_size").fetchone()[0]
        free = shutil.disk_usage(target.parent).free
        if free < size + _SPARE:
            raise UpgradeError(
                f"no room for a backup in {target.parent}: {size:,} bytes are needed, {free:,} are free; "
                "make room, or go on without one (--no-backup, -x backup=no)"
            )
        copy = module.connect(file_uri(target, mode="rw"), uri=True, isolation_level=None)
        try:
            source.backup(
                copy,
                pages=_PAGES_PER_STEP,
                progress=None if progress is None else lambda _status, left, total: progress(total - left, total),
                sleep=0.01,
            )
        finally:
            copy.close()
    _verify(target, module)


def _verify(copy: Path, module: Any) -> None:
    connection = module.connect(file_uri(copy, mode="ro", immutable="1"), uri=True)
    try:
        tables = [row[0] for row in connection.execute(_STORED_TABLES).fetchall()]
        # Table by table, because a check of the whole file stops at a damaged search index, which does not matter.
        for table in tables:
            if not belongs_to_search(table) and (damage := _damage(connection, table, module)):
                raise CorruptStoreError(
                    f"a backup in {copy.parent} did not pass its check: table {table} is damaged ({damage}); "
                    "nothing was changed: restore an older backup, or recover the file with SQLite's .recover"
                )
    finally:
        connection.close()


def _damage(connection: Any, table: str, module: Any) -> str | None:
    try:
        return first_damage(row[0] for row in connection.execute(f"PRAGMA quick_check({quoted(table)})"))
    except module.DatabaseError as error:
        return str(error)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_HASH_DIGITS]
