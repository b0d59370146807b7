"""What outside readers see is what this package sees, and it costs them what they ask for."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lineage.forests import seeded, write
from lineage.reference import Reference
from sqlalchemy import event

from hermes_store import HermesStore
from hermes_store.edges import lineage_views


@pytest.fixture
def path(empty_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(empty_file, tmp_path / "state.db"))


def test_the_files_views_are_those_of_this_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain:
        stored = dict(plain.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view' AND name GLOB 'hs_*'"))
    assert stored == {name: f"CREATE VIEW {name} AS\n{select}" for name, select in lineage_views().items()}


@pytest.mark.parametrize("seed", range(20))
def test_any_program_reads_the_same_from_the_files_views(path: Path, seed: int) -> None:
    forest = seeded(seed)
    truth = Reference(forest.sessions, forest.messages)
    write(path, forest)
    with closing(sqlite3.connect(path)) as plain:
        rows = plain.execute("SELECT session_id, parent_id, kind, root_id, tip_id, depth FROM hs_session_lineage")
        assert {row[0]: row[1:] for row in rows} == {
            id_: (row["parent_session_id"], truth.kind(id_), truth.root(id_), truth.tip(id_), truth.depth(id_))
            for id_, row in truth.sessions.items()
        }


def test_search_tables_can_still_be_renamed_and_sessions_still_gain_columns(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain:
        for index in ("messages_fts", "messages_fts_trigram"):
            for part in ("insert", "update", "delete"):
                plain.execute(f"DROP TRIGGER IF EXISTS {index}_{part}")
            plain.execute(f"ALTER TABLE {index} RENAME TO fts_v22_trash_{index}")
        plain.execute("ALTER TABLE sessions ADD COLUMN of_a_later_release TEXT")
        plain.execute("INSERT INTO sessions (id, source, started_at) VALUES ('a', 'cli', 1e9)")
        assert plain.execute("SELECT kind, tip_id FROM hs_session_lineage").fetchall() == [("root", "a")]


@pytest.fixture
def many(path: Path) -> Path:
    """3,000 sessions in chains of six, three messages each."""
    with closing(sqlite3.connect(path)) as plain, plain:
        for at in range(3000):
            chain, place = divmod(at, 6)
            start = 1_780_000_000.0 + chain * 5000 + place * 600
            plain.execute(
                "INSERT INTO sessions (id, source, parent_session_id, started_at, ended_at, end_reason)"
                " VALUES (?, 'cli', ?, ?, ?, ?)",
                (f"{chain:04}-{place}", f"{chain:04}-{place - 1}" if place else None, start, start + 600 if place < 5 else None,
                 "compression" if place < 5 else None),
            )  # fmt: skip
            plain.executemany(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'hi', ?)",
                [(f"{chain:04}-{place}", start + second) for second in range(3)],
            )
    return path


@pytest.fixture
def statements(many: Path) -> Iterator[Callable[[Callable[[HermesStore], Any]], list[tuple[str, Any]]]]:
    """Collect the statements of a call."""
    with HermesStore.open(many) as store:
        store.sessions.list()
        found: list[tuple[str, Any]] = []

        @event.listens_for(store._engine, "before_cursor_execute")
        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if not statement.startswith(("BEGIN", "PRAGMA")):
                found.append((statement, parameters))

        def run(call: Callable[[HermesStore], Any]) -> list[tuple[str, Any]]:
            found.clear()
            call(store)
            return list(found)

        yield run


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.sessions.list(),
        lambda store: store.sessions.list(5, 100),
        lambda store: store.sessions.list(order="started"),
        lambda store: store.lineage.tip("0100-0"),
        lambda store: store.lineage.root("0100-5"),
        lambda store: store.lineage.chain("0100-3"),
        lambda store: store.lineage.tree("0100-0"),
        lambda store: store.lineage.ancestors("0100-5"),
        lambda store: store.lineage.descendants("0100-0"),
        lambda store: store.lineage.tips(["0100-0", "0200-3"]),
        lambda store: store.sessions.delete("0100-2", dry_run=True),
    ],
)
def test_no_listing_or_walk_scans_messages_or_sessions(
    many: Path, statements: Callable[..., list[tuple[str, Any]]], call: Callable[[HermesStore], Any]
) -> None:
    ran = statements(call)
    assert ran
    with HermesStore.open(many, read_only=True) as store, store.read() as unit:
        connection = unit.session.connection()
        for statement, parameters in ran:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            steps = [str(row[3]) for row in plan]
            if "instr(sessions.model_config" in statement:
                continue  # delegates that lost their parent are looked for by their settings
            allowed = ("USING INDEX idx_sessions_started", "USING COVERING INDEX")
            scans = [
                step
                for step in steps
                if step.startswith(("SCAN messages", "SCAN m", "SCAN s", "SCAN sessions", "SCAN head"))
                and not any(part in step for part in allowed)
            ]
            assert scans == [], (scans, statement)


def test_a_page_takes_the_same_number_of_statements_whatever_its_size(
    statements: Callable[..., list[tuple[str, Any]]],
) -> None:
    counts = {
        len(statements(lambda store, size=size: store.sessions.list(size, order="started"))) for size in (2, 20, 80)
    }
    assert len(counts) == 1
    few, many = (len(statements(lambda store, size=size: store.sessions.list(size))) for size in (2, 200))
    assert many - few <= 3 * 4, "a few batches more, each larger than the last"
