"""Rows that are bad are shown and flagged; they never break a listing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from hermes_store import HermesStore, bind, migrations


@pytest.fixture(scope="session")
def bad_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "state.db"
    migrations.upgrade(path)
    with sqlite3.connect(path) as plain:
        rows = [
            ("good", "cli", "Good", 1_783_700_000.0, None, None),
            ("text_time", "cli", "Text time", "yesterday", None, None),
            ("inf_time", "cli", "Infinite", float("inf"), None, None),
            ("blob_time", "cli", "Blob", b"\x01", None, None),
            ("ms_time", "cli", "Milliseconds", 1_783_700_000_000.0, None, None),
            ("bad_json", "cli", "Broken", 1_783_700_001.0, "{bad", None),
            ("list_json", "cli", "List", 1_783_700_002.0, "[1]", None),
            ("self", "cli", "Self", 1_783_700_003.0, None, "self"),
            ("ring_a", "cli", "A", 1_783_700_004.0, None, "ring_b"),
            ("ring_b", "cli", "B", 1_783_700_005.0, None, "ring_a"),
            ("dangling", "cli", "Dangling", 1_783_700_006.0, None, "nobody"),
        ]
        plain.executemany(
            "INSERT INTO sessions (id, source, title, started_at, model_config, parent_session_id) VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
        plain.execute(
            "INSERT INTO sessions (id, source, title, started_at) VALUES ('bytes', 'cli', CAST(x'4142ff' AS TEXT), 1e9)"
        )
        messages = [
            ("user", "plain text needleword", None, 1_783_700_000.0),
            ("user", '\0json:[{"type": "text", "text": "multimodal needleword"}]', None, 1_783_700_001.0),
            ("user", "\0json:{broken needleword", None, 1_783_700_002.0),
            ("assistant", None, "not json needleword", 1_783_700_003.0),
            ("assistant", "calls", '[{"function": {"name": "x"}}]', "text time"),
            ("robot", b"bytes needleword \xff", None, 1_783_700_004.0),
            ("user", 3.5, None, float("inf")),
        ]
        plain.executemany(
            "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) VALUES ('good', ?, ?, ?, ?)",
            messages,
        )
        plain.execute(
            "INSERT INTO messages (session_id, role, content, timestamp)"
            " VALUES ('good', 'user', CAST(x'6e6565646c65776f726420ff' AS TEXT), 1e9)"
        )
    plain.close()
    return path


def test_every_session_is_listed_and_what_is_wrong_is_said(bad_file: Path) -> None:
    with HermesStore.open(bad_file, read_only=True) as store:
        entries = {entry.root_id: entry for entry in store.sessions.list(limit=100, include_children=True)}
        assert {
            "good",
            "text_time",
            "inf_time",
            "blob_time",
            "ms_time",
            "bad_json",
            "self",
            "dangling",
            "bytes",
        } <= set(entries)
        for name in ("text_time", "inf_time", "blob_time", "ms_time"):
            info = store.sessions.get(name)
            assert info.started is None
            assert info.started_at is None
            assert info.problems[0].startswith("started_at: ")
        assert store.sessions.get("bad_json").model_config == "{bad"
        assert store.sessions.get("bad_json").problems == ("model_config: no valid JSON",)
        assert store.sessions.get("bytes").title == "AB\ufffd"
        assert store.sessions.get("bytes").problems == ("title: not valid UTF-8",)
        assert store.sessions.get("good").problems == ()


def test_rings_and_dangling_parents_end_every_walk(bad_file: Path) -> None:
    with HermesStore.open(bad_file, read_only=True) as store:
        assert store.lineage.kind("dangling") == "root"
        assert store.lineage.kind("self") == "root"
        assert store.lineage.ancestors("ring_a") == ["ring_b"]
        assert store.lineage.descendants("ring_a") == ["ring_b"]
        assert store.lineage.tip("ring_a") == "ring_a"


def test_every_message_is_read_and_what_is_wrong_is_said(bad_file: Path) -> None:
    with HermesStore.open(bad_file, read_only=True) as store:
        plain, parts, broken, calls, fine_calls, raw, number, bytes_ = store.messages.list("good")
        assert plain.problems == ()
        assert parts.text == "multimodal needleword"
        assert parts.content == [{"type": "text", "text": "multimodal needleword"}]
        assert broken.problems == ("content: broken JSON",)
        assert calls.tool_calls == "not json needleword"
        assert calls.problems == ("tool_calls: no valid JSON",)
        assert fine_calls.tool_calls == [{"function": {"name": "x"}}]
        assert fine_calls.problems == ("timestamp: str instead of a number",)
        assert raw.role == "robot"
        assert raw.problems
        assert number.problems == ("timestamp: not finite",)
        assert bytes_.text == "needleword \ufffd"
        assert bytes_.problems


def test_search_finds_what_can_be_read_of_bad_rows(bad_file: Path) -> None:
    with HermesStore.open(bad_file, read_only=True) as store:
        for sort in ("rank", "newest", "oldest"):
            ids = {hit.id for hit in store.search("needleword", sort=sort).hits}
            assert {1, 2, 8} <= ids, sort


def test_an_application_keeps_its_engine_and_its_transaction(bad_file: Path) -> None:
    engine = create_engine(f"sqlite:///{bad_file}")
    store = HermesStore(engine)
    assert store.sessions.get("bytes").title == "AB\ufffd"
    store.meta.set("app", "1")
    with pytest.raises(RuntimeError), store.write() as tx:
        tx.meta.set("app", "2")
        raise RuntimeError
    assert store.meta.get("app") == "1"
    store.close()
    with Session(engine) as session, session.begin():
        tx = bind(session)
        assert tx.sessions.get("good").title == "Good"
        tx.meta.set("app", "3")
        session.rollback()
    assert store.meta.get("app") == "1"
    store.meta.delete("app")
    engine.dispose()
