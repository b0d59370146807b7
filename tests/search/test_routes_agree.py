"""Whatever the route, layout or filter: the same messages, those that a reading of every message finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search.corpora import Corpus, Opened
from search.judge import Judge

from hermes_store.errors import QueryError

# One file of each layout, two mixtures, two in the middle of a re-layout, and one with a write-ahead log.
FILES = [
    "v11-0.13.0.db",
    "v26-iot-0.21.0.post1.db",
    "v30-iot-0.21.3.post1.db",
    "v31-iot-0.22.2.post1.db",
    "upgrade/u5-v31-iot-0.22.2.db",
    "upgrade/y3-v30-from-v26-layout1.db",
    "optimize/v26-iot-0.20.4-demoted.db",
    "optimize/v31-iot-0.22.2-partial.db",
    "journal/v22-0.19.0-hotwal.db",
]
QUERIES = [
    "docker",
    "docker NOT deployment",
    "docker OR 漓江",
    "项目 NOT 日志",
    "大别山项目 OR podman",
    '"docker deployment" fail',
    "NEAR(docker fail, 5)",
    "dock*",
    "youer",
    "(docker OR podman) rootless",
    "v1",
    "🚀",
    "100%",
    "登录.py",
    "服务端/登录.py",
    "小雨 漓江",
    "continue file_5*",
    "RESUME naïve",
    "ﾛｸﾞｲﾝ",
    "image_url",
    "call_0001",
    "错误日志",
    "terminal",
    "这张图片 multimodalword",
]
FILTERS: list[dict[str, Any]] = [
    {},
    {"roles": ["tool"]},
    {"roles": ["tool", "user"]},
    {"sources": ["cron"]},
    {"exclude_sources": ["cli", "telegram"]},
    {"session_ids": ["20260710_090000_aaaa01", "20260714_110000_gggg01", "cron_job42_20260714_120000"]},
    {"include_inactive": True, "include_archived": True, "include_hidden": True},
]


@pytest.mark.parametrize("name", FILES)
def test_released_files_answer_as_a_reading_of_every_message_does(opened: Callable[[str], Opened], name: str):
    file = opened(name)
    judge = Judge(file)
    for at, query in enumerate(QUERIES):
        for number, filters in enumerate((FILTERS[0], FILTERS[1 + at % (len(FILTERS) - 1)])):
            expected = judge.ids(query, **filters)
            sort = ("rank", "newest", "oldest")[(at + number) % 3]
            found = file.ids(query, limit=1000, sort=sort, context=False, **filters)
            in_order = found if sort == "oldest" else found[::-1] if sort == "newest" else sorted(found)
            assert in_order == (sorted(expected) if sort == "rank" else expected), (query, filters)


@pytest.mark.parametrize("name", ["v11-0.13.0.db", "v31-iot-0.22.2.post1.db"])
def test_released_files_answer_the_same_without_their_indexes(opened: Callable[[str], Opened], name: str):
    file = opened(name)
    expected = {query: set(file.ids(query, limit=1000)) for query in QUERIES}
    file.fts5 = False
    for query in QUERIES:
        page = file.search(query, limit=1000)
        assert {hit.id for hit in page} == expected[query], query
        assert page.route == "like"


_GLUED = re.compile(r"[a-zA-Z0-9][^\x00-\x7f]|[^\x00-\x7f][a-zA-Z0-9]")
_WORD = st.sampled_from(
    ["docker", "Docker", "cat", "concatenate", "v2", "a.b", "a-b", "C++", "it's", "run.py", "up", "Привет", "🚀"]
)
_HAN = st.sampled_from(
    ["漓江", "漓江水", "大别山项目", "山", "ログイン", "ﾛｸﾞｲﾝ", "구글", "修改docker服务端", "用v2版", "。", "、"]
)
_TEXT = st.lists(_WORD | _HAN, max_size=6).flatmap(
    lambda words: st.sampled_from([" ", "", "。", "\n"]).map(lambda gap: gap.join(words))
)
_TERM = _WORD | _HAN | st.sampled_from(["doc*", "漓江*", '"docker up"', '"docker 漓江"', "NEAR(docker up, 1)"])
_QUERY = st.recursive(
    _TERM,
    lambda inner: st.tuples(inner, st.sampled_from([" ", " OR ", " NOT ", " AND "]), inner).map(
        lambda parts: f"({''.join(parts)})"
    ),
    max_leaves=4,
)


@given(texts=st.lists(_TEXT, min_size=1, max_size=8), queries=st.lists(_QUERY, min_size=1, max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_query_over_any_messages_gets_the_same_answer_from_indexes_and_scans(
    corpus: Corpus, texts: list[str], queries: list[str]
):
    corpus.connection.exec_driver_sql("DELETE FROM messages")
    for number, text in enumerate(texts):
        role = "tool" if number % 4 == 3 else "user"
        # Glued words in structured content are for the decoded-text index; here they are in plain content only.
        structured = number % 3 == 2 and role == "user" and not _GLUED.search(text)
        corpus.add("\0json:" + json.dumps([{"type": "text", "text": text}]) if structured else text, role=role)
    judge = Judge(corpus)
    for query in queries:
        try:
            expected = judge.ids(query)
        except QueryError:
            continue
        corpus.fts5 = True
        assert sorted(corpus.ids(query, limit=100)) == sorted(expected), query
        assert corpus.ids(query, limit=100, sort="oldest") == expected, query
        corpus.fts5 = False
        assert sorted(corpus.ids(query, limit=100)) == sorted(expected), query


@given(
    query=st.one_of(
        st.text(max_size=60), st.lists(_QUERY | st.sampled_from(list('()"*:^-+{}\0\ud800')), max_size=8).map(" ".join)
    )
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_string_can_be_searched(corpus: Corpus, query: str):
    if not corpus.ids("docker"):
        corpus.add_all("docker", "大别山项目", "x -> y")
    for fts5 in (True, False):
        corpus.fts5 = fts5
        try:
            corpus.search(query, titles=True)
        except QueryError:
            return
