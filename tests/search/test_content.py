"""Stored content gives its words, whatever is stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_store.content import BROKEN_JSON, UNDECODABLE, decode, decode_tool_calls


def _stored(value: object) -> str:
    return "\0json:" + json.dumps(value)


def test_text_parts_are_joined_by_line_breaks_without_images():
    value = [
        {"type": "text", "text": "苹果派"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "second"},
    ]
    decoded = decode(_stored(value))
    assert decoded.text == "苹果派\nsecond"
    assert decoded.value == value
    assert decoded.problem is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"type": "text", "text": "one"}, "one"),
        ({"answer": {"deep": ["a", 1, None, True]}}, "a\n1\ntrue"),
        ([[["nested"]]], "nested"),
        ({"type": "input_image", "image_url": "https://x/y.png"}, ""),
        (["data:image/png;base64,iVBOR", "A" * 300, "kept"], "kept"),
        ([], ""),
        ("text", "text"),
        (5, "5"),
    ],
)
def test_structured_content_of_any_shape_has_a_text(value: object, text: str):
    assert decode(_stored(value)).text == text


def test_broken_json_keeps_its_raw_text_and_says_so():
    decoded = decode("\0json:{broken")
    assert (decoded.text, decoded.problem) == ("\0json:{broken", BROKEN_JSON)
    assert decode("\0json:" + "[" * 100_000).problem == BROKEN_JSON


@pytest.mark.parametrize(("stored", "text"), [(None, ""), (3, "3"), (2.5, "2.5"), ("plain", "plain"), ("", "")])
def test_plain_values_stay_as_they_are(stored: object, text: str):
    decoded = decode(stored)
    assert (decoded.text, decoded.value, decoded.problem) == (text, stored, None)


def test_bytes_and_marked_text_are_flagged():
    class Marked(str):
        """As a driver marks text that is no UTF-8."""

        __slots__ = ()

    assert decode(b"caf\xff").text == "caf\ufffd"
    assert decode(b"caf\xff").problem == UNDECODABLE
    assert decode(Marked("caf\ufffd")).problem == UNDECODABLE
    assert type(decode(Marked("x")).text) is str


def test_lone_surrogates_never_get_out():
    assert decode("a\ud800b").text == "a\ufffdb"
    assert decode('\0json:["\\ud800"]').text == "\ufffd"
    assert decode('\0json:["\\ud83d\\ude80"]').text == "🚀"


def test_tool_calls_give_names_and_arguments():
    calls = [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "patch", "arguments": json.dumps({"path": "登录.py", "n": 2})},
        },
        {"name": "flat", "arguments": {"type": "kept", "id": "kept too"}},
        {"function": {"name": "x", "arguments": "not json"}},
    ]
    decoded = decode_tool_calls(json.dumps(calls))
    assert decoded.text == "patch\n登录.py\n2\nflat\nkept\nkept too\nx\nnot json"
    assert decoded.value == calls


@pytest.mark.parametrize(
    "stored", ["plain words", "{bad", "5", "null", '"text"', "[]", '{"a": "b"}', None, b"\xff", 7, ""]
)
def test_tool_calls_of_any_shape_have_a_text(stored: object):
    assert isinstance(decode_tool_calls(stored).text, str)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(deadline=None)
def test_any_json_can_be_decoded(value: object):
    for decoded in (decode(_stored(value)), decode_tool_calls(json.dumps(value))):
        decoded.text.encode()
