"""Hermes's data steps, one by one, on rows made for them: each done once, on what it is meant for, and on nothing else."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest
from migrations.files import HEAD, connect, insert, message, run, session, upgrade
from migrations.indexes import troubles

USAGE_KEY = "session_id, model, billing_provider, billing_base_url, billing_mode"


def made_by(revision: str, tmp_path: Path) -> Path:
    path = tmp_path / "home" / "state.db"
    upgrade(path, revision)
    return path


def column(path: Path, name: str, table: str = "sessions") -> dict[str, Any]:
    """A column by session id, text as bytes."""
    with connect(path) as connection:
        connection.text_factory = bytes
        return {row[0].decode(): row[1] for row in connection.execute(f"SELECT id, {name} FROM {table}")}


class TestDuplicateTitles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = made_by("h14", tmp_path)
        run(path, "DROP INDEX idx_sessions_title_unique")
        return path

    def test_the_newest_keeps_the_title_and_the_others_are_numbered_by_age(self, path: Path) -> None:
        for id_, started_at in {"old": 1.0, "newest": 9.0, "middle": 5.0}.items():
            session(path, id_, title="Plans", started_at=started_at)
        session(path, "other", title="Other")
        session(path, "none")
        report = upgrade(path)
        titles = column(path, "title")
        assert titles == {
            "newest": b"Plans",
            "middle": b"Plans #2",
            "old": b"Plans #3",
            "other": b"Other",
            "none": None,
        }
        assert any(note.startswith("2 sessions had the title") for note in report.notes)

    def test_numbers_that_are_taken_are_skipped(self, path: Path) -> None:
        for number, title in enumerate(["Plans", "Plans", "Plans", "Plans #2", "Plans #4"]):
            session(path, f"s{number}", title=title, started_at=float(number))
        upgrade(path)
        assert column(path, "title") == {
            "s0": b"Plans #5", "s1": b"Plans #3", "s2": b"Plans", "s3": b"Plans #2", "s4": b"Plans #4",
        }  # fmt: skip

    def test_a_start_that_is_no_number_counts_as_older_than_any(self, path: Path) -> None:
        session(path, "text", title="Plans", started_at="yesterday")
        session(path, "number", title="Plans", started_at=1)
        upgrade(path)
        assert column(path, "title") == {"number": b"Plans", "text": b"Plans #2"}

    def test_titles_of_odd_bytes_stay_as_they_are_but_for_the_number(self, path: Path) -> None:
        for number, stored in enumerate(["'ff41'", "'ff41'", "'410042'", "'410042'", "''", "''"]):
            run(path, f"INSERT INTO sessions (id, source, started_at, title) VALUES"
                      f" ('s{number}', 'cli', {number}, CAST(x{stored} AS TEXT))")  # fmt: skip
        upgrade(path)
        assert column(path, "title") == {
            "s0": b"\xffA #2", "s1": b"\xffA", "s2": b"A\0B #2", "s3": b"A\0B", "s4": b" #2", "s5": b"",
        }  # fmt: skip

    def test_titles_that_are_unique_are_left_alone(self, path: Path) -> None:
        session(path, "a", title="Plans")
        session(path, "b", title="plans")
        report = upgrade(path)
        assert column(path, "title") == {"a": b"Plans", "b": b"plans"}
        assert not any("title" in note for note in report.notes)


#: Children of an open parent, or of one of the parents below, and whether they are a subagent's.
CHILDREN = {
    "plain": ({}, True),
    "with a blank title": ({"title": "  "}, True),
    "with other settings": ({"model_config": '{"model": "x", "n": 1.50}'}, True),
    "long before the compression": ({"parent_session_id": "compressed", "started_at": 50.0}, True),
    "of a parent compressed at an unknown time": ({"parent_session_id": "compressed-sometime"}, True),
    "started before the branch point": ({"parent_session_id": "branching", "started_at": 10.0}, True),
    "of another chat than the reset one": (
        {"parent_session_id": "reset-in-chat", "started_at": 120.0, "session_key": "chat:2"}, True),
    "titled": ({"title": "A title"}, False),
    "of a tool": ({"source": "tool"}, False),
    "continuing a compressed parent": ({"parent_session_id": "compressed", "started_at": 100.0}, False),
    "continuing it a second early": ({"parent_session_id": "compressed", "started_at": 99.0}, False),
    "branched": ({"parent_session_id": "branching", "started_at": 120.0}, False),
    "marked as a branch": ({"model_config": '{"_branched_from": "open"}'}, False),
    "marked as a reset": ({"model_config": '{"_reset_from": "open"}'}, False),
    "marked already": ({"model_config": '{"_delegate_from": "somebody"}'}, False),
    "after a reset": ({"parent_session_id": "reset", "started_at": 120.0}, False),
    "after a reset of the same chat": (
        {"parent_session_id": "reset-in-chat", "started_at": 50.0, "session_key": "chat:1"}, False),
    "with broken settings": ({"model_config": "{bad"}, False),
    "with empty settings": ({"model_config": ""}, False),
    "with a list for settings": ({"model_config": "[1]"}, False),
    "with a number for settings": ({"model_config": "12"}, False),
    "with null for settings": ({"model_config": "null"}, False),
    "with a blob for settings": ({"model_config": b'{"a": 1}'}, False),
    "with settings beyond any depth": ({"model_config": "[" * 3000 + "]" * 3000}, False),
    "with settings that go on after a NUL": ({"model_config": "{}\0{"}, False),
    "of itself": ({"parent_session_id": "of itself"}, False),
    "of nobody known": ({"parent_session_id": "nobody"}, False),
    "without a parent": ({"parent_session_id": None}, False),
}  # fmt: skip


class TestDelegateMarkers:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = made_by("h14", tmp_path)
        run(path, "ALTER TABLE sessions ADD COLUMN session_key TEXT")  # of a build between two releases
        session(path, "open")
        session(path, "compressed", end_reason="compression", ended_at=100.0)
        session(path, "compressed-sometime", end_reason="compression")
        session(path, "branching", end_reason="branched", ended_at=100.0)
        session(path, "reset", end_reason="session_reset", ended_at=100.0)
        session(path, "reset-in-chat", end_reason="session_reset", ended_at=100.0, session_key="chat:1")
        return path

    def test_only_children_of_subagents_are_marked(self, path: Path) -> None:
        for id_, (cells, _) in CHILDREN.items():
            session(path, id_, **{"parent_session_id": "open"} | cells)
        before, parents = column(path, "model_config"), column(path, "parent_session_id")
        report = upgrade(path)
        after = column(path, "model_config")
        marked = {id_ for id_ in before if before[id_] != after[id_]}
        assert marked == {id_ for id_, (_, subagent) in CHILDREN.items() if subagent}
        for id_ in marked:
            expected = json.loads(before[id_] or "{}") | {"_delegate_from": parents[id_].decode()}
            assert json.loads(after[id_]) == expected
        assert f"{len(marked)} subagent sessions of old releases were marked as such" in report.notes
        assert any("8 child sessions have a model_config that is no JSON object" in note for note in report.notes)

    def test_a_parentless_session_with_tools_is_never_hidden(self, path: Path) -> None:
        session(path, "genuine", message_count=3)
        for role in ("user", "assistant", "tool"):
            message(path, "genuine", role=role)
        upgrade(path)
        assert column(path, "model_config")["genuine"] is None

    def test_invalid_utf_8_in_settings_is_kept_byte_for_byte(self, path: Path) -> None:
        run(path, "INSERT INTO sessions (id, source, started_at, parent_session_id, model_config)"
                  " VALUES ('odd', 'cli', 1, 'open', CAST(x'7b2261223a22ff227d' AS TEXT))")  # fmt: skip
        upgrade(path)
        assert column(path, "model_config")["odd"] == b'{"a":"\xff","_delegate_from":"open"}'

    def test_a_file_past_the_step_is_not_marked_again(self, tmp_path: Path) -> None:
        path = made_by("h17", tmp_path)
        session(path, "parent")
        session(path, "child", parent_session_id="parent")
        upgrade(path)
        assert column(path, "model_config") == {"parent": None, "child": None}


class TestGatewayColumns:
    GOOD: ClassVar[dict[str, Any]] = {
        "_meta": {"session_id": "other"},
        "telegram:12": {
            "session_id": "a", "session_key": "telegram:12", "chat_type": "dm", "display_name": "Ann",
            "origin": {"platform": "telegram", "chat_id": 12, "thread_id": "7"}, "memory_flushed": True,
        },
        "telegram:13": {"session_id": "unknown"},
    }  # fmt: skip
    COLUMNS = ("session_key", "chat_id", "chat_type", "thread_id", "display_name", "origin_json", "expiry_finalized")
    EMPTY = (None, None, None, None, None, None, 0)

    def filled(self, tmp_path: Path, written: Any, **cells: Any) -> tuple[Any, ...]:
        path = made_by("h17", tmp_path)
        session(path, "a", **cells)
        session(path, "other")
        source = path.parent / "sessions" / "sessions.json"
        source.parent.mkdir()
        source.write_bytes(written if isinstance(written, bytes) else json.dumps(written).encode())
        self.report = upgrade(path)
        rows = dict.fromkeys(("a", "other"), ())
        for id_, *row in run(path, f"SELECT id, {', '.join(self.COLUMNS)} FROM sessions"):
            rows[id_] = tuple(row)
        assert rows["other"] == self.EMPTY
        assert self.report.after == HEAD
        return rows["a"]

    def test_empty_columns_are_filled_from_the_file_beside_it(self, tmp_path: Path) -> None:
        row = self.filled(tmp_path, self.GOOD)
        origin = json.dumps(self.GOOD["telegram:12"]["origin"])
        assert row == ("telegram:12", "12", "dm", "7", "Ann", origin, 1)
        assert any(note.startswith("1 sessions got their gateway columns") for note in self.report.notes)

    def test_filled_columns_are_kept(self, tmp_path: Path) -> None:
        assert self.filled(tmp_path, self.GOOD, chat_id="mine", session_key="k")[:3] == ("k", "mine", "dm")

    def test_the_entrys_own_key_stands_in_for_a_missing_one(self, tmp_path: Path) -> None:
        assert self.filled(tmp_path, {"slack:9": {"session_id": "a"}}) == ("slack:9", *self.EMPTY[1:])

    @pytest.mark.parametrize(
        "written",
        [b'{"a":', b"", b"\xff\xfe\x00", b"[1, 2]", b"[" * 100_000, b'{"k": {"session_id": ' + b"9" * 5000 + b"}}"],
        ids=["cut off", "empty", "not UTF-8", "a list", "too deep", "too long a number"],
    )
    def test_a_broken_file_changes_nothing_and_is_reported(self, written: bytes, tmp_path: Path) -> None:
        assert self.filled(tmp_path, written) == self.EMPTY
        assert "sessions/sessions.json holds no JSON object; gateway columns were left as they are" in self.report.notes

    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            (5, EMPTY),
            (None, EMPTY),
            ({"session_id": None}, EMPTY),
            ({"session_id": ["a"]}, EMPTY),
            ({"session_id": {"a": 1}}, EMPTY),
            ({"session_id": "a", "origin": "text", "chat_type": {"x": 1}, "display_name": True}, ("k", *EMPTY[1:])),
            ({"session_id": "a", "session_key": 12.5, "expiry_finalized": "yes"}, ("12.5", *EMPTY[1:6], 1)),
            (
                {"session_id": "a", "session_key": "\ud800x", "display_name": "\udfff"},
                ("?x", *EMPTY[1:4], "?", None, 0),
            ),
            ({"session_id": "\ud800"}, EMPTY),
        ],
    )
    def test_entries_of_odd_types_fill_what_they_can(
        self, entry: Any, expected: tuple[Any, ...], tmp_path: Path
    ) -> None:
        assert self.filled(tmp_path, {"k": entry}) == expected

    def test_a_missing_file_changes_nothing(self, tmp_path: Path) -> None:
        path = made_by("h17", tmp_path)
        session(path, "a")
        assert not any("gateway" in note for note in upgrade(path).notes)

    def test_a_file_past_the_step_is_not_filled(self, tmp_path: Path) -> None:
        path = made_by("h19", tmp_path)
        session(path, "a")
        (path.parent / "sessions").mkdir()
        (path.parent / "sessions" / "sessions.json").write_text(json.dumps(self.GOOD))
        upgrade(path)
        assert run(path, "SELECT chat_id FROM sessions") == [(None,)]


class TestUsage:
    def test_each_session_that_counted_tokens_gets_one_row(self, tmp_path: Path) -> None:
        path = made_by("h19", tmp_path)
        session(path, "counted", input_tokens=5, output_tokens=2, model="m", started_at=10.0, ended_at=20.0,
                billing_provider="p", estimated_cost_usd=0.5, cost_status="ok", api_call_count=3)  # fmt: skip
        session(path, "open", reasoning_tokens=1)
        session(path, "null", input_tokens=None, cache_read_tokens=7, estimated_cost_usd="unknown")
        session(path, "none", input_tokens=0)
        run(path, "UPDATE schema_version SET version = 19")
        upgrade(path)
        rows = run(path, "SELECT session_id, model, billing_provider, task, api_call_count, input_tokens, output_tokens,"
                         " estimated_cost_usd, cost_status, first_seen, last_seen FROM session_model_usage")  # fmt: skip
        assert rows == [
            ("counted", "m", "p", "", 3, 5, 2, 0.5, "ok", 10.0, 20.0),
            ("open", "unknown", "", "", 0, 0, 0, 0.0, None, 1.0, 1.0),
            ("null", "unknown", "", "", 0, 0, 0, "unknown", None, 1.0, 1.0),
        ]
        assert not upgrade(path).changed

    def test_rows_that_are_there_stay(self, tmp_path: Path) -> None:
        path = made_by("h22", tmp_path)
        session(path, "a", input_tokens=5, model="m")
        insert(path, "session_model_usage", session_id="a", model="m", input_tokens=77)
        run(path, "UPDATE schema_version SET version = 19")
        upgrade(path)
        assert run(path, "SELECT model, input_tokens FROM session_model_usage") == [("m", 77)]

    def test_a_key_without_the_task_is_rebuilt_and_unknown_columns_are_kept(self, tmp_path: Path) -> None:
        path = made_by("h19", tmp_path)
        session(path, "a", input_tokens=5, model="m")
        run(
            path,
            "CREATE TABLE session_model_usage (session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,"
            " model TEXT NOT NULL, billing_provider TEXT NOT NULL DEFAULT '', billing_base_url TEXT NOT NULL DEFAULT '',"
            " billing_mode TEXT NOT NULL DEFAULT '', input_tokens INTEGER, plugin_extra BLOB NOT NULL DEFAULT x'00',"
            f" PRIMARY KEY ({USAGE_KEY}))",
            "INSERT INTO session_model_usage (session_id, model, input_tokens, plugin_extra)"
            " VALUES ('gone', 'm', 0, x'00'), ('a', 'm', 77, x'0102'), ('ghost', 'm', 1, x'00'), ('ghost', 'n', NULL, x'00')",
            "DELETE FROM session_model_usage WHERE session_id = 'gone'",
            "CREATE INDEX plugin_index ON session_model_usage (plugin_extra)",
            "CREATE TRIGGER plugin_trigger AFTER INSERT ON session_model_usage BEGIN SELECT 1; END",
            "CREATE VIEW plugin_view AS SELECT model FROM session_model_usage",
        )
        texts = run(path, "SELECT name, sql FROM sqlite_master WHERE name GLOB 'plugin_*' ORDER BY name")
        report = upgrade(path)
        rows = run(path, "SELECT session_id, model, task, input_tokens, plugin_extra FROM session_model_usage")
        assert rows == [
            ("a", "m", "", 77, b"\1\2"), ("ghost", "m", "", 1, b"\0"), ("ghost", "n", "", 0, b"\0"),
        ]  # fmt: skip
        key = run(path, "SELECT name FROM pragma_table_info('session_model_usage') WHERE pk > 0 ORDER BY pk")
        assert [name for (name,) in key] == [*USAGE_KEY.split(", "), "task"]
        assert run(path, "SELECT name, sql FROM sqlite_master WHERE name GLOB 'plugin_*' ORDER BY name") == texts
        declared = "SELECT type, \"notnull\", dflt_value FROM pragma_table_info('session_model_usage') WHERE name = ?"
        assert run(path, (declared, ("plugin_extra",))) == [("BLOB", 1, "x'00'")]
        assert any("session_model_usage: primary key rebuilt" in note for note in report.notes)
        assert len(run(path, "PRAGMA foreign_key_check")) == 2


class TestRoutingKey:
    def test_a_key_without_the_scope_is_rebuilt(self, tmp_path: Path) -> None:
        path = made_by("h17", tmp_path)
        session(path, "a")
        run(
            path,
            "CREATE TABLE gateway_routing (session_key TEXT PRIMARY KEY, entry_json TEXT, updated_at REAL)",
            "INSERT INTO gateway_routing VALUES ('k1', '{}', 1.0), ('k2', NULL, NULL)",
        )
        upgrade(path)
        rows = run(path, "SELECT scope, session_key, entry_json, updated_at FROM gateway_routing ORDER BY session_key")
        assert rows == [("", "k1", "{}", 1.0), ("", "k2", "", "")]

    def test_of_two_rows_that_now_share_a_key_the_newest_wins(self, tmp_path: Path) -> None:
        path = made_by("h17", tmp_path)
        run(
            path,
            "CREATE TABLE gateway_routing (scope TEXT, session_key TEXT NOT NULL, entry_json TEXT NOT NULL,"
            " updated_at REAL NOT NULL, PRIMARY KEY (session_key, scope))",
            "INSERT INTO gateway_routing VALUES (NULL, 'k', 'new', 9.0), ('', 'k', 'old', 1.0), ('x', 'k', 'x', 1.0)",
        )
        upgrade(path)
        rows = run(path, "SELECT scope, session_key, entry_json FROM gateway_routing ORDER BY scope")
        assert rows == [("", "k", "new"), ("x", "k", "x")]


class TestPrompts:
    def test_each_text_is_stored_once_byte_for_byte(self, tmp_path: Path) -> None:
        path = made_by("h22", tmp_path)
        odd = b"\xff\x00\xfeA"
        session(path, "a", system_prompt="be brief")
        session(path, "b", system_prompt="be brief")
        session(path, "empty", system_prompt="")
        session(path, "blob", system_prompt=b"no text")
        session(path, "none")
        run(path, f"INSERT INTO sessions (id, source, started_at, system_prompt)"
                  f" VALUES ('odd', 'cli', 1, CAST(x'{odd.hex()}' AS TEXT))")  # fmt: skip
        report = upgrade(path)
        texts = {"a": b"be brief", "b": b"be brief", "empty": b"", "odd": odd}
        digests = {id_: sha256(text).hexdigest().encode() for id_, text in texts.items()}
        assert column(path, "system_prompt_hash") == digests | {"blob": None, "none": None}
        assert column(path, "system_prompt") == dict.fromkeys(texts) | {"blob": b"no text", "none": None}
        with connect(path) as connection:
            connection.text_factory = bytes
            stored = connection.execute("SELECT hash, prompt, typeof(prompt) FROM system_prompts").fetchall()
        assert sorted(stored) == sorted({(digests[id_], texts[id_], b"text") for id_ in texts})
        assert any(note.startswith("4 system prompts moved") for note in report.notes)

    def test_where_both_columns_are_in_use_past_the_step_both_stay(self, tmp_path: Path) -> None:
        path = made_by("h25", tmp_path)
        insert(path, "system_prompts", hash="h", prompt="shared")
        session(path, "moved", system_prompt_hash="h")
        session(path, "left", system_prompt="never moved")
        upgrade(path)
        assert column(path, "system_prompt") == {"moved": None, "left": b"never moved"}
        assert column(path, "system_prompt_hash") == {"moved": b"h", "left": None}


class TestActiveRows:
    def test_null_in_a_nullable_column_becomes_active(self, tmp_path: Path) -> None:
        path = made_by("h13", tmp_path)
        run(path, "ALTER TABLE messages ADD COLUMN active INTEGER")
        session(path, "a")
        for number in range(4):
            message(path, "a", f"hello {number}", active=0 if number == 0 else None)
        report = upgrade(path)
        assert run(path, "SELECT active FROM messages ORDER BY id") == [(0,), (1,), (1,), (1,)]
        assert any(note.startswith("3 messages had no active flag") for note in report.notes)
        assert troubles(path) == []

    def test_null_is_healed_at_head_too(self, tmp_path: Path) -> None:
        path = made_by("h13", tmp_path)
        run(path, "ALTER TABLE messages ADD COLUMN active INTEGER")
        session(path, "a")
        upgrade(path)
        message(path, "a", active=None)
        assert upgrade(path).changed
        assert run(path, "SELECT active FROM messages") == [(1,)]


class TestVersion:
    """One old session that every step would touch, and a version to decide which do."""

    def upgraded(self, tmp_path: Path, *versions: Any) -> Path:
        path = made_by("h14", tmp_path)
        session(path, "parent")
        session(path, "child", parent_session_id="parent", system_prompt="be brief", input_tokens=3)
        run(path, "DELETE FROM schema_version", *[("INSERT INTO schema_version VALUES (?)", (v,)) for v in versions])
        assert upgrade(path).after == HEAD
        assert not upgrade(path).changed
        return path

    def steps_done(self, path: Path) -> list[bool]:
        checks = (
            "SELECT model_config IS NOT NULL FROM sessions WHERE id = 'child'",
            "SELECT count(*) > 0 FROM session_model_usage",
            "SELECT count(*) > 0 FROM system_prompts",
        )
        return [bool(run(path, check)[0][0]) for check in checks]

    @pytest.mark.parametrize("version", [14, "14", 0, -1, 11])
    def test_an_older_version_has_all_steps_done(self, version: Any, tmp_path: Path) -> None:
        path = self.upgraded(tmp_path, version)
        assert self.steps_done(path) == [True, True, True]
        assert run(path, "SELECT version, typeof(version) FROM schema_version") == [(31, "integer")]

    @pytest.mark.parametrize(
        ("version", "done"), [(16, [False, True, True]), (20, [False, False, True]), (25, [False] * 3)]
    )
    def test_each_step_is_gated_by_the_stored_version(self, version: int, done: list[bool], tmp_path: Path) -> None:
        assert self.steps_done(self.upgraded(tmp_path, version)) == done

    def test_without_a_version_row_every_step_is_skipped(self, tmp_path: Path) -> None:
        path = self.upgraded(tmp_path)
        assert self.steps_done(path) == [False, False, False]
        assert run(path, "SELECT version FROM schema_version") == [(31,)]

    @pytest.mark.parametrize("version", ["many", 14.5, b"14"])
    def test_a_version_that_is_no_number_counts_as_none(self, version: Any, tmp_path: Path) -> None:
        path = self.upgraded(tmp_path, version)
        assert self.steps_done(path) == [False, False, False]
        assert run(path, "SELECT version FROM schema_version") == [(31,)]

    def test_of_several_rows_the_first_decides_and_all_advance(self, tmp_path: Path) -> None:
        path = self.upgraded(tmp_path, 14, 31, 22)
        assert self.steps_done(path) == [True, True, True]
        assert run(path, "SELECT version FROM schema_version") == [(31,)] * 3

    def test_of_several_rows_a_first_one_at_head_is_enough(self, tmp_path: Path) -> None:
        path = self.upgraded(tmp_path, 31, 14)
        assert self.steps_done(path) == [False, False, False]
        assert run(path, "SELECT version FROM schema_version") == [(31,), (14,)]

    def test_the_version_advances_with_each_revision_and_not_before(self, tmp_path: Path) -> None:
        path = made_by("h11", tmp_path)
        session(path, "a")
        for revision, version in {"h14": 14, "h19": 19, "h26": 26, "h31": 31, "head": 31}.items():
            upgrade(path, revision)
            assert run(path, "SELECT version FROM schema_version") == [(version,)]


class TestOddRows:
    def test_message_ids_of_any_size_and_sign_are_indexed(self, tmp_path: Path) -> None:
        path = made_by("h22", tmp_path)
        session(path, "a")
        ids = [-5, 0, 3, 2_000_000, 1_780_000_000_000, 2**62]
        for id_ in ids:
            message(path, "a", f"words of number {abs(id_)} 修改服务端", id=id_)
        upgrade(path)
        assert troubles(path) == []
        assert run(path, "SELECT id FROM messages ORDER BY id") == [(id_,) for id_ in ids]
        assert run(path, "SELECT count(*) FROM messages WHERE message_uid IS NULL") == [(0,)]

    @pytest.mark.parametrize("value", [None, "abc", "-7", "9" * 30])
    def test_a_uid_position_of_any_kind_does_not_stop_the_fill(self, value: str | None, tmp_path: Path) -> None:
        path = made_by("h22", tmp_path)
        session(path, "a")
        message(path, "a")
        insert(path, "state_meta", key="message_uid_backfill_id", value=value)
        insert(path, "state_meta", key="fts_rebuild_high_water", value=None)
        upgrade(path)
        assert troubles(path) == []
        assert upgrade(path).pending == []
        assert run(path, "SELECT count(*) FROM messages WHERE message_uid IS NULL") == [(0,)]

    def test_cells_of_every_wrong_type_are_carried_along(self, tmp_path: Path) -> None:
        path = made_by("h14", tmp_path)
        session(path, "odd", started_at="never", ended_at=b"\0", model_config="{", message_count="many", title=5)
        message(path, "odd", b"blob content", timestamp="noon", tool_calls=7)
        message(path, "nobody", "an orphan")
        run(path, "INSERT INTO messages (session_id, role, content, timestamp)"
                  " VALUES ('odd', 'user', CAST(x'ff00fe' AS TEXT), 'x')")  # fmt: skip
        queries = (
            "SELECT hex(started_at), hex(ended_at), model_config, message_count, title FROM sessions",
            "SELECT session_id, role, hex(content), typeof(content), timestamp, tool_calls FROM messages",
        )
        before = [run(path, query) for query in queries]
        orphans = run(path, "PRAGMA foreign_key_check")
        upgrade(path)
        assert [run(path, query) for query in queries] == before
        assert run(path, "PRAGMA foreign_key_check") == orphans
        assert len(orphans) == 1
        assert not upgrade(path).changed
