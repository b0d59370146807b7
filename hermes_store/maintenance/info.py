"""Describing a file: schema, search indexes, sizes, pending work, and what this SQLite can do with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from hermes_store.migrations.chain import chain, recognise, stamped_revision
from hermes_store.migrations.filelock import PROCESS_LOCK
from hermes_store.migrations.search_objects import hands_off
from hermes_store.models import Base
from hermes_store.sqlite import shape as keys
from hermes_store.sqlite.capabilities import Capabilities, probe
from hermes_store.sqlite.damage import INDEX_PARTS
from hermes_store.sqlite.decoded import TEXT_INDEX, TEXT_QUEUE, text_index_fault
from hermes_store.sqlite.shape import IndexShape, Shape
from hermes_store.sqlite.views import quoted
from hermes_store.store import HermesStore


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One search index.

    Attributes:
        name: Its table.
        layout: ``0`` to ``3``, ``absent`` or ``unknown``.
        rows: Messages in it; None when it is absent.
        size: Bytes it takes in the file; None where this SQLite cannot tell.
        state: ``ready``, ``filling``, ``detached``, ``incomplete``, ``absent`` or ``left alone``.
    """

    name: str
    layout: str
    rows: int | None
    size: int | None
    state: str


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a file is like.

    Attributes:
        path: The file.
        revision: Its stamp; None on a file no upgrade of ours has seen.
        recognised: The revision its shape has reached.
        head: The newest revision of this version.
        schema_version: Hermes's own number.
        journal_mode: Such as ``wal``.
        size: Bytes of the file.
        free: Bytes of it that are free pages.
        rows: Rows per table.
        indexes: The search indexes.
        pending: What an upgrade would still do, in words.
        unknown_triggers: Triggers on ``messages`` that neither Hermes nor we made; one that fails makes writes fail.
        capabilities: What this SQLite can do.
    """

    path: Path | None
    revision: str | None
    recognised: str | None
    head: str
    schema_version: int | None
    journal_mode: str
    size: int
    free: int
    rows: Mapping[str, int]
    indexes: tuple[IndexInfo, ...]
    pending: tuple[str, ...]
    unknown_triggers: tuple[str, ...]
    capabilities: Capabilities


def describe(store: HermesStore) -> StoreInfo:
    """Look at everything `StoreInfo` tells; counting rows takes time in proportion to the file.

    Args:
        store: The store.
    """
    with PROCESS_LOCK:
        revisions = chain()
    with store.read() as unit:
        connection, shape = unit.session.connection(), unit.shape
        tables = [name for name in Base.metadata.tables if name in shape.columns]
        page = _pragma(connection, "page_size")
        stamp = stamped_revision(connection, shape)
        known = {name for script in revisions for name in getattr(script.module, "TRIGGERS", {})}
        for index in (shape.word, shape.trigram, shape.cjk):
            known |= {f"{index.name}_{action}" for action in ("insert", "update", "delete")}
        return StoreInfo(
            path=store.path,
            revision=stamp,
            recognised=recognise(shape, revisions),
            head=revisions[-1].revision,
            schema_version=shape.schema_version,
            journal_mode=str(_pragma(connection, "journal_mode")),
            size=page * _pragma(connection, "page_count"),
            free=page * _pragma(connection, "freelist_count"),
            rows={
                name: connection.exec_driver_sql(f"SELECT count(*) FROM main.{name}").scalar_one() for name in tables
            },
            indexes=tuple(
                _describe_index(connection, shape, index) for index in (shape.word, shape.trigram, shape.cjk)
            ),
            pending=tuple(_pending(connection, shape, behind=stamp != revisions[-1].revision)),
            unknown_triggers=tuple(_unknown_triggers(shape, known)),
            capabilities=probe(connection, shape),
        )


def _unknown_triggers(shape: Shape, known: set[str]) -> list[str]:
    """Triggers fired by changes of messages that nobody we know has made."""
    names = sorted(name for kind, name in shape.objects if kind == "trigger" and not name.startswith("hs_"))
    return [
        name
        for name in names
        if name not in known and re.search(r"\bON\s+\W?messages\b", shape.objects["trigger", name])
    ]


def _describe_index(connection: Connection, shape: Shape, index: IndexShape) -> IndexInfo:
    rows = None
    if shape.has("table", f"{index.name}_docsize"):
        rows = connection.exec_driver_sql(f"SELECT count(*) FROM main.{index.name}_docsize").scalar_one()
    return IndexInfo(index.name, index.layout.value, rows, _size(connection, shape, index.name), _state(shape, index))


def _state(shape: Shape, index: IndexShape) -> str:
    own_stale = keys.CJK_STALE_KEY if index.name == keys.CJK_INDEX else keys.STALE_KEY
    if index.layout is keys.Layout.ABSENT:
        return "absent"
    if index.unknown:
        return "left alone"
    if own_stale in shape.meta:
        return "detached"
    if not index.fed_consistently:
        return "incomplete"
    return "filling" if shape.rebuild is not None and index.name != keys.CJK_INDEX else "ready"


def _pending(connection: Connection, shape: Shape, *, behind: bool) -> list[str]:
    found = ["revisions to run"] if behind else []
    if shape.rebuild is not None:
        progress, high_water = shape.rebuild
        found.append(f"search indexes to fill: message {progress} of {high_water}")
    if keys.UID_DONE_KEY not in shape.meta:
        found.append("message uids to give")
    if shape.has("table", TEXT_QUEUE):
        fault = text_index_fault(shape)
        if fault is not None:
            found.append(f"{TEXT_INDEX} {fault}")
        waiting = connection.exec_driver_sql(f"SELECT count(*) FROM main.{TEXT_QUEUE}").scalar_one()
        if waiting:
            found.append(f"decoded texts to index: {waiting} messages")
    if shape.trash:
        found.append(f"{len(shape.trash)} retired index tables to empty")
    if shape.stale:
        found.append("search indexes to lay out anew after damage")
    if hands_off(shape):
        unknown = ", ".join(shape.word.unknown_parts + shape.trigram.unknown_parts)
        found.append(f"not touched, because a newer Hermes wrote it: {unknown}")
    return found


def _size(connection: Connection, shape: Shape, name: str) -> int | None:
    tables = [f"{name}_{suffix}" for suffix in (*INDEX_PARTS, "content") if shape.has("table", f"{name}_{suffix}")]
    if not tables:
        return None
    try:
        # With a name and in aggregate, dbstat visits only that table's pages.
        pages = "SELECT pgsize FROM dbstat WHERE name = ? AND aggregate = TRUE"
        return sum(connection.exec_driver_sql(pages, (table,)).scalar() or 0 for table in tables)
    except DatabaseError:  # a build without dbstat: the index's own blocks are nearly all of it
        query = f"SELECT sum(length(block)) FROM main.{quoted(name + '_data')}"
        return int(connection.exec_driver_sql(query).scalar() or 0) if f"{name}_data" in tables else None


def _pragma(connection: Connection, name: str) -> Any:
    return connection.exec_driver_sql(f"PRAGMA main.{name}").scalar_one()
