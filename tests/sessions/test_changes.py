"""Sessions are created, ended, reopened and flagged."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from hermes_store import ConflictError, HermesStore, NotFoundError
from hermes_store.errors import LockHeldError
from hermes_store.models import HermesSession

Plain = Callable[..., list[Any]]


def test_a_new_session_is_what_was_given(store: HermesStore, plain: Plain) -> None:
    made = store.sessions.create(
        "cli",
        model="vendor/name",
        model_config={"temperature": 0.2, "name": "é"},
        title="  A\u200b  title\n",
        system_prompt="be brief",
        cwd="/work",
        user_id="7",
        started_at=1_780_000_000,
    )
    assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{6}", made.id)
    assert store.sessions.get(made.id) == made
    assert (made.source, made.model, made.title, made.title_source) == ("cli", "vendor/name", "A title", "user")
    assert made.model_config == {"temperature": 0.2, "name": "é"}
    assert (made.system_prompt, made.cwd, made.user_id) == ("be brief", "/work", "7")
    assert (made.started, made.ended, made.end_reason, made.problems) == (1_780_000_000.0, None, None, ())
    assert plain("SELECT created_source, system_prompt FROM sessions") == [("cli", None)]


def test_a_prompt_is_stored_once_and_goes_with_the_last_session_that_has_it(store: HermesStore, plain: Plain) -> None:
    first, second = (store.sessions.create("cli", system_prompt="shared").id for _ in range(2))
    assert len(plain("SELECT hash FROM system_prompts")) == 1
    store.sessions.delete(first)
    assert store.sessions.get(second).system_prompt == "shared"
    store.sessions.delete(second)
    assert plain("SELECT hash FROM system_prompts") == []


def test_half_a_surrogate_pair_is_replaced(store: HermesStore) -> None:
    made = store.sessions.create("cli", title="a\ud835b", display_name="x\ud835", system_prompt="p\ud835")
    assert (made.title, made.display_name, made.system_prompt) == ("ab", "x\ufffd", "p\ufffd")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"source": ""}, "source"),
        ({"source": 7}, "source"),
        ({"started_at": float("nan")}, "started_at"),
        ({"started_at": 1_780_000_000_000}, "started_at"),
        ({"started_at": "soon"}, "started_at"),
        ({"model_config": [1]}, "model_config"),
        ({"model_config": {"x": float("inf")}}, "model_config"),
        ({"model_config": {"x": object()}}, "model_config"),
        ({"no_such_column": 1}, "no_such_column"),
        ({"cwd": b"/work"}, "cwd"),
        ({"title": "x" * 101}, "title"),
        ({"title": 7}, "title"),
        ({"system_prompt": b"x"}, "system_prompt"),
        ({"id": ""}, "id"),
        ({"on_conflict": "perhaps", "title": "x"}, "on_conflict"),
    ],
)
def test_what_means_nothing_is_refused_by_name_and_nothing_is_written(
    store: HermesStore, plain: Plain, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        store.sessions.create(**({"source": "cli"} | given))
    assert plain("SELECT id FROM sessions") == []
    assert plain("SELECT hash FROM system_prompts") == []


def test_an_id_that_is_taken_and_a_parent_that_is_not_there_are_typed_errors(store: HermesStore) -> None:
    store.sessions.create("cli", id="one")
    with pytest.raises(ConflictError, match="one"):
        store.sessions.create("cli", id="one")
    with pytest.raises(NotFoundError, match="nowhere"):
        store.sessions.create("cli", parent_session_id="nowhere")


def test_the_first_end_stays_until_the_session_is_reopened(store: HermesStore) -> None:
    one = store.sessions.create("cli").id
    first = store.sessions.end(one, "user_exit")
    assert abs((first.ended or 0) - time.time()) < 60
    assert store.sessions.end(one, "later") == first
    reopened = store.sessions.reopen(one)
    assert (reopened.ended, reopened.end_reason) == (None, None)
    assert store.sessions.end(one, "later").end_reason == "later"


def test_a_session_that_was_continued_is_not_reopened(store: HermesStore) -> None:
    first = store.sessions.create("cli").id
    store.sessions.end(first, "compression")
    second = store.sessions.create("cli", parent_session_id=first).id
    with pytest.raises(ConflictError, match=second):
        store.sessions.reopen(first)
    store.sessions.delete(second, detach=True)
    assert store.sessions.reopen(first).end_reason is None


def test_a_session_that_is_being_compressed_is_not_reopened(store: HermesStore) -> None:
    one = store.sessions.create("cli").id
    store.sessions.end(one, "compression")
    with store.locks.hold(one), pytest.raises(LockHeldError):
        store.sessions.reopen(one)
    assert store.sessions.reopen(one).end_reason is None


@pytest.mark.parametrize(
    ("reason", "kind", "marker"), [("branched", "branch", "_branched_from"), ("session_reset", "reset", "_reset_from")]
)
def test_what_only_the_end_told_of_is_marked_before_it_is_taken_back(
    store: HermesStore, reason: str, kind: str, marker: str
) -> None:
    parent = store.sessions.create("cli").id
    store.sessions.end(parent, reason)
    child = store.sessions.create("cli", parent_session_id=parent).id
    assert store.lineage.kind(child) == kind
    store.sessions.reopen(parent)
    assert store.lineage.kind(child) == kind
    assert store.sessions.get(child).model_config == {marker: parent}
    store.sessions.end(parent, "tui_close")
    assert store.lineage.kind(child) == kind


@pytest.mark.parametrize("flag", ["archive", "pin", "hide"])
@pytest.mark.parametrize("named", ["first", "second", "third"])
def test_a_flag_applies_to_the_conversation_whichever_member_is_named(
    store: HermesStore, plain: Plain, flag: str, named: str
) -> None:
    ids = {"first": store.sessions.create("cli", id="first").id}
    for name, parent in (("second", "first"), ("third", "second")):
        store.sessions.end(parent, "compression")
        ids[name] = store.sessions.create("cli", id=name, parent_session_id=parent).id
    others = [
        store.sessions.create("cli", id="branch", parent_session_id="first", model_config={"_branched_from": "first"}),
        store.sessions.create("cli", id="reset", parent_session_id="third", model_config={"_reset_from": "third"}),
        store.sessions.create("subagent", id="delegate", parent_session_id="second"),
    ]
    column = {"archive": "archived", "pin": "pinned", "hide": "hidden"}[flag]
    assert getattr(store.sessions, flag)(named) == ("first", "second", "third")
    assert {row[0] for row in plain(f"SELECT id FROM sessions WHERE {column}")} == set(ids)
    assert getattr(store.sessions, flag)(named, False) == ("first", "second", "third")
    assert plain(f"SELECT id FROM sessions WHERE {column}") == []
    assert len(others) == 3


def test_reading_is_noted_on_the_whole_conversation(store: HermesStore, plain: Plain) -> None:
    store.sessions.create("cli", id="first")
    store.sessions.end("first", "compression")
    store.sessions.create("cli", id="second", parent_session_id="first")
    store.sessions.mark_read("second", 1_780_000_000)
    assert plain("SELECT DISTINCT last_read_at FROM sessions") == [(1_780_000_000.0,)]
    with pytest.raises(ValueError, match="at"):
        store.sessions.mark_read("second", float("inf"))


def test_settings_change_but_not_what_substring_search_covers_once_there_are_messages(
    store: HermesStore, say: Callable[..., None]
) -> None:
    one = store.sessions.create("cli", model_config={"a": 1}).id
    assert store.sessions.set_model_config(one, {"_delegate_from": "x"}).model_config == {"_delegate_from": "x"}
    assert store.sessions.set_model_config(one, None).model_config is None
    assert store.sessions.set_source(one, "cron").source == "cron"
    assert store.sessions.set_source(one, "cli").source == "cli"
    say(one)
    assert store.sessions.set_model_config(one, {"b": 2}).model_config == {"b": 2}
    assert store.sessions.set_source(one, "telegram").source == "telegram"
    with pytest.raises(ConflictError, match="substring"):
        store.sessions.set_model_config(one, {"_delegate_from": "x"})
    with pytest.raises(ConflictError, match="substring"):
        store.sessions.set_source(one, "subagent")


def test_a_kind_is_an_attribute_of_a_session_and_an_expression(store: HermesStore) -> None:
    parent = store.sessions.create("cli", id="parent").id
    store.sessions.create("subagent", id="child", parent_session_id=parent)
    with store.read() as unit:
        child = unit.session.get_one(HermesSession, "child")
        assert child.kind == "delegate"
        assert unit.session.scalars(select(HermesSession.id).where(HermesSession.kind == "root")).all() == ["parent"]
    assert HermesSession(id="nowhere").kind is None


def test_counts_add_up(store: HermesStore, say: Callable[..., None]) -> None:
    first = store.sessions.create("cli", id="first").id
    store.sessions.end(first, "compression")
    store.sessions.create("cli", id="second", parent_session_id=first)
    store.sessions.create("subagent", id="work", parent_session_id="second")
    store.sessions.create("telegram", id="other")
    store.sessions.archive("other")
    say("first")
    say("second", active=0)
    stats = store.sessions.stats()
    assert stats.by_kind == {"root": 2, "compression": 1, "delegate": 1}
    assert stats.by_source == {"cli": 2, "subagent": 1, "telegram": 1}
    assert stats.sessions == sum(stats.by_kind.values()) == sum(stats.by_source.values()) == 4
    assert (stats.conversations, stats.archived, stats.open, stats.messages, stats.live_messages) == (2, 1, 3, 2, 1)
