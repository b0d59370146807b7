"""What a query means, independent of any index."""

# ruff: noqa: RUF001 - look-alike letters are what is tested

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_store.search.syntax import Leaf, parse
from hermes_store.search.verify import Field, literal_leaves, matches

ANSWERS = [
    # words
    ("docker", "about Docker, again"),
    ("DOCKER", "docker"),
    ("cafe", "CAFÉ"),
    ("café", "cafe"),
    ("café", "cafe\u0301"),
    ("йод", "Йод"),
    ("и\u0306од", "Йод"),
    ("йод", "И\u0306ОД"),
    ("ΆΛΦΑ", "άλφα"),
    ("docker", "ｄｏｃｋｅｒ"),
    ("ｄｏｃｋｅｒ", "docker"),
    ("हिन्दी", "यह हिन्दी है"),
    ("deploy*", "deployment"),
    ("under_score", "an under_score"),
    # phrases
    ('"old plan"', "the Old, plan"),
    ('"old pl"*', "old planning"),
    ('"大别山 项目"', "大别山项目"),
    ("NEAR(a b, 1)", "b x a"),
    ("NEAR(a b c, 1)", "a c b"),
    # punctuation has to be there
    ("gateway/run.py", "see gateway/run.py."),
    ("C++", "I like c++!"),
    ("C#", "C# and more"),
    ("it's", "It's"),
    (".env", "the .env file"),
    ("user@host", "ssh user@host"),
    ("50%", "at 50%"),
    ("key=value", "set key=value"),
    ("--force", "git push --force"),
    ("`foo`", "call `foo` now"),
    ("X:\\dir\\file", "in X:\\dir\\file"),
    ("https://a.b/c?d=e#f", "at https://a.b/c?d=e#f today"),
    ("a,b", "a,b"),
    ("🚀", "go🚀"),
    ("->", "a->b"),
    # unspaced scripts
    ("别山", "大别山"),
    ("ログイン", "ﾛｸﾞｲﾝ画面"),
    ("ﾛｸﾞｲﾝ", "ログイン"),
    ("ガ", "カ\u3099"),
    ("로그인", "로그인이"),
    ("로그인", "\u1105\u1169\u1100\u1173\u110b\u1175\u11ab"),
    ("หิว", "ฉันหิวข้าว"),
    ("ABC株式", "ＡＢＣ株式会社"),
    ("\U00020000\U00020001", "x\U00020000\U00020001y"),
    # words glued to unspaced scripts
    ("youer", "修改youer服务端"),
    ("cat", "猫cat狗"),
    ("youer*", "修改youerx服务端"),
    # operators
    ("a NOT b", "a c"),
    ("(a OR b) c", "b c"),
    ("a NOT (b c)", "a b"),
]

REFUSALS = [
    ("cat", "concatenate"),
    ("cat", "猫cats"),
    ("cat", "猫cat2"),
    ("ploy*", "deployment"),
    ("docker", ""),
    ('"old plan"', "plan old"),
    ('"old plan"', "oldplan"),
    ("NEAR(a b, 1)", "a x y b"),
    ("gateway/run.py", "gateway run py"),
    ("wrong-word", "wrong word"),
    ("C++", "C is"),
    (".env", "x.environment"),
    ("大别山项目", "大别山的项目"),
    ("가", "각"),
    ("a NOT b", "a b"),
    ("a NOT (b OR c)", "a c"),
    ("(a OR b) c", "a b"),
    ("->", "- >"),
]


def _matches(query: str, *texts: str, relaxed: frozenset[Leaf] = frozenset(), substring: bool = True) -> bool:
    return matches(parse(query).root, [Field(text, substring) for text in texts], relaxed)


@pytest.mark.parametrize(("query", "text"), ANSWERS)
def test_a_text_answers(query: str, text: str):
    assert _matches(query, text)


@pytest.mark.parametrize(("query", "text"), REFUSALS)
def test_a_text_does_not_answer(query: str, text: str):
    assert not _matches(query, text)


def test_terms_may_stand_in_different_texts_but_a_phrase_in_one():
    assert _matches("old plan", "old", "plan")
    assert not _matches('"old plan"', "old", "plan")
    assert not _matches("NEAR(old plan)", "old", "plan")


def test_relaxing_a_term_drops_its_punctuation_only():
    query = parse("gateway/run.py")
    relaxed = literal_leaves(query.root)
    assert _matches("gateway/run.py", "gateway run py", relaxed=relaxed)
    assert not _matches("gateway/run.py", "run gateway py", relaxed=relaxed)


def test_exclusions_are_never_relaxed():
    assert {leaf.text for leaf in literal_leaves(parse("a.b NOT c.d").root)} == {"a.b"}


def test_outside_substring_search_only_whole_words_of_the_index_count():
    assert not _matches("youer", "修改youer服务端", substring=False)
    assert not _matches("别山", "大别山", substring=False)
    assert _matches("docker", "a docker", substring=False)


@given(st.text(max_size=30), st.text(max_size=200))
@settings(deadline=None)
def test_any_query_can_be_judged_on_any_text(query: str, text: str):
    clean = text.encode("utf-8", "replace").decode()
    assert _matches(f"{query} OR x", clean) in (True, False)
