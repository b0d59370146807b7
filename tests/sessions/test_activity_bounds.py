"""The table of bounds never promises too little, whoever writes, and a list is right without it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from hermes_store import HermesStore, migrations
from hermes_store.sqlite.activity import ACTIVITY_TABLE, activity_fault, counts_agree, is_wrong
from hermes_store.sqlite.shape import inspect

Plain = Callable[..., list[Any]]
TIMES = (
    1_780_000_000.0,
    1_780_000_899.9,
    1_780_000_900,
    1_779_999_999.99,
    "soon",
    b"x",
    float("inf"),
    -5,
    1.78e12,
    None,
)


def faults(store: HermesStore) -> list[str]:
    with store.read() as unit:
        connection = unit.session.connection()
        assert activity_fault(inspect(connection)) is None
        found = [] if counts_agree(connection) else ["rows are missing"]
        return [*found, *(["a bound or head is wrong"] if is_wrong(connection) else [])]


@pytest.mark.parametrize("seed", range(8))
def test_random_writes_of_another_program_leave_every_bound_high_enough(store: HermesStore, seed: int) -> None:
    source = random.Random(seed)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        for step in range(250):
            one = f"s{source.randrange(12)}"
            time = source.choice(TIMES)
            sql, values = source.choice([
                ("INSERT OR IGNORE INTO sessions (id, source, started_at, last_activity_at) VALUES (?, 'cli', ?, ?)",
                 (one, time or 0, source.choice(TIMES))),
                ("INSERT OR REPLACE INTO sessions (id, source, started_at) VALUES (?, 'cli', ?)", (one, time or 0)),
                ("UPDATE sessions SET last_activity_at = ? WHERE id = ?", (time, one)),
                ("UPDATE sessions SET started_at = ? WHERE id = ?", (time or 0, one)),
                ("UPDATE OR IGNORE sessions SET id = ? WHERE id = ?", (f"s{source.randrange(12)}", one)),
                ("DELETE FROM sessions WHERE id = ?", (one,)),
                ("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'x', ?)",
                 (one, time or 0)),
                (("INSERT OR REPLACE INTO messages (id, session_id, role, content, timestamp)"
                 " VALUES (?, ?, 'user', 'x', ?)"), (source.randrange(1, 60), one, time or 0)),
                ("UPDATE messages SET timestamp = ? WHERE id = ?", (time or 0, source.randrange(1, 60))),
                ("UPDATE messages SET session_id = ? WHERE id = ?", (one, source.randrange(1, 60))),
                ("DELETE FROM messages WHERE id = ?", (source.randrange(1, 60),)),
            ])  # fmt: skip
            try:
                other.execute(sql, values)
            except sqlite3.IntegrityError:
                assert "NOT NULL" in sql or values[-1] is None or "REPLACE" in sql, sql
            if step % 50 == 49:
                assert faults(store) == []


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_of_lineage_never_leave_a_wrong_head(store: HermesStore, seed: int) -> None:
    source = random.Random(seed)
    ids = [f"s{number}" for number in range(10)]
    configs = [None, "{}", '{"_delegate_from": "s1"}', '{"_branched_from": "s2"}', "{broken"]
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        for step in range(200):
            one, parent = source.choice(ids), source.choice([None, *ids])
            time = 1_780_000_000.0 + source.choice((0, 0.5, 1, 2, 60))
            sql, values = source.choice(
                [
                    (
                        (
                            "INSERT OR IGNORE INTO sessions (id, source, started_at, parent_session_id, model_config)"
                            " VALUES (?, 'cli', ?, ?, ?)"
                        ),
                        (one, time, parent, source.choice(configs)),
                    ),
                    (
                        (
                            "INSERT OR REPLACE INTO sessions (id, source, started_at, parent_session_id)"
                            " VALUES (?, 'cli', ?, ?)"
                        ),
                        (one, time, parent),
                    ),
                    ("UPDATE sessions SET end_reason = 'compression', ended_at = ? WHERE id = ?", (time, one)),
                    ("UPDATE sessions SET end_reason = 'compression', ended_at = ? WHERE id = ?", (time, one)),
                    ("UPDATE sessions SET end_reason = NULL, ended_at = NULL WHERE id = ?", (one,)),
                    ("UPDATE sessions SET parent_session_id = ? WHERE id = ?", (parent, one)),
                    ("UPDATE sessions SET model_config = ? WHERE id = ?", (source.choice(configs), one)),
                    ("UPDATE sessions SET source = ? WHERE id = ?", (source.choice(("cli", "tool", "subagent")), one)),
                    ("UPDATE sessions SET started_at = ? WHERE id = ?", (time, one)),
                    ("UPDATE OR IGNORE sessions SET id = ? WHERE id = ?", (source.choice(ids), one)),
                    ("DELETE FROM sessions WHERE id = ?", (one,)),
                ]
            )
            other.execute(sql, values)
            if step % 7 == 0:
                store.meta.set("noted", str(step))  # a write of ours settles what it can
            if step % 10 == 9:
                assert faults(store) == [], (step, sql, values)
        store.meta.set("noted", "last")
        assert other.execute("SELECT session_id FROM hs_session_activity WHERE head_id IS NULL").fetchall() == []


def test_a_bound_is_written_once_in_a_quarter_of_an_hour(store: HermesStore) -> None:
    store.sessions.create("cli", id="one", started_at=1_780_000_000)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("CREATE TEMP TABLE written (quarter INTEGER)")
        other.execute(
            "CREATE TEMP TRIGGER watch AFTER UPDATE OF quarter ON main.hs_session_activity"
            " BEGIN INSERT INTO written VALUES (new.quarter); END"
        )
        for second in range(0, 2000, 100):
            other.execute(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('one', 'user', 'x', ?)",
                (1_780_000_001 + second,),
            )
        assert len(other.execute("SELECT quarter FROM written").fetchall()) == 2
        other.rollback()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER hs_activity_message_insert",
        "DROP INDEX ix_hs_session_activity_latest",
        f"DELETE FROM {ACTIVITY_TABLE} WHERE session_id = 'b'",
        f"DROP TABLE {ACTIVITY_TABLE}",
    ],
)
def test_a_list_is_right_whatever_became_of_the_table(
    store: HermesStore, plain: Plain, say: Callable[..., None], statement: str
) -> None:
    for at, one in enumerate("abc"):
        store.sessions.create("cli", id=one, started_at=1_780_000_000 + at)
    if "DROP TABLE" in statement:
        for (name,) in plain("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'hs_activity%'"):
            plain(f"DROP TRIGGER {name}")
    plain(statement)
    say("a", timestamp=1_780_100_000.0)
    assert [entry.id for entry in store.sessions.list()] == ["a", "c", "b"]
    assert store.sessions.total() == 3


def test_an_upgrade_puts_right_what_was_written_while_the_triggers_were_off(store: HermesStore, plain: Plain) -> None:
    store.sessions.create("cli", id="a", started_at=1_780_000_000)
    text = plain("SELECT sql FROM sqlite_master WHERE name = 'hs_activity_message_insert'")[0][0]
    plain("DROP TRIGGER hs_activity_message_insert")
    plain("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('a', 'user', 'x', 1780100000)")
    plain(text)
    assert faults(store) == ["a bound or head is wrong"]
    assert migrations.upgrade(store.path).changed
    assert faults(store) == []
    assert not migrations.upgrade(store.path).changed
    plain("DROP TRIGGER hs_activity_session_insert")
    plain("INSERT INTO sessions (id, source, started_at) VALUES ('b', 'cli', 1780000000)")
    assert migrations.upgrade(store.path).changed
    assert faults(store) == []


def test_going_back_leaves_nothing(store: HermesStore, plain: Plain) -> None:
    migrations.downgrade(store.path, "hs03")
    left = plain("SELECT name FROM sqlite_master WHERE name LIKE 'hs_activity%' OR name LIKE '%hs_session%'")
    assert left == []
    store.sessions.create("cli", id="a")
    assert [entry.id for entry in store.sessions.list()] == ["a"]
    assert migrations.upgrade(store.path).changed
    assert faults(store) == []
