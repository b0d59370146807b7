"""What goes with a session, what stays, and what is left of both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_files import Released

from hermes_store import HermesStore, NotFoundError

Plain = Callable[..., list[Any]]
STRICT = "INSERT INTO {0} ({0}, rank) VALUES ('integrity-check', 1)"


@pytest.fixture
def family(store: HermesStore, say: Callable[..., None]) -> HermesStore:
    """A conversation of three with a branch, a reset and work done for it, two levels deep."""
    create, end = store.sessions.create, store.sessions.end
    create("cli", id="first", system_prompt="mine")
    create("subagent", id="work", parent_session_id="first", model_config={"_delegate_from": "first"})
    create("tool", id="tool", parent_session_id="work")
    create("cli", id="branch", parent_session_id="first", model_config={"_branched_from": "first"})
    end("first", "compression")
    create("cli", id="second", parent_session_id="first")
    end("second", "compression")
    create("cli", id="third", parent_session_id="second")
    create("cli", id="reset", parent_session_id="third", model_config={"_reset_from": "third"})
    create("cli", id="stranger")
    for one in ("first", "work", "tool", "branch", "second", "third", "reset", "stranger"):
        say(one, f"words of {one} 数据库")
    return store


def test_any_member_takes_the_conversation_and_its_work_along(family: HermesStore, plain: Plain) -> None:
    plan = family.sessions.delete("second", dry_run=True)
    assert plan.sessions == ("first", "second", "third", "tool", "work")
    assert plan.detached == ("branch", "reset")
    assert plan.messages == 5
    assert plain("SELECT count(*) FROM sessions") == [(8,)]
    assert family.sessions.delete("second") == plan
    assert {entry.id for entry in family.sessions.list(include_children=True)} == {"branch", "reset", "stranger"}
    assert plain("SELECT DISTINCT parent_session_id FROM sessions") == [(None,)]
    assert plain("SELECT count(*) FROM messages") == [(3,)]
    for index in ("messages_fts", "messages_fts_trigram"):
        plain(STRICT.format(index))
    assert not family.search("words of second").hits
    assert family.lineage.check().is_clean


def test_detaching_takes_no_more_than_what_is_named_and_its_work(family: HermesStore) -> None:
    gone = family.sessions.delete("first", detach=True)
    assert gone.sessions == ("first", "tool", "work")
    assert gone.detached == ("branch", "second")
    assert family.lineage.kind("second") == "root"
    assert family.lineage.tip("second") == "third"


def test_detaching_never_shows_what_was_hidden(family: HermesStore) -> None:
    family.sessions.hide("first")
    before = {entry.root_id for entry in family.sessions.list(limit=100)}
    family.sessions.delete("first", detach=True)
    assert {entry.root_id for entry in family.sessions.list(limit=100)} == before == {"branch", "reset", "stranger"}
    family.sessions.create("subagent", id="helper", parent_session_id="stranger")
    family.sessions.end("helper", "compression")
    family.sessions.create(
        "subagent", id="goes on", parent_session_id="helper", model_config={"_delegate_from": "stranger"}
    )
    assert family.sessions.delete("helper", detach=True).sessions == ("goes on", "helper")


def test_detaching_never_hides_what_was_shown(store: HermesStore) -> None:
    create = store.sessions.create
    create("cli", id="old")
    create("subagent", id="work", parent_session_id="old", model_config={"_delegate_from": "old"})
    store.sessions.end("work", "branched")
    create("cli", id="talk", parent_session_id="work", model_config={"_delegate_from": "old"})
    assert store.lineage.kind("talk") == "branch"
    store.sessions.delete("old")
    assert [entry.id for entry in store.sessions.list()] == ["talk"]
    assert store.lineage.kind("talk") == "root"


def test_a_delegate_that_lost_its_parent_goes_with_the_session_its_marker_names(
    store: HermesStore, plain: Plain
) -> None:
    store.sessions.create("cli", id="boss")
    store.sessions.create("cli", id="work", model_config={"_delegate_from": "boss"})
    store.sessions.create("subagent", id="below", parent_session_id="work")
    plain(
        "INSERT INTO sessions (id, source, started_at, model_config) VALUES ('broken', 'cli', 1e9, '{\"_delegate_from')"
    )
    assert store.sessions.delete("boss").sessions == ("below", "boss", "work")
    assert plain("SELECT id FROM sessions") == [("broken",)]


def test_locks_leases_and_usage_go_and_a_new_session_of_the_id_begins_free(family: HermesStore, plain: Plain) -> None:
    locks = family.locks
    locks.acquire("second", locks.make_holder())
    locks.turns.acquire("third", locks.make_holder())
    plain("INSERT INTO session_model_usage (session_id, model) VALUES ('third', 'm'), ('stranger', 'm')")
    family.sessions.delete("third")
    assert plain("SELECT count(*) FROM compression_locks") == [(0,)]
    assert plain("SELECT count(*) FROM session_turn_leases") == [(0,)]
    assert plain("SELECT session_id FROM session_model_usage") == [("stranger",)]
    family.sessions.create("cli", id="second")
    assert family.locks.holder("second") is None


def test_prompts_that_others_use_stay_in_whichever_column(family: HermesStore, plain: Plain) -> None:
    key = plain("SELECT system_prompt_hash FROM sessions WHERE id = 'first'")[0][0]
    plain("UPDATE sessions SET tool_names = ? WHERE id = 'stranger'", key)
    family.sessions.delete("first")
    assert plain("SELECT hash FROM system_prompts") == [(key,)]


def test_more_ids_than_a_statement_has_variables(store: HermesStore, plain: Plain) -> None:
    with store.write() as unit:
        unit.session.connection().exec_driver_sql(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
            " INSERT INTO sessions (id, source, started_at) SELECT 's' || i, 'cli', 1e9 FROM n"
        )
        raw: Any = unit.session.connection().connection.driver_connection
        if not hasattr(raw, "setlimit"):
            pytest.skip("this driver cannot lower the number of variables")
        limit = raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        gone = unit.sessions.delete([f"s{at}" for at in range(1, 39_001)])
        raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, limit)
    assert len(gone.sessions) == 39_000
    assert plain("SELECT count(*) FROM sessions") == [(1000,)]
    assert plain("SELECT count(*) FROM hs_session_activity") == [(1000,)]


def test_an_id_that_does_not_exist_stops_everything(family: HermesStore, plain: Plain) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        family.sessions.delete(["first", "nowhere"])
    assert plain("SELECT count(*) FROM sessions") == [(8,)]
    assert family.sessions.delete([]).sessions == ()


def test_deleting_in_an_applications_transaction_is_undone_with_it(family: HermesStore, plain: Plain) -> None:
    with pytest.raises(ZeroDivisionError), family.write() as unit:
        unit.sessions.delete("first")
        raise ZeroDivisionError
    assert plain("SELECT count(*) FROM sessions") == [(8,)]


@pytest.mark.parametrize("name", ["v11-0.13.0.db", "v22-0.19.0.db"])
def test_every_conversation_of_a_released_file_can_go(released: Released, name: str) -> None:
    path: Path = released(name)
    with HermesStore.open(path, migrate="auto") as store:
        entries = store.sessions.list(limit=1000, include_children=True, include_archived=True, include_hidden=True)
        plan = store.sessions.delete([entry.id for entry in entries], dry_run=True)
        assert store.sessions.delete([entry.root_id for entry in entries]) == plan
        assert store.sessions.stats().sessions == 0
        assert store.sessions.stats().messages == 0
        with store.write() as unit:
            for index in ("messages_fts", "messages_fts_trigram"):
                unit.session.connection().exec_driver_sql(STRICT.format(index))
