"""What a search costs follows what it returns: no route reads all messages, and a page takes the same statements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from hermes_store import HermesStore
from hermes_store.seeding import seed
from hermes_store.seeding.words import vocabulary

LATIN = vocabulary("latin", 5).words
HAN = vocabulary("han", 5).words


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed(tmp_path_factory.mktemp("plans") / "state.db", messages=6000, seed=5).path


@pytest.fixture
def store(corpus: Path) -> Iterator[HermesStore]:
    with HermesStore.open(corpus, read_only=True, migrate="off") as opened:
        yield opened


def of_length(length: int, rank: int) -> str:
    return [word for word in HAN if len(word) == length][rank]


INDEXED = {
    "a word": LATIN[0],
    "a rare word": LATIN[2000],
    "words": f"{LATIN[3]} {LATIN[5]}",
    "alternatives": f"{LATIN[3]} OR {LATIN[5]}",
    "a phrase": f'"{LATIN[0]} {LATIN[1]}"',
    "a prefix": f"{LATIN[9][:4]}*",
    "no word at all": "zzqqxxyy",
    "a short word": "ax",
    "three characters": of_length(3, 10),
    "two rare characters": of_length(2, 4000),
    "short terms together": f"{of_length(2, 300)} {of_length(1, 40)}",
    "one short term or another": f"{of_length(2, 3000)} OR {of_length(2, 3001)}",
    "a word and a short term": f"{LATIN[0]} {of_length(2, 200)}",
}


def plan_of(store: HermesStore, query: str, **filters: Any) -> list[str]:
    """SQLite's own words for each step of each statement, also of those that a full page does without."""
    steps = []
    with store.read() as unit:
        driver: Any = unit.session.connection().connection.driver_connection
        for statement in unit.explain(query, **filters).statements:
            values = [None] * statement.sql.count("?")
            steps += [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement.sql}", values)]
    return steps


@pytest.mark.parametrize("sort", ["rank", "newest", "oldest"])
@pytest.mark.parametrize("name", INDEXED)
def test_no_indexed_route_reads_all_messages(store: HermesStore, name: str, sort: str):
    steps = plan_of(store, INDEXED[name], sort=sort)
    assert steps
    tables = ("m", "s", "ending", "copy", "messages", "sessions")
    assert not [
        step for step in steps if step.split()[0] == "SCAN" and step.split()[1] in tables and "USING" not in step
    ]
    walks = [step for step in steps if step.startswith("SCAN m")]
    assert walks in ([], ["SCAN m USING INDEX ix_hs_messages_timestamp"])
    if sort == "rank" and "SCAN m" not in " ".join(steps):
        assert not any("ix_hs_messages_timestamp" in step for step in steps)


def test_a_frequent_short_term_is_met_on_a_walk_along_the_index_on_time(store: HermesStore):
    frequent = of_length(1, 0)
    assert store.search(frequent).route == "walk"
    steps = plan_of(store, frequent)
    assert steps[0] == "SCAN m USING INDEX ix_hs_messages_timestamp"
    assert "USE TEMP B-TREE FOR ORDER BY" not in steps


@pytest.mark.parametrize("query", [LATIN[0], of_length(3, 10), of_length(1, 0), f"{LATIN[0]} {LATIN[1]}"])
def test_the_number_of_statements_does_not_depend_on_the_number_of_hits(store: HermesStore, query: str):
    ran: list[str] = []
    listened = store._engine
    event.listen(listened, "before_cursor_execute", lambda *given: ran.append(given[2]))

    def statements(limit: int) -> tuple[int, int]:
        ran.clear()
        return len(store.search(query, limit=limit).hits), len(ran)

    statements(1)  # what is looked at once for each file
    few, many = statements(5), statements(15)
    assert few[0] == 5
    assert many[0] == 15
    assert few[1] == many[1] <= 9


def test_the_same_form_of_query_is_the_same_statement(store: HermesStore):
    def sql(query: str) -> list[str]:
        return [statement.sql for statement in store.explain(query).statements]

    assert sql(of_length(2, 4000)) == sql(of_length(2, 4001))
    assert sql(LATIN[100]) == sql(LATIN[200])
    assert sql(f"{LATIN[1]} {LATIN[2]}") == sql(f"{LATIN[3]} {LATIN[4]}")
