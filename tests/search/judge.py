"""The plainest possible search: read every message, judge each one. What any route must agree with."""

from __future__ import annotations

import json
from typing import Any

from search.corpora import Opened

from hermes_store.content import decode, decode_tool_calls
from hermes_store.search import Filters, make_filters, parse
from hermes_store.search.syntax import leaves
from hermes_store.search.terms import Kind, needle
from hermes_store.search.verify import Field, literal_leaves, matches


class Judge:
    """Reads a file once and answers any number of queries about it."""

    def __init__(self, opened: Opened) -> None:
        self._rows = opened.connection.exec_driver_sql(
            "SELECT m.*, s.source, s.model_config, s.archived, s.hidden"
            " FROM messages m JOIN sessions s ON s.id = m.session_id"
        ).fetchall()
        self._copies = {_identity(row) for row in self._rows if row.active == 1}
        self._texts: dict[tuple[int, bool, bool], tuple[Field, ...]] = {}

    def ids(self, query: str, **given: Any) -> list[int]:
        """Ids of the messages that answer, oldest first (numbers as timestamps assumed)."""
        filters = make_filters(**given)
        root = parse(query).root
        only_covered = any(needle(leaf).kind is Kind.SUBSTRING for leaf in leaves(root))
        candidates = []
        for row in self._rows:
            covered = _covered(row, filters)
            if _shown(row, filters, self._copies) and (covered or not only_covered):
                candidates.append((row.timestamp, row.id, self._fields(row, filters, covered=covered)))
        for relaxed in (frozenset(), literal_leaves(root)):
            found = [(time, id_) for time, id_, fields in candidates if matches(root, fields, relaxed)]
            if found:
                break
        return [id_ for _, id_ in sorted(found)]

    def _fields(self, row: Any, filters: Filters, *, covered: bool) -> tuple[Field, ...]:
        whole = row.role != "tool" or bool(filters.roles and "tool" in filters.roles)
        key = row.id, covered, whole
        if key not in self._texts:
            self._texts[key] = _fields(row, covered=covered, whole=whole)
        return self._texts[key]


def _identity(row: Any) -> tuple[Any, ...]:
    return row.session_id, row.timestamp, row.role, row.content, row.tool_calls


def _shown(row: Any, filters: Filters, copies: set[tuple[Any, ...]]) -> bool:
    live = row.active == 1 or (row.active == 0 and row.compacted == 1 and _identity(row) not in copies)
    return (
        row.display_kind != "hidden"
        and (live or filters.include_inactive)
        and (not row.archived or filters.include_archived)
        and (not row.hidden or filters.include_hidden)
        and (filters.roles is None or row.role in filters.roles)
        and (filters.sources is None or row.source in filters.sources)
        and (filters.exclude_sources is None or row.source not in filters.exclude_sources)
        and (filters.session_ids is None or row.session_id in filters.session_ids)
    )


def _covered(row: Any, filters: Filters) -> bool:
    unindexed = row.source in ("cron", "subagent") or _delegated(row.model_config)
    if row.role != "tool" and not unindexed:
        return True
    return (
        filters.session_ids is not None
        or (row.role == "tool" and filters.roles is not None and "tool" in filters.roles)
        or (unindexed and filters.sources is not None)
    )


def _delegated(config: Any) -> bool:
    try:
        return json.loads(config)["_delegate_from"] is not None
    except (TypeError, ValueError, KeyError):
        return False


def _fields(row: Any, *, covered: bool, whole: bool) -> tuple[Field, ...]:
    text = decode(row.content).text
    escaped = "\\u" in (row.tool_calls or "")
    calls = decode_tool_calls(row.tool_calls).text if escaped else row.tool_calls or ""
    return (
        Field(text if whole else text[:8192], covered),
        Field(row.tool_name or "", covered),
        Field(calls, covered and escaped),
    )
