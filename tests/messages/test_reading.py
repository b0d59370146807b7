"""Windows, bookends, conversations and pages: in the order of ids, and nothing that is not to be shown."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_files import FRESH, Released
from messages.conftest import SESSION, Plain, call, turns

from hermes_store import HermesStore, NotFoundError

SUMMARY = {"role": "user", "content": "SUMMARY", "_compressed_summary": True}


def contents(messages: Any) -> list[Any]:
    return [message.content for message in messages]


def test_a_limit_gives_the_latest_in_the_order_they_came(store: HermesStore) -> None:
    # Their times run backwards: the clock was set back.
    store.messages.append_many(
        SESSION, [{"role": "user", "content": str(n), "timestamp": 1.777e9 - n} for n in range(10)]
    )
    assert contents(store.messages.list(SESSION, limit=3)) == ["7", "8", "9"]
    assert contents(store.messages.list(SESSION, limit=3, offset=2)) == ["5", "6", "7"]
    assert contents(store.messages.list(SESSION, offset=8)) == ["0", "1"]
    assert [turn["content"] for turn in store.messages.conversation(SESSION)] == [str(n) for n in range(10)]
    assert contents(store.messages.around(SESSION, 5, 1).messages) == ["3", "4", "5"]
    for wrong in ({"limit": -1}, {"offset": -1}):
        with pytest.raises(ValueError, match="negative"):
            store.messages.list(SESSION, **wrong)
    with pytest.raises(ValueError, match="negative"):
        store.messages.around(SESSION, 5, -1)


def test_a_window_has_its_neighbours_and_says_how_many(store: HermesStore) -> None:
    ids = store.messages.append_many(SESSION, turns(*"abcdefg"))
    view = store.messages.around(SESSION, ids[1], 3)
    assert (contents(view.messages), view.before, view.after) == (list("abcde"), 1, 3)
    assert store.messages.around(SESSION, ids[6], 0).messages[0].content == "g"


def test_a_rewound_or_hidden_message_is_nowhere(store: HermesStore) -> None:
    ids = store.messages.append_many(SESSION, turns("a", "b"))
    hidden = store.messages.append(SESSION, "user", "HIDDEN", display_kind="hidden")
    after = store.messages.append(SESSION, "user", "c")
    secret = store.messages.append(SESSION, "user", "SECRET")
    store.messages.rewind(SESSION, secret)
    store.messages.append(SESSION, "user", "d")
    for view in (store.messages.around(SESSION, after), store.messages.anchored(SESSION, after, 1)):
        shown = contents([*view.opening, *view.messages, *view.closing])
        assert "SECRET" not in shown
        assert "HIDDEN" not in shown
        assert {"b", "c", "d"} <= set(shown)
    for gone in (secret, hidden, 999, 0):
        with pytest.raises(NotFoundError):
            store.messages.around(SESSION, gone)
    store.sessions.create("cli", id="other")
    with pytest.raises(NotFoundError):
        store.messages.around("other", ids[0])
    # The model does see what people do not.
    assert "HIDDEN" in [turn["content"] for turn in store.messages.conversation(SESSION)]
    assert "HIDDEN" not in contents(store.messages.list(SESSION))


def test_a_turn_is_shown_once_around_a_compaction(store: HermesStore) -> None:
    ids = store.messages.append_many(SESSION, turns("a", "b", "c"))
    kept = store.messages.conversation(SESSION)[-1]
    done = store.messages.archive_and_compact(SESSION, [SUMMARY, kept])
    view = store.messages.around(SESSION, done.ids[0], 5)
    assert contents(view.messages) == ["a", "b", "SUMMARY", "c"]
    # What is asked for by the original's id is found where its copy is.
    assert store.messages.around(SESSION, ids[2], 1).anchor_id == done.copies[ids[2]]


def test_bookends_are_words_not_json_and_no_summary(store: HermesStore) -> None:
    opening = [{"type": "text", "text": "look at this"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    store.messages.append_many(
        SESSION,
        [
            SUMMARY,
            {"role": "user", "content": opening},
            {"role": "user", "content": picture},
            {"role": "assistant", "content": None, "tool_calls": [call("x")]},
            {"role": "tool", "content": "result", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "  \n"},
            {"role": "assistant", "content": "second"},
        ],
    )
    ids = store.messages.append_many(SESSION, turns(*map(str, range(20))))
    view = store.messages.anchored(SESSION, ids[10], 2, 2)
    assert [message.text for message in view.opening] == ["look at this", "second"]
    assert contents(view.closing) == ["18", "19"]
    assert contents(view.messages) == ["8", "9", "10", "11", "12"]
    assert store.messages.anchored(SESSION, ids[10], 2, 0).opening == ()


def test_roles_filter_a_window_but_never_its_anchor(store: HermesStore) -> None:
    ids = store.messages.append_many(
        SESSION,
        [
            *turns("q"),
            {"role": "tool", "content": "t1"},
            {"role": "tool", "content": "t2"},
            {"role": "assistant", "content": "a"},
        ],
    )
    view = store.messages.anchored(SESSION, ids[1], 2)
    assert (contents(view.messages), view.before, view.after) == (["q", "t1", "a"], 1, 2)
    assert contents(store.messages.anchored(SESSION, ids[1], 2, roles=None).messages) == ["q", "t1", "t2", "a"]
    assert contents(store.messages.anchored(SESSION, ids[1], 2, roles=[]).messages) == ["t1"]


def test_a_conversation_has_the_shape_that_models_take(store: HermesStore) -> None:
    calls = [call("search", q="x")]
    ids = store.messages.append_many(
        SESSION,
        [
            {"role": "user", "content": [{"type": "text", "text": "q"}], "message_id": 77},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_details": [{"r": 1}]},
            {"role": "tool", "content": "r", "tool_call_id": "call_1", "name": "search"},
        ],
    )
    turns_ = store.messages.conversation(SESSION)
    for turn in turns_:
        assert turn.pop("timestamp") > 0
        assert len(turn.pop("message_uid")) == 32
    assert turns_ == [
        {"role": "user", "content": [{"type": "text", "text": "q"}], "message_id": "77", "_row_id": ids[0]},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_details": [{"r": 1}], "_row_id": ids[1]},
        {"role": "tool", "content": "r", "tool_call_id": "call_1", "tool_name": "search", "_row_id": ids[2]},
    ]


def test_ancestors_come_without_what_older_releases_handed_on_twice(store: HermesStore, plain: Plain) -> None:
    plain.all("UPDATE sessions SET ended_at = 1777640000.0, end_reason = 'compression' WHERE id = ?", SESSION)
    plain.all(
        "INSERT INTO sessions (id, source, started_at, parent_session_id) VALUES ('child', 'cli', 1777640000.0, ?)",
        SESSION,
    )
    plain.all(
        "INSERT INTO sessions (id, source, started_at, parent_session_id) VALUES ('fork', 'cli', 1.0, ?)", SESSION
    )
    rows = [
        (SESSION, "user", "q1", 1.0e9, 1),
        (SESSION, "assistant", "a1", 1.1e9, 1),
        (SESSION, "user", "yes", 1.2e9, 1),
        (SESSION, "user", "yes", 1.3e9, 1),
        (SESSION, "assistant", "a2", 1.4e9, 1),
        (SESSION, "user", "rewound", 1.5e9, 0),
        (SESSION, "user", "q2", 1.6e9, 1),
        ("child", "user", "SUMMARY", 2.0e9, 1),
        ("child", "user", "q2", 2.1e9, 1),  # asked again
        ("child", "assistant", "a2", 1.4e9, 1),  # copied
        ("child", "assistant", "a3", 2.2e9, 1),
        ("child", "user", "q2", 2.3e9, 1),  # really asked again
    ]
    for row in rows:
        plain.all("INSERT INTO messages (session_id, role, content, timestamp, active) VALUES (?, ?, ?, ?, ?)", *row)
    told = [turn["content"] for turn in store.messages.conversation("child", include_ancestors=True)]
    assert told == ["q1", "a1", "yes", "yes", "q2", "SUMMARY", "a2", "a3", "q2"]
    assert len(store.messages.conversation("child")) == 5
    assert len(store.messages.conversation(SESSION, include_ancestors=True)) == 6


def test_a_ring_of_continuations_ends(store: HermesStore, plain: Plain) -> None:
    for one in ("r1", "r2"):
        plain.all(
            "INSERT INTO sessions (id, source, started_at, ended_at, end_reason) VALUES (?, 'cli', 1.777e9, 1.777e9, 'compression')",
            one,
        )
        plain.all("INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', ?, 1e9)", one, one)
    plain.all("UPDATE sessions SET parent_session_id = CASE id WHEN 'r1' THEN 'r2' ELSE 'r1' END WHERE id LIKE 'r_'")
    assert len(store.messages.conversation("r1", include_ancestors=True)) == 2


@pytest.mark.parametrize("name", FRESH)
def test_every_released_file_is_read_as_it_is(released: Released, name: str) -> None:
    with HermesStore.open(released(name), read_only=True, migrate="off") as store:
        for entry in store.sessions.list(limit=100, include_children=True, include_archived=True, include_hidden=True):
            id_ = entry.root_id
            shown = store.messages.list(id_)
            told = store.messages.conversation(id_)
            assert len(told) >= len(shown)
            assert store.messages.conversation(id_, include_ancestors=True)[-len(told) :] == told or not told
            for message in shown[:3]:
                assert store.messages.around(id_, message.id, 1).anchor_id == message.id
                assert store.messages.anchored(id_, message.id, 1).messages
        assert store.messages.export()
