"""Rewinding, restoring, replacing, compacting, editing and deleting: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from messages.conftest import SESSION, Plain, call, turns

from hermes_store import ConflictError, HermesStore, InvalidMessageError, LockHeldError, LockLostError, NotFoundError

DIALOGUE = [
    {"role": "user", "content": "find the whale"},
    {"role": "assistant", "content": None, "tool_calls": [call("search", q="whale"), call("look", "call_2")]},
    {"role": "tool", "content": "a whale, far away", "tool_call_id": "call_1", "tool_name": "search"},
    {"role": "assistant", "content": "there it blows"},
    {"role": "user", "content": "catch the whale"},
    {"role": "assistant", "content": "no", "tool_calls": [call("refuse", "call_3")]},
]
SUMMARY = {"role": "user", "content": "SUMMARY: a whale was found", "_compressed_summary": True}


@pytest.fixture
def ids(store: HermesStore) -> list[int]:
    return store.messages.append_many(SESSION, DIALOGUE)


def found(store: HermesStore, query: str, **filters: Any) -> list[int]:
    return sorted(hit.id for hit in store.search(query, **filters).hits)


def live(store: HermesStore, session_id: str = SESSION) -> list[Any]:
    return [message.content for message in store.messages.list(session_id)]


# Rewinding


def test_a_rewind_takes_back_a_turn_and_all_after_it(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    taken = store.messages.rewind(SESSION, ids[4])
    assert (taken.ids, taken.head_id, taken.message.text) == (tuple(ids[4:]), ids[3], "catch the whale")
    assert plain.counters() == (4, 2)
    assert plain.one("SELECT rewind_count FROM sessions") == 1
    assert [message.id for message in store.messages.list(SESSION)] == ids[:4]
    assert found(store, "catch") == []
    assert found(store, "catch", include_inactive=True) == [ids[4]]
    assert store.messages.rewind(SESSION, ids[4]).ids == ()
    assert plain.one("SELECT rewind_count FROM sessions") == 2
    plain.check()


def test_a_restore_brings_back_what_was_rewound_and_nothing_that_was_compacted(
    store: HermesStore, plain: Plain, ids: list[int]
) -> None:
    store.messages.archive_and_compact(SESSION, [SUMMARY])
    late = store.messages.append_many(SESSION, turns("more", "and more"))
    store.messages.rewind(SESSION, late[0])
    assert store.messages.restore(SESSION, ids[0]) == tuple(late)
    assert live(store) == [SUMMARY["content"], "more", "and more"]
    assert plain.counters() == (3, 0)
    assert store.messages.restore(SESSION, ids[0]) == ()
    plain.check()


def test_only_a_users_own_message_can_be_rewound_to(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    store.sessions.create("cli", id="other")
    foreign = store.messages.append("other", "user", "elsewhere")
    with pytest.raises(InvalidMessageError, match="not the user's"):
        store.messages.rewind(SESSION, ids[1])
    for missing in (foreign, 10_000):
        with pytest.raises(NotFoundError):
            store.messages.rewind(SESSION, missing)
    store.messages.archive_and_compact(SESSION, [SUMMARY])
    with pytest.raises(ConflictError, match="compacted"):
        store.messages.rewind(SESSION, ids[0])
    assert plain.one("SELECT sum(rewind_count) FROM sessions") == 0


def test_a_rewind_finds_the_copy_that_compaction_made(store: HermesStore, ids: list[int]) -> None:
    tail = store.messages.conversation(SESSION)[4:]
    store.messages.archive_and_compact(SESSION, [SUMMARY, *tail])
    taken = store.messages.rewind(SESSION, ids[4])
    assert taken.message.text == "catch the whale"
    assert live(store) == [SUMMARY["content"]]
    assert len(store.messages.restore(SESSION, ids[0])) == 2
    assert live(store) == [SUMMARY["content"], "catch the whale", "no"]


def test_recent_user_turns_are_what_can_be_rewound_to(store: HermesStore, ids: list[int]) -> None:
    store.messages.append(SESSION, "user", "hidden", display_kind="hidden")
    store.messages.append(SESSION, "user", "overheard", observed=True)
    store.messages.append(SESSION, **SUMMARY)
    last = store.messages.append(SESSION, "user", "and now?")
    assert [turn.id for turn in store.messages.recent_user_turns(SESSION)] == [ids[0], ids[4], last]
    assert [turn.id for turn in store.messages.recent_user_turns(SESSION, 2)] == [ids[4], last]
    assert store.messages.recent_user_turns(SESSION, 0) == []


# Replacing


def test_replacing_keeps_the_common_beginning_in_place(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    new = [*store.messages.conversation(SESSION)[:4], {"role": "user", "content": "let the whale go"}]
    done = store.messages.replace(SESSION, new)
    assert (done.kept, done.dropped) == (tuple(ids[:4]), tuple(ids[4:]))
    assert [message.id for message in store.messages.list(SESSION)] == list(done.ids)
    assert live(store)[-1] == "let the whale go"
    assert plain.counters() == (5, 2)
    assert found(store, "catch") == []
    assert store.messages.replace(SESSION, new).kept == done.ids
    plain.check()


def test_replacing_recognises_messages_without_ids_too(store: HermesStore, ids: list[int]) -> None:
    spaced = [dict(one) for one in DIALOGUE]
    spaced[1]["tool_calls"] = json.dumps(spaced[1]["tool_calls"], indent=2)
    assert store.messages.replace(SESSION, spaced).kept == tuple(ids)


def test_replacing_never_touches_the_compaction_archive(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    store.messages.archive_and_compact(SESSION, [SUMMARY])
    store.messages.replace(SESSION, turns("fresh start"))
    assert found(store, "whale") == [ids[0], ids[1], ids[2], ids[4]]
    assert [row[2:] for row in plain.flags()] == [(0, 1)] * 6 + [(0, 0), (1, 0)]
    store.messages.replace(SESSION, [])
    assert live(store) == []
    assert plain.counters() == (0, 0)
    plain.check()


# Compaction in place


def test_compaction_archives_what_can_still_be_found(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    done = store.messages.archive_and_compact(SESSION, [SUMMARY])
    assert live(store) == [SUMMARY["content"]]
    assert done.dropped == tuple(ids)
    assert plain.counters() == (1, 0)
    assert found(store, "blows") == [ids[3]]
    assert [one.id for one in store.messages.list(SESSION, include_archived=True)] == [*ids, *done.ids]
    plain.check()


def test_what_arrived_meanwhile_is_neither_lost_nor_found_twice(
    store: HermesStore, plain: Plain, ids: list[int]
) -> None:
    seen = store.messages.watermark(SESSION)
    late = store.messages.append_many(
        SESSION,
        [
            {"role": "user", "content": [{"type": "text", "text": "meanwhile 苹果派"}], "token_count": 9},
            {"role": "assistant", "content": "late answer", "tool_calls": [call("x", "call_9")]},
        ],
    )
    plain.all("UPDATE messages SET platform_message_id = 'p1', display_identity = x'0102' WHERE id = ?", late[0])
    carried = store.messages.conversation(SESSION)[4:6]
    done = store.messages.archive_and_compact(SESSION, [SUMMARY, *carried], watermark=seen)
    assert [message.text for message in store.messages.list(SESSION)] == [
        SUMMARY["content"], "catch the whale", "no", "meanwhile 苹果派", "late answer",
    ]  # fmt: skip
    assert done.copies.keys() == {ids[4], ids[5], *late}
    for query in ("catch", "meanwhile", "苹果派", "late answer"):
        assert len(found(store, query)) == 1, query
    assert plain.counters() == (5, 2)
    same = "SELECT content, tool_calls, token_count, platform_message_id, timestamp, message_uid FROM messages WHERE id = ?"
    for old, new in done.copies.items():
        assert plain.all(same, old) == plain.all(same, new)
    plain.check()
    # Once more: still each of them once.
    store.messages.archive_and_compact(SESSION, [SUMMARY])
    for query in ("catch", "meanwhile", "late answer", "blows"):
        assert len(found(store, query)) == 1, query
    plain.check()


def test_a_message_that_was_changed_on_the_way_is_another_one(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    conversation = store.messages.conversation(SESSION)
    pruned = conversation[2] | {"content": "[output removed]"}
    done = store.messages.archive_and_compact(SESSION, [SUMMARY, conversation[1], pruned])
    assert done.copies.keys() == {ids[1]}
    assert found(store, "far away") == [ids[2]]
    assert plain.one("SELECT count(DISTINCT message_uid) FROM messages WHERE role = 'tool'") == 2


def test_a_tail_without_uids_is_recognised_by_its_place(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    done = store.messages.archive_and_compact(SESSION, [SUMMARY, *DIALOGUE[4:]], tail_count=2)
    assert done.copies == {ids[4]: done.ids[1], ids[5]: done.ids[2]}
    assert len(found(store, "catch")) == 1
    assert plain.counters() == (3, 1)


def test_columns_that_others_added_are_copied_too(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    plain.all('ALTER TABLE messages ADD COLUMN "odd name" TEXT')
    plain.all("UPDATE messages SET \"odd name\" = 'kept' WHERE id = ?", ids[5])
    done = store.messages.archive_and_compact(SESSION, [SUMMARY], watermark=ids[4])
    assert plain.all('SELECT "odd name" FROM messages WHERE id = ?', done.copies[ids[5]]) == [("kept",)]


def test_compaction_needs_the_lock_it_says_it_has(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    me = store.locks.make_holder()
    with pytest.raises(LockLostError):
        store.messages.archive_and_compact(SESSION, [SUMMARY], holder=me)
    with store.locks.hold(SESSION):
        mine = store.locks.holder(SESSION)
        for attempt in (
            lambda: store.messages.archive_and_compact(SESSION, [SUMMARY]),
            lambda: store.messages.rewind(SESSION, ids[4]),
            lambda: store.messages.restore(SESSION, ids[4]),
            lambda: store.messages.replace(SESSION, []),
            lambda: store.messages.edit(SESSION, ids[0], content="x"),
            lambda: store.messages.delete(SESSION, ids[0]),
        ):
            with pytest.raises(LockHeldError):
                attempt()
        with pytest.raises(LockLostError):
            store.messages.archive_and_compact(SESSION, [SUMMARY], holder=me)
        store.messages.append(SESSION, "user", "appending goes on")
        assert len(store.messages.archive_and_compact(SESSION, [SUMMARY], holder=mine, watermark=ids[-1]).ids) == 2
    with store.locks.turns.hold(SESSION), pytest.raises(LockHeldError, match="turn"):
        store.messages.delete(SESSION, ids[0])
    plain.check()


# Compaction into a child


def test_a_published_child_goes_on_with_all_that_matters(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    plain.all(
        "UPDATE sessions SET session_key = 'chat', cwd = '/w', model = 'm', title = 'Whales', pinned = 1,"
        ' model_config = \'{"_branched_from": "x", "temperature": 1}\''
    )
    seen = store.messages.watermark(SESSION)
    late = store.messages.append(SESSION, "user", "late whale", token_count=3)
    carried = store.messages.conversation(SESSION)[4:6]
    done = store.messages.publish_compression_child(SESSION, [SUMMARY, *carried], id="child", watermark=seen)
    assert done.session_id == "child"
    assert live(store, "child") == [SUMMARY["content"], "catch the whale", "no", "late whale"]
    assert plain.counters("child") == (4, 1)
    assert plain.counters() == (4, 2)
    child, parent = store.sessions.get("child"), store.sessions.get(SESSION)
    assert (parent.end_reason, child.parent_session_id) == ("compression", SESSION)
    assert (child.session_key, child.cwd, child.model, child.pinned) == ("chat", "/w", "m", True)
    assert child.model_config == {"temperature": 1}
    assert store.lineage.kind("child") == "compression"
    assert store.lineage.tip(SESSION) == "child"
    for query in ("late", "catch", "blows"):
        assert len(found(store, query)) == 1, query
    everything = store.messages.conversation("child", include_ancestors=True)
    assert [turn["content"] for turn in everything] == [
        "find the whale", None, "a whale, far away", "there it blows",
        SUMMARY["content"], "catch the whale", "no", "late whale",
    ]  # fmt: skip
    assert done.copies[late] == done.ids[-1]
    plain.check()


def test_a_ceiling_keeps_back_what_the_compressor_wrote_itself(store: HermesStore, ids: list[int]) -> None:
    done = store.messages.publish_compression_child(
        SESSION, [SUMMARY], id="child", watermark=ids[2], watermark_ceiling=ids[4]
    )
    assert live(store, "child") == [SUMMARY["content"], "there it blows", "catch the whale"]
    assert done.dropped == (ids[3], ids[4])


def test_a_child_that_cannot_be_is_not_begun(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    store.sessions.create("cli", id="taken")
    with pytest.raises(InvalidMessageError, match="summary"):
        store.messages.publish_compression_child(SESSION, [])
    with pytest.raises(ConflictError, match="taken"):
        store.messages.publish_compression_child(SESSION, [SUMMARY], id="taken")
    with pytest.raises(ConflictError, match="would not continue"):
        store.messages.publish_compression_child(SESSION, [SUMMARY], id="odd", source="tool")
    with pytest.raises(ConflictError, match="_branched_from"):
        store.messages.publish_compression_child(SESSION, [SUMMARY], model_config={"_branched_from": SESSION})
    with pytest.raises(ValueError, match="started_at"):
        store.messages.publish_compression_child(SESSION, [SUMMARY], started_at=1.777e9)
    with pytest.raises(ValueError, match="no_such"):
        store.messages.publish_compression_child(SESSION, [SUMMARY], no_such=1)
    store.sessions.end("taken", "user_exit")
    with pytest.raises(ConflictError, match="user_exit"):
        store.messages.publish_compression_child("taken", [SUMMARY])
    assert plain.all("SELECT id, end_reason FROM sessions ORDER BY id") == [(SESSION, None), ("taken", "user_exit")]
    assert plain.counters() == (6, 3)


def test_the_continuation_of_a_delegate_is_one(store: HermesStore, plain: Plain) -> None:
    config = {"_delegate_from": SESSION}
    store.sessions.create("subagent", id="worker", parent_session_id=SESSION, model_config=config)
    store.messages.append("worker", "user", "dig")
    store.messages.publish_compression_child("worker", [SUMMARY], id="worker2")
    assert store.lineage.kind("worker") == "delegate"
    assert store.lineage.kind("worker2") == "compression"
    plain.check()


# Editing and deleting


def test_an_edit_changes_the_words_and_their_index(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    plain.all("UPDATE messages SET api_content = 'stale' WHERE id = ?", ids[4])
    changed = store.messages.edit(SESSION, ids[4], content="befriend the dolphin")
    assert (changed.id, changed.text) == (ids[4], "befriend the dolphin")
    assert plain.one("SELECT api_content FROM messages WHERE id = ?", ids[4]) is None
    assert (found(store, "catch"), found(store, "dolphin")) == ([], [ids[4]])
    store.messages.edit(SESSION, ids[1], tool_calls=[call("only", "call_1")])
    assert plain.counters() == (6, 2)
    plain.check()


def test_an_edit_that_means_nothing_changes_nothing(store: HermesStore, ids: list[int]) -> None:
    for changes in ({"content": b"x"}, {"role": "user"}, {"message_uid": "x"}, {"nope": 1}, {"timestamp": None}):
        with pytest.raises(InvalidMessageError):
            store.messages.edit(SESSION, ids[0], **changes)
    with pytest.raises(NotFoundError):
        store.messages.edit(SESSION, 10_000, content="x")
    assert live(store)[0] == "find the whale"


def test_a_deleted_message_is_gone_with_its_copies(store: HermesStore, plain: Plain, ids: list[int]) -> None:
    done = store.messages.archive_and_compact(SESSION, [SUMMARY, *store.messages.conversation(SESSION)[4:]])
    with pytest.raises(NotFoundError, match="10000"):
        store.messages.delete(SESSION, [ids[0], 10_000])
    assert store.messages.delete(SESSION, done.copies[ids[4]]) == 2
    assert found(store, "catch", include_inactive=True) == []
    assert store.messages.delete(SESSION, [ids[0], ids[2]]) == 2
    assert plain.counters() == (2, 1)
    plain.check()
