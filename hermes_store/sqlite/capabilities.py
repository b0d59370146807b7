"""What the SQLite library in use can do, and the remedy for what it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from hermes_store.sqlite.journal import wal_is_safe
from hermes_store.sqlite.shape import CJK_INDEX, Shape
from hermes_store.sqlite.temporary import temporary_objects

#: Tokenizers that only a loadable library brings; Hermes names the one it uses for ``messages_fts_cjk``.
_LOADABLE = ("cjk_unicode61",)
_INFO = "hermes_store_capabilities"
_NEWER = "use a newer SQLite: a newer Python, or driver=pysqlite3 in a program that uses no other SQLite library"

#: Capability to what to do when it is missing.
REMEDIES: Mapping[str, str] = {
    "fts5": f"search falls back to scanning the messages; {_NEWER}",
    "trigram": f"substring search of Chinese, Japanese, Korean, Thai becomes a scan; SQLite 3.34 has it: {_NEWER}",
    "fts5vocab": f"short terms fall back to scanning; {_NEWER}",
    "json1": f"reading lineage markers needs JSON functions (SQLite 3.38, or a build with JSON1); {_NEWER}",
    "load_extension": "only needed for the optional tokenizer of messages_fts_cjk, without which answers are the same",
    "wal_safe": f"new files get a rollback journal, and several writers on a WAL file risk lost commits; {_NEWER}",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this process's SQLite can do with a file.

    Attributes:
        sqlite_version: Such as ``"3.53.2"``.
        fts5: The full-text module is there.
        trigram: Its substring tokenizer is there (SQLite 3.34).
        fts5vocab: The vocabulary view of an index is there.
        json1: ``json_extract`` and ``json_valid`` are there.
        load_extension: The driver can load extensions.
        wal_safe: The build is free of the WAL-reset bug.
        foreign_tokenizers: Tokenizers that the file's own indexes name and this connection does not have.
    """

    sqlite_version: str
    fts5: bool
    trigram: bool
    fts5vocab: bool
    json1: bool
    load_extension: bool
    wal_safe: bool
    foreign_tokenizers: tuple[str, ...]

    @property
    def missing(self) -> Mapping[str, str]:
        """Each missing capability with its remedy."""
        found = {name: remedy for name, remedy in REMEDIES.items() if not getattr(self, name)}
        if not self.foreign_tokenizers:
            found.pop("load_extension", None)  # nothing here needs one
        for tokenizer in self.foreign_tokenizers:
            found[f"tokenizer {tokenizer}"] = (
                "the index that needs it is left alone and not used; `hermes-store upgrade` detaches it, so that "
                "writing works without the tokenizer"
            )
        return found


def probe(connection: Connection, shape: Shape) -> Capabilities:
    """Find out what the library behind a connection can do.

    The answer is kept with the connection: trying things out makes temporary tables, once.

    Args:
        connection: An open connection; only its temporary database is used.
        shape: The file's shape.
    """
    known = connection.info.get(_INFO)
    if known is None:
        with temporary_objects(connection.connection.driver_connection):
            known = connection.info[_INFO] = _probe_library(connection)
    needed = [name for name in _LOADABLE if name in shape.objects.get(("table", CJK_INDEX), "")]
    return replace(known, foreign_tokenizers=tuple(name for name in needed if name in known.foreign_tokenizers))


def _probe_library(connection: Connection) -> Capabilities:
    version = str(connection.exec_driver_sql("SELECT sqlite_version()").scalar_one())
    numbers = tuple(int(part) for part in version.split("."))
    fts5 = _can_create(connection, "hs_probe_word", "fts5(x)")
    return Capabilities(
        sqlite_version=version,
        fts5=fts5,
        trigram=fts5 and _can_create(connection, "hs_probe_trigram", "fts5(x, tokenize='trigram')"),
        fts5vocab=fts5 and _vocabulary(connection),
        json1=_works(connection, "SELECT json_valid('{}')"),
        load_extension=hasattr(connection.connection.dbapi_connection, "enable_load_extension"),
        wal_safe=wal_is_safe((numbers[0], numbers[1], numbers[2])),
        foreign_tokenizers=tuple(
            name
            for name in _LOADABLE
            if not _can_create(connection, "hs_probe_tokenizer", f"fts5(x, tokenize='{name}')")
        ),
    )


def _vocabulary(connection: Connection) -> bool:
    if not _works(connection, "CREATE VIRTUAL TABLE temp.hs_probe_text USING fts5(x)"):
        return False
    try:
        return _can_create(connection, "hs_probe_vocabulary", "fts5vocab(temp, hs_probe_text, row)")
    finally:
        connection.exec_driver_sql("DROP TABLE temp.hs_probe_text")


def _can_create(connection: Connection, name: str, module: str) -> bool:
    if not _works(connection, f"CREATE VIRTUAL TABLE temp.{name} USING {module}"):
        return False
    connection.exec_driver_sql(f"DROP TABLE temp.{name}")
    return True


def _works(connection: Connection, statement: str) -> bool:
    """Only "no such module/tokenizer/function" counts as missing; anything else is an error of its own."""
    try:
        connection.exec_driver_sql(statement)
    except DatabaseError as error:
        if "no such" in str(error.orig):
            return False
        raise
    return True
