"""Lineage and the list of conversations, worked out the slow way over plain rows.

Nothing here is shared with the product, so that an error in the one is not an error in the other. A session is a
dictionary of its columns and so is a message; a column that a file does not have is ``None``. Every question is
answered by walking all rows again, except that each edge is classified once.

An edge joins a session to the row that its ``parent_session_id`` names. Its *kind* says what the session is to that
row: ``compression`` carries the same conversation on, everything else heads a conversation of its own.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

Row = dict[str, Any]
Kind = Literal["root", "branch", "reset", "tool", "delegate", "compression"]

EARLIEST, LATEST = 86_400, 7_258_118_400
#: A continuation may be created this long before its parent is closed.
EARLY = 1.0
RESETS = {"session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired", "new_session"}
#: A marker of a migration that says nothing about a parent.
ORPHANED = "__orphaned__"
SHOWN: set[Kind] = {"root", "branch", "reset"}
RUNS: set[Kind] = {"delegate", "tool"}

# ------------------------------------------------------------------------------------------------------------- values


def usable(time: object) -> float | None:
    """The time, if it is one: finite seconds between the second day of 1970 and the year 2200."""
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time):
        return None
    return float(time) if EARLIEST <= time <= LATEST else None


def not_before(later: object, earlier: object, *, slack: float = 0.0) -> bool:
    """Whether one time is at or after another; false unless both are usable."""
    first, second = usable(later), usable(earlier)
    return first is not None and second is not None and first >= second - slack


def markers(model_config: object) -> dict[str, str]:
    """The texts of a JSON object by their keys; of anything else none."""
    try:
        read = json.loads(model_config, parse_constant=_refuse) if isinstance(model_config, str) else None
    except ValueError:
        return {}
    if not isinstance(read, dict):
        return {}
    found = {key: value for key, value in read.items() if isinstance(value, str)}
    if found.get("_delegate_from") == ORPHANED:
        del found["_delegate_from"]
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def written(title: object) -> str | None:
    """A title that has something to read in it."""
    return title if isinstance(title, str) and title.strip() else None


def in_bytes(id_: str) -> bytes:
    """Ids are ordered as the file orders them."""
    return id_.encode("utf-8", "surrogateescape")


def first_of(ids: Iterable[str]) -> str:
    return min(ids, key=in_bytes)


def is_live(message: Row) -> bool:
    return message.get("active") in (1, None)


def is_visible(message: Row) -> bool:
    archived = message.get("active") == 0 and message.get("compacted") == 1
    return message.get("display_kind") != "hidden" and (is_live(message) or archived)


def is_below(cwd: object, prefix: str) -> bool:
    """Whether a folder is the named one or lies in it; no character is a wildcard."""
    bare = prefix.rstrip("/")
    return isinstance(cwd, str) and (cwd == bare or cwd.startswith(bare + "/"))


# ------------------------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class Entry:
    """A conversation in the list."""

    id: str
    root_id: str
    kind: Kind
    source: str
    started: float | None
    title: str | None
    last_activity: float | None
    message_count: int


@dataclass(frozen=True)
class Check:
    """What is wrong with a forest."""

    cycles: list[set[str]]
    #: Sessions whose parent is not there, with the id they name.
    missing_parents: dict[str, str]
    #: Parents with several continuations.
    forks: dict[str, set[str]]
    #: Sessions that ended by compression and were not continued.
    not_continued: set[str]
    #: Messages of sessions that are not there.
    orphaned_messages: set[int]


# ------------------------------------------------------------------------------------------------------------- forest


class Reference:
    """A forest of sessions with their messages, and every question that can be asked about it."""

    def __init__(self, sessions: Iterable[Row], messages: Iterable[Row] = ()) -> None:
        self.sessions: dict[str, Row] = {row["id"]: row for row in sessions}
        self.messages = list(messages)
        self._marks = {id_: markers(row.get("model_config")) for id_, row in self.sessions.items()}
        self._of: dict[str, list[Row]] = defaultdict(list)
        for message in self.messages:
            self._of[message["session_id"]].append(message)
        self._below: dict[str, list[str]] = defaultdict(list)
        for id_ in self.sessions:
            if (parent := self.parent(id_)) is not None:
                self._below[parent].append(id_)
        self.kinds: dict[str, Kind] = {id_: self._kind(id_) for id_ in self.sessions}

    # -------------------------------------------------------------------------------------------------------- edges

    def named_parent(self, id_: str) -> str | None:
        """The id in the parent column, whether or not there is such a row; a session is not its own parent."""
        named = self.sessions[id_].get("parent_session_id")
        return None if named == id_ else named

    def parent(self, id_: str) -> str | None:
        """The parent that is there."""
        named = self.named_parent(id_)
        return named if named in self.sessions else None

    def kind(self, id_: str) -> Kind:
        return self.kinds[id_]

    def children(self, id_: str) -> dict[str, Kind]:
        return {child: self.kinds[child] for child in self._below[id_]}

    def _kind(self, id_: str) -> Kind:
        marks = self._marks[id_]
        if self.named_parent(id_) is None:
            return "delegate" if "_delegate_from" in marks and "_branched_from" not in marks else "root"
        marked = self._marked(id_)
        if marked is not None:
            return marked
        parent = self.parent(id_)
        if parent is None:
            return "root"
        if self.sessions[parent].get("end_reason") != "compression":
            return "branch" if written(self.sessions[id_].get("title")) else "delegate"
        candidates = [child for child in self._below[parent] if self._marked(child) is None]
        in_time = [child for child in candidates if self._began_after(child, slack=EARLY)]
        return "compression" if id_ in (in_time or candidates) else "delegate"

    def _marked(self, id_: str) -> Kind | None:
        """What a session with a parent is by its own marks, its source, or the way its parent ended."""
        row, marks, named = self.sessions[id_], self._marks[id_], self.named_parent(id_)
        parent = self.sessions.get(named) if named is not None else None

        def is_ours(marker: str) -> bool:
            return marker in marks and (parent is None or marks[marker] == named)

        reason = parent.get("end_reason") if parent is not None else None
        if is_ours("_branched_from") or (reason == "branched" and self._began_after(id_)):
            return "branch"
        if is_ours("_reset_from") or (reason in RESETS and self._same_place(id_)):
            return "reset"
        if row.get("source") == "tool":
            return "tool"
        if is_ours("_delegate_from") or (row.get("source") == "subagent" and "_delegate_from" not in marks):
            return "delegate"
        return None

    def _began_after(self, id_: str, *, slack: float = 0.0) -> bool:
        parent = self.parent(id_)
        assert parent is not None
        return not_before(self.sessions[id_].get("started_at"), self.sessions[parent].get("ended_at"), slack=slack)

    def _same_place(self, id_: str) -> bool:
        """The same chat as the parent, or, where no chat is named, what came after it."""
        parent = self.parent(id_)
        assert parent is not None
        mine, theirs = (self.sessions[each].get("session_key") or None for each in (id_, parent))
        return mine == theirs and (mine is not None or self._began_after(id_))

    # -------------------------------------------------------------------------------------------------------- walks

    def _up(self, id_: str, goes_on: Callable[[str], bool]) -> tuple[list[str], set[str]]:
        """The walk upwards with its start, and the cycle it runs into, if it does."""
        walk = [id_]
        while goes_on(walk[-1]) and (parent := self.parent(walk[-1])) is not None:
            if parent in walk:
                return walk, set(walk[walk.index(parent) :])
            walk.append(parent)
        return walk, set()

    def ancestors(self, id_: str) -> list[str]:
        """From the parent upwards over edges of every kind."""
        return self._up(id_, lambda _: True)[0][1:]

    def depth(self, id_: str) -> int:
        return len(self.ancestors(id_))

    def root(self, id_: str) -> str:
        walk, cycle = self._up(id_, lambda _: True)
        return first_of(cycle) if cycle else walk[-1]

    def conversation_root(self, id_: str) -> str:
        walk, cycle = self._up(id_, lambda each: self.kinds[each] == "compression")
        return first_of(cycle) if cycle else walk[-1]

    def members(self, head: str) -> set[str]:
        return {id_ for id_ in self.sessions if self.conversation_root(id_) == head}

    def conversation(self, id_: str) -> set[str]:
        """The members of the conversation that a session is in."""
        return self.members(self.conversation_root(id_))

    def _down(self, id_: str, step: Callable[[str], Iterable[str]], but: Collection[str] = ()) -> set[str]:
        """A session and all below it."""
        found, waiting = {id_}, [id_]
        while waiting:
            new = [child for child in step(waiting.pop()) if child not in found and child not in but]
            found.update(new)
            waiting += new
        return found

    def descendants(self, id_: str) -> set[str]:
        return self._down(id_, lambda each: self._below[each]) - {id_}

    def continuations(self, id_: str) -> list[str]:
        """The children that carry a session on."""
        return [child for child in self._below[id_] if self.kinds[child] == "compression"]

    def activity(self, id_: str) -> float | None:
        """The last time that anything is known to have happened in a session."""
        row = self.sessions[id_]
        times = [row.get("last_activity_at"), row.get("started_at"), *(m.get("timestamp") for m in self._of[id_])]
        return max((time for time in map(usable, times) if time is not None), default=None)

    def tip(self, id_: str) -> str:
        """Where a conversation goes on: at a fork, the way to the session that was last active."""
        passed = [id_]
        while ways := [child for child in self.continuations(passed[-1]) if child not in passed]:
            passed.append(max(ways, key=lambda way: self._best_below(way, passed)))
        return passed[-1]

    def _best_below(self, id_: str, passed: Sequence[str]) -> tuple[bool, float, bytes]:
        below = self._down(id_, self.continuations, but=passed)
        return max((bool(self._of[each]), self.activity(each) or 0.0, in_bytes(each)) for each in below)

    def resume_target(self, id_: str) -> str:
        return self.tip(id_)

    # -------------------------------------------------------------------------------------------------------- check

    def check(self) -> Check:
        """All that a repair would have to look at."""
        cycles = {frozenset(self._up(id_, lambda _: True)[1]) for id_ in self.sessions} - {frozenset()}
        forks = {id_: set(self.continuations(id_)) for id_ in self.sessions}
        named = {id_: self.named_parent(id_) for id_ in self.sessions}
        return Check(
            cycles=sorted(map(set, cycles), key=lambda cycle: in_bytes(first_of(cycle))),
            missing_parents={id_: to for id_, to in named.items() if to is not None and to not in self.sessions},
            forks={id_: ways for id_, ways in forks.items() if len(ways) > 1},
            not_continued={
                id_ for id_, row in self.sessions.items() if row.get("end_reason") == "compression" and not forks[id_]
            },
            orphaned_messages={m["id"] for m in self.messages if m["session_id"] not in self.sessions},
        )

    # --------------------------------------------------------------------------------------------------------- list

    def message_count(self, head: str) -> int:
        """How many live messages a conversation holds when what a continuation took along is counted once.

        What it took along is older than itself, and another member holds the live original.
        """
        live = [message for member in self.members(head) for message in self._of[member] if is_live(message)]

        def is_original(of: Row, other: Row) -> bool:
            same_uid = of["message_uid"] is not None and of["message_uid"] == other["message_uid"]
            return (
                other["session_id"] != of["session_id"]
                and other["id"] < of["id"]
                and other["timestamp"] == of["timestamp"]
                and (same_uid or _text_of(other) == _text_of(of))
            )

        def is_copy(message: Row) -> bool:
            session = message["session_id"]
            sent, begun = message["timestamp"], usable(self.sessions[session].get("started_at"))
            if session == head or begun is None or not isinstance(sent, int | float) or not sent < begun:
                return False
            return any(is_original(message, other) for other in live)

        return sum(not is_copy(message) for message in live)

    def listing(
        self,
        *,
        order: Literal["activity", "started"] = "activity",
        sources: Collection[str] | None = None,
        exclude_sources: Collection[str] = (),
        include_children: bool = False,
        include_archived: bool = False,
        include_hidden: bool = False,
        query: str | None = None,
        cwd_prefix: str | None = None,
        session_key: str | None = None,
        model: str | None = None,
        has_messages: bool | None = None,
        after: float | None = None,
        before: float | None = None,
    ) -> list[Entry]:
        """The conversations, newest first."""
        kinds = SHOWN | RUNS if include_children else SHOWN

        def is_wanted(head: str, row: Row) -> bool:
            return (
                (self.kinds[head] in kinds or self._stands_for_a_ring(head))
                and (include_archived or row.get("archived") != 1)
                and (include_hidden or row.get("hidden") != 1)
                and (sources is None or row.get("source") in sources)
                and row.get("source") not in exclude_sources
            )

        def is_found(entry: Entry) -> bool:
            tip, members = self.sessions[entry.id], self.members(entry.root_id)
            return (
                (query is None or any(self._names(member, query) for member in members))
                and (cwd_prefix is None or is_below(tip.get("cwd"), cwd_prefix))
                and (session_key is None or tip.get("session_key") == session_key)
                and (model is None or tip.get("model") == model)
                and (has_messages is None or self._has_visible(members) == has_messages)
                and (after is None or (entry.last_activity is not None and entry.last_activity >= after))
                and (before is None or (entry.last_activity is not None and entry.last_activity < before))
            )

        def rank(entry: Entry) -> tuple[bool, float, bytes]:
            time = entry.last_activity if order == "activity" else entry.started
            return time is not None, time or 0.0, in_bytes(entry.root_id)

        entries = [self.entry(head) for head, row in self.sessions.items() if is_wanted(head, row)]
        return sorted(filter(is_found, entries), key=rank, reverse=True)

    def entry(self, head: str) -> Entry:
        """How the conversation under a head is listed, whatever its kind."""
        row, tip = self.sessions[head], self.tip(head)
        activities = [self.activity(member) for member in self.members(head)]
        return Entry(
            id=tip,
            root_id=head,
            kind="root" if self._stands_for_a_ring(head) else self.kinds[head],
            source=row["source"],
            started=usable(row.get("started_at")),
            title=written(self.sessions[tip].get("title")) or written(row.get("title")),
            last_activity=max((time for time in activities if time is not None), default=None),
            message_count=self.message_count(head),
        )

    def _names(self, id_: str, query: str) -> bool:
        title = self.sessions[id_].get("title")
        texts = (id_, title) if isinstance(title, str) else (id_,)
        bare = "".join(filter(str.isalnum, query.casefold()))
        return any(
            query.casefold() in text.casefold() or (bare and bare in "".join(filter(str.isalnum, text.casefold())))
            for text in texts
        )

    def _stands_for_a_ring(self, id_: str) -> bool:
        return self.kinds[id_] == "compression" and self.conversation_root(id_) == id_

    def _has_visible(self, members: Iterable[str]) -> bool:
        return any(is_visible(message) for member in members for message in self._of[member])

    # ------------------------------------------------------------------------------------------------------ removal

    def delete_set(self, ids: Iterable[str], *, detach: bool = False) -> set[str]:
        """All that goes when these sessions are deleted."""
        gone: set[str] = set()
        for id_ in ids:
            if id_ not in self.sessions:
                continue
            if not detach:
                gone |= self.conversation(id_)
            elif self.kinds[self.conversation_root(id_)] in RUNS:
                gone |= self._down(id_, self.continuations)
            else:
                gone.add(id_)
        while more := {run for run in self._runs_of(gone) if run not in gone}:
            for run in more:
                gone |= self.conversation(run)
        return gone

    def detached_set(self, ids: Iterable[str], *, detach: bool = False) -> set[str]:
        """All that stays and loses its parent."""
        gone = self.delete_set(ids, detach=detach)
        return {id_ for id_ in self.sessions if id_ not in gone and self.parent(id_) in gone}

    def _runs_of(self, gone: set[str]) -> set[str]:
        """What ran on behalf of a session: below it, or, where its parent is lost, by the marker it kept."""
        below = {child for id_ in gone for child in self._below[id_] if self.kinds[child] in RUNS}
        lost = {id_ for id_ in self.sessions if self.parent(id_) is None and self.kinds[id_] == "delegate"}
        return below | {id_ for id_ in lost if self._marks[id_].get("_delegate_from") in gone}


def _text_of(message: Row) -> tuple[Any, ...]:
    return tuple(message.get(column) for column in ("timestamp", "role", "content", "tool_calls"))
