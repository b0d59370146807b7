"""Snippets show where a message answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_store.errors import QueryError
from hermes_store.search.snippet import CLOSE, OPEN, snippet
from hermes_store.search.syntax import parse
from hermes_store.search.verify import Field


def _snippet(query: str, *texts: str) -> str:
    return snippet(parse(query).root, [Field(text, substring=True) for text in texts])


def test_matches_are_marked_in_a_short_text():
    assert _snippet("docker deployment", "The Docker deployment") == "The >>>Docker<<< >>>deployment<<<"


def test_a_phrase_is_one_match():
    assert _snippet('"old plan"', "the old plan") == "the >>>old plan<<<"


def test_what_is_left_out_is_an_ellipsis():
    text = " ".join(f"w{number}" for number in range(200))
    shown = _snippet("w100", text)
    assert shown.startswith("...w")
    assert shown.endswith("...")
    assert 35 <= len(shown.split()) <= 45


def test_the_window_lies_where_most_terms_are():
    text = "alpha " + "x " * 200 + "alpha beta " + "y " * 200 + "beta"
    assert ">>>alpha<<< >>>beta<<<" in _snippet("alpha beta", text)


def test_unspaced_text_is_cut_by_characters():
    shown = _snippet("漓江", "山" * 500 + "漓江" + "水" * 500)
    assert ">>>漓江<<<" in shown
    assert 110 <= len(shown.replace(OPEN, "").replace(CLOSE, "").strip(".")) <= 125


def test_marks_lie_on_the_stored_spelling():
    assert _snippet("ログイン", "再度ﾛｸﾞｲﾝする") == "再度>>>ﾛｸﾞｲﾝ<<<する"
    assert _snippet("cafe", "un cafe\u0301 noir") == "un >>>cafe\u0301<<< noir"
    assert _snippet("구글", "\u1100\u116e\u1100\u1173\u11af 로그인") == ">>>\u1100\u116e\u1100\u1173\u11af<<< 로그인"


def test_the_text_with_most_terms_is_shown():
    assert _snippet("a b", "a", "a b") == ">>>a<<< >>>b<<<"


def test_an_excluded_term_is_not_marked():
    assert _snippet("a NOT b", "b a") == "b >>>a<<<"


def test_without_a_match_the_beginning_is_shown():
    assert _snippet("nothing", "", "some text") == "some text"


def test_data_without_blanks_does_not_flood_the_snippet():
    assert len(_snippet("needle", "x" * 5000 + " needle " + "y" * 5000)) < 700


@given(st.text(max_size=20), st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_a_snippet_without_its_marks_is_a_part_of_the_text(query: str, text: str):
    clean = text.encode("utf-8", "replace").decode().replace(OPEN, "").replace(CLOSE, "")
    try:
        shown = _snippet(query, clean)
    except QueryError:
        return
    bare = shown.replace(OPEN, "").replace(CLOSE, "")
    assert any(
        part.strip() in clean for part in (bare, bare.removeprefix("..."), bare.removesuffix("..."), bare.strip("."))
    )
