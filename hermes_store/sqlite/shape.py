"""What is really in a file: tables, columns, search indexes and their markers, read from the file itself.

Every decision of this package (may I write, which index may answer, what does an upgrade have left to do) is taken
from a `Shape`, never from a version number or from our own stamp: other programs own the file as much as we do, and
the stored ``schema_version`` does not identify the schema. Reading a shape costs a few milliseconds and nothing
proportional to the file; it touches ordinary tables only, so a damaged or unreadable index cannot make it fail.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from hermes_store.sqlite.known import KNOWN_TEXTS

WORD_INDEX = "messages_fts"
TRIGRAM_INDEX = "messages_fts_trigram"
CJK_INDEX = "messages_fts_cjk"
#: Ours: the index of decoded texts, see `hermes_store.sqlite.decoded`.
TEXT_INDEX = "hs_text_fts"

#: ``state_meta`` keys that say what state the search indexes are in (Hermes's own, but for the last).
STALE_KEY = "fts_stale"
CJK_STALE_KEY = "fts_cjk_stale"
HIGH_WATER_KEY = "fts_rebuild_high_water"
PROGRESS_KEY = "fts_rebuild_progress"
TOOL_HIGH_WATER_KEY = "fts_tool_full_content_high_water"
STORAGE_VERSION_KEY = "fts_storage_version"
OPTIMIZE_KEY = "fts_optimize_available"
UID_DONE_KEY = "message_uid_backfill"
UID_POSITION_KEY = "message_uid_backfill_id"
GENERATION_KEY = "db_file_generation"
TEXT_FILL_KEY = "hs_text_fill"
SEARCH_KEYS = (
    STALE_KEY,
    CJK_STALE_KEY,
    HIGH_WATER_KEY,
    PROGRESS_KEY,
    TOOL_HIGH_WATER_KEY,
    STORAGE_VERSION_KEY,
    OPTIMIZE_KEY,
    UID_DONE_KEY,
    UID_POSITION_KEY,
    GENERATION_KEY,
    TEXT_FILL_KEY,
)

_TRIGGERS = 3  # insert, update, delete

#: Prefix under which Hermes (and we) park the shadow tables of a retired index until they are emptied.
TRASH_PREFIX = "fts_v22_trash_"


class Layout(enum.Enum):
    """How one search index stores its text (the numbers are Hermes's own layout numbers)."""

    ABSENT = "absent"
    INLINE = "0"
    EXTERNAL = "1"
    CAPPED = "2"
    ALIGNED = "3"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column as ``PRAGMA table_info`` reports it; ``primary_key`` is its place in the key, 0 if none."""

    name: str
    type: str
    not_null: bool
    default: str | None
    primary_key: int


@dataclass(frozen=True, slots=True)
class IndexShape:
    """One search index: its table's layout, and the layout each of its triggers and views was written for.

    ``parts`` maps the name of each trigger or view that exists to the kind its text is known as
    (``"0"`` … ``"3"``, with a letter for variants), or ``"unknown"``.
    """

    name: str
    layout: Layout
    parts: Mapping[str, str]

    @property
    def triggers_present(self) -> int:
        """How many of the three triggers exist."""
        return sum(part.endswith(("_insert", "_update", "_delete")) for part in self.parts)

    @property
    def unknown(self) -> bool:
        """True when the table, a trigger or a view has a text no known release wrote."""
        return self.layout is Layout.UNKNOWN or "unknown" in self.parts.values()

    @property
    def unknown_parts(self) -> tuple[str, ...]:
        """Names of the table, triggers and views whose text no known release wrote."""
        own = (self.name,) if self.layout is Layout.UNKNOWN else ()
        return own + tuple(sorted(name for name, kind in self.parts.items() if kind == "unknown"))

    @property
    def fed_consistently(self) -> bool:
        """True when its view and all three triggers exist and feed the table what its layout expects."""
        if self.layout in {Layout.ABSENT, Layout.UNKNOWN} or self.triggers_present != _TRIGGERS:
            return False
        view = f"{self.name}_src"
        if self.layout is Layout.INLINE:
            return all(kind.startswith("0") for name, kind in self.parts.items() if name != view)
        # The word index takes the same columns in layouts 1 to 3; the substring index lost one after layout 1.
        kinds = {"1", "2", "3"} if self.name == WORD_INDEX else {self.layout.value}
        needs_view = self.name != WORD_INDEX or self.layout is Layout.ALIGNED
        return (not needs_view or view in self.parts) and set(self.parts.values()) <= kinds


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything about a file's schema that a decision may depend on.

    Attributes:
        schema_cookie: SQLite's schema counter; a shape is valid as long as it has not moved.
        application_id: The header's application id (0 up to schema 26, then a number per file).
        objects: ``(type, name) -> CREATE text`` of all tables, indexes, triggers and views.
        columns: Table name to its columns, virtual and internal tables left out.
        versions: All rows of ``schema_version``, in row order; the first decides, as in Hermes.
        meta: The ``state_meta`` entries that describe search indexes and pending work.
        word: The word index ``messages_fts``.
        trigram: The substring index ``messages_fts_trigram``.
        cjk: The optional ``messages_fts_cjk`` of a loadable tokenizer.
        incomplete: Search indexes known to lack messages that no marker accounts for (`hermes_store.sqlite.gaps`).
    """

    schema_cookie: int
    application_id: int
    objects: Mapping[tuple[str, str], str]
    columns: Mapping[str, Mapping[str, ColumnShape]]
    versions: tuple[object, ...]
    meta: Mapping[str, str]
    word: IndexShape
    trigram: IndexShape
    cjk: IndexShape
    incomplete: frozenset[str] = frozenset()

    @property
    def schema_version(self) -> int | None:
        """The version Hermes acts on: the first row, None when there is none or it is no integer."""
        return self.versions[0] if self.versions and isinstance(self.versions[0], int) else None

    @property
    def stale(self) -> bool:
        """True when word and trigram index were detached after damage and must not be believed."""
        return STALE_KEY in self.meta

    @property
    def rebuild(self) -> tuple[int, int] | None:
        """``(progress, high water)`` while an index fill is pending: ids in between are not indexed yet."""
        high_water = _number(self.meta.get(HIGH_WATER_KEY))
        if high_water is None:
            return None
        return _number(self.meta.get(PROGRESS_KEY)) or 0, high_water

    @property
    def uids_filled(self) -> bool:
        """True when Hermes, or we, have given every old message its uid."""
        return self.meta.get(UID_DONE_KEY) == "1"

    @property
    def uid_position(self) -> int | None:
        """The last message id that is known to have a uid, while they are being filled in."""
        return _number(self.meta.get(UID_POSITION_KEY))

    @property
    def trash(self) -> tuple[str, ...]:
        """Names of retired index tables that still wait to be emptied and dropped."""
        return tuple(sorted(n for t, n in self.objects if t == "table" and n.startswith(TRASH_PREFIX)))

    def has(self, kind: str, name: str) -> bool:
        """True when a ``table``, ``index``, ``trigger`` or ``view`` of that name exists."""
        return (kind, name) in self.objects

    def has_column(self, table: str, column: str) -> bool:
        """True when the table exists and has that column."""
        return column in self.columns.get(table, {})


def inspect(connection: Connection, known: Shape | None = None) -> Shape:
    """Read the shape of the file behind an open connection.

    Args:
        connection: A connection of the file.
        known: A shape read earlier; as long as SQLite's schema counter has not moved since, only versions and markers
            are read again.

    Returns:
        The shape; a few milliseconds, independent of the size of the file.
    """
    cookie = _pragma(connection, "schema_version")
    if known is not None and known.schema_cookie == cookie:
        return replace(known, versions=_versions(connection, known.columns), meta=_meta(connection, known.columns))
    objects = {
        (str(kind), str(name)): str(sql)
        for kind, name, sql in connection.exec_driver_sql(
            "SELECT type, name, sql FROM main.sqlite_master WHERE sql IS NOT NULL"
        )
    }
    columns: dict[str, dict[str, ColumnShape]] = {}
    for table, name, type_, not_null, default, key in connection.exec_driver_sql(
        'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk FROM main.sqlite_master AS m'
        " JOIN pragma_table_info(m.name, 'main') AS c"
        " WHERE m.type = 'table' AND m.sql IS NOT NULL AND m.sql NOT LIKE 'CREATE VIRTUAL TABLE%'"
    ):
        columns.setdefault(table, {})[name] = ColumnShape(name, type_, bool(not_null), default, key)
    return Shape(
        schema_cookie=cookie,
        application_id=_pragma(connection, "application_id"),
        objects=objects,
        columns=columns,
        versions=_versions(connection, columns),
        meta=_meta(connection, columns),
        word=_index_shape(WORD_INDEX, objects),
        trigram=_index_shape(TRIGRAM_INDEX, objects),
        cjk=_index_shape(CJK_INDEX, objects),
    )


@functools.lru_cache(maxsize=256)
def text_digest(sql: str) -> str:
    """Identify a CREATE text up to comments, white space and ``IF NOT EXISTS``.

    Args:
        sql: The text as ``sqlite_master`` stores it.

    Returns:
        The first 16 hexadecimal digits of its SHA-256.
    """
    bare = " ".join(re.sub(r"--[^\n]*", "", sql).split()).replace(" IF NOT EXISTS ", " ").rstrip("; ")
    return hashlib.sha256(bare.encode()).hexdigest()[:16]


def _versions(connection: Connection, columns: Mapping[str, Mapping[str, ColumnShape]]) -> tuple[object, ...]:
    if "version" not in columns.get("schema_version", {}):
        return ()
    return tuple(row[0] for row in _plainly(connection, "SELECT version FROM main.schema_version ORDER BY rowid"))


def _meta(connection: Connection, columns: Mapping[str, Mapping[str, ColumnShape]]) -> dict[str, str]:
    if not {"key", "value"} <= columns.get("state_meta", {}).keys():
        return {}
    marks = ", ".join("?" * len(SEARCH_KEYS))
    rows = _plainly(connection, f"SELECT key, value FROM main.state_meta WHERE key IN ({marks})", SEARCH_KEYS)
    return {str(key): str(value) for key, value in rows if value is not None}


def _index_shape(name: str, objects: Mapping[tuple[str, str], str]) -> IndexShape:
    parts = {
        part: KNOWN_TEXTS.get(part, {}).get(text_digest(objects[kind, part]), "unknown")
        for kind, part in (
            ("trigger", f"{name}_insert"),
            ("trigger", f"{name}_update"),
            ("trigger", f"{name}_delete"),
            ("view", f"{name}_src"),
        )
        if (kind, part) in objects
    }
    create = objects.get(("table", name))
    if create is None:
        return IndexShape(name, Layout.ABSENT, parts)
    known = KNOWN_TEXTS.get(name, {}).get(text_digest(create))
    if known is None:
        return IndexShape(name, Layout.UNKNOWN, parts)
    layout = Layout(known)
    if name == WORD_INDEX and layout is Layout.EXTERNAL and any(kind.startswith("2") for kind in parts.values()):
        layout = Layout.CAPPED  # the table's own text is that of layout 1; only its triggers cut tool rows
    return IndexShape(name, layout, parts)


def _pragma(connection: Connection, name: str) -> int:
    return int(_plainly(connection, f"PRAGMA main.{name}")[0][0])


def _plainly(connection: Connection, query: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """Ask the driver itself: every transaction asks this, and going through SQLAlchemy takes ten times as long."""
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.dbapi
    try:
        rows: list[tuple[Any, ...]] = driver.execute(query, values).fetchall()
    except errors.Error as error:
        raise DBAPIError.instance(query, values, error, errors.Error, dialect=connection.dialect) from error
    return rows


def _number(text: str | None) -> int | None:
    """Read a marker as ``CAST(value AS INTEGER)`` does, which is how Hermes and its triggers read it."""
    if text is None:
        return None
    found = re.match(r"\s*[+-]?\d{1,30}", text, re.ASCII)
    return max(-(2**63), min(int(found[0]), 2**63 - 1)) if found else 0
