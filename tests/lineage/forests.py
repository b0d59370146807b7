"""Forests of sessions that no writer should leave behind, and some that every writer does.

A forest is made by picking from short lists only, so hypothesis can shrink it (``forests()``) and a seed can make it
again (``seeded(7)``). What comes first in a list is what a failure shrinks to.

``write`` puts a forest into a file that migrations built; ``read`` gives the plain rows of any file, whichever of the
columns it has.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Row = dict[str, Any]
Pick = Callable[[Sequence[T]], T]

SESSION_COLUMNS = (
    "id", "parent_session_id", "source", "model_config", "started_at", "ended_at", "end_reason", "title", "session_key",
    "last_activity_at", "archived", "hidden", "pinned", "cwd", "model",
)  # fmt: skip
MESSAGE_COLUMNS = (
    "id", "session_id", "role", "content", "timestamp", "active", "compacted", "message_uid", "tool_calls",
    "display_kind",
)  # fmt: skip


@dataclass
class Forest:
    """The rows of a file."""

    sessions: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)


# -------------------------------------------------------------------------------------------------------------- pools

# Many begin with others; some are ordered by bytes otherwise than by letters, or mean something to LIKE and to JSON.
IDS = (
    "a", "b", "c", "ab", "abc", "B", "é", "éa", "会話", "会", "会話2", "\U0001f600", "\uffee", "%", "_", "a%", "a_", "a_b",
    "a\\", "'", '"q"', "a b", "A", "a/b", "20260101_090000_aaaa01", "20260101_090000_aaaa0", "20260101_090000", "0",
    "00", "-1", "null", "$._x", "e\u0301", "ß", "ss", "s", "z", "zz", "zzz", "~", "\x7f", "\u00a0x",
)  # fmt: skip
#: Named as parents, and never sessions.
MISSING = ("gone", "ab0", "会話3", "")
ORPHANED = "__orphaned__"

RESETS = ("session_reset", "session_switch", "idle", "daily", "suspended", "resume_pending_expired", "new_session")
REASONS = ("compression", "branched", "user_exit", None)
SOURCES = ("cli", "telegram", "subagent", "tool", "cron")
MARKERS = ("_delegate_from", "_branched_from", "_reset_from")
NO_MARKERS = (
    None, "{}", "", "{", "[]", '["_branched_from"]', '"_delegate_from"', "null", "7", "not json",
    '{"_delegate_from": null}', '{"a": {"_branched_from": "a"}}', '{"_branched_from": "a",}', "{'_delegate_from': 'a'}",
    '{"_branched_from": "a", "n": NaN}',
)  # fmt: skip
TITLES = ("Notes", "100%_done", "100x_done", "a\\b", "NOTES", "notes #2", "naïve", "会話の題", "%", "a_b")
BLANK_TITLES = ("", " ", "   ")
KEYS = (None, "chat:1", "chat:2", "")
FOLDERS = (
    None, "/w", "/w/a", "/w/a/b", "/w/ab", "/w/a%", "/w/a%/x", "/w/a_", "/w/axb", "/W/a", "/w\\a", "/w\\a/x", "/", "",
)  # fmt: skip
MODELS = (None, "m1", "m2")

BASE = 1_780_000_000
#: Sums of these are exact, so that an edge case is one however it is worked out.
ENDS = (0.0, 100.0, 100.5, 200.0)
AROUND = (0.0, 0.5, -0.5, 1.0, -1.0, -1.5, 60.0, -60.0, -0.25, -1.0009765625)
HOSTILE_TIMES = (
    "soon", "", b"\x00\x01", float("inf"), float("-inf"), BASE * 1000.0, 0.0, -1.0, 86_399.0, 86_400.0,
    7_258_118_400.0, 7_258_118_401.0,
)  # fmt: skip
TEXTS = ("hello", "", None, "yes", 'a "quoted" thing', "会話", "\0json:[]", "100%")
CALLS = (None, None, "[]", '[{"id": "1"}]', '[{"id": "\\u4f1a"}]')
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 10, 12, 15, 20, 40)

# ------------------------------------------------------------------------------------------------------------- making


class _Maker:
    """Makes one forest out of picks."""

    def __init__(self, pick: Pick[Any], size: int) -> None:
        self.pick = pick
        self.size = size
        self.forest = Forest()
        # Where anything may be anything, few sessions carry another on: half of the forests are mostly that.
        self.calm = self.once_in(2)

    def once_in(self, times: int) -> bool:
        return bool(self.pick([False] * (times - 1) + [True]))

    def make(self) -> Forest:
        left = list(IDS)
        for _ in range(self.size):
            left.remove(id_ := self.pick(left))
            self.forest.sessions.append({"id": id_})
        for at, row in enumerate(self.forest.sessions):
            row["parent_session_id"] = self.parent(at)
            row["end_reason"] = self.reason()
            row["ended_at"] = self.ended()
        titles = [*TITLES, *BLANK_TITLES]
        for row in self.forest.sessions:
            parent = self.row_of(row["parent_session_id"])
            self.fill(row, parent)
            row["title"] = None
            if titles and self.once_in(3):
                titles.remove(title := self.pick(titles))
                row["title"] = title
            self.talk(row, parent)
        self.lose_messages()
        return self.forest

    def row_of(self, id_: str | None) -> Row | None:
        return next((row for row in self.forest.sessions if row["id"] == id_), None)

    def parent(self, at: int) -> str | None:
        """Mostly one that was there before; else any, which makes cycles, none, or one that is not there."""
        ids = [row["id"] for row in self.forest.sessions]
        how = self.pick(("earlier", "last", "none", "earlier", "last", "earlier", "any", "any", "missing", "self"))
        if how == "missing":
            return str(self.pick(MISSING))
        if how == "self":
            return str(ids[at])
        if how == "any":
            return str(self.pick(ids))
        if how == "none" or at == 0:
            return None
        return str(ids[at - 1] if how == "last" else self.pick(ids[:at]))

    def reason(self) -> Any:
        if self.calm and not self.once_in(5):
            return "compression"
        return self.pick(RESETS) if self.once_in(4) else self.pick(REASONS)

    def ended(self) -> Any:
        how = self.pick(("time",) * 6 + ("null", "hostile"))
        if how == "hostile":
            return self.pick(HOSTILE_TIMES)
        return BASE + self.pick(ENDS) if how == "time" else None

    def fill(self, row: Row, parent: Row | None) -> None:
        end = parent["ended_at"] if parent is not None else None
        near = end if isinstance(end, float) and abs(end - BASE) < 1000 else float(BASE)
        row["started_at"] = self.pick(HOSTILE_TIMES) if self.once_in(10) else near + self.pick(AROUND)
        for column, pool in (("source", SOURCES), ("session_key", KEYS)):
            inherits = parent is not None and column in parent and not self.once_in(2)
            row[column] = parent[column] if parent is not None and inherits else self.pick(pool)
        if self.calm and not self.once_in(6):
            row["source"] = "cli"
        row["model_config"] = self.config(row, parent)
        row["last_activity_at"] = None
        if self.once_in(4):
            row["last_activity_at"] = self.pick(HOSTILE_TIMES) if self.once_in(3) else BASE + self.pick(AROUND) + 300
        row |= {flag: int(self.once_in(5)) for flag in ("archived", "hidden", "pinned")}
        row |= {"cwd": self.pick(FOLDERS), "model": self.pick(MODELS)}

    def config(self, row: Row, parent: Row | None) -> str | None:
        """None, broken, copied from the parent as continuations do, or markers that name someone."""
        how = self.pick(("none", "none", "copied", *(("none", "copied", "copied") if self.calm else ("markers",) * 2)))
        how = "markers" if self.calm and self.once_in(8) else how
        if how == "copied" and parent is not None and "model_config" in parent:
            return str(parent["model_config"]) if parent["model_config"] is not None else None
        if how != "markers":
            return self.pick(NO_MARKERS) if self.once_in(3) else None
        family = [row["parent_session_id"], row["parent_session_id"]]
        family += [parent["parent_session_id"]] if parent else []
        found: dict[str, Any] = {"max_iterations": 90} if self.once_in(2) else {}
        for _ in range(self.pick((1, 1, 1, 2, 3))):
            named = self.pick([*family, self.pick(self.forest.sessions)["id"], self.pick(MISSING[:3]), ORPHANED])
            if named:
                found[self.pick(MARKERS)] = named
        return json.dumps(found, ensure_ascii=self.once_in(2))

    def talk(self, row: Row, parent: Row | None) -> None:
        """Messages of its own, after what was carried over from the parent or anywhere else."""
        said = self.forest.messages
        before = [message for message in said if parent is not None and message["session_id"] == parent["id"]]
        if before and not self.once_in(3):
            for message in before[-self.pick((1, 2, 3)) :]:
                self.say(row, of=message)
        for _ in range(self.pick((0, 1, 2, 0, 1, 3))):
            self.say(row, of=self.pick(said) if said and self.once_in(5) else None)

    def say(self, row: Row, of: Row | None) -> None:
        number = len(self.forest.messages) + 1
        begun = row["started_at"]
        near = begun if isinstance(begun, float) and abs(begun - BASE) < 1000 else float(BASE)
        message: Row = {
            "id": number,
            "session_id": row["id"],
            "role": self.pick(("user", "assistant", "tool")),
            "content": self.pick(TEXTS),
            "timestamp": self.pick(HOSTILE_TIMES) if self.once_in(10) else near + self.pick(AROUND),
            "active": 1,
            "compacted": 0,
            "message_uid": self.pick((f"u{number}", None)),
            "tool_calls": self.pick(CALLS),
            "display_kind": self.pick((None, None, None, "hidden", "timeline")),
        }
        if of is not None:
            message |= {column: of[column] for column in ("role", "content", "timestamp", "tool_calls")}
            message["message_uid"] = self.pick((of["message_uid"], f"u{number}", None))
            changed = self.pick((None, None, None, "role", "content", "timestamp", "tool_calls"))
            if changed is not None:
                other = {"role": "system", "content": "other", "timestamp": BASE + 7.0, "tool_calls": "[7]"}
                message[changed] = other[changed]
        if self.once_in(4):
            message |= {"active": 0, "compacted": self.pick((0, 1))}
        self.forest.messages.append(message)

    def lose_messages(self) -> None:
        """A few messages lose their session."""
        for message in self.forest.messages:
            if self.once_in(30):
                message["session_id"] = self.pick(MISSING[:3])


@st.composite
def forests(draw: st.DrawFn, sizes: Sequence[int] = SIZES) -> Forest:
    """Forests for hypothesis; ``sizes`` says how many sessions they may have."""
    return _Maker(lambda values: draw(st.sampled_from(values)), draw(st.sampled_from(sizes))).make()


def seeded(seed: int, size: int | None = None) -> Forest:
    """The forest of a seed, without hypothesis."""
    source = random.Random(seed)
    return _Maker(source.choice, source.choice(SIZES) if size is None else size).make()


# -------------------------------------------------------------------------------------------------------------- files


def write(path: Path, forest: Forest) -> None:
    """Insert a forest into a file that migrations built, as a writer does that minds no foreign keys.

    A message without an id of its own that holds across copies stays without one, as those of older writers are,
    although the file itself gives one to every new row.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        with connection:
            _insert(connection, "sessions", SESSION_COLUMNS, forest.sessions)
            _insert(connection, "messages", MESSAGE_COLUMNS, forest.messages)
            connection.executemany(
                "UPDATE messages SET message_uid = NULL WHERE id = ?",
                [(message["id"],) for message in forest.messages if message.get("message_uid") is None],
            )


def _insert(connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",
        [[row.get(column) for column in columns] for row in rows],
    )


def read(path: Path) -> Forest:
    """The rows of any file in the order of their ids; columns that it lacks are ``None``."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        return Forest(
            _select(connection, "sessions", SESSION_COLUMNS), _select(connection, "messages", MESSAGE_COLUMNS)
        )


def _select(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> list[Row]:
    there = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    listed = ", ".join(column if column in there else f"NULL AS {column}" for column in columns)
    rows = connection.execute(f"SELECT {listed} FROM {table} ORDER BY id")
    return [dict(zip(columns, row, strict=True)) for row in rows]
