"""Pages: order, paging, filters, context, titles, pending rebuilds, plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from search.corpora import START, Corpus, Opened
from sqlalchemy import event

from hermes_store.search import explain, make_filters

# ---------------------------------------------------------------------------------------------------- order and paging


@pytest.fixture
def many(corpus: Corpus) -> Corpus:
    corpus.session("cron", source="cron")
    for number in range(60):
        glued = number % 4 == 0
        corpus.add(
            f"修改docker服务端{number}" if glued else "docker " * (number % 5 + 1) + "x",
            timestamp=START + (number * 7) % 20,
            session="cron" if number % 10 == 9 else "s",
        )
    return corpus


@pytest.mark.parametrize("sort", ["rank", "newest", "oldest"])
@pytest.mark.parametrize("query", ["docker", "docker NOT 服务端", "服务端", "docker OR 服务端", "服务端1 docker"])
def test_pages_put_together_are_the_whole(many: Corpus, query: str, sort: str):
    whole = many.ids(query, sort=sort, limit=1000)
    assert whole
    for size in (1, 7, 25):
        pages = [many.ids(query, sort=sort, limit=size, offset=offset) for offset in range(0, len(whole) + size, size)]
        assert [id_ for page in pages for id_ in page] == whole


def test_ranked_hits_come_before_those_without_a_rank(many: Corpus):
    page = many.search("docker", limit=1000)
    scores = [hit.score for hit in page]
    ranked = [score for score in scores if score is not None]
    assert ranked == sorted(ranked)
    assert scores == ranked + [None] * (len(scores) - len(ranked))
    unranked = [(hit.timestamp, hit.id) for hit in page if hit.score is None]
    assert unranked == sorted(unranked, reverse=True)
    assert page.route == "word+trigram+decoded"


def test_a_page_that_the_index_fills_needs_nothing_else(many: Corpus):
    assert many.search("docker", limit=5).route == "word"


def test_a_limit_of_nothing_gives_nothing(many: Corpus):
    page = many.search("docker", limit=0)
    assert (len(page), page.route) == (0, "none")


# -------------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize("query", ["needle", "针线", "针"])
def test_filters_apply_on_every_route_and_before_the_limit(corpus: Corpus, query: str):
    text = "needle 针线 sewing"
    corpus.session("tg", source="telegram")
    first = corpus.add(text, timestamp=1000.0, role="assistant")
    second = corpus.add(text, timestamp=2000.0, session="tg")
    third = corpus.add(text, timestamp=3000.0)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [third, second, first]),
        ({"roles": ["user"]}, [third, second]),
        ({"roles": []}, []),
        ({"sources": ["telegram"]}, [second]),
        ({"sources": []}, []),
        ({"exclude_sources": ["telegram"]}, [third, first]),
        ({"exclude_sources": []}, [third, second, first]),
        ({"session_ids": ["tg", "nowhere"]}, [second]),
        ({"session_ids": []}, []),
        ({"after": 2000}, [third, second]),
        ({"before": 2000}, [first]),
        ({"after": 1500, "before": 2500}, [second]),
        ({"roles": ["assistant"], "limit": 1}, [first]),
    ]
    for filters, expected in cases:
        assert corpus.ids(query, sort="newest", **filters) == expected, filters
        assert sorted(corpus.ids(query, **filters)) == sorted(expected), filters


def test_thousands_of_sessions_may_be_named(corpus: Corpus):
    wanted = corpus.add("needle")
    assert corpus.ids("needle", session_ids=["s", *(f"other{number}" for number in range(50_000))]) == [wanted]


def test_a_malformed_model_config_does_not_break_a_search(corpus: Corpus):
    corpus.session("bad", model_config="{bad")
    corpus.session("delegate", model_config='{"_delegate_from": "s"}')
    wanted = corpus.add("大别山项目", session="bad")
    hidden = corpus.add("大别山项目", session="delegate")
    assert corpus.ids("大别山项目") == [wanted]
    assert corpus.ids("大别山项目", session_ids=["delegate"]) == [hidden]


# ----------------------------------------------------------------------------------------------- context and statements


def test_context_is_the_visible_messages_of_the_same_session_in_the_order_of_ids(corpus: Corpus):
    corpus.session("other")
    before = corpus.add("before " * 100, timestamp=9.0)
    corpus.add("elsewhere", session="other")
    corpus.add("rewound", active=0)
    hit = corpus.add("needle", timestamp=5.0)
    after = corpus.add('\0json:[{"type": "text", "text": "苹果"}]', role="assistant", timestamp=1.0)
    context = corpus.search("needle").hits[0].context
    assert [message.id for message in context] == [before, hit, after]
    assert [message.content for message in context] == [("before " * 100)[:200], "needle", "苹果"]
    assert [message.role for message in context] == ["user", "user", "assistant"]
    assert corpus.search("needle", context=False).hits[0].context == ()


def test_the_number_of_statements_does_not_depend_on_the_number_of_hits(many: Corpus):
    statements: list[str] = []

    def count(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    event.listen(many.connection, "before_cursor_execute", count)
    many.search("docker", limit=3)
    few = len(statements)
    many.search("docker", limit=30)
    event.remove(many.connection, "before_cursor_execute", count)
    assert few == len(statements) - few <= 4


def test_a_hit_names_its_session(corpus: Corpus):
    corpus.session("named", source="telegram", model="big", started_at=1_700_000_000.0)
    corpus.add("needle", session="named", role="assistant", timestamp=1_700_000_001.5)
    hit = corpus.search("needle").hits[0]
    assert (hit.session_id, hit.source, hit.model, hit.role, hit.tool_name) == (
        "named",
        "telegram",
        "big",
        "assistant",
        None,
    )
    assert hit.timestamp == 1_700_000_001.5
    assert hit.timestamp_at.isoformat() == "2023-11-14T22:13:21.500000+00:00"
    assert hit.session_started_at.isoformat() == "2023-11-14T22:13:20+00:00"


# --------------------------------------------------------------------------------------------------------------- titles


def test_titles_and_ids_are_matched_on_request(corpus: Corpus):
    corpus.session("20260101_aaaa", title="Docker deployment notes", started_at=3.0)
    corpus.session("20260102_bbbb", title="Ticket AB-12", started_at=2.0)
    corpus.session("20260103_cccc", title="大别山项目", started_at=1.0)
    corpus.session("hidden", title="Docker secret", hidden=1)

    def sessions(query: str, **filters: Any) -> list[str]:
        return [session.id for session in corpus.search(query, titles=True, **filters).sessions]

    assert sessions("docker") == ["20260101_aaaa"]
    assert sessions("DOCKER NOT notes") == []
    assert sessions("deploy") == ["20260101_aaaa"]
    assert sessions("AB12") == sessions("ab-12") == ["20260102_bbbb"]
    assert sessions("别山") == ["20260103_cccc"]
    assert sessions("2026010") == ["20260101_aaaa", "20260102_bbbb", "20260103_cccc"]
    assert sessions("2026010", limit=1) == ["20260101_aaaa"]
    assert sessions("docker", include_hidden=True, sources=["cli"]) == ["hidden", "20260101_aaaa"]
    assert corpus.search("docker").sessions == ()
    assert corpus.search("docker", titles=True).sessions[0].title == "Docker deployment notes"


# ------------------------------------------------------------------------------------------------------ pending rebuild


def test_messages_not_indexed_yet_are_found_in_order_with_paging(corpus: Corpus):
    ids = corpus.add_all(*["python java", "python", "java python"] * 4)
    corpus.execute("INSERT INTO messages_fts (messages_fts) VALUES ('delete-all')")
    corpus.execute("INSERT INTO messages_fts_trigram (messages_fts_trigram) VALUES ('delete-all')")
    corpus.execute("INSERT INTO messages_fts (rowid, content) SELECT id, content FROM messages WHERE id <= 5")
    corpus.execute("INSERT INTO state_meta (key, value) VALUES ('fts_rebuild_high_water', '12')")
    corpus.execute("INSERT INTO state_meta (key, value) VALUES ('fts_rebuild_progress', '5')")
    late = corpus.add("python java late")
    page = corpus.search("python NOT java")
    assert set(corpus.ids("python NOT java")) == {id_ for at, id_ in enumerate(ids) if at % 3 == 1}
    assert page.pending is not None
    assert (page.pending.indexed, page.pending.total, page.pending.percent) == (5, 12, 41.7)
    whole = [*ids, late]
    assert corpus.ids("python OR java", sort="oldest") == whole
    assert corpus.ids("python OR java", sort="newest") == whole[::-1]
    pages = [corpus.ids("python OR java", limit=1, offset=offset) for offset in range(14)]
    assert sorted(id_ for page in pages for id_ in page) == whole


@pytest.mark.parametrize(
    "name",
    ["optimize/v25-iot-0.20.0-partial.db", "optimize/v30-iot-0.21.3-partial.db", "optimize/v31-iot-0.22.2-partial.db"],
)
def test_released_files_in_the_middle_of_a_rebuild_answer_in_full(opened: Callable[[str], Opened], name: str):
    file = opened(name)
    page = file.search("docker deployment")
    assert len(page) == 3
    assert page.pending is not None
    assert "like" in page.route
    assert len(file.ids("大别山项目")) == 8


# ---------------------------------------------------------------------------------------------------------------- plans


def _plan(corpus: Corpus, query: str, **filters: Any) -> Any:
    return explain(corpus.connection, query, make_filters(**filters), shape=corpus.shape)


def test_a_plan_names_a_route_for_each_term(corpus: Corpus):
    plan = _plan(corpus, 'docker 漓江 大别山项目 NOT "old plan"')
    assert plan.query == 'docker AND 漓江 AND 大别山项目 AND NOT "old plan"'
    assert dict(plan.routes) == {"docker": "word", "漓江": "gram", "大别山项目": "trigram"}
    assert [statement.purpose for statement in plan.statements] == ["ranked", "rest"]
    assert plan.degraded is None


def test_what_a_user_typed_is_in_parameters_only(corpus: Corpus):
    plan = _plan(corpus, "zebra'; DROP TABLE messages -- 漓江\") OR", roles=["zebra"], session_ids=["zebra"])
    for statement in plan.statements:
        assert "zebra" not in statement.sql
        assert "漓江" not in statement.sql
        assert any("zebra" in str(value) for value in statement.parameters.values())


def test_terms_of_one_index_are_one_match(corpus: Corpus):
    plan = _plan(corpus, "(a OR b) c NOT d")
    assert plan.statements[0].sql.count("MATCH") == 1


def test_nothing_is_planned_where_nothing_is_allowed(corpus: Corpus):
    assert _plan(corpus, "docker", roles=[]).statements == ()


def test_the_longest_queries_run(corpus: Corpus):
    wanted = corpus.add(" ".join(f"w{number}" for number in range(600)))
    for query in (
        " ".join(f"w{number}" for number in range(400)),
        " OR ".join(f"w{number}" for number in range(250)),
        "(" * 200 + "w1" + ")" * 200,
        " OR ".join(f"漓{number}" for number in range(200)) + " OR w1",
        "NEAR(" + " ".join(f"w{number}" for number in range(300)) + ", 900)",
        "w1 " + " ".join(f"NOT x{number}" for number in range(250)),
    ):
        assert corpus.ids(query) == [wanted], query[:30]
        corpus.fts5 = False
        assert corpus.ids(query) == [wanted], query[:30]
        corpus.fts5 = True
