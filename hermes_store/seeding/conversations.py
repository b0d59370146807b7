"""Conversations as Hermes keeps them: sessions, what each is to its parent, and their messages.

Each generator below makes one kind of conversation, complete with the sessions that belong to it, as plain rows. They
are made one after another and handed on at once, so memory does not grow with the corpus. Columns a schema does not
have yet are left out by `hermes_store.seeding.writer`; rows that it could not have are left out here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hermes_store.seeding.chance import Chance
from hermes_store.seeding.texts import Writer

Row = dict[str, Any]

#: When the first session starts: 2026-01-05 09:00 UTC, epoch seconds.
FIRST_START = 1_767_603_600.0
SOURCES = (("cli", 46), ("telegram", 26), ("discord", 16), ("tui", 12))
GATEWAYS = ("telegram", "discord")
_LONGEST_CHAIN = 12
_SUMMARY = "[CONTEXT COMPACTION — REFERENCE ONLY] "


@dataclass(slots=True)
class SeedSession:
    """A session row and its messages, oldest first."""

    row: Row
    messages: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Schema:
    """What a schema can hold.

    Attributes:
        version: Hermes's schema version.
    """

    version: int

    @property
    def rewinds(self) -> bool:
        """Rows can be inactive."""
        return self.version >= 14

    @property
    def compacts_in_place(self) -> bool:
        """Rows can be archived by compaction."""
        return self.version >= 17

    @property
    def marks_branches(self) -> bool:
        """Branches carry a marker."""
        return self.version >= 14

    @property
    def marks_delegates(self) -> bool:
        """Subagents have a source and a marker of their own."""
        return self.version >= 16

    @property
    def marks_resets(self) -> bool:
        """A reset chat's next session names the one before."""
        return self.version >= 26


class Conversations:
    """Makes conversations, one kind after another by its share.

    Args:
        seed: The corpus's seed.
        writer: Where texts come from.
        schema: What the file can hold.
    """

    def __init__(self, seed: int, writer: Writer, schema: Schema) -> None:
        self._chance = Chance(seed, "conversations")
        self._writer = writer
        self._schema = schema
        self._clock = FIRST_START
        self._number = 0
        self._titles: dict[str, int] = {}
        self._prompts = [writer.system_prompt() for _ in range(8)]
        self._cron_words = [writer.title() for _ in range(6)]
        self._makers: tuple[tuple[Callable[[], list[SeedSession]], int], ...] = (
            (self._plain, 50),
            (self._compressed, 12),
            (self._compacted_in_place, 7),
            (self._branched, 7),
            (self._delegating, 9),
            (self._reset, 6),
            (self._rewound, 5),
            (self._cron, 4),
        )

    def __iter__(self) -> Iterator[list[SeedSession]]:
        while True:
            yield self._chance.split(self._makers)()

    def _plain(self) -> list[SeedSession]:
        session = self._session(self._chance.split(SOURCES))
        self._talk(session, self._chance.between(2, 14))
        self._maybe_end(session)
        return [session]

    def _compressed(self) -> list[SeedSession]:
        """A chain: each session ended by compression, the next one going on with a summary."""
        source = self._chance.split(SOURCES)
        depth = self._chance.between(2, _LONGEST_CHAIN) if self._chance.happens(15) else self._chance.between(2, 4)
        chain = [self._session(source)]
        for _ in range(depth - 1):
            self._talk(chain[-1], self._chance.between(2, 8))
            # The releases differ: some start the continuation a moment before they end its parent.
            early = self._schema.version >= 25 and self._chance.happens(50)
            self._end(chain[-1], "compression")
            following = self._session(source, parent=chain[-1], title_of=chain[-1])
            if early:
                following.row["started_at"] = chain[-1].row["ended_at"] - 0.4
            self._message(following, "user", _SUMMARY + self._writer.assistant_turn())
            chain.append(following)
        self._talk(chain[-1], self._chance.between(1, 8))
        self._maybe_end(chain[-1])
        return chain

    def _compacted_in_place(self) -> list[SeedSession]:
        """Old turns archived, a summary in their place, the talk going on in the same session."""
        session = self._session(self._chance.split(SOURCES))
        self._talk(session, self._chance.between(4, 10))
        if self._schema.compacts_in_place:
            for message in session.messages:
                message.update(active=0, compacted=1)
            self._message(session, "user", _SUMMARY + self._writer.assistant_turn())
        self._talk(session, self._chance.between(1, 5))
        return [session]

    def _branched(self) -> list[SeedSession]:
        """A conversation, a branch of it, sometimes a branch of the branch."""
        family = [self._session(self._chance.split(SOURCES))]
        self._talk(family[0], self._chance.between(2, 8))
        for _ in range(self._chance.between(1, 3)):
            parent = self._chance.pick(family)
            if parent.row.get("ended_at") is None:
                self._end(parent, "branched")
            marker = {"_branched_from": parent.row["id"]} if self._schema.marks_branches else {}
            branch = self._session(parent.row["source"], parent=parent, title_of=parent, config=marker)
            self._talk(branch, self._chance.between(1, 6))
            family.append(branch)
        return family

    def _delegating(self) -> list[SeedSession]:
        """A conversation whose work was partly done by subagents, with and without a marker, and by a tool run."""
        parent = self._session(self._chance.split(SOURCES))
        self._talk(parent, self._chance.between(2, 6))
        family = [parent]
        for _ in range(self._chance.between(1, 3)):
            marked = self._schema.marks_delegates and self._chance.happens(80)
            source = "subagent" if marked else parent.row["source"]
            marker = {"_delegate_from": parent.row["id"]} if marked else {}
            child = self._session(source, parent=parent, config=marker, titled=False)
            self._talk(child, self._chance.between(1, 4))
            self._end(child, "agent_close")
            family.append(child)
        if self._chance.happens(15):
            tool = self._session("tool", parent=parent, titled=False)
            self._talk(tool, 1)
            self._end(tool, "agent_close")
            family.append(tool)
        self._talk(parent, 1)
        return family

    def _reset(self) -> list[SeedSession]:
        """One chat of a gateway, begun anew now and then."""
        source = self._chance.pick(GATEWAYS)
        chat = {"user_id": f"u{self._chance.below(500)}", "session_key": f"agent:main:{source}:dm:{self._chance.below(500)}",
                "chat_id": str(self._chance.below(10**9)), "chat_type": "dm"}  # fmt: skip
        family: list[SeedSession] = []
        for _ in range(self._chance.between(2, 5)):
            parent = family[-1] if family and self._schema.marks_resets else None
            marker = {"_reset_from": parent.row["id"]} if parent is not None and self._chance.happens(70) else {}
            session = self._session(source, parent=parent, config=marker)
            session.row.update(chat)
            self._talk(session, self._chance.between(1, 6))
            self._end(session, self._chance.pick(("session_reset", "idle", "daily")))
            family.append(session)
        return family

    def _rewound(self) -> list[SeedSession]:
        """The last turns taken back; in some conversations restored again."""
        session = self._session(self._chance.split(SOURCES))
        self._talk(session, self._chance.between(3, 8))
        if self._schema.rewinds and self._chance.happens(75):
            users = [place for place, message in enumerate(session.messages) if message["role"] == "user"]
            for message in session.messages[users[-1] :]:
                message["active"] = 0
        session.row["rewind_count"] = 1
        self._talk(session, 1)
        return [session]

    def _cron(self) -> list[SeedSession]:
        """The same job again and again, with the same few words."""
        session = self._session("cron", titled=False)
        session.row["id"] = f"cron_{session.row['id']}"
        for _ in range(self._chance.between(1, 2)):
            self._message(session, "user", f"run the job {self._chance.pick(self._cron_words)}")
            self._message(session, "assistant", f"done: {self._chance.pick(self._cron_words)}, nothing new")
        self._end(session, "cron_complete")
        return [session]

    def _session(
        self, source: str, *, parent: SeedSession | None = None, title_of: SeedSession | None = None,
        config: Row | None = None, titled: bool = True,
    ) -> SeedSession:  # fmt: skip
        self._number += 1
        self._clock += 60 + self._chance.below(3 * 3600)
        model_config = {"max_iterations": 90, **(config or {})} if config or self._chance.happens(60) else None
        row: Row = {
            "id": f"2026_{self._number:07d}_{self._chance.below(1 << 24):06x}",
            "source": source,
            "model": self._writer.model(),
            "model_config": json.dumps(model_config) if model_config is not None else None,
            "system_prompt": self._prompts[self._number % len(self._prompts)],
            "parent_session_id": parent.row["id"] if parent is not None else None,
            "started_at": self._clock,
            "title": self._title(title_of) if titled and self._chance.happens(70) else None,
            "cwd": "/home/example/project" if source in {"cli", "tui"} else None,
            "archived": int(self._chance.happens(4)),
            "pinned": int(self._chance.happens(2)),
            "hidden": int(self._chance.happens(2)),
            "input_tokens": 0,
            "output_tokens": 0,
            "message_count": 0,
            "tool_call_count": 0,
        }
        return SeedSession(row)

    def _title(self, like: SeedSession | None) -> str:
        """A title of its own, or the parent's with the next number behind it."""
        if like is not None and like.row["title"]:
            base = str(like.row["title"]).rpartition(" #")[0] or str(like.row["title"])
        else:
            base = self._writer.title()
        count = self._titles[base] = self._titles.get(base, 0) + 1
        return base if count == 1 else f"{base} #{count}"

    def _talk(self, session: SeedSession, turns: int) -> None:
        """Turns of a conversation: a question, often some tool calls with their results, an answer."""
        for _ in range(turns):
            self._message(session, "user", self._writer.user_turn())
            for _ in range(self._chance.split(((0, 15), (1, 30), (2, 30), (4, 25)))):
                self._call_tools(session)
            self._message(session, "assistant", self._writer.assistant_turn())

    def _call_tools(self, session: SeedSession) -> None:
        calls = [self._writer.tool_call() for _ in range(self._chance.split(((1, 50), (2, 30), (3, 20))))]
        encoded = [
            {"id": f"call_{self._chance.below(1 << 40):010x}", "type": "function",
             "function": {"name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in calls
        ]  # fmt: skip
        text = self._writer.user_turn() if self._chance.happens(25) else ""
        self._message(session, "assistant", text, tool_calls=json.dumps(encoded), finish_reason="tool_calls")
        session.row["tool_call_count"] += len(calls)
        for (name, _), call in zip(calls, encoded, strict=True):
            self._message(session, "tool", self._writer.tool_result(name), tool_name=name, tool_call_id=call["id"])

    def _message(self, session: SeedSession, role: str, content: str, **columns: Any) -> None:
        self._clock += 1 + 20 * self._chance.number()
        if role == "user" and self._chance.happens(2):
            parts = [
                {"type": "text", "text": content},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ]
            content = "\0json:" + json.dumps(parts)
        session.messages.append(
            {"session_id": session.row["id"], "role": role, "content": content, "timestamp": round(self._clock, 3),
             "active": 1, "compacted": 0, **columns}
        )  # fmt: skip

    def _end(self, session: SeedSession, reason: str) -> None:
        self._clock += 5
        session.row.update(ended_at=self._clock, end_reason=reason)

    def _maybe_end(self, session: SeedSession) -> None:
        if self._chance.happens(70):
            self._end(session, self._chance.pick(("cli_close", "agent_close", "tui_close")))
