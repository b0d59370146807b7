"""Exports are plain data, imports add what is missing, and doing it again adds nothing."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_files import FRESH, Released
from messages.conftest import SESSION, Plain, call, turns

from hermes_store import HermesStore, InvalidMessageError, migrations


@pytest.fixture
def other_path(tmp_path: Path) -> Path:
    path = tmp_path / "other" / "state.db"
    path.parent.mkdir()
    migrations.upgrade(path)
    return path


@pytest.fixture
def other(other_path: Path) -> Iterator[HermesStore]:
    with HermesStore.open(other_path) as opened:
        yield opened


@pytest.fixture
def filled(store: HermesStore, plain: Plain) -> HermesStore:
    store.sessions.rename(SESSION, "Whales")
    store.sessions.create("cron", id="job", system_prompt="be brief", model="m", model_config={"a": 1}, user_id="u")
    store.messages.append_many(
        SESSION,
        [
            {"role": "user", "content": "\0json:[1]"},
            {"role": "user", "content": [{"type": "text", "text": "苹果"}], "display_metadata": {"k": 1}},
            {"role": "assistant", "tool_calls": [call("x"), call("y", "c2")], "token_count": 3, "reasoning": "r"},
            {"role": "user", "content": "rewound"},
        ],
    )
    store.messages.rewind(SESSION, 4)
    store.messages.archive_and_compact(SESSION, turns("SUMMARY", role="assistant"), watermark=2)
    store.messages.publish_compression_child(SESSION, turns("hand-over"), id="child", watermark=0)
    store.messages.append("job", "user", "tick")
    plain.all("INSERT INTO session_model_usage (session_id, model, input_tokens) VALUES ('job', 'm', 42)")
    plain.all("UPDATE sessions SET input_tokens = 42, last_read_at = 0 WHERE id = 'job'")
    return store


def test_an_export_that_is_imported_is_exported_again_the_same(
    filled: HermesStore, other: HermesStore, other_path: Path
) -> None:
    for everything in (False, True):
        documents = json.loads(json.dumps(filled.messages.export(include_inactive=everything)))
        report = other.messages.import_(documents)
        assert (report.conflicts, report.detached, report.retitled, report.unknown) == ({}, {}, {}, ())
        assert other.messages.export(include_inactive=everything) == documents
        Plain(other_path).check()
        again = other.messages.import_(documents)
        assert (again.sessions, again.messages) == ((), 0)
        assert again.skipped_sessions == ("20260501_101500_ab12cd", "child", "job")
        assert again.skipped_messages == sum(len(one["messages"]) for one in documents)
        assert other.messages.export(include_inactive=everything) == documents
        if not everything:
            other.sessions.delete([SESSION, "child", "job"])
    job = other.sessions.get("job")
    assert (job.system_prompt, job.input_tokens, job.model_config) == ("be brief", 42, {"a": 1})
    assert Plain(other_path).all("SELECT model, input_tokens FROM session_model_usage") == [("m", 42)]
    assert other.lineage.kind("child") == "compression"


def test_rewound_messages_are_exported_only_on_request(filled: HermesStore) -> None:
    said = json.dumps(filled.messages.export(SESSION))
    assert "rewound" not in said
    assert "rewound" in json.dumps(filled.messages.export([SESSION], include_inactive=True))


def test_only_what_is_missing_is_added(filled: HermesStore, other: HermesStore, other_path: Path) -> None:
    other.messages.import_(filled.messages.export("job"))
    filled.messages.append_many("job", turns("tock", "tick"))
    report = other.messages.import_(filled.messages.export("job"))
    assert (report.sessions, report.messages, report.skipped_messages, report.skipped_sessions) == ((), 2, 1, ())
    assert [message.content for message in other.messages.list("job")] == ["tick", "tock", "tick"]
    Plain(other_path).check()


def test_messages_without_uids_are_known_by_their_words(other: HermesStore) -> None:
    message = {"role": "user", "content": "same", "timestamp": 1.777e9}
    document = {
        "id": "old",
        "source": "cli",
        "started_at": 1.777e9,
        "messages": [message, message, {**message, "content": 1}],
    }
    assert other.messages.import_([document]).messages == 3
    assert other.messages.import_([document, document]).messages == 0
    assert other.messages.import_([{**document, "messages": [message] * 3}]).messages == 1


def test_a_dry_run_says_the_same_and_changes_nothing(filled: HermesStore, other: HermesStore, other_path: Path) -> None:
    documents = filled.messages.export()
    report = other.messages.import_(documents, dry_run=True)
    assert Plain(other_path).all("SELECT count(*) FROM sessions") == [(0,)]
    assert other.messages.import_(documents) == report
    Plain(other_path).check()


def test_collisions_are_reported_and_overwrite_nothing(filled: HermesStore, other: HermesStore) -> None:
    other.sessions.create("cli", id="job", started_at=1.6e9)
    other.sessions.create("cli", id="mine", title="Whales")
    documents = filled.messages.export([SESSION, "job", "child"])
    del documents[0]["parent_session_id"]
    report = other.messages.import_([{**one, "surprise": 1} for one in documents])
    assert report.conflicts.keys() == {"job"}
    assert report.retitled == {SESSION: "Whales #2"}
    assert report.unknown == ("surprise",)
    assert other.messages.list("job") == []
    assert other.sessions.get("mine").title == "Whales"


def test_a_parent_that_is_nowhere_is_reported(filled: HermesStore, other: HermesStore) -> None:
    report = other.messages.import_(filled.messages.export("child"))
    assert report.detached == {"child": SESSION}
    assert other.sessions.get("child").parent_session_id is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"source": None},
        {"cost_status": object()},
        {"estimated_cost_usd": math.inf},
        {"messages": ["text"]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "user", "timestamp": math.inf}]},
        {"messages": [{"role": "user", "content": b"x"}]},
    ],
)
def test_one_bad_value_refuses_the_whole_import(other: HermesStore, other_path: Path, wrong: dict[str, Any]) -> None:
    good = {"id": "good", "source": "cli", "messages": turns("fine")}
    with pytest.raises(InvalidMessageError, match="session 1"):
        other.messages.import_([good, {**good, "id": "bad", **wrong}])
    assert Plain(other_path).all("SELECT count(*) FROM sessions") == [(0,)]


def test_broken_cells_travel_as_they_are(store: HermesStore, plain: Plain, other: HermesStore) -> None:
    plain.all(
        "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) VALUES (?, 'assistant', ?, '{bad', 9e999)",
        SESSION, "\0json:{broken",
    )  # fmt: skip
    plain.all("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', x'ff41', 1e9)", SESSION)
    documents = json.loads(json.dumps(store.messages.export(), allow_nan=False))
    assert other.messages.import_(documents).messages == 2
    first, second = other.messages.list(SESSION)
    assert (first.content, first.tool_calls) == ("\0json:{broken", "{bad")
    assert second.content == "�A"
    assert other.messages.import_(documents).messages == 0


@pytest.mark.parametrize("name", FRESH)
def test_every_released_file_moves_to_a_new_one(
    released: Released, other: HermesStore, other_path: Path, name: str, tmp_path: Path
) -> None:
    source = released(name)
    with HermesStore.open(source, read_only=True, migrate="off") as old:
        before = old.messages.export(include_inactive=True)
    assert other.messages.import_(before).messages == sum(len(one["messages"]) for one in before)
    assert other.messages.import_(before).messages == 0
    upgraded = Path(shutil.copy(source, tmp_path / "upgraded.db"))
    migrations.upgrade(upgraded)
    with HermesStore.open(upgraded) as new:
        assert new.messages.import_(before).messages == 0
        words = [(one["id"], [m.get("content") for m in one["messages"]]) for one in before]
        for here in (new, other):
            assert [
                (one["id"], [m.get("content") for m in one["messages"]])
                for one in here.messages.export(include_inactive=True)
            ] == words
