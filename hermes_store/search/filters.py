"""What a caller restricts a search to, checked once.

`make_filters` takes the keyword arguments of `HermesStore.search` as an application passes them and refuses what it
cannot mean; `Filters` holds the result in one form. For every list, None is no restriction and an empty list allows
nothing.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal, cast

#: A moment as callers give it: an aware datetime, ISO text (UTC when it says no zone), epoch seconds, or ``"7d"``,
#: ``"24h"``, ``"2w"`` before now.
Moment = datetime | date | str | float | int

Sort = Literal["rank", "newest", "oldest"]

_SORTS = ("rank", "newest", "oldest")
_RELATIVE = re.compile(r"(\d{1,6})\s*([hdw])", re.ASCII | re.IGNORECASE)
_SECONDS = {"h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class FilterForm:
    """Which restrictions there are, without their values: what the text of a statement depends on.

    Statements are made once for each form; the values are their parameters (`Filters.parameters`).

    Attributes:
        roles, sources, exclude_sources, session_ids, after, before: True when there is one.
        tool_role: The role ``tool`` is named.
        include_inactive, include_archived, include_hidden: As in `make_filters`.
    """

    roles: bool
    tool_role: bool
    sources: bool
    exclude_sources: bool
    session_ids: bool
    after: bool
    before: bool
    include_inactive: bool
    include_archived: bool
    include_hidden: bool

    @property
    def selective(self) -> bool:
        """True when messages may be left out whose number nobody knows beforehand."""
        return self.roles or self.sources or self.exclude_sources or self.session_ids or self.after or self.before


@dataclass(frozen=True, slots=True)
class Filters:
    """A search's restrictions; see `make_filters` for what each one means."""

    roles: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    exclude_sources: tuple[str, ...] | None = None
    session_ids: tuple[str, ...] | None = None
    after: float | None = None
    before: float | None = None
    sort: Sort = "rank"
    limit: int = 20
    offset: int = 0
    include_inactive: bool = False
    include_archived: bool = False
    include_hidden: bool = False
    titles: bool = False
    context: bool = True
    timeout: float | None = None

    @property
    def allow_nothing(self) -> bool:
        """True when a list is empty, so that no message can be found."""
        return any(allowed is not None and not allowed for allowed in (self.roles, self.sources, self.session_ids))

    @property
    def form(self) -> FilterForm:
        """Which restrictions there are."""
        return FilterForm(
            roles=self.roles is not None,
            tool_role=self.roles is not None and "tool" in self.roles,
            sources=self.sources is not None,
            exclude_sources=bool(self.exclude_sources),
            session_ids=self.session_ids is not None,
            after=self.after is not None,
            before=self.before is not None,
            include_inactive=self.include_inactive,
            include_archived=self.include_archived,
            include_hidden=self.include_hidden,
        )

    @property
    def parameters(self) -> dict[str, object]:
        """The values of the restrictions, by the names that statements use; lists are one JSON text each."""
        lists = {name: getattr(self, name) for name in ("roles", "sources", "exclude_sources", "session_ids")}
        given: dict[str, object] = {name: json.dumps(value) for name, value in lists.items() if value is not None}
        return given | {name: getattr(self, name) for name in ("after", "before") if getattr(self, name) is not None}


def make_filters(
    *,
    roles: Iterable[str] | None = None,
    sources: Iterable[str] | None = None,
    exclude_sources: Iterable[str] | None = None,
    session_ids: Iterable[str] | None = None,
    after: Moment | None = None,
    before: Moment | None = None,
    sort: str = "rank",
    limit: int = 20,
    offset: int = 0,
    include_inactive: bool = False,
    include_archived: bool = False,
    include_hidden: bool = False,
    titles: bool = False,
    context: bool = True,
    timeout: float | None = None,
) -> Filters:
    """Check the restrictions of a search and bring them into one form.

    Args:
        roles: Roles of the messages (``user``, ``assistant``, ``tool``, …). Naming ``tool`` searches the whole text of
            tool results, not only its first 8,192 characters.
        sources: Sources of the sessions (``cli``, ``telegram``, ``cron``, …).
        exclude_sources: Sources to leave out.
        session_ids: Sessions to search in.
        after: Message time from which on to search, inclusive.
        before: Message time up to which to search, exclusive.
        sort: ``"rank"`` (best first), ``"newest"`` or ``"oldest"``.
        limit: How many hits at most.
        offset: How many hits to skip.
        include_inactive: Also show rewound messages.
        include_archived: Also search archived sessions.
        include_hidden: Also search hidden sessions.
        titles: Also name the sessions whose title or id matches.
        context: Give the messages before and after each hit.
        timeout: Seconds after which a search gives up; None waits.

    Returns:
        The checked restrictions.

    Raises:
        ValueError: A value has the wrong type or makes no sense; the message names the parameter.
    """
    now = time.time()
    if sort not in _SORTS:
        raise ValueError(f"sort must be one of {', '.join(_SORTS)}")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ValueError("timeout must be a positive number of seconds, or None")
    return Filters(
        roles=read_names("roles", roles),
        sources=read_names("sources", sources),
        exclude_sources=read_names("exclude_sources", exclude_sources),
        session_ids=read_names("session_ids", session_ids),
        after=read_moment("after", after, now),
        before=read_moment("before", before, now),
        sort=cast("Sort", sort),
        limit=read_count("limit", limit),
        offset=read_count("offset", offset),
        include_inactive=read_flag("include_inactive", include_inactive),
        include_archived=read_flag("include_archived", include_archived),
        include_hidden=read_flag("include_hidden", include_hidden),
        titles=read_flag("titles", titles),
        context=read_flag("context", context),
        timeout=None if timeout is None else float(timeout),
    )


def read_names(name: str, given: object) -> tuple[str, ...] | None:
    """Check a list of strings.

    Args:
        name: The parameter, for the message.
        given: Its value; None is no restriction.

    Raises:
        ValueError: It is something else.
    """
    if given is None:
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be a list of strings, or None for no restriction")  # noqa: TRY004 - documented
    names = tuple(dict.fromkeys(given))
    for each in names:
        if not isinstance(each, str):
            raise ValueError(f"{name} must hold strings only")  # noqa: TRY004 - documented
        try:
            each.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds a string that is not valid Unicode") from None
    return names


def read_count(name: str, given: object) -> int:
    """Check a number of things.

    Args:
        name: The parameter, for the message.
        given: Its value.

    Raises:
        ValueError: It is no whole number, or negative.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more")
    return given


def read_flag(name: str, given: object) -> bool:
    """Check a flag.

    Args:
        name: The parameter, for the message.
        given: Its value.

    Raises:
        ValueError: It is neither True nor False.
    """
    if not isinstance(given, bool):
        raise ValueError(f"{name} must be True or False")  # noqa: TRY004 - documented
    return given


def read_moment(name: str, given: object, now: float) -> float | None:
    """Check a moment.

    Args:
        name: The parameter, for the message.
        given: Its value; None is no restriction.
        now: What relative moments count from, epoch seconds.

    Returns:
        Epoch seconds.

    Raises:
        ValueError: It is no moment.
    """
    if given is None:
        return None
    if _is_number(given):
        return float(cast("float", given))
    if isinstance(given, str):
        if relative := _RELATIVE.fullmatch(given.strip()):
            return now - int(relative[1]) * _SECONDS[relative[2].lower()]
        try:
            moment = datetime.fromisoformat(given.strip())
        except ValueError:
            raise ValueError(
                f"{name} must be an ISO date or time such as 2026-07-01, or a time ago such as 7d, 24h, 2w"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(f"{name} must be a datetime with a time zone")
        return given.timestamp()
    if isinstance(given, date):
        return datetime(given.year, given.month, given.day, tzinfo=UTC).timestamp()
    raise ValueError(f"{name} must be a datetime, ISO text, epoch seconds, or a time ago such as 7d, 24h, 2w")


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
