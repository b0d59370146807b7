"""Every string is a query; only one without anything positive is an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_store.errors import QueryError
from hermes_store.search.syntax import (
    BARE_NOT_NOTE,
    CUT_NOTE,
    DEPTH_NOTE,
    MAX_LENGTH,
    And,
    Near,
    Node,
    Not,
    Or,
    Phrase,
    Prefix,
    Term,
    leaves,
    parse,
    positive,
)

a, b, c = Term("a"), Term("b"), Term("c")

READINGS: list[tuple[str, Node]] = [
    ("docker deploy", And((Term("docker"), Term("deploy")))),
    ("a AND b", And((a, b))),
    ("a OR b c", Or((a, And((b, c))))),
    ("a b OR c", Or((And((a, b)), c))),
    ("(a OR b) AND c", And((Or((a, b)), c))),
    ("(a OR b)c", And((Or((a, b)), c))),
    ("docker NOT old plan", And((Term("docker"), Not(Term("old")), Term("plan")))),
    ("a NOT (b OR c)", And((a, Not(Or((b, c)))))),
    ("NOT(a) b", And((Not(a), b))),
    ('"old plan"', Phrase("old plan")),
    ('"old plan"*', Prefix("old plan")),
    ("deploy*", Prefix("deploy")),
    ("苹果*", Prefix("苹果")),
    ("de*ploy", Term("de*ploy")),
    ("NEAR(a b, 5)", Near((a, b), 5)),
    ('NEAR(a "b c")', Near((a, Phrase("b c")), 10)),
    ("NEAR(a, b, 3", Near((a, b), 3)),
    # Dangling and doubled operators are dropped; what is open is closed.
    ("AND OR a", a),
    ("a AND NOT", a),
    ("a AND OR b", Or((a, b))),
    ("a OR AND b", Or((a, b))),
    ("a NOT NOT b", And((a, Not(b)))),
    ("a NOT (NOT b)", And((a, b))),
    ("a OR", a),
    ("((a) b", And((a, b))),
    ('"exact phrase', Phrase("exact phrase")),
    ('foo"bar"baz', And((Term("foo"), Phrase("bar"), Term("baz")))),
    ("a a", a),
    ("a OR NOT b", a),
    # Operators are words of their own in capital letters; nothing else is.
    ("not working", And((Term("not"), Term("working")))),
    ("a or b", And((a, Term("or"), b))),
    ("or-tools", Term("or-tools")),
    ("NOT-FOUND", Term("NOT-FOUND")),
    ("near(a b)", And((Term("near"), a, b))),
    ('"OR" a', And((Phrase("OR"), a))),
    ("-verbose", Term("-verbose")),
    ("content:foo", Term("content:foo")),
    ("^foo", Term("^foo")),
    # Brackets within a word belong to it.
    ("parse_duration()", Term("parse_duration()")),
    ("(f(x) OR b)", Or((Term("f(x)"), b))),
    ("f(a OR b)", And((Term("f"), Or((a, b))))),
    # Signs between words are no condition; alone they are the query; emoji always count.
    ("foo - bar", And((Term("foo"), Term("bar")))),
    ("->", Phrase("->")),
    ("- >", Phrase("- >")),
    ("a 🚀", And((a, Phrase("🚀")))),
    ('a "->"', And((a, Phrase("->")))),
    ("-> NOT a", And((Phrase("->"), Not(a)))),
    ('"..."', Phrase("...")),
    # Punctuation of unspaced scripts separates.
    ("大别山。", Term("大别山")),
    ("大别山、桂林", And((Term("大别山"), Term("桂林")))),
    ("修改youer服务端", Term("修改youer服务端")),
    # NUL and control characters are blanks.
    ("a\0b", And((a, b))),
    ('\0Q0\0 "p"', And((Term("Q0"), Phrase("p")))),
    ("a\u200bb\ufeff", And((a, b))),
]


@pytest.mark.parametrize(("text", "root"), READINGS, ids=[text for text, _ in READINGS])
def test_a_query_reads_as(text: str, root: Node):
    assert parse(text).root == root


@pytest.mark.parametrize(
    "text", ["", "   ", "\0\n", "AND", "AND OR NOT", "NOT x", "NOT (a b)", "NOT a NOT b", "NEAR(", '""']
)
def test_a_query_with_nothing_positive_is_an_error(text: str):
    with pytest.raises(QueryError, match="nothing to search for"):
        parse(text)


def test_an_over_long_query_is_cut_between_words_and_says_so():
    query = parse(" ".join(f"word{number}" for number in range(1000)))
    assert query.notes == (CUT_NOTE,)
    texts = [leaf.text for leaf in leaves(query.root)]
    assert texts == [f"word{number}" for number in range(len(texts))]
    assert len(" ".join(texts)) <= MAX_LENGTH


def test_an_over_long_phrase_stays_a_phrase():
    query = parse('"' + "word " * 600 + '"')
    assert isinstance(query.root, Phrase)
    assert query.notes == (CUT_NOTE,)


def test_an_endless_word_becomes_a_prefix():
    assert parse("x" * 3000).root == Prefix("x" * (MAX_LENGTH - 1))


def test_brackets_beyond_the_limit_are_blanks_and_noted():
    query = parse("(" * 500 + "a OR b" + ")" * 500 + " c")
    assert query.root == And((Or((a, b)), c))
    assert query.notes == (DEPTH_NOTE,)


def test_an_alternative_that_only_excludes_is_left_out_and_noted():
    assert parse("a OR NOT b").notes == (BARE_NOT_NOTE,)


def test_exclusions_disappear_from_what_is_proposed():
    assert positive(parse("a NOT b (b NOT c OR a)").root) == And((a, Or((b, a))))


_PIECES = st.sampled_from(
    [
        "AND",
        "OR",
        "NOT",
        "NEAR(",
        "(",
        ")",
        '"',
        "*",
        " ",
        ", 5",
        "a",
        "docker",
        "大别山",
        "。",
        "->",
        "🚀",
        "it's",
        "\0",
        "\ud800",
    ]
)
ANY_QUERY = st.one_of(
    st.text(), st.text(st.characters()), st.lists(_PIECES).map("".join), st.lists(_PIECES).map(" ".join)
)


@given(ANY_QUERY)
@settings(max_examples=300, deadline=None)
def test_no_string_raises_anything_but_query_error(text: str):
    try:
        query = parse(text)
    except QueryError:
        return
    _check_normal(query.root)


@given(ANY_QUERY)
@settings(max_examples=300, deadline=None)
def test_a_printed_query_reads_as_the_same_query(text: str):
    try:
        query = parse(text)
    except QueryError:
        return
    assert str(parse(str(query))) == str(query)


def _check_normal(node: Node) -> None:
    """A normalised tree has no empty, single or nested groups, and exclusions only beside something positive."""
    match node:
        case And(parts) | Or(parts):
            assert len(parts) > 1
            assert len(set(parts)) == len(parts)
            assert not any(type(part) is type(node) for part in parts)
            assert any(not isinstance(part, Not) for part in parts)
            assert isinstance(node, And) or not any(isinstance(part, Not) for part in parts)
            for part in parts:
                _check_normal(part.part if isinstance(part, Not) else part)
        case Near(parts):
            assert len(parts) > 1
        case Not():
            pytest.fail("an exclusion outside an AND")
        case _:
            assert node.text.strip()
            node.text.encode()
