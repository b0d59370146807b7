"""Folding and cutting agree with the tokenizer of SQLite that made the index."""

# ruff: noqa: RUF001 - look-alike letters are what is tested

from __future__ import annotations

import sqlite3
import sys
import unicodedata

import pytest

from hermes_store.search.scripts import fold_width, fold_words, has_unspaced, runs, spellings

# Characters assigned after Unicode 6.1, which SQLite's tables follow, are words to SQLite and fold to themselves.
_YOUNGER = {chr(code) for first, last in ((0x1C80, 0x1CBF), (0x13F8, 0x13FD)) for code in range(first, last + 1)} | set(
    "\u037f\u0528\u052a\u052c\u052e"
)


def test_words_are_cut_and_folded_as_unicode61_does(plain: sqlite3.Connection):
    plain.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
    plain.execute("CREATE VIRTUAL TABLE v USING fts5vocab(t, instance)")
    characters = [
        character
        for character in map(chr, range(1, 0x3000))
        if unicodedata.category(character) != "Cn" and character not in _YOUNGER and not has_unspaced(character)
    ]
    plain.executemany(
        "INSERT INTO t (rowid, x) VALUES (?, ?)", [(ord(character), f"a{character}b") for character in characters]
    )
    stored: dict[int, list[str]] = {}
    for rowid, term in plain.execute("SELECT doc, term FROM v ORDER BY doc, offset"):
        stored.setdefault(rowid, []).append(term)
    different = [
        hex(ord(character))
        for character in characters
        if unicodedata.category(character)[0] in "LNMZPC"
        and runs(fold_words(f"a{character}b")) != stored[ord(character)]
    ]
    letters = {code for code in different if unicodedata.category(chr(int(code, 16)))[0] in "LN"}
    assert letters <= {"0x1cf2", "0x1cf3", "0x2c2f"}  # reclassified or added since


@pytest.mark.parametrize(
    "text",
    [
        "漢字",
        "\U00020000",
        "\U00030000",
        "\uf900",
        "かな",
        "ｶﾅ",
        "ㄅ",
        "한글",
        "\u1100",
        "\ua960",
        "ไทย",
        "ລາວ",
        "ខ្មែរ",
        "မြန်",
        "々",
    ],
)
def test_unspaced_scripts_are_recognised(text: str):
    assert has_unspaced(f"abc {text}")


@pytest.mark.parametrize("text", ["abc", "привет", "ＡＢＣ", "。、「」", "１２", "🚀", "०", "٣"])
def test_other_scripts_are_not(text: str):
    assert not has_unspaced(text)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("ログイン", "ﾛｸﾞｲﾝ"),
        ("ﾛｸﾞｲﾝ", "ログイン"),
        ("docker", "ｄｏｃｋｅｒ"),
        ("é", "e\u0301"),
        ("구글", unicodedata.normalize("NFD", "구글")),
        (unicodedata.normalize("NFD", "구글"), "구글"),
    ],
)
def test_a_query_is_tried_in_the_spellings_that_may_be_stored(typed: str, stored: str):
    assert stored in spellings(typed)


def test_spellings_of_a_text_are_equal_when_folded():
    for text in ("ログイン", "v2服务", "구글", "ガ"):
        assert {fold_width(form) for form in spellings(text)} == {fold_width(text)}


def test_folding_touches_the_whole_range_of_characters_without_an_error():
    everything = "".join(map(chr, (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)))
    assert len(fold_words(everything)) == len(everything) - 25  # the marks that unicode61 drops
