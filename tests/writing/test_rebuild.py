"""An index that was detached, or is damaged, is made whole again beside whoever uses the file."""

from __future__ import annotations

import re
import sqlite3
import threading
from pathlib import Path

import pytest
import releases
from fixture_files import STORES, Released
from migrations.files import connect, run
from sqlalchemy import create_engine
from writing.damages import (
    DAMAGES,
    SESSION,
    TRIGGERS,
    Damage,
    add_message,
    markers,
    overwrite_root,
    triggers,
    troubles_but_lost_pages,
    written,
)

from hermes_store import HermesStore
from hermes_store.errors import CorruptStoreError, NotFoundError, ReadOnlyError, SchemaBehindError

INDEXES = ("messages_fts", "messages_fts_trigram")
WORDS = "zanzibar 数据库迁移"


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_a_write_detached_is_made_whole(path: Path, index: str, damage: Damage) -> None:
    damage(path, index)
    with HermesStore.open(path, migrate="off") as store:
        id_ = store.run(lambda session: add_message(session, WORDS))
        report = store.rebuild_index()
        assert report.pending == ()
        assert report.reasons
        for query in ("zanzibar", "数据库迁移"):
            page = store.search(query)
            assert id_ in {hit.id for hit in page}
            assert page.degraded is None
        store.run(lambda session: add_message(session, "after"))
        assert store.rebuild_index().reasons == ()
    assert triggers(path) == TRIGGERS
    assert markers(path) == {}
    assert troubles_but_lost_pages(path) == []


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_that_nobody_met_is_found(path: Path, index: str, damage: Damage) -> None:
    damage(path, index)
    with HermesStore.open(path, migrate="off") as store:
        report = store.rebuild_index()
    assert any(index in reason for reason in report.reasons)
    assert report.pending == ()
    assert troubles_but_lost_pages(path) == []


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {0}_data SET block = x'00ff00' WHERE id > 10",
        "DELETE FROM {0}_docsize WHERE id % 3 = 0",
        "DELETE FROM {0}_docsize WHERE id BETWEEN 20 AND 30",
        "DROP TRIGGER {0}_update",
    ],
    ids=["entries", "many rows", "few rows", "trigger"],
)
def test_damage_that_makes_no_write_fail_is_found_too(path: Path, index: str, statement: str) -> None:
    with connect(path) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(statement.format(index))
    with HermesStore.open(path, migrate="off") as store:
        assert store.rebuild_index().pending == ()
        store.run(lambda session: add_message(session, WORDS))
    assert triggers(path) == TRIGGERS
    assert {row[0] for row in run(path, f"SELECT id FROM {index}_docsize")} <= {
        row[0] for row in run(path, "SELECT id FROM messages")
    }
    if "BETWEEN" not in statement:
        assert troubles_but_lost_pages(path) == []


def test_a_whole_index_is_left_as_it_is_unless_it_is_forced(store: HermesStore, path: Path) -> None:
    before = run(path, "SELECT * FROM messages_fts_data ORDER BY id")
    steps = []
    assert store.rebuild_index(steps.append).reasons == ()
    assert run(path, "SELECT * FROM messages_fts_data ORDER BY id") == before
    report = store.rebuild_index(steps.append, force=True)
    assert report.reasons == ("asked for",)
    assert {step.phase for step in steps} >= {"index"}
    assert troubles_but_lost_pages(path) == []


@pytest.mark.parametrize("name", [name for name in STORES if re.search("v31.*[.]db", name) and "cjk" not in name])
def test_an_index_of_any_layout_is_healed_into_the_newest(released: Released, name: str) -> None:
    path = released(name)
    with HermesStore.open(path, migrate="off") as store:
        store.sessions.create("cli", id=SESSION)
        DAMAGES["its structure is garbage"](path, "messages_fts")
        store.run(lambda session: add_message(session, WORDS))
        assert store.rebuild_index().pending == ()
        assert store.search("zanzibar").degraded is None
    assert troubles_but_lost_pages(path) == []


def test_messages_that_are_written_meanwhile_are_indexed(path: Path) -> None:
    DAMAGES["a page of its data"](path, "messages_fts")
    with HermesStore.open(path, migrate="off") as store:
        store.run(lambda session: add_message(session, "first"))
        stop, texts = threading.Event(), ["first"]

        def write() -> None:
            while not stop.is_set():
                texts.append(f"number {len(texts)} {WORDS}")
                store.run(lambda session: add_message(session, texts[-1]), kind="transcript")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(3):
                assert store.rebuild_index(force=True).pending == ()
        finally:
            stop.set()
            thread.join()
    assert written(path) == texts
    assert troubles_but_lost_pages(path) == []


def test_an_older_schema_is_not_rebuilt(released: Released) -> None:
    path = released("v30-iot-0.21.5.post2.db")
    before = run(path, "SELECT type, name, sql FROM sqlite_master")
    with HermesStore.open(path, migrate="off") as store, pytest.raises(SchemaBehindError):
        store.rebuild_index(force=True)
    assert run(path, "SELECT type, name, sql FROM sqlite_master") == before


def test_what_cannot_be_rebuilt_is_said(path: Path) -> None:
    with HermesStore.open(path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.rebuild_index()
    with pytest.raises(NotFoundError, match="memory"):
        HermesStore(create_engine("sqlite://", module=sqlite3)).rebuild_index()


def test_an_applications_engine_can_have_its_indexes_rebuilt(path: Path) -> None:
    DAMAGES["no index at all"](path, "messages_fts_trigram")
    engine = create_engine(f"sqlite:///{path}", module=sqlite3)
    try:
        store = HermesStore(engine)
        store.run(lambda session: add_message(session, WORDS))
        assert store.rebuild_index().pending == ()
    finally:
        engine.dispose()
    assert written(path) == [WORDS]
    assert troubles_but_lost_pages(path) == []


def test_damaged_messages_are_not_healed(path: Path) -> None:
    overwrite_root(path, "messages")
    with HermesStore.open(path, migrate="off") as store, pytest.raises(CorruptStoreError, match="table messages"):
        store.rebuild_index(force=True)
    assert triggers(path) == TRIGGERS


@pytest.mark.peer
@pytest.mark.parametrize("damage", ["a page of its data", "its structure is garbage", "no index at all"])
def test_the_newest_release_goes_on_where_a_detached_index_was_left(path: Path, damage: str) -> None:
    DAMAGES[damage](path, "messages_fts")
    with HermesStore.open(path, migrate="off") as store:
        ids = [store.run(lambda session: add_message(session, WORDS)) for _ in range(3)]
    found = releases.search(releases.V0_22_2, path, ["zanzibar", "数据库迁移"], limit=100)
    assert all(set(ids) <= set(some) for some in found.values())
    releases.run(releases.V0_22_2, "open", path, "--write")
    with HermesStore.open(path, migrate="off") as store:
        assert {hit.id for hit in store.search("zanzibar")} >= set(ids)
        store.rebuild_index()
    assert written(path) == [WORDS] * 3
    assert troubles_but_lost_pages(path) == []
