"""Verifying names what is wrong and how to mend it; optimizing merges, and changes no answer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from fixture_files import STORES, Released
from migrations.files import connect, content_of, message, run
from writing.damages import DAMAGES, SESSION, add_message, overwrite_root, troubles_but_lost_pages

from hermes_store import HermesStore
from hermes_store.errors import ReadOnlyError


def found(path: Path, level: str) -> set[tuple[str, str]]:
    with HermesStore.open(path, migrate="off") as store:
        return {(finding.kind, finding.name) for finding in store.verify(level).findings}


@pytest.mark.parametrize("level", ["quick", "indexes", "full"])
def test_nothing_is_wrong_with_a_whole_file_and_nothing_is_written(path: Path, level: str) -> None:
    before = content_of(path)
    with HermesStore.open(path, read_only=True) as store:
        report = store.verify(level)
    assert report.ok
    assert [finding for finding in report.findings if finding.kind != "rows"] == []
    assert content_of(path) == before


@pytest.mark.parametrize("name", STORES)
def test_every_released_file_can_be_verified(released: Released, name: str) -> None:
    with HermesStore.open(released(name), migrate="off", read_only="hotwal" not in name) as store:
        report = store.verify("full")
    assert not any(finding.kind == "table" for finding in report.findings), report


@pytest.mark.parametrize("index", ["messages_fts", "messages_fts_trigram"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_named_and_the_messages_are_not(path: Path, index: str, damage: str) -> None:
    DAMAGES[damage](path, index)
    for level in ("indexes", "full"):
        named = found(path, level)
        assert ("index", index) in named
        assert not {(kind, name) for kind, name in named if kind == "table"}


@pytest.mark.parametrize("table", ["messages", "sessions"])
@pytest.mark.parametrize("level", ["quick", "full"])
def test_a_damaged_table_is_named(path: Path, table: str, level: str) -> None:
    overwrite_root(path, table)
    with HermesStore.open(path, migrate="off") as store:
        report = store.verify(level)
    assert not report.ok
    assert ("table", table) in {(finding.kind, finding.name) for finding in report.findings}
    assert all(finding.remedy for finding in report.findings)


def test_what_the_file_says_of_its_indexes_is_found_quickly(path: Path) -> None:
    run(path, "INSERT INTO state_meta (key, value) VALUES ('fts_stale', '1')")
    assert ("index", "messages_fts") in found(path, "quick")
    run(path, "DELETE FROM state_meta WHERE key = 'fts_stale'", "DROP TRIGGER messages_fts_trigram_delete")
    assert found(path, "quick") == {("index", "messages_fts_trigram")}


def test_missing_and_odd_rows_are_found(path: Path) -> None:
    message(path, SESSION, "words")
    with connect(path) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("DELETE FROM messages_fts_docsize WHERE id = (SELECT MAX(id) FROM messages)")
    run(path, "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('nobody', 'user', 'x', 1.0)")
    assert ("index", "messages_fts") in found(path, "indexes")
    assert ("rows", "messages") in found(path, "full")


def test_a_level_that_does_not_exist_is_an_error(store: HermesStore) -> None:
    with pytest.raises(ValueError, match="level"):
        store.verify("thorough")


def test_optimizing_merges_segments_and_changes_no_answer(store: HermesStore, path: Path) -> None:
    for number in range(120):
        store.run(lambda session, number=number: add_message(session, f"zanzibar {number} 数据库迁移"))
    expected = {hit.id for hit in store.search("zanzibar", limit=500)}
    steps = []
    report = store.optimize(steps.append)
    assert set(report.merged) == {"messages_fts", "messages_fts_trigram", "hs_text_fts"}
    assert report.skipped == ()
    assert {step.phase for step in steps} == {"merge"}
    assert {hit.id for hit in store.search("zanzibar", limit=500)} == expected
    assert troubles_but_lost_pages(path) == []
    assert run(path, "SELECT name FROM sqlite_master WHERE name GLOB 'sqlite_stat*'") == []


def test_optimizing_leaves_out_what_is_damaged(path: Path) -> None:
    DAMAGES["its structure is garbage"](path, "messages_fts")
    with HermesStore.open(path, migrate="off") as store:
        report = store.optimize()
        assert set(report.merged) == {"messages_fts_trigram", "hs_text_fts"}
        assert len(report.skipped) == 1
        store.run(lambda session: add_message(session, "words"))
        assert store.optimize().merged == ("hs_text_fts",)
    with HermesStore.open(path, migrate="off", read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.optimize()


def test_the_library_is_the_one_of_the_store(path: Path) -> None:
    with HermesStore.open(path, driver=sqlite3) as store:
        assert store.optimize().skipped == ()
