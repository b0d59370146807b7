"""Titles are clean, short and unique, and what happens when one is taken is said by each call."""

from __future__ import annotations

import pytest

from hermes_store import ConflictError, HermesStore, NotFoundError
from hermes_store.titles import clean_title


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("  Deploy\tnotes \n", "Deploy notes"),
        ("a\x00b\x1b[c", "ab[c"),
        ("zero\u200bwidth\u2060joined\ufeff", "zerowidthjoined"),
        ("会議　メモ", "会議 メモ"),
        ("", None),
        (" \u200b ", None),
        ("x" * 100, "x" * 100),
        (" " + "x" * 100 + " ", "x" * 100),
    ],
)
def test_a_title_is_cleaned(typed: str, stored: str | None) -> None:
    assert clean_title(typed) == stored


def test_a_title_of_more_than_a_hundred_characters_is_refused_with_its_length() -> None:
    with pytest.raises(ValueError, match="101 characters"):
        clean_title("x" * 101)


def test_the_next_title_is_the_first_that_is_free(store: HermesStore) -> None:
    assert store.sessions.next_title("x") == "x"
    store.sessions.create("cli", title="x #2")
    assert store.sessions.next_title("x") == "x", "only its second is taken"
    store.sessions.create("cli", title="x")
    assert store.sessions.next_title("x") == "x #3"
    assert store.sessions.next_title("x #2") == "x #3"
    store.sessions.create("cli", title="x #notes")
    store.sessions.create("cli", title="x #07")
    assert store.sessions.next_title("x") == "x #3", "neither is a number of it"


def test_signs_in_a_title_are_no_wildcards(store: HermesStore) -> None:
    store.sessions.create("cli", title="100x #9")
    store.sessions.create("cli", title="100%")
    assert store.sessions.next_title("100%") == "100% #2"


def test_a_title_that_is_taken_is_an_error_that_says_by_whom(store: HermesStore) -> None:
    holder, other = store.sessions.create("cli", title="Notes").id, store.sessions.create("cli").id
    with pytest.raises(ConflictError, match=holder):
        store.sessions.rename(other, "Notes")
    with pytest.raises(ConflictError, match=holder):
        store.sessions.create("cli", title="Notes")
    assert store.sessions.rename(holder, " Notes ").title == "Notes", "it may keep its own"
    assert store.sessions.rename(other, "Notes", on_conflict="suffix").title == "Notes #2"


def test_a_title_is_taken_over_within_a_conversation_only(store: HermesStore) -> None:
    first = store.sessions.create("cli", title="Notes").id
    store.sessions.end(first, "compression")
    second = store.sessions.create("cli", parent_session_id=first).id
    stranger = store.sessions.create("cli", title="Other").id
    assert store.sessions.rename(second, "Notes", on_conflict="take_over").title == "Notes"
    assert store.sessions.get(first).title is None
    with pytest.raises(ConflictError, match=stranger):
        store.sessions.rename(second, "Other", on_conflict="take_over")
    assert store.sessions.get(second).title == "Notes"


def test_a_session_is_found_by_id_prefix_or_title_and_what_is_meant_must_be_clear(store: HermesStore) -> None:
    store.sessions.create("cli", id="20260101_aaaa", title="Notes")
    store.sessions.create("cli", id="20260101_bbbb", title="notes")
    store.sessions.create("cli", id="2026", title="20260101_aaaa")
    assert store.sessions.resolve("20260101_aaaa") == "20260101_aaaa", "the id comes first"
    assert store.sessions.resolve("20260101_b") == "20260101_bbbb"
    assert store.sessions.resolve("2026") == "2026"
    assert store.sessions.resolve("Notes") == "20260101_aaaa"
    with pytest.raises(ConflictError, match="20260101_aaaa"):
        store.sessions.resolve("20260101")
    with pytest.raises(ConflictError):
        store.sessions.resolve("NOTES")
    with pytest.raises(NotFoundError, match="nowhere"):
        store.sessions.resolve("nowhere")
