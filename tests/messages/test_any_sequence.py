"""Whatever is done in whatever order: rows, flags, counters, search and indexes are those of a plain model.

The model is lists of rows in Python. It knows nothing of SQL, and calls copies of one message by one `origin`, where
the file has one uid.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from messages.conftest import SESSION, Plain, call

from hermes_store import ConflictError, HermesStore, InvalidMessageError, SessionContinuedError

WORD = "needle"
TEXTS = st.sampled_from(["a", "b", f"one {WORD}", f"two {WORD} 苹果派", "", "naïve \ud835 end", "x" * 9_000, None])
STRUCTURED = st.sampled_from(
    [[{"type": "text", "text": f"seen {WORD} 苹果"}], {"k": 1}, "\0json:[1]", f"nul \0 {WORD}"]
)
ROLES = st.sampled_from(["user", "user", "assistant", "tool", "system"])
CALLS = st.lists(st.builds(call, st.sampled_from(["read", "write"]), st.sampled_from(["c1", "c2"])), max_size=2)


@dataclass(frozen=True)
class Row:
    id: int
    session: str
    role: str
    content: Any
    calls: tuple[str, ...]
    origin: int
    moment: int  # copies keep the time of the message that they were read from
    active: int = 1
    compacted: int = 0

    @property
    def words(self) -> tuple[Any, ...]:
        return self.role, self.content, self.calls


def said(content: Any) -> Any:
    return content.replace("\ud835", "�") if isinstance(content, str) else content


class Machine(RuleBasedStateMachine):
    template: Path
    structured = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = Path(shutil.copy(self.template, self.folder / "state.db"))
        self.store = HermesStore.open(self.path, migrate="off")
        self.rows: list[Row] = []
        self.last_id = 0
        self.origins = 0
        self.line = [SESSION]
        self.rewinds: dict[str, int] = defaultdict(int)
        self.unique = 0
        self.has_nul = False

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # The model

    @property
    def tip(self) -> str:
        return self.line[-1]

    def of(self, session: str) -> list[Row]:
        return [row for row in self.rows if row.session == session]

    def live(self, session: str | None = None) -> list[Row]:
        return [row for row in self.of(session or self.tip) if row.active]

    def add(self, session: str, message: dict[str, Any], origin: int | None = None, moment: int | None = None) -> Row:
        self.last_id += 1
        if origin is None:
            self.origins += 1
            origin = self.origins
        content = said(message["content"])
        calls = tuple(map(str, message.get("tool_calls") or ()))
        self.rows.append(Row(self.last_id, session, message["role"], content, calls, origin, moment or self.last_id))
        self.has_nul |= not isinstance(content, str | None) or "\0" in (content or "")
        return self.rows[-1]

    def flag(self, ids: set[int], active: int, compacted: int) -> None:
        self.rows = [replace(row, active=active, compacted=compacted) if row.id in ids else row for row in self.rows]

    def add_with_copies(
        self, session: str, messages: list[tuple[dict[str, Any], Row | None]], copied_from: list[Row]
    ) -> set[int]:
        """Add messages; those that are a row's, word for word, are copies of it. Give the rows that have one."""
        gone: set[int] = set()
        for message, source in messages:
            same = source is not None and source in copied_from and source.id not in gone
            same = same and source.words == (
                message["role"],
                said(message["content"]),
                tuple(map(str, message.get("tool_calls") or ())),
            )
            self.add(session, message, source.origin if same else None, source and source.moment)
            if same:
                gone.add(source.id)
        return gone

    def new_message(self, role: str, content: Any, calls: list[Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant" and calls:
            message["tool_calls"] = calls
        return message

    def told(self) -> list[tuple[dict[str, Any], Row]]:
        """The live messages as `conversation` gives them, with their rows."""
        turns = self.store.messages.conversation(self.tip)
        live = self.live()
        assert [turn["_row_id"] for turn in turns] == [row.id for row in live]
        return list(zip(turns, live, strict=True))

    def fresh(self, prefix: str) -> str:
        self.unique += 1
        return f"{prefix} {self.unique} {WORD}"

    # What can be done

    def contents(self, data: st.DataObject) -> Any:
        return data.draw(STRUCTURED if self.structured and data.draw(st.booleans()) else TEXTS)

    @rule(data=st.data(), role=ROLES, calls=CALLS)
    def append(self, data: st.DataObject, role: str, calls: list[Any]) -> None:
        message = self.new_message(role, self.contents(data), calls)
        assert self.store.messages.append(self.tip, **message) == self.add(self.tip, message).id

    @rule(data=st.data(), roles=st.lists(ROLES, max_size=5), calls=CALLS)
    def append_many(self, data: st.DataObject, roles: list[str], calls: list[Any]) -> None:
        messages = [self.new_message(role, self.contents(data), calls) for role in roles]
        expected = [self.add(self.tip, message).id for message in messages]
        assert self.store.messages.append_many(self.tip, messages) == expected

    @precondition(lambda self: self.of(self.tip))
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(self.of(self.tip)))
        if target.role != "user":
            with pytest.raises(InvalidMessageError):
                self.store.messages.rewind(self.tip, target.id)
            return
        first = target.id
        if not target.active:
            copies = [row.id for row in self.live() if row.origin == target.origin]
            if not copies and target.compacted:
                with pytest.raises(ConflictError):
                    self.store.messages.rewind(self.tip, target.id)
                return
            first = max(copies, default=target.id)
        taken = {row.id for row in self.live() if row.id >= first}
        assert set(self.store.messages.rewind(self.tip, target.id).ids) == taken
        self.flag(taken, 0, 0)
        self.rewinds[self.tip] += 1

    @precondition(lambda self: self.of(self.tip))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(self.of(self.tip))).id
        here = self.of(self.tip)
        back = {
            row.id
            for row in here
            if row.id >= first
            and (row.active, row.compacted) == (0, 0)
            and not any(
                twin.origin == row.origin and twin.id != row.id and (twin.active or twin.compacted or twin.id > row.id)
                for twin in here
            )
        }
        assert set(self.store.messages.restore(self.tip, first)) == back
        self.flag(back, 1, 0)

    @rule(data=st.data(), keep=st.integers(0, 6), roles=st.lists(ROLES, max_size=3))
    def replace(self, data: st.DataObject, keep: int, roles: list[str]) -> None:
        told = self.told()
        new: list[tuple[dict[str, Any], Row | None]] = list(told[:keep])
        new += [(self.new_message(role, self.contents(data), []), None) for role in roles]
        if told:
            new += data.draw(st.lists(st.sampled_from(told), max_size=2))
        live = self.live()
        same = 0
        for row, (message, _) in zip(live, new, strict=False):
            if row.words != (
                message["role"],
                said(message["content"]),
                tuple(map(str, message.get("tool_calls") or ())),
            ):
                break
            same += 1
        done = self.store.messages.replace(self.tip, [message for message, _ in new])
        self.flag({row.id for row in live[same:]}, 0, 0)
        self.add_with_copies(self.tip, new[same:], live[same:])
        assert done.ids == tuple(row.id for row in self.live())

    def handed_over(self, data: st.DataObject) -> tuple[list[tuple[dict[str, Any], Row | None]], int | None]:
        told = self.told()
        summary = {"role": "user", "content": self.fresh("summary"), "_compressed_summary": True}
        new: list[tuple[dict[str, Any], Row | None]] = [(summary, None)]
        if told:
            new += data.draw(st.lists(st.sampled_from(told), max_size=3, unique_by=lambda one: one[1].id))
            if data.draw(st.booleans()):
                turn, row = data.draw(st.sampled_from(told))
                new.append((turn | {"content": self.fresh("pruned")}, row))
        return new, data.draw(st.sampled_from([None, 0, *(row.id for row in self.live())]))

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        new, watermark = self.handed_over(data)
        live = self.live()
        done = self.store.messages.archive_and_compact(self.tip, [message for message, _ in new], watermark=watermark)
        carried = self.add_with_copies(self.tip, new, live)
        late = [row for row in live if watermark is not None and row.id > watermark and row.id not in carried]
        self.flag({row.id for row in live}, 0, 1)
        self.flag(carried | {row.id for row in late}, 0, 0)
        self.clone(self.tip, late)
        assert done.ids == tuple(row.id for row in self.live())

    @precondition(lambda self: len(self.line) < 4)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        new, watermark = self.handed_over(data)
        live, parent, child = self.live(), self.tip, f"child{len(self.line)}"
        self.store.messages.publish_compression_child(
            parent, [message for message, _ in new], id=child, watermark=watermark
        )
        carried = self.add_with_copies(child, new, live)
        late = [row for row in live if watermark is not None and row.id > watermark and row.id not in carried]
        self.flag(carried | {row.id for row in late}, 0, 0)
        self.clone(child, late)
        self.line.append(child)
        with pytest.raises(SessionContinuedError, match=child):
            self.store.messages.append(parent, "user", "too late")

    def clone(self, session: str, rows: list[Row]) -> None:
        for row in rows:
            self.last_id += 1
            self.rows.append(replace(row, id=self.last_id, session=session))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), calls=CALLS)
    def edit(self, data: st.DataObject, calls: list[Any]) -> None:
        row = data.draw(st.sampled_from(self.rows))
        changes: dict[str, Any] = {"content": self.fresh("edited")}
        if row.role == "assistant":
            changes["tool_calls"] = calls
        assert self.store.messages.edit(row.session, row.id, **changes).content == changes["content"]
        new = replace(
            row, content=changes["content"], calls=tuple(map(str, calls)) if row.role == "assistant" else row.calls
        )
        self.rows[self.rows.index(row)] = new

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        doomed = {one.id for one in self.of(row.session) if one.origin == row.origin}
        assert self.store.messages.delete(row.session, row.id) == len(doomed)
        self.rows = [one for one in self.rows if one.id not in doomed]

    @rule()
    def import_again(self) -> None:
        report = self.store.messages.import_(self.store.messages.export(include_inactive=True))
        assert (report.messages, report.sessions, report.conflicts) == (0, (), {})

    # What must be true

    @invariant()
    def rows_and_flags_are_the_models(self) -> None:
        for session in self.line:
            read = self.store.messages.list(session, include_inactive=True)
            rows = self.of(session)
            assert [(one.id, one.role, one.content, one.active, one.compacted) for one in read] == [
                (row.id, row.role, row.content, bool(row.active), bool(row.compacted)) for row in rows
            ]
            assert [tuple(map(str, one.tool_calls or ())) for one in read] == [row.calls for row in rows]
            assert [one.id for one in self.store.messages.list(session)] == [row.id for row in rows if row.active]
        uids = dict(Plain(self.path).all("SELECT id, message_uid FROM messages"))
        by_origin, by_uid = defaultdict(set), defaultdict(set)
        for row in self.rows:
            by_origin[row.origin].add(row.id)
            by_uid[uids[row.id]].add(row.id)
        assert sorted(map(sorted, by_origin.values())) == sorted(map(sorted, by_uid.values()))

    @invariant()
    def counters_are_true(self) -> None:
        for session in self.line:
            live = self.live(session)
            assert Plain(self.path).all(
                "SELECT message_count, tool_call_count, rewind_count FROM sessions WHERE id = ?", session
            ) == [(len(live), sum(len(row.calls) for row in live), self.rewinds[session])]

    @invariant()
    def search_finds_each_message_once_where_it_is_shown(self) -> None:
        shown = {row.id for row in self.rows if row.active or (row.compacted and not self.lives_on(row))}
        expected = {row.id for row in self.rows if row.id in shown and WORD in str(row.content)}
        assert {hit.id for hit in self.store.search(WORD, limit=1_000).hits} == expected
        for session in self.line:
            archived = self.store.messages.list(session, include_archived=True)
            assert {one.id for one in archived} == {id_ for id_ in shown if id_ in {row.id for row in self.of(session)}}

    def lives_on(self, row: Row) -> bool:
        return any(
            one.origin == row.origin or (one.moment, *one.words) == (row.moment, *row.words)
            for one in self.live(row.session)
        )

    @invariant()
    def the_indexes_are_whole(self) -> None:
        if not self.has_nul:  # of such rows SQLite itself says that they are not
            Plain(self.path).check()


@pytest.mark.parametrize("structured", [False, True], ids=["text", "structured"])
def test_any_sequence_of_changes_agrees_with_a_plain_model(template: Path, structured: bool) -> None:
    machine = type("Machine", (Machine,), {"template": template, "structured": structured})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # What fails is short enough; to make it shorter would take longer than to read it.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
