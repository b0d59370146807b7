"""What is appended is stored as Hermes stores it, comes back as it was given, and is counted."""

from __future__ import annotations

import json
import logging
import math
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from messages.conftest import SESSION, Plain, call, turns
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from hermes_store import HermesStore, InvalidMessageError, NotFoundError, SessionContinuedError, bind
from hermes_store.models import Message

PARTS = [
    {"type": "text", "text": "苹果派说明书"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


@pytest.mark.parametrize(
    ("content", "stored"),
    [
        ("plain text", "plain text"),
        ("", ""),
        (None, None),
        ("naïve 🙂 苹果", "naïve 🙂 苹果"),
        (PARTS, "\0json:" + json.dumps(PARTS)),
        ({"a": [1, None, True]}, '\0json:{"a": [1, null, true]}'),
        ([], "\0json:[]"),
        ("\0json:[1,2]", '\0json:"\\u0000json:[1,2]"'),
        ("a\0b", "a\0b"),
        (7, "7"),
        (2**70, str(2**70)),
    ],
)
def test_content_is_stored_as_hermes_stores_it_and_comes_back(
    store: HermesStore, plain: Plain, content: Any, stored: Any
) -> None:
    id_ = store.messages.append(SESSION, "user", content)
    with_many = store.messages.append_many(SESSION, [{"role": "user", "content": content}] * 2)
    for one in (id_, *with_many):
        assert plain.one("SELECT content FROM messages WHERE id = ?", one) == stored
        read = store.messages.get(one)
        assert read.content == (str(content) if isinstance(content, int) else content)
        assert read.problems == ()
    assert plain.counters() == (3, 0)


def test_halves_of_surrogate_pairs_are_replaced_and_counted(
    store: HermesStore, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hermes_store.messages"):
        id_ = store.messages.append(
            SESSION, "assistant", "secret \ud835 \udc00 words", reasoning="\ud800",
            tool_calls=[call("x", text="fine 😀"), {"id": "\udfff"}],
        )  # fmt: skip
        other = store.messages.append(SESSION, "user", [{"type": "text", "text": "\ud835"}])
    assert store.messages.get(id_).content == "secret � � words"
    assert store.messages.get(id_).reasoning == "�"
    assert store.messages.get(id_).tool_calls == [call("x", text="fine 😀"), {"id": "�"}]
    assert store.messages.get(other).text == "�"
    assert [record.getMessage().split()[0] for record in caplog.records] == ["4", "1"]
    assert "secret" not in caplog.text
    plain.one("SELECT count(*) FROM messages WHERE content GLOB '*words*'")


def test_tool_calls_are_stored_once_whatever_form_they_come_in(store: HermesStore, plain: Plain) -> None:
    calls = [call("read", path="a"), call("write", "call_2", path="Ü")]
    ids = store.messages.append_many(
        SESSION,
        [
            {"role": "assistant", "tool_calls": calls},
            {"role": "assistant", "tool_calls": json.dumps(calls)},
            {"role": "assistant", "tool_calls": calls[0]},
            {"role": "assistant", "tool_calls": []},
            {"role": "assistant", "tool_calls": "[]"},
            {"role": "assistant", "tool_calls": None},
        ],
    )
    read = [store.messages.get(one).tool_calls for one in ids]
    assert read == [calls, calls, calls[0], None, None, None]
    assert plain.one("SELECT tool_calls FROM messages WHERE id = ?", ids[1]) == json.dumps(calls)
    assert plain.counters() == (6, 5)


def test_a_time_is_now_or_what_is_given(store: HermesStore) -> None:
    before = time.time()
    ids = store.messages.append_many(SESSION, turns("a", "b", "c"))
    times = [store.messages.get(one).timestamp for one in ids]
    assert before <= times[0] < times[1] < times[2] <= time.time() + 0.001
    moment = datetime(2026, 5, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
    one = store.messages.get(store.messages.append(SESSION, "user", "d", timestamp=moment))
    assert one.timestamp_at == moment.astimezone(UTC)
    assert store.messages.get(store.messages.append(SESSION, "user", "e", timestamp=1_777_000_000)).timestamp == 1.777e9


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": b"bytes"},
        {"content": bytearray(b"bytes")},
        {"content": object()},
        {"content": True},
        {"content": math.inf},
        {"content": {"a": {1, 2}}},
        {"content": [math.nan]},
        {"content": {"a": b"bytes"}},
        {"tool_calls": "not json"},
        {"tool_calls": 7},
        {"tool_calls": [b"bytes"]},
        {"timestamp": math.nan},
        {"timestamp": math.inf},
        {"timestamp": 0},
        {"timestamp": 1_777_000_000_000},
        {"timestamp": 10**400},
        {"timestamp": "yesterday"},
        {"timestamp": True},
        {"timestamp": datetime(2026, 5, 1)},  # noqa: DTZ001 - without a zone, on purpose
        {"role": ""},
        {"role": None},
        {"role": 3},
        {"tool_name": b"x"},
        {"tool_call_id": ["x"]},
        {"token_count": -1},
        {"token_count": 1.5},
        {"token_count": 2**63},
        {"observed": "yes"},
        {"display_metadata": 7},
        {"no_such_column": 1},
        {"display_order": 1},
    ],
)
def test_what_cannot_be_stored_is_an_error_before_anything_is_written(
    store: HermesStore, plain: Plain, wrong: dict[str, Any]
) -> None:
    given = {"role": "user", "content": "private words"} | wrong
    with pytest.raises(InvalidMessageError) as single:
        store.messages.append(SESSION, **given)
    with pytest.raises(InvalidMessageError, match="message 1") as many:
        store.messages.append_many(SESSION, [*turns("fine"), given])
    for error in (single, many):
        assert "private" not in str(error.value)
        assert isinstance(error.value, ValueError)
    assert plain.flags() == []
    assert plain.counters() == (0, 0)


def test_all_columns_can_be_given_and_private_names_are_left_alone(store: HermesStore, plain: Plain) -> None:
    id_ = store.messages.append(
        SESSION, "assistant", "answer", token_count=12, finish_reason="stop", reasoning="why",
        reasoning_content="exactly why", reasoning_details=[{"a": 1}], codex_reasoning_items='[{"b": 2}]',
        platform_message_id=123456, observed=True, compressed_summary=True, effect_disposition="none",
        api_content="sent", display_kind="steer", display_metadata={"k": "v"}, message_uid="ab" * 16,
        _db_persisted=True, _row_id=99,
    )  # fmt: skip
    columns = (
        "token_count, finish_reason, reasoning, reasoning_content, reasoning_details, codex_reasoning_items,"
        " platform_message_id, observed, _compressed_summary, effect_disposition, api_content, display_kind,"
        " display_metadata, message_uid, display_order"
    )
    assert plain.all(f"SELECT {columns} FROM messages WHERE id = ?", id_) == [
        (12, "stop", "why", "exactly why", '[{"a": 1}]', '[{"b": 2}]', "123456", 1, 1, "none", "sent", "steer",
         '{"k": "v"}', "ab" * 16, id_)
    ]  # fmt: skip


def test_many_are_all_or_none_and_in_order(store: HermesStore, plain: Plain) -> None:
    ids = store.messages.append_many(SESSION, turns(*map(str, range(2_500))))
    assert ids == sorted(ids)
    assert [message.content for message in store.messages.list(SESSION)] == [str(n) for n in range(2_500)]
    assert plain.all("SELECT count(*), count(DISTINCT message_uid), sum(display_order = id) FROM messages") == [
        (2_500,) * 3
    ]
    assert store.messages.append_many(SESSION, iter(())) == []
    plain.check()


def test_ids_are_never_given_twice(store: HermesStore) -> None:
    (*_, last) = store.messages.append_many(SESSION, turns("a", "b"))
    store.messages.delete(SESSION, last)
    assert store.messages.append_many(SESSION, turns("c", "d")) == [last + 1, last + 2]
    store.messages.delete(SESSION, [last + 1, last + 2])
    assert store.messages.append(SESSION, "user", "e") == last + 3


def test_a_session_that_is_not_there_is_said_so(store: HermesStore) -> None:
    for attempt in (
        lambda: store.messages.append("nobody", "user", "x"),
        lambda: store.messages.append_many("nobody", turns("x", "y")),
        lambda: store.messages.append_many("nobody", []),
        lambda: store.messages.list("nobody"),
        lambda: store.messages.conversation("nobody"),
        lambda: store.messages.rewind("nobody", 1),
        lambda: store.messages.replace("nobody", []),
        lambda: store.messages.archive_and_compact("nobody", turns("x")),
        lambda: store.messages.publish_compression_child("nobody", turns("x")),
        lambda: store.messages.export("nobody"),
        lambda: store.messages.watermark("nobody"),
    ):
        with pytest.raises(NotFoundError, match="nobody"):
            attempt()


def test_a_session_that_ended_by_compression_names_where_it_goes_on(store: HermesStore, plain: Plain) -> None:
    store.messages.append(SESSION, "user", "first")
    store.messages.publish_compression_child(SESSION, turns("summary"), id="second")
    store.messages.publish_compression_child("second", turns("summary"), id="third")
    for attempt in (
        lambda: store.messages.append(SESSION, "user", "x"),
        lambda: store.messages.append_many(SESSION, turns("x", "y")),
        lambda: store.messages.replace(SESSION, turns("x")),
        lambda: store.messages.archive_and_compact(SESSION, turns("x")),
        lambda: store.messages.publish_compression_child(SESSION, turns("x")),
        lambda: store.messages.rewind(SESSION, 1),
    ):
        with pytest.raises(SessionContinuedError, match="third") as refused:
            attempt()
        assert (refused.value.session_id, refused.value.tip) == (SESSION, "third")
    assert plain.counters() == (1, 0)
    store.sessions.create("cli", id="lost")
    store.sessions.end("lost", "compression")
    with pytest.raises(SessionContinuedError, match="reopen"):
        store.messages.append("lost", "user", "x")
    store.sessions.create("cli", id="ended")
    store.sessions.end("ended", "user_exit")
    assert store.messages.append("ended", "user", "x") > 0


def test_appending_counts_on_from_what_is_there_and_leaves_the_activity_alone(store: HermesStore, plain: Plain) -> None:
    plain.all("UPDATE sessions SET message_count = NULL, tool_call_count = NULL, last_activity_at = 1777630600.0")
    store.messages.append(SESSION, "assistant", tool_calls=[call("x")])
    assert plain.counters() == (1, 1)
    assert plain.one("SELECT last_activity_at FROM sessions") == 1777630600.0


def test_a_unit_of_work_takes_all_back(store: HermesStore, plain: Plain) -> None:
    with pytest.raises(RuntimeError, match="stop"), store.write() as tx:
        tx.messages.append(SESSION, "user", "one")
        tx.messages.append_many(SESSION, turns("two", "three"))
        assert len(tx.messages.list(SESSION)) == 3
        raise RuntimeError("stop")
    assert plain.flags() == []
    assert plain.counters() == (0, 0)
    plain.check()


def test_bad_rows_of_others_are_shown_and_flagged(store: HermesStore, plain: Plain) -> None:
    plain.all(
        "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) VALUES (?, 'assistant', ?, ?, 1.777e9)",
        SESSION, "\0json:{broken", "not json",
    )  # fmt: skip
    (read,) = store.messages.list(SESSION)
    assert (read.content, read.tool_calls) == ("\0json:{broken", "not json")
    assert read.problems == ("content: broken JSON", "tool_calls: no valid JSON")
    (turn,) = store.messages.conversation(SESSION)
    assert turn["content"] == "\0json:{broken"
    assert "tool_calls" not in turn


def test_many_messages_take_few_statements_and_one_takes_two(store: HermesStore) -> None:
    said: list[str] = []
    event.listen(store._engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    store.messages.append_many(SESSION, turns(*map(str, range(1_000))))
    assert sum("INSERT INTO messages " in one for one in said) < 20
    assert sum(one.startswith("UPDATE sessions") for one in said) == 1
    said.clear()
    store.messages.append(SESSION, "user", "one")
    assert [one.split()[0] for one in said if " messages" in one or " sessions" in one][:2] == [
        "UPDATE",
        "INSERT",
    ]


def test_an_applications_own_transaction_serves_as_well(path: Path, plain: Plain) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        tx = bind(session)
        first = tx.messages.append(SESSION, "user", "one")
        row = session.get_one(Message, first)
        assert tx.messages.append_many(SESSION, turns("two", "three")) == [first + 1, first + 2]
        tx.messages.edit(SESSION, first, content="uno")
        assert row.content == "uno"  # what the application has loaded is not out of date
        session.commit()
    engine.dispose()
    assert plain.counters() == (3, 0)
    plain.check()
