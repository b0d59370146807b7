"""What Hermes's own search gets wrong, one test for each: S queries, C unspaced scripts, D encoding, G, L, R the rest."""

from __future__ import annotations

import json

import pytest
from search.corpora import Corpus

from hermes_store.errors import QueryError

# ------------------------------------------------------------------------------------------------- S: queries as typed


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("where did we leave X.", "so where did we leave X."),
        ("foo.", "the foo."),
        ("...", "wait ... what"),
        ("~/.hermes/state.db", "open ~/.hermes/state.db"),
        ("-verbose", "run with -verbose"),
        ("--force", "push --force"),
        ("foo - bar", "foo - bar"),
        ("`foo`", "the `foo` call"),
        ("or-tools solver", "the or-tools solver"),
        ("not-found error", "a not-found error"),
        ("not working", "it is not working"),
        ("or docker", "podman or docker"),
        ("X and", "X and Y"),
        ("C++", "in C++ code"),
        ("C#", "in C# code"),
        ("it's", "now it's done"),
        ("a,b", "a,b"),
        ("user@host", "ssh user@host"),
        ("50%", "at 50%"),
        ("gateway/run.py", "in gateway/run.py"),
        ("key=value", "set key=value"),
        ("TODO: fix", "TODO: fix it"),
        (".env", "a .env file"),
        ("X:\\dir\\file", "in X:\\dir\\file"),
        ("https://example.org/a?b=c#d", "see https://example.org/a?b=c#d"),
        ("🚀", "launch 🚀 now"),
        ("%", "100%"),
        ("_", "a_b"),
    ],
)
def test_a_query_finds_the_message_that_holds_it(corpus: Corpus, query: str, text: str):
    wanted = corpus.add(text)
    corpus.add("something else")
    assert corpus.ids(query) == [wanted]


def test_plain_words_that_look_like_operators_keep_their_meaning(corpus: Corpus):
    both = corpus.add("not working")
    corpus.add("working")
    assert corpus.ids("not working") == [both]


@pytest.mark.parametrize("query", ["AND OR foo", "foo AND NOT", "foo AND OR bar", "foo NOT NOT baz", "((foo", 'foo "'])
def test_malformed_operators_are_dropped(corpus: Corpus, query: str):
    wanted = corpus.add("foo")
    corpus.add("baz")
    assert corpus.ids(query) == [wanted]


def test_brackets_group(corpus: Corpus):
    _, _, both, other = corpus.add_all("a", "b c x", "a c", "b c")
    assert set(corpus.ids("(a OR b) AND c NOT x")) == {both, other}


def test_exclusion_takes_the_next_word_only(corpus: Corpus):
    wanted, _, _ = corpus.add_all("docker plan", "docker old plan", "docker")
    assert corpus.ids("docker NOT old plan") == [wanted]


def test_near_limits_the_distance(corpus: Corpus):
    near, _ = corpus.add_all("deploy to production", "deploy one two three four five six production")
    assert corpus.ids("NEAR(deploy production, 5)") == [near]


def test_a_nul_in_a_query_neither_ends_it_nor_is_a_placeholder(corpus: Corpus):
    wanted, _ = corpus.add_all("a b", "a")
    assert corpus.ids("a\0b") == [wanted]
    quoted = corpus.add("Q0 p")
    corpus.add("p p")
    assert corpus.ids('\0Q0\0 "p"') == [quoted]


def test_a_phrase_longer_than_the_limit_stays_a_phrase(corpus: Corpus):
    words = " ".join(f"w{number}" for number in range(600))
    wanted = corpus.add(words)
    corpus.add(" ".join(reversed(words.split())))
    page = corpus.search(f'"{words}"')
    assert [hit.id for hit in page] == [wanted]
    assert any("cut" in note for note in page.notes)


def test_a_star_in_a_word_is_no_prefix(corpus: Corpus):
    literal, _ = corpus.add_all("de*ploy", "depart ploy")
    assert corpus.ids("de*ploy") == [literal]


def test_a_query_with_nothing_to_find_is_an_error_and_not_an_empty_page(corpus: Corpus):
    corpus.add("x")
    with pytest.raises(QueryError):
        corpus.search("NOT x")


def test_punctuation_that_no_message_holds_is_relaxed_and_noted(corpus: Corpus):
    loose = corpus.add("gateway run py")
    page = corpus.search("gateway/run.py")
    assert [hit.id for hit in page] == [loose]
    assert any("relaxed" in note and "gateway/run.py" in note for note in page.notes)
    exact = corpus.add("gateway/run.py")
    page = corpus.search("gateway/run.py")
    assert [hit.id for hit in page] == [exact]
    assert not page.notes


def test_only_the_terms_that_nothing_holds_are_relaxed(corpus: Corpus):
    wanted, _ = corpus.add_all("run.py does fail", "run py does fail")
    assert corpus.ids("run.py fail?") == [wanted]


def test_the_whole_query_is_relaxed_when_no_message_holds_all_of_its_punctuation(corpus: Corpus):
    first, second = corpus.add_all("a.b c d", "a b c-d")
    assert set(corpus.ids("a.b c-d")) == {first, second}


# ----------------------------------------------------------------------------------------------- C: unspaced scripts


def test_short_terms_keep_their_operators(corpus: Corpus):
    apple, banana, both = corpus.add_all("苹果", "香蕉", "苹果和香蕉")
    assert corpus.ids("苹果 AND 香蕉") == [both]
    assert corpus.ids("苹果 香蕉") == [both]
    assert corpus.ids("苹果 NOT 香蕉") == [apple]
    assert set(corpus.ids("苹果 OR 香蕉")) == {apple, banana, both}


def test_sorting_applies_to_every_route(corpus: Corpus):
    first, second = corpus.add_all("苹果", "苹果")
    assert corpus.ids("苹果", sort="oldest") == [first, second]
    assert corpus.ids("苹果", sort="newest") == [second, first]


def test_a_phrase_and_a_term_combine(corpus: Corpus):
    wanted = corpus.add("大别山项目的发布说明")
    corpus.add("大别山项目")
    assert corpus.ids('"大别山项目" 发布说明') == [wanted]


def test_a_term_with_punctuation_beside_an_unspaced_one(corpus: Corpus):
    wanted, _ = corpus.add_all("大别山项目 v2.3", "大别山项目 v2 3")
    assert corpus.ids("大别山项目 v2.3") == [wanted]


def test_a_prefix_mark_on_an_unspaced_term_is_honoured(corpus: Corpus):
    wanted = corpus.add("苹果派说明")
    assert corpus.ids("苹果*") == corpus.ids("苹果派*") == [wanted]


def test_punctuation_of_unspaced_scripts_is_no_part_of_a_term(corpus: Corpus):
    wanted = corpus.add("去大别山玩")
    docker = corpus.add("docker again")
    assert corpus.ids("大别山。") == [wanted]
    page = corpus.search("docker。")
    assert [hit.id for hit in page] == [docker]
    assert page.route == "word"


def test_lower_case_or_is_a_word_on_every_route(corpus: Corpus):
    corpus.add("大别山")
    wanted = corpus.add("大别山 or 桂林山水")
    assert corpus.ids("大别山 or 桂林山水") == [wanted]


def test_a_short_word_beside_an_unspaced_term_counts(corpus: Corpus):
    wanted, _ = corpus.add_all("大别山 v2", "大别山 v3")
    assert corpus.ids("大别山 v2") == corpus.ids("大别山 AND v2") == [wanted]


def test_characters_of_a_term_must_be_adjacent(corpus: Corpus):
    wanted, _ = corpus.add_all("大x别y山", "大别山xy")
    assert corpus.ids("大x别y山") == [wanted]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("\u1112\u1161\u11ab", "\u1112\u1161\u11ab\u1100\u1173\u11af"),
        ("\uf900\uf901\uf902", "x\uf900\uf901\uf902y"),
        ("\U00030000\U00030001\U00030002", "x\U00030000\U00030001\U00030002y"),
        ("ㄅㄆㄇ", "xㄅㄆㄇy"),
        ("ｶﾀｶﾅ", "全ｶﾀｶﾅ角"),
        ("หิวข้าว", "ฉันหิวข้าวมาก"),
        ("ສະບາຍ", "ສະບາຍດີ"),
        ("សួស្តី", "xសួស្តីy"),
        ("မင်္ဂလာ", "မင်္ဂလာပါ"),
    ],
)
def test_every_unspaced_script_is_searched_by_substring(corpus: Corpus, query: str, text: str):
    wanted = corpus.add(text)
    assert corpus.ids(query) == [wanted]


def test_a_word_glued_to_an_unspaced_script_is_found(corpus: Corpus):
    glued = corpus.add("修改youer服务端")
    short = corpus.add("用v2版")
    assert corpus.ids("youer") == corpus.ids("youer*") == [glued]
    assert corpus.ids("v2") == [short]


def test_the_substring_route_does_not_find_parts_of_words(corpus: Corpus):
    corpus.add("concatenate")
    prefix = corpus.add("猫cats狗")
    assert corpus.ids("cat") == []
    assert corpus.ids("cat*") == [prefix]


def test_a_query_means_the_same_whatever_state_the_index_is_in(corpus: Corpus):
    corpus.add_all("苹果", "香蕉", "苹果和香蕉", "docker", "python docker")
    queries = ["苹果 香蕉", "苹果 OR docker", "docker NOT python", "python"]
    before = [set(corpus.ids(query)) for query in queries]
    corpus.execute("INSERT INTO state_meta (key, value) VALUES ('fts_stale', '1')")
    assert [set(corpus.ids(query)) for query in queries] == before


def test_snippets_have_marks_on_every_route(corpus: Corpus):
    corpus.add("升级K8S和苹果")
    corpus.add(None, tool_name="苹果工具", tool_calls="[]")
    snippets = {hit.snippet for hit in corpus.search("苹果").hits}
    assert snippets == {"升级K8S和>>>苹果<<<", ">>>苹果<<<工具"}
    assert corpus.search("k8s 苹果").hits[0].snippet == "升级>>>K8S<<<和>>>苹果<<<"


@pytest.mark.parametrize(
    ("stored", "query"),
    [("ログインする", "ﾛｸﾞｲﾝ"), ("ﾛｸﾞｲﾝする", "ログイン"), ("구글", "\u1100\u116e\u1100\u1173\u11af")],
)
def test_spellings_find_each_other(corpus: Corpus, stored: str, query: str):
    wanted = corpus.add(stored)
    assert corpus.ids(query) == [wanted]


# ------------------------------------------------------------------------------------------------------- D: encoding


def _parts(*parts: object) -> str:
    return "\0json:" + json.dumps(list(parts))


def test_structured_text_is_found_in_its_own_script(corpus: Corpus):
    wanted = corpus.add(
        _parts({"type": "text", "text": "苹果派说明书"}, {"type": "image_url", "image_url": {"url": "x"}})
    )
    assert corpus.ids("苹果派说明书") == corpus.ids("苹果") == [wanted]
    assert corpus.search("苹果派").hits[0].snippet == ">>>苹果派<<<说明书"


def test_escapes_keys_and_base64_are_not_found(corpus: Corpus):
    wanted = corpus.add(
        _parts(
            {"type": "text", "text": "苹果 pie"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA needle"}},
        )
    )
    for query in ("u82f9", "image_url", "url", "type", "needle", "png"):
        assert corpus.ids(query) == []
    assert corpus.ids("pie") == [wanted]


def test_tool_arguments_are_found_in_their_own_script(corpus: Corpus):
    arguments = json.dumps({"path": "src/登录.py", "new": "新代码"})
    calls = json.dumps([{"id": "c", "type": "function", "function": {"name": "patch", "arguments": arguments}}])
    wanted = corpus.add(None, role="assistant", tool_calls=calls)
    assert corpus.ids("新代码") == corpus.ids("登录") == [wanted]
    assert corpus.ids("function") == []
    assert corpus.search("新代码").hits[0].snippet == "patch\nsrc/登录.py\n>>>新代码<<<"


def test_words_beyond_ascii_are_found_in_escaped_text(corpus: Corpus):
    wanted = corpus.add(_parts({"type": "text", "text": "Привет, Café Zürich"}))
    for query in ("привет", "ПРИВЕТ", "café", "Zürich"):
        assert corpus.ids(query) == [wanted]


def test_words_after_an_escaped_line_break_are_found(corpus: Corpus):
    wanted = corpus.add(_parts({"type": "text", "text": "first\ndocker v2\nup"}))
    arguments = json.dumps({"command": "cd 目录\nmake docker"})
    calls = json.dumps([{"function": {"name": "terminal", "arguments": arguments}}])
    command = corpus.add(None, role="assistant", tool_calls=calls)
    assert set(corpus.ids("docker")) == {wanted, command}
    assert corpus.ids("docker v2") == corpus.ids('"docker v2 up"') == [wanted]
    assert corpus.ids("make 目录") == [command]


def test_bytes_and_broken_json_are_shown_and_flagged(corpus: Corpus):
    corpus.add("\0json:{broken needle")
    corpus.add(b"bytes needle \xff")
    corpus.add("good needle")
    problems = {hit.snippet.strip("\0"): hit.problems for hit in corpus.search("needle")}
    assert problems == {
        "json:{broken >>>needle<<<": ("broken JSON",),
        "bytes >>>needle<<< \ufffd": ("undecodable text",),
        "good >>>needle<<<": (),
    }


def test_strange_timestamps_neither_break_a_page_nor_its_order(corpus: Corpus):
    ids = [
        corpus.add("needle", timestamp=timestamp)
        for timestamp in (1.0, float("inf"), float("-inf"), "yesterday", b"\x01", 2.0, 2.0)
    ]
    expected = [ids[at] for at in (4, 3, 1, 6, 5, 0, 2)]
    assert corpus.ids("needle") == corpus.ids("needle", sort="newest") == expected
    assert corpus.ids("needle", sort="oldest")[:2] == [ids[2], ids[0]]
    flagged = {hit.id: hit for hit in corpus.search("needle")}
    assert flagged[ids[3]].timestamp is None
    assert flagged[ids[3]].timestamp_at is None
    assert flagged[ids[3]].problems == ("unreadable timestamp",)
    assert flagged[ids[0]].timestamp_at.timestamp() == 1.0


# ------------------------------------------------------------------------------------------------ L, G, R: what is shown


def test_rewound_messages_are_nowhere_unless_asked_for(corpus: Corpus):
    first = corpus.add("public needle")
    secret = corpus.add("SECRET needle", active=0)
    last = corpus.add("after")
    assert corpus.ids("needle") == [first]
    assert [message.id for message in corpus.search("needle").hits[0].context] == [first, last]
    assert set(corpus.ids("needle", include_inactive=True)) == {first, secret}
    context = corpus.search("public", include_inactive=True).hits[0].context
    assert [message.id for message in context] == [first, secret]


def test_messages_marked_hidden_are_not_shown(corpus: Corpus):
    shown = corpus.add("needle")
    corpus.add("needle", display_kind="hidden")
    steer = corpus.add("needle", display_kind="steer")
    assert set(corpus.ids("needle")) == {shown, steer}
    assert [message.id for message in corpus.search("needle").hits[1].context] == [shown, steer]


def test_archived_originals_are_found_but_a_copy_only_once(corpus: Corpus):
    archived = corpus.add("only archived needle", active=0, compacted=1)
    original = corpus.add("needle", active=0, compacted=1, timestamp=5.0)
    copy = corpus.add("needle", timestamp=5.0)
    assert set(corpus.ids("needle")) == {archived, copy}
    assert set(corpus.ids("needle", include_inactive=True)) == {archived, original, copy}


def test_a_copy_that_kept_the_uid_is_the_same_message(corpus: Corpus):
    corpus.add("needle", active=0, compacted=1, message_uid="u" * 32)
    copy = corpus.add("needle, edited", message_uid="u" * 32)
    assert corpus.ids("needle") == [copy]


def test_archived_and_hidden_sessions_are_searched_on_request(corpus: Corpus):
    corpus.session("old", archived=1)
    corpus.session("secret", hidden=1)
    old = corpus.add("needle", session="old")
    secret = corpus.add("needle", session="secret")
    shown = corpus.add("needle")
    assert corpus.ids("needle") == [shown]
    assert set(corpus.ids("needle", include_archived=True)) == {old, shown}
    assert set(corpus.ids("needle", include_hidden=True)) == {secret, shown}


def test_equal_ranks_have_an_order_and_pages_neither_repeat_nor_skip(corpus: Corpus):
    ids = [corpus.add("same needle", timestamp=float(number % 3)) for number in range(50)]
    expected = sorted(ids, key=lambda id_: ((id_ - ids[0]) % 3, id_), reverse=True)
    pages = [corpus.ids("needle", limit=7, offset=offset) for offset in range(0, 56, 7)]
    assert [id_ for page in pages for id_ in page] == expected
