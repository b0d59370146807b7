"""The newest release reads what we write, and we what it writes, message by message; its counters agree with ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import releases
from messages.conftest import SESSION, Plain, call, turns

from hermes_store import HermesStore

pytestmark = pytest.mark.peer

NEWEST = releases.V0_22_2

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "plain words"},
    {"role": "user", "content": "naïve 🙂 苹果"},
    {"role": "user", "content": [{"type": "text", "text": "苹果派"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
    {"role": "user", "content": {"a": [1, None, True]}},
    {"role": "user", "content": "\0json:[1,2]"},
    {"role": "user", "content": "\0json:{broken"},
    {"role": "user", "content": "nul \0 inside"},
    {"role": "user", "content": "half \ud835 pair"},
    {"role": "assistant", "content": None, "tool_calls": [call("search", q="Ü"), call("look", "call_2")]},
    {"role": "tool", "content": "result", "tool_call_id": "call_1", "tool_name": "search"},
    {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "call_2", "tool_name": "look"},
    {
        "role": "assistant", "content": "answer", "finish_reason": "stop", "reasoning": "why", "token_count": 7,
        "reasoning_content": "exactly why", "reasoning_details": [{"type": "r"}], "codex_message_items": [{"m": 1}],
        "display_kind": "steer", "display_metadata": {"k": "v"}, "platform_message_id": "p1", "api_content": "sent",
    },
    {"role": "system", "content": "rules"},
]  # fmt: skip
COLUMNS = (
    "role", "content", "tool_calls", "tool_call_id", "tool_name", "finish_reason", "reasoning", "reasoning_content",
    "reasoning_details", "codex_message_items", "display_kind", "display_metadata", "platform_message_id",
    "api_content", "token_count", "observed", "active", "compacted", "_compressed_summary",
)  # fmt: skip
#: What a conversation has in both; the release leaves out what is empty and strips texts.
TURN = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "tool_name",
    "reasoning",
    "display_metadata",
    "message_uid",
    "timestamp",
)


def theirs(path: Path, expression: str) -> Any:
    """The value of an expression of the release's; ``db`` is its store."""
    out = path.with_name("answer.json")
    releases.call(NEWEST, path, f"open({str(out)!r}, 'w').write(json.dumps({expression}))")
    return json.loads(out.read_text())


def do(path: Path, code: str, **values: Any) -> None:
    """Let the release do something with values."""
    data = path.with_name("data.json")
    data.write_text(json.dumps(values))
    releases.call(NEWEST, path, f"globals().update(json.load(open({str(data)!r})))\n{code}")


def stored(plain: Plain, session_id: str = SESSION) -> list[tuple[Any, ...]]:
    return plain.all(f"SELECT {', '.join(COLUMNS)} FROM messages WHERE session_id = ? ORDER BY id", session_id)


def told(turns_: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: turn[name] for name in TURN if turn.get(name) is not None} for turn in turns_]


def test_both_store_the_same_cells_for_the_same_messages(store: HermesStore, path: Path, plain: Plain) -> None:
    store.sessions.create("cli", id="theirs")
    store.sessions.create("cli", id="one by one")
    store.messages.append_many(SESSION, MESSAGES)
    for message in MESSAGES:
        store.messages.append("one by one", **message)
    do(path, "db.append_messages_batch('theirs', messages)", messages=MESSAGES)
    assert stored(plain) == stored(plain, "theirs") == stored(plain, "one by one")
    assert plain.counters() == plain.counters("theirs") == plain.counters("one by one") == (len(MESSAGES), 2)


def test_what_we_write_it_reads_the_same(store: HermesStore, path: Path) -> None:
    ids = store.messages.append_many(SESSION, MESSAGES)
    read = theirs(path, f"db.get_messages({SESSION!r})")
    ours = store.messages.list(SESSION)
    assert [one["id"] for one in read] == ids
    assert [(one["content"], one["tool_calls"]) for one in read] == [(one.content, one.tool_calls) for one in ours]
    assert told(theirs(path, f"db.get_messages_as_conversation({SESSION!r})")) == told(
        store.messages.conversation(SESSION)
    )


def test_what_it_writes_we_read_the_same(store: HermesStore, path: Path) -> None:
    do(path, "for m in messages: db.append_message(session, **m)", session=SESSION, messages=MESSAGES)
    read = theirs(path, f"db.get_messages({SESSION!r})")
    ours = store.messages.list(SESSION)
    assert [(one["id"], one["content"], one["tool_calls"], one["timestamp"]) for one in read] == [
        (one.id, one.content, one.tool_calls, one.timestamp) for one in ours
    ]
    assert all(one.problems == () for one in ours)
    assert told(theirs(path, f"db.get_messages_as_conversation({SESSION!r})")) == told(
        store.messages.conversation(SESSION)
    )


def test_it_goes_on_where_we_compacted_and_rewound(store: HermesStore, path: Path, plain: Plain) -> None:
    ids = store.messages.append_many(SESSION, turns("first", "second", "third"))
    tail = store.messages.conversation(SESSION)[2:]
    late = store.messages.append(SESSION, "user", "late")
    store.messages.archive_and_compact(SESSION, [*turns("SUMMARY"), *tail], watermark=ids[2])
    last = store.messages.append(SESSION, "user", "regretted")
    store.messages.rewind(SESSION, last)
    assert [one["content"] for one in theirs(path, f"db.get_messages({SESSION!r})")] == ["SUMMARY", "third", "late"]
    shown = theirs(path, f"db.get_messages({SESSION!r}, include_compacted=True)")
    assert sorted(one["content"] for one in shown) == ["SUMMARY", "first", "late", "second", "third"]
    found = releases.search(NEWEST, path, ["third", "late", "regretted", "first"], limit=10)
    assert {word: len(hits) for word, hits in found.items()} == {"third": 1, "late": 1, "regretted": 0, "first": 1}
    assert late not in found["late"]
    do(path, "db.append_message(session, 'user', 'theirs now')", session=SESSION)
    assert plain.counters() == (4, 0)
    plain.check()


def test_we_go_on_where_it_compacted_and_rewound(store: HermesStore, path: Path, plain: Plain) -> None:
    ids = store.messages.append_many(
        SESSION, [*turns("first", "second", "third"), {"role": "assistant", "tool_calls": [call("x")]}]
    )
    do(
        path,
        "m = db.get_messages_as_conversation(session)[2:3]\n"
        "db.append_message(session, 'user', 'late')\n"
        "db.archive_and_compact(session, [{'role': 'user', 'content': 'SUMMARY'}] + m, watermark=watermark, tail_count=0, carried_messages=m)\n"
        "r = db.append_message(session, 'user', 'regretted')\n"
        "db.rewind_to_message(session, r)",
        session=SESSION, watermark=ids[3],
    )  # fmt: skip
    assert [one.content for one in store.messages.list(SESSION)] == ["SUMMARY", "third", "late"]
    assert store.messages.restore(SESSION, 1) == (plain.one("SELECT max(id) FROM messages"),)
    assert [one.content for one in store.messages.list(SESSION, include_archived=True)] == [
        "first", "second", None, "SUMMARY", "third", "late", "regretted",
    ]  # fmt: skip
    assert plain.counters() == (4, 0)
    plain.check()


def test_it_resumes_into_a_child_that_we_published(store: HermesStore, path: Path, plain: Plain) -> None:
    store.messages.append_many(SESSION, turns("first", "second"))
    store.messages.publish_compression_child(SESSION, turns("SUMMARY"), id="child", watermark=1)
    assert theirs(path, f"db.get_compression_tip({SESSION!r})") == "child"
    whole = theirs(path, "db.get_messages_as_conversation('child', include_ancestors=True)")
    assert told(whole) == told(store.messages.conversation("child", include_ancestors=True))
    assert [turn["content"] for turn in whole] == ["first", "SUMMARY", "second"]
    with pytest.raises(releases.ReleaseError, match="CompressionSessionClosedError"):
        do(path, "db.append_message(session, 'user', 'x')", session=SESSION)
    plain.check()


def test_exports_are_taken_by_each_other(store: HermesStore, path: Path, plain: Plain, tmp_path: Path) -> None:
    store.messages.append_many(SESSION, MESSAGES)
    document = theirs(path, f"db.export_session({SESSION!r})")
    report = store.messages.import_([document])
    assert (report.messages, report.skipped_messages) == (0, len(MESSAGES))
    (ours,) = store.messages.export(SESSION)
    store.sessions.delete(SESSION)
    do(path, "db.import_sessions([document])", document=ours)
    assert [one.content for one in store.messages.list(SESSION)] == [one["content"] for one in document["messages"]]
    store.sessions.delete(SESSION)
    assert store.messages.import_([document]).messages == len(MESSAGES)
    plain.all("DELETE FROM messages WHERE instr(content, char(0))")
