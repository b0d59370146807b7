"""What the repositories return: frozen dataclasses, detached from any session, the same on every schema and engine.

Timestamps are floats, epoch seconds as stored; the property with ``_at`` beside each gives an aware datetime in UTC.
``problems`` lists what was wrong with a row's cells (``"started_at: str instead of a number"``); such a cell is None
or replaced text, and the row is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from hermes_store.cells import aware

#: What a session is to its parent.
Kind = Literal["root", "branch", "compression", "reset", "delegate", "tool"]
#: What a lock's holder is worth: ``live`` (its process runs), ``unknown`` (nobody can tell), ``expired`` or ``dead``.
HolderState = Literal["live", "unknown", "expired", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One row of ``sessions``.

    Attributes:
        id: The session's id.
        source: The platform it came from, such as ``cli`` or ``telegram``.
        title: Its title, unique in the file; None when it has none.
        title_source: Who gave the title: ``user``, ``llm`` or ``derived``; None counts as ``user``.
        model: The model's name.
        model_config: The decoded JSON object; raw text when it is broken (then `problems` says so).
        system_prompt: The system prompt, from wherever the schema keeps it.
        parent_session_id: The session it came from; what it is to it is `hermes_store.lineage`'s to say.
        user_id: The platform's user.
        session_key: The gateway's key of the chat.
        display_name: The chat's name.
        cwd: The working directory.
        git_branch: The branch checked out there.
        profile_name: The Hermes profile that wrote it.
        started: When it started, epoch seconds.
        ended: When it ended, epoch seconds; None while it is open.
        end_reason: Why it ended, such as ``compression`` or ``branched``.
        last_activity: Epoch seconds, as Hermes noted it; may lag behind the messages.
        message_count: Live messages, as counted by the writers.
        tool_call_count: Tool calls, as counted by the writers.
        input_tokens: Tokens read by the model, without those from its cache.
        output_tokens: Tokens written by the model.
        cache_read_tokens: Tokens read from the provider's cache.
        cache_write_tokens: Tokens written to the provider's cache.
        reasoning_tokens: Tokens spent on reasoning.
        estimated_cost_usd: US dollars; worth what `cost_status` says.
        actual_cost_usd: US dollars as billed; 0 means free, None unknown.
        cost_status: How far the cost can be trusted.
        archived: Put away by the user or by age.
        pinned: Kept at the top, and from being pruned.
        hidden: Not to be listed.
        problems: What was wrong with the row's cells.
    """

    id: str
    source: str | None
    title: str | None
    title_source: str | None
    model: str | None
    model_config: Any
    system_prompt: str | None
    parent_session_id: str | None
    user_id: str | None
    session_key: str | None
    display_name: str | None
    cwd: str | None
    git_branch: str | None
    profile_name: str | None
    started: float | None
    ended: float | None
    end_reason: str | None
    last_activity: float | None
    message_count: int | None
    tool_call_count: int | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    estimated_cost_usd: float | None
    actual_cost_usd: float | None
    cost_status: str | None
    archived: bool
    pinned: bool
    hidden: bool
    problems: tuple[str, ...] = ()

    @property
    def started_at(self) -> datetime | None:
        """When it started, aware, in UTC."""
        return aware(self.started)

    @property
    def ended_at(self) -> datetime | None:
        """When it ended, aware, in UTC; None while it is open."""
        return aware(self.ended)

    @property
    def last_activity_at(self) -> datetime | None:
        """The last activity Hermes noted, aware, in UTC."""
        return aware(self.last_activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One conversation in a listing: a head (root, branch or reset) and the tip of its compression chain.

    Attributes:
        id: The tip's id: where the conversation goes on.
        root_id: The head's id; the same as `id` when it was never compressed.
        kind: What the head is to its parent.
        source: The head's platform.
        title: The tip's title, else the head's.
        model: The tip's model.
        cwd: The tip's working directory.
        session_key: The tip's chat.
        started: When the head started, epoch seconds.
        last_activity: The latest of any member: its messages, its start, or as Hermes noted it, epoch seconds.
        end_reason: Why the tip ended; None while it is open.
        message_count: Live messages of all members; one that a continuation took along counts once.
        tool_call_count: Tool calls of all members, as counted by the writers, without those of copies.
        archived: Put away by the user or by age.
        pinned: Kept at the top.
        hidden: Not to be listed.
        preview: The beginning of the tip's first user message, else of the head's: at most 63 characters, on one line.
        problems: What was wrong with the rows' cells.
    """

    id: str
    root_id: str
    kind: Kind
    source: str | None
    title: str | None
    model: str | None
    cwd: str | None
    session_key: str | None
    started: float | None
    last_activity: float | None
    end_reason: str | None
    message_count: int
    tool_call_count: int
    archived: bool
    pinned: bool
    hidden: bool
    preview: str | None
    problems: tuple[str, ...] = ()

    @property
    def started_at(self) -> datetime | None:
        """When the head started, aware, in UTC."""
        return aware(self.started)

    @property
    def last_activity_at(self) -> datetime | None:
        """The last activity, aware, in UTC."""
        return aware(self.last_activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """One session in a tree.

    Attributes:
        id: The session's id.
        kind: What it is to its parent.
        source: Its platform.
        title: Its title.
        started: When it started, epoch seconds.
        last_activity: Its last activity, epoch seconds: of its messages, of its start, or as Hermes noted it.
        end_reason: Why it ended; None while it is open.
        message_count: Its live messages, counted.
        is_tip: The conversation it is a member of goes on here.
        children: The sessions below it, in the order of their start.
    """

    id: str
    kind: Kind
    source: str | None
    title: str | None
    started: float | None
    last_activity: float | None
    end_reason: str | None
    message_count: int
    is_tip: bool
    children: tuple[LineageNode, ...] = ()

    @property
    def started_at(self) -> datetime | None:
        """When it started, aware, in UTC."""
        return aware(self.started)

    @property
    def last_activity_at(self) -> datetime | None:
        """Its last activity, aware, in UTC."""
        return aware(self.last_activity)

    def walk(self) -> Iterator[tuple[int, LineageNode]]:
        """Give the node and all below it with their depth, parents first, without recursion."""
        waiting = [(0, self)]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting.extend((depth + 1, child) for child in reversed(node.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a deletion removes, or removed.

    Attributes:
        sessions: The sessions that go, in the order of their ids.
        detached: Sessions that stay and lose their parent.
        messages: How many messages go.
    """

    sessions: tuple[str, ...]
    detached: tuple[str, ...]
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """How many of what a file holds.

    Attributes:
        sessions: All sessions; the sum over `by_kind`, and over `by_source`.
        conversations: Roots, branches and resets, archived and hidden ones included.
        by_kind: Sessions of each kind.
        by_source: Sessions of each source.
        open: Sessions that did not end.
        archived: Sessions that are archived.
        hidden: Sessions that are hidden.
        pinned: Sessions that are pinned.
        messages: All messages, rewound and archived ones included.
        live_messages: Messages of the live conversations.
    """

    sessions: int
    conversations: int
    by_kind: Mapping[Kind, int]
    by_source: Mapping[str, int]
    open: int
    archived: int
    hidden: int
    pinned: int
    messages: int
    live_messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReport:
    """What is odd about a file's lineage; nothing of it stops a walk or a listing.

    Attributes:
        cycles: Sessions that are their own ancestors, ring by ring.
        missing_parents: Session id to the parent it names, which does not exist.
        forks: Parent id to its continuations, where there are several.
        unfinished: Sessions that ended by compression and were never continued.
        orphaned_messages: Ids of messages whose session does not exist.
    """

    cycles: tuple[tuple[str, ...], ...]
    missing_parents: Mapping[str, str]
    forks: Mapping[str, tuple[str, ...]]
    unfinished: tuple[str, ...]
    orphaned_messages: tuple[int, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing is odd."""
        found = (self.cycles, self.missing_parents, self.forks, self.unfinished, self.orphaned_messages)
        return not any(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """One row of ``messages``.

    Attributes:
        id: The message's id; ids rise in the order of writing.
        session_id: The session it belongs to.
        role: ``user``, ``assistant``, ``tool``, ``system`` or whatever was stored.
        content: The decoded content: text, or the list or object of a multimodal message.
        text: Its text: the text parts of a multimodal message joined by line breaks.
        tool_name: The tool that answered.
        tool_calls: The decoded calls of an assistant's turn; raw text when they are broken.
        tool_call_id: The call a tool row answers.
        timestamp: Epoch seconds.
        token_count: Tokens, as counted by the writer.
        finish_reason: Why the model stopped.
        reasoning: The model's reasoning, where it was kept.
        active: Part of the live conversation.
        compacted: Left the live conversation by compaction (with ``active`` false); false for a rewound row.
        display_kind: How a user interface shows it; ``hidden`` means not at all.
        message_uid: A name that stays when the row is copied; None on files below schema 31.
        problems: What was wrong with the row's cells.
    """

    id: int
    session_id: str
    role: str | None
    content: Any
    text: str
    tool_name: str | None
    tool_calls: Any
    tool_call_id: str | None
    timestamp: float | None
    token_count: int | None
    finish_reason: str | None
    reasoning: str | None
    active: bool
    compacted: bool
    display_kind: str | None
    message_uid: str | None
    problems: tuple[str, ...] = ()

    @property
    def timestamp_at(self) -> datetime | None:
        """When it was written, aware, in UTC."""
        return aware(self.timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWindow:
    """A message with those around it.

    Attributes:
        session_id: The session.
        anchor_id: The message; the live copy of the one that was asked for, when compaction copied it.
        messages: The window, in the order of ids.
        before: How many messages there are in it before the anchor, of all roles; fewer than asked for at the
            beginning of the session.
        after: How many after it.
        opening: The session's first messages that say something, if they are before the window.
        closing: Its last ones, if they are after it.
    """

    session_id: str
    anchor_id: int
    messages: tuple[MessageInfo, ...]
    before: int
    after: int
    opening: tuple[MessageInfo, ...] = ()
    closing: tuple[MessageInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """What a rewind took back.

    Attributes:
        session_id: The session.
        message: The message that it went back to, which is taken back itself: the next prompt to edit.
        ids: The messages that were taken back.
        head_id: The last message that is left; None when none is.
    """

    session_id: str
    message: MessageInfo
    ids: tuple[int, ...]
    head_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What became of a transcript that was replaced or compacted.

    Attributes:
        session_id: The session that goes on: the same one, or the child that was published.
        ids: The ids of its live messages now, in order.
        kept: Messages that stayed as they were.
        dropped: Messages that left the live conversation, archived or rewound.
        copies: Old id to new one, of messages that were carried over or arrived meanwhile.
    """

    session_id: str
    ids: tuple[int, ...]
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    copies: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did, or would do.

    Attributes:
        sessions: Sessions that were added.
        messages: How many messages were added.
        skipped_sessions: Sessions that were there, with all of their messages.
        skipped_messages: How many messages were there.
        conflicts: Session id to why nothing of it was imported.
        detached: Session id to its parent, which is neither here nor imported.
        retitled: Session id to the title it has now, because another session had its own.
        unknown: Names in sessions and messages that mean nothing here; their values were left out.
    """

    sessions: tuple[str, ...]
    messages: int
    skipped_sessions: tuple[str, ...]
    skipped_messages: int
    conflicts: Mapping[str, str]
    detached: Mapping[str, str]
    retitled: Mapping[str, str]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """One lock, as it stood when it was read.

    Attributes:
        session_id: The session, or for a turn the conversation, that it locks.
        holder: Who holds it, as written in its row.
        state: What that holder is worth; ``expired`` and ``dead`` ones can be taken over.
        age: Seconds it has been held.
        left: Seconds until it may be taken over; negative once it may.
        acquired: When it was taken, epoch seconds.
        expires: When Hermes takes it over, epoch seconds.
        pid: The holder's process id on its own host; None when its text has none.
        reentered: Whether the same holder had it already when it was acquired.
        problems: What was wrong with the row's cells.
    """

    session_id: str
    holder: str
    state: HolderState
    age: float
    left: float
    acquired: float | None
    expires: float | None
    pid: int | None
    reentered: bool = False
    problems: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether anybody may take it over."""
        return self.state in {"expired", "dead"}

    @property
    def acquired_at(self) -> datetime | None:
        """When it was taken, aware, in UTC."""
        return aware(self.acquired)

    @property
    def expires_at(self) -> datetime | None:
        """When Hermes takes it over, aware, in UTC."""
        return aware(self.expires)
