"""Lineage and lists agree with a reading of the plain rows that shares no code with them, on forests of every kind."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fixture_files import STORES, Released
from hypothesis import HealthCheck, given, settings
from lineage.forests import FOLDERS, KEYS, MODELS, SOURCES, Forest, forests, read, seeded, write
from lineage.reference import Entry, Reference

from hermes_store import HermesStore
from hermes_store.records import SessionSummary

QUERIES = ("notes", "100%", "a_", "A\\B", "会話", "%", "naïve", "ss", "é", "a b", "a.b")


@pytest.fixture
def make(empty_file: Path, tmp_path: Path) -> Any:
    """Put a forest into a file of its own and open it."""
    opened: list[HermesStore] = []

    def made(forest: Forest) -> HermesStore:
        path = tmp_path / f"{len(opened)}.db"
        shutil.copyfile(empty_file, path)
        write(path, forest)
        opened.append(HermesStore.open(path))
        return opened[-1]

    yield made
    for store in opened:
        store.close()


def without_bounds(store: HermesStore) -> None:
    """Take the table of bounds away, as on a file that was never upgraded."""
    with closing(sqlite3.connect(store.path)) as plain:
        plain.execute("DROP TRIGGER hs_activity_message_insert")


CHOICES: dict[str, tuple[Any, ...]] = {
    "sources": tuple([one, other] for one, other in itertools.pairwise(SOURCES)),
    "exclude_sources": tuple([one] for one in SOURCES),
    "include_children": (True, False),
    "include_archived": (True, False),
    "include_hidden": (True, False),
    "query": QUERIES,
    "cwd_prefix": tuple(filter(None, FOLDERS)),
    "session_key": tuple(filter(None, KEYS)),
    "model": tuple(filter(None, MODELS)),
    "has_messages": (True, False),
    "after": (1_780_000_000.0, 1_780_000_100.0, 1_780_000_300.0),
    "before": (1_780_000_100.5, 1_780_000_200.0, 1_780_000_400.0),
}


def some_filters(source: random.Random) -> Iterator[dict[str, Any]]:
    yield {}
    yield {"include_children": True, "include_archived": True, "include_hidden": True}
    for _ in range(6):
        yield {name: source.choice(values) for name, values in CHOICES.items() if source.random() < 0.25}


def compare_walks(store: HermesStore, truth: Reference) -> None:
    with store.read() as unit:
        lineage = unit.lineage
        for id_ in truth.sessions:
            assert lineage.kind(id_) == truth.kind(id_), id_
            assert lineage.ancestors(id_) == truth.ancestors(id_), id_
            assert set(lineage.descendants(id_)) == truth.descendants(id_), id_
            assert lineage.children(id_) == truth.children(id_), id_
            assert lineage.root(id_) == truth.root(id_), id_
            assert lineage.conversation_root(id_) == truth.conversation_root(id_), id_
            assert lineage.tip(id_) == lineage.resume_target(id_) == truth.tip(id_), id_
            assert set(lineage.chain(id_)) == truth.members(truth.conversation_root(id_)), id_
            tree = [node for _, node in lineage.tree(id_).walk()]
            assert {node.id for node in tree} == truth.descendants(id_) | {id_}
            assert all(node.kind == truth.kind(node.id) for node in tree)
            assert all(node.last_activity == truth.activity(node.id) for node in tree)
        assert lineage.tips(list(truth.sessions)) == {id_: truth.tip(id_) for id_ in truth.sessions}
        depths = unit.session.connection().exec_driver_sql("SELECT session_id, depth, root_id FROM hs_session_lineage")
        assert {row[0]: row[1:] for row in depths} == {
            id_: (truth.depth(id_), truth.root(id_)) for id_ in truth.sessions
        }
        found, expected = lineage.check(), truth.check()
        own = {(id_,) for id_, row in truth.sessions.items() if row["parent_session_id"] == id_}
        assert {ring for ring in found.cycles if len(ring) == 1} == own
        rings = [sorted(ring) for ring in found.cycles if len(ring) > 1]
        assert sorted(rings) == sorted(map(sorted, expected.cycles))
        assert found.missing_parents == expected.missing_parents
        assert {parent: set(children) for parent, children in found.forks.items()} == expected.forks
        assert set(found.unfinished) == expected.not_continued
        assert set(found.orphaned_messages) == expected.orphaned_messages


def shown(entry: SessionSummary | Entry) -> tuple[Any, ...]:
    names = ("id", "root_id", "kind", "source", "started", "title", "last_activity", "message_count")
    return tuple(getattr(entry, name) for name in names)


def compare_lists(store: HermesStore, truth: Reference, source: random.Random) -> None:
    for filters in some_filters(source):
        for order in ("activity", "started"):
            expected = truth.listing(order=order, **filters)
            found = store.sessions.list(limit=100, order=order, **filters)
            assert list(map(shown, found)) == list(map(shown, expected)), (order, filters)
            assert store.sessions.total(**filters) == len(expected), filters
            pages = [
                entry
                for at in range(0, len(expected) + 3, 3)
                for entry in store.sessions.list(3, at, order=order, **filters)
            ]
            assert pages == found, (order, filters)


def compare_deletions(make: Any, forest: Forest, truth: Reference, source: random.Random) -> None:
    ids = source.sample(list(truth.sessions), min(len(truth.sessions), source.choice((1, 1, 2, 4))))
    detach = source.random() < 0.3
    store = make(forest)
    gone, detached = truth.delete_set(ids, detach=detach), truth.detached_set(ids, detach=detach)
    planned = store.sessions.delete(ids, detach=detach, dry_run=True)
    assert set(planned.sessions) == gone, (ids, detach)
    assert set(planned.detached) == detached, (ids, detach)
    shown = {entry.root_id for entry in store.sessions.list(limit=100)}
    assert store.sessions.delete(ids, detach=detach) == planned
    with closing(sqlite3.connect(store.path)) as plain:
        left = {row[0] for row in plain.execute("SELECT id FROM sessions")}
        assert left == truth.sessions.keys() - gone
        messages = {row[0] for row in plain.execute("SELECT id FROM messages")}
        assert messages == {one["id"] for one in truth.messages if one["session_id"] not in gone}
        assert len(truth.messages) - len(messages) == planned.messages
        assert not plain.execute(
            "SELECT 1 FROM hs_session_activity WHERE session_id NOT IN (SELECT id FROM sessions)"
        ).fetchall()
    if not detach:
        after = {entry.root_id for entry in store.sessions.list(limit=100)}
        assert after - detached <= shown, "nothing hidden comes to light"


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(at, marks=pytest.mark.full) for at in range(40, 2000))])
def test_walks_lists_and_deletions_are_those_of_the_plain_rows(make: Any, seed: int) -> None:
    forest, source = seeded(seed), random.Random(seed)
    truth = Reference(forest.sessions, forest.messages)
    store = make(forest)
    compare_walks(store, truth)
    compare_lists(store, truth, source)
    store.meta.set("noted", "a write of ours, which settles the heads that are not known")
    compare_lists(store, truth, random.Random(seed))
    without_bounds(store)
    compare_lists(store, truth, random.Random(seed))
    compare_deletions(make, forest, truth, source)


@pytest.mark.parametrize("name", STORES)
def test_released_files_are_walked_and_listed_as_their_rows_say_before_and_after_an_upgrade(
    released: Released, name: str
) -> None:
    path = released(name)
    forest = read(path)
    truth = Reference(forest.sessions, forest.messages)
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        compare_walks(store, truth)
        compare_lists(store, truth, random.Random(name))
    with HermesStore.open(path, migrate="auto") as store:
        upgraded = read(path)
        truth = Reference(upgraded.sessions, upgraded.messages)
        compare_walks(store, truth)
        compare_lists(store, truth, random.Random(name))


@given(forest=forests())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hypothesis_finds_no_forest_that_is_walked_otherwise(make: Any, forest: Forest) -> None:
    compare_walks(make(forest), Reference(forest.sessions, forest.messages))
