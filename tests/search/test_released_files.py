"""What released versions rightly found in their own files is found here too, on every layout."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fixture_files import FIXTURES, FRESH
from search.corpora import Opened

#: Queries whose answers differ from the release's, with the fault (upstream-behaviour 9) or rule that explains it.
DIFFERENCES = {
    "tailonlyword": "search-design 2 (G7): stands beyond the first 8,192 characters of a tool result",
    "ENDMARKERzulu": "search-design 2 (G7): stands beyond the first 8,192 characters of a tool result",
    "尾部标记词": "search-design 2: stands in a tool result",
    "错误日志": "search-design 2: stands in a cron session",
    "子代理报告": "search-design 2: stands in a delegated session",
    "新代码": "D4: is found in escaped tool arguments, where releases do not see it",
    "这张图片里有什么": "D1: is found in structured content, where releases do not see it",
    "图片": "D1: is found in structured content, where releases do not see it",
    "toolmultimodalword": "D2: is found in a structured tool result, an empty text to the indexes of layouts 2 and 3",
    "config": "C12: is found where it is glued to Han characters",
    "gateway/run.py": "S11: was a syntax error to older releases",
    "TODO: fix": "S11: was a syntax error to the oldest releases",
}
#: Queries about rows that only some releases write: those of compaction, rewinding, and marked delegates. And one about
#: a structured tool result, which is an empty text to the indexes of layouts 2 and 3.
OTHER_ROWS = {"inplaceword", "rewindgone", "rewindkeep", "needle_5", "数据库迁移", "子代理报告", "撤回的消息"} | {
    "toolmultimodalword"
}
LEFT_OUT = {"tailonlyword", "ENDMARKERzulu", "尾部标记词", "错误日志", "子代理报告"}


@pytest.mark.parametrize("name", FRESH)
def test_every_layout_gives_what_the_release_rightly_found(opened: Callable[[str], Opened], name: str):
    expected = json.loads((FIXTURES / name).with_suffix(".expect.json").read_text())["search"]
    file = opened(name)
    for query, ids in expected.items():
        found = file.ids(query, limit=1000, include_archived=True, include_hidden=True)
        missing, added = set(ids) - set(found), set(found) - set(ids)
        if query not in DIFFERENCES:
            assert not missing, query
            assert not added, query
        elif query in LEFT_OUT:
            assert not added, query
        else:
            assert not missing, query


@pytest.mark.parametrize("name", FRESH)
def test_a_file_answers_the_same_whatever_layout_it_has(opened: Callable[[str], Opened], name: str):
    newest = "v31-iot-0.22.2.post1.db"
    queries = json.loads((FIXTURES / newest).with_suffix(".expect.json").read_text())["search"].keys() - OTHER_ROWS

    def answers(file: Opened) -> dict[str, list[tuple[str, str]]]:
        pages = {query: file.search(query, limit=1000, include_archived=True, include_hidden=True) for query in queries}
        # Ids differ from release to release; session and text do not.
        return {query: sorted((hit.session_id, hit.snippet) for hit in page) for query, page in pages.items()}

    assert answers(opened(name)) == answers(opened(newest))


@pytest.mark.parametrize("name", ["v11-0.13.0.db", "v31-iot-0.22.2.post1.db"])
def test_naming_the_role_tool_searches_the_whole_tool_result(opened: Callable[[str], Opened], name: str):
    file = opened(name)
    assert file.ids("tailonlyword") == []
    (found,) = file.ids("tailonlyword", roles=["tool"])
    assert file.ids("尾部标记词", roles=["tool"]) == [found]
    assert file.ids("toolmultimodalword", roles=["tool", "user"]) != []


@pytest.mark.parametrize("name", ["v11-0.13.0.db", "v26-iot-0.21.0.post1.db", "v31-iot-0.22.2.post1.db"])
def test_sessions_outside_substring_search_are_searched_when_named(opened: Callable[[str], Opened], name: str):
    file = opened(name)
    page = file.search("错误日志")
    assert len(page) == 0
    assert any("cron" in note for note in page.notes)
    assert len(file.ids("错误日志", sources=["cron"])) == 3
    assert len(file.ids("错误日志", session_ids=["cron_job42_20260714_120000"])) == 3
