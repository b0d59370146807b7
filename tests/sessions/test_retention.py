"""Old conversations go, or are put away, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hermes_store import HermesStore

DAY = 86_400.0
NOW = time.time()


@pytest.fixture
def talk(store: HermesStore, say: Callable[..., None]) -> Callable[..., str]:
    """Make a session that was active so many days ago."""

    def make(name: str, days: float, *, ended: str | None = "user_exit", source: str = "cli", **columns: Any) -> str:
        store.sessions.create(source, id=name, started_at=NOW - (days + 1) * DAY, **columns)
        say(name, timestamp=NOW - days * DAY)
        if ended:
            store.sessions.end(name, ended)
        return name

    return make


def test_age_is_that_of_the_last_activity(store: HermesStore, talk: Callable[..., str], say: Any) -> None:
    talk("old", 100)
    talk("young", 10)
    talk("old but active", 100)
    say("old but active", timestamp=NOW - DAY)
    assert store.sessions.prune(90, dry_run=True).sessions == ("old",)
    assert store.sessions.prune(90).sessions == ("old",)
    assert store.sessions.prune(90).sessions == ()


def test_pinned_open_and_timeless_conversations_stay(store: HermesStore, talk: Callable[..., str], plain: Any) -> None:
    talk("pinned", 100)
    store.sessions.pin("pinned")
    talk("open", 100, ended=None)
    plain("INSERT INTO sessions (id, source, started_at, ended_at) VALUES ('timeless', 'cli', 'long ago', 1e9)")
    assert store.sessions.prune(90).sessions == ()


def test_what_a_kept_conversation_stems_from_stays(store: HermesStore, talk: Callable[..., str]) -> None:
    talk("grandparent", 300)
    talk("parent", 200, parent_session_id="grandparent", model_config={"_branched_from": "grandparent"})
    talk("child", 1, parent_session_id="parent", model_config={"_branched_from": "parent"})
    talk("sibling", 200, parent_session_id="parent", model_config={"_branched_from": "parent"})
    assert store.sessions.prune(90).sessions == ("sibling",)


def test_a_conversation_that_goes_on_keeps_all_its_members(store: HermesStore, talk: Callable[..., str]) -> None:
    talk("first", 200, ended="compression")
    talk("second", 1, parent_session_id="first", ended=None)
    assert store.sessions.prune(90).sessions == ()
    store.sessions.end("second", "user_exit")
    assert store.sessions.prune(0.5).sessions == ("first", "second")


def test_work_goes_with_whom_it_was_done_for_and_young_work_keeps_it(
    store: HermesStore, talk: Callable[..., str]
) -> None:
    talk("boss", 100)
    talk("work", 100, source="subagent", parent_session_id="boss", ended=None)
    talk("busy boss", 100)
    talk("young work", 1, source="subagent", parent_session_id="busy boss")
    assert store.sessions.prune(90).sessions == ("boss", "work")


def test_sources_have_rules_of_their_own(store: HermesStore, talk: Callable[..., str]) -> None:
    for source in ("cli", "telegram", "cron"):
        talk(f"{source} 10", 10, source=source)
        talk(f"{source} 50", 50, source=source)
    rules = {"cron": 5, "telegram": None}
    assert store.sessions.prune(30, per_source=rules, dry_run=True).sessions == ("cli 50", "cron 10", "cron 50")
    assert store.sessions.prune(30, per_source=rules, sources=["cron"]).sessions == ("cron 10", "cron 50")


@pytest.mark.parametrize("days", [-1, float("nan"), "90", True])
def test_an_age_that_is_none_is_refused(store: HermesStore, days: Any) -> None:
    with pytest.raises(ValueError, match="days"):
        store.sessions.prune(days)
    with pytest.raises(ValueError, match="days"):
        store.sessions.archive_stale(days)


def test_idle_conversations_are_archived_open_ones_too(store: HermesStore, talk: Callable[..., str]) -> None:
    talk("idle", 40, ended=None)
    talk("young", 4)
    talk("pinned", 40)
    store.sessions.pin("pinned")
    talk("first", 40, ended="compression")
    talk("second", 39, parent_session_id="first")
    assert store.sessions.archive_stale(0) == ()
    assert store.sessions.archive_stale(30, dry_run=True) == ("first", "idle")
    assert store.sessions.archive_stale(30) == ("first", "idle")
    assert [store.sessions.get(one).archived for one in ("idle", "young", "pinned", "first", "second")] == [
        True, False, False, True, True,
    ]  # fmt: skip
    assert store.sessions.archive_stale(30) == ()
