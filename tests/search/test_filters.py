"""Restrictions are checked once, and say which one is wrong."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from hermes_store.search import make_filters


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1_700_000_000, 1_700_000_000.0),
        (1.5, 1.5),
        ("2026-07-01", datetime(2026, 7, 1, tzinfo=UTC).timestamp()),
        ("2026-07-01T12:00:00", datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()),
        ("2026-07-01T12:00:00+02:00", datetime(2026, 7, 1, 10, tzinfo=UTC).timestamp()),
        ("2026-07-01T12:00:00Z", datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()),
        (datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 6, 30, 22, tzinfo=UTC).timestamp()),
        (date(2026, 7, 1), datetime(2026, 7, 1, tzinfo=UTC).timestamp()),
        (None, None),
    ],
)
def test_a_moment_may_be_given_as(given: Any, expected: float | None):
    assert make_filters(after=given).after == expected
    assert make_filters(before=given).before == expected


@pytest.mark.parametrize(("given", "seconds"), [("24h", 86400), ("7d", 7 * 86400), ("2w", 14 * 86400), (" 1D ", 86400)])
def test_a_moment_may_be_relative_to_now(given: str, seconds: int):
    assert make_filters(after=given).after == pytest.approx(time.time() - seconds, abs=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("roles", "user"),
        ("roles", 5),
        ("roles", [1]),
        ("sources", b"cli"),
        ("session_ids", ["\ud800"]),
        ("exclude_sources", [None]),
        ("after", "yesterday"),
        ("after", datetime(2026, 7, 1)),  # noqa: DTZ001 - the missing zone is the point
        ("before", object()),
        ("before", float("nan")),
        ("after", True),
        ("sort", "best"),
        ("limit", -1),
        ("limit", 2.5),
        ("limit", True),
        ("offset", "3"),
        ("timeout", 0),
        ("timeout", "fast"),
        ("titles", 1),
        ("context", None),
        ("include_hidden", "yes"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, value: Any):
    with pytest.raises(ValueError, match=name):
        make_filters(**{name: value})


def test_an_empty_list_allows_nothing_and_none_restricts_nothing():
    for name in ("roles", "sources", "session_ids"):
        assert make_filters(**{name: []}).allow_nothing
        assert not make_filters(**{name: None}).allow_nothing
    assert not make_filters(exclude_sources=[]).allow_nothing
