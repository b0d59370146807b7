"""Every file a release of Hermes ever left behind: upgraded, it has lost nothing and works."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fixture_files import RELEASED
from migrations.files import DRIVER, HEAD, Upgraded, cells, connect, content_of, copy_of, upgrade, upgraded_copy
from migrations.indexes import INDEXES, STRUCTURED, entries_differ, troubles, write_every_kind

from hermes_store import migrations

#: ``state_meta`` keys that say how far indexes and uids are, or that number the file.
BOOKKEEPING = re.compile(r"fts_.*|message_uid_backfill(_id)?|db_file_generation|store_(instance_id|created_at_utc)")
#: Columns an upgrade fills on old rows; all other new columns get their default.
FILLED = {"message_uid", "system_prompt_hash"}


@pytest.fixture(scope="module", params=RELEASED)
def upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Upgraded:
    return upgraded_copy(request.param, tmp_path_factory.mktemp("released"))


def test_it_reaches_head_with_nothing_left_to_do(upgraded: Upgraded) -> None:
    status = migrations.check(upgraded.path, driver=DRIVER)
    assert upgraded.report.after == status.revision == status.recognised == HEAD
    assert upgraded.report.changed
    assert upgraded.report.pending == []
    assert not status.is_behind
    assert not status.pending
    assert status.schema_version == 31


def test_a_second_upgrade_writes_nothing(upgraded: Upgraded, tmp_path: Path) -> None:
    path = copy_of(upgraded.path, tmp_path)
    before = content_of(path)
    report = upgrade(path)
    assert not report.changed
    assert report.pending == []
    assert report.backup is None
    assert content_of(path) == before


def test_every_cell_is_kept_but_for_the_data_steps(upgraded: Upgraded) -> None:
    with connect(upgraded.path) as connection:
        after = cells(connection)
    for table, rows in upgraded.before.items():
        compare = COMPARE.get(table, same_rows)
        compare(rows, after[table], after)
    assert upgraded.report.rows_after["messages"] == len(after["messages"])
    for table, rows in upgraded.before.items():
        assert upgraded.report.rows_before.get(table, len(rows)) == len(rows)


def test_both_indexes_are_whole(upgraded: Upgraded) -> None:
    assert troubles(upgraded.path) == []


def test_both_indexes_stay_whole_under_every_kind_of_write(upgraded: Upgraded, tmp_path: Path) -> None:
    path = copy_of(upgraded.path, tmp_path)
    write_every_kind(path)
    assert troubles(path) == []
    with connect(path) as connection:
        written = "SELECT count(*) FROM messages WHERE session_id GLOB 'written-*'"
        assert connection.execute(written).fetchone()[0] > 80
        assert connection.execute("SELECT count(*) FROM messages WHERE message_uid IS NULL").fetchone()[0] == 0
    assert not upgrade(path).changed


def test_rows_of_structured_content_can_be_changed_and_deleted(upgraded: Upgraded, tmp_path: Path) -> None:
    path = copy_of(upgraded.path, tmp_path)
    with connect(path) as connection:
        structured = [row[0] for row in connection.execute(STRUCTURED)]
        assert bool(structured) == bool(upgraded.before.get("messages"))
        for id_ in structured[::2]:
            connection.execute("UPDATE messages SET content = 'now plain' WHERE id = ?", (id_,))
        for id_ in structured[1::2]:
            connection.execute("DELETE FROM messages WHERE id = ?", (id_,))
        kept = {row[0] for row in connection.execute("SELECT id FROM messages WHERE content = 'now plain'")}
        assert kept == set(structured[::2])
        touched = f"SELECT value AS id FROM json_each('{json.dumps(structured)}')"
        for name, (_, rows) in INDEXES.items():
            assert not entries_differ(connection, name, touched)
            hits = f"SELECT rowid FROM {name} WHERE {name} MATCH 'plain' AND rowid IN ({touched})"
            eligible = f"SELECT id FROM ({rows}) WHERE id IN ({touched})"
            assert set(connection.execute(hits)) == set(connection.execute(eligible))


def same_rows(before: dict[int, Any], after: dict[int, Any], _all: Any) -> None:
    assert before.keys() == after.keys()
    for id_, row in before.items():
        assert {column: after[id_][column] for column in row} == row


def same_messages(before: dict[int, Any], after: dict[int, Any], _all: Any) -> None:
    assert before.keys() == after.keys()
    for id_, row in before.items():
        expected = row | ({"active": ("integer", 1)} if row.get("active", ("", 1))[1] is None else {})
        if expected.get("message_uid", ("null",))[0] == "null":
            expected["message_uid"] = after[id_]["message_uid"]
        assert {column: after[id_][column] for column in expected} == expected
        assert re.fullmatch(rb"[0-9a-f]{32}", after[id_]["message_uid"][1])
    uids = [row["message_uid"] for row in after.values()]
    assert len(set(uids)) == len(uids)


def same_sessions(before: dict[int, Any], after: dict[int, Any], everything: Any) -> None:
    assert before.keys() == after.keys()
    version = next(iter(everything["schema_version"].values()))["version"][1]
    assert version == 31
    prompts = {row["hash"][1]: row["prompt"] for row in everything["system_prompts"].values()}
    for id_, row in before.items():
        now, expected = after[id_], dict(row)
        if now["system_prompt"][0] == "null" and row["system_prompt"][0] == "text":
            expected["system_prompt"] = ("null", None)
            digest = sha256(row["system_prompt"][1]).hexdigest().encode()
            assert now["system_prompt_hash"] == ("text", digest)
            assert prompts[digest] == row["system_prompt"]
        if now["model_config"] != row["model_config"]:
            tagged = json.loads(row["model_config"][1] or "{}") | {
                "_delegate_from": row["parent_session_id"][1].decode()
            }
            assert row["title"][0] == "null"
            assert json.loads(now["model_config"][1]) == tagged
            expected.pop("model_config")
        assert {column: now[column] for column in expected} == expected


def same_meta(before: dict[int, Any], after: dict[int, Any], _all: Any) -> None:
    old, new = ({row["key"][1].decode(): row["value"] for row in rows.values()} for rows in (before, after))
    assert {key for key in new if not BOOKKEEPING.fullmatch(key)} == {
        key for key in old if not BOOKKEEPING.fullmatch(key)
    }
    for key, value in old.items():
        if not BOOKKEEPING.fullmatch(key) or key.startswith(("db_file", "store_")):
            assert new[key] == value
    assert new["message_uid_backfill"] == ("text", b"1")
    assert "fts_tool_full_content_high_water" not in new
    assert "fts_optimize_available" not in new


def more_rows(before: dict[int, Any], after: dict[int, Any], everything: Any) -> None:
    same_rows(before, {id_: after[id_] for id_ in before}, everything)


def version_31(_before: dict[int, Any], after: dict[int, Any], _all: Any) -> None:
    assert [row["version"] for row in after.values()] == [("integer", 31)]


COMPARE = {
    "messages": same_messages,
    "sessions": same_sessions,
    "state_meta": same_meta,
    "schema_version": version_31,
    "system_prompts": more_rows,
    "session_model_usage": more_rows,
}


def test_new_columns_hold_their_defaults(upgraded: Upgraded) -> None:
    with connect(upgraded.path) as connection:
        for table, rows in upgraded.before.items():
            old = set(next(iter(rows.values()), {}))
            for _, column, _, _, default, _ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                if old and column not in old | FILLED:
                    others = f'SELECT count(*) FROM "{table}" WHERE "{column}" IS NOT {default or "NULL"}'
                    assert connection.execute(others).fetchone()[0] == 0, column


def test_usage_is_seeded_once_per_session_that_counted_tokens(upgraded: Upgraded) -> None:
    if not upgraded.before.get("sessions"):
        pytest.skip("this file holds no sessions")
    counted = "SELECT id FROM sessions WHERE input_tokens + output_tokens + cache_read_tokens + reasoning_tokens > 0"
    with connect(upgraded.path) as connection:
        seeded = set(connection.execute("SELECT session_id FROM session_model_usage"))
        if upgraded.version_before < 20:
            assert seeded == set(connection.execute(counted))
            assert len(seeded) > 0
        else:
            assert len(connection.execute("SELECT 1 FROM session_model_usage").fetchall()) == len(
                upgraded.before["session_model_usage"]
            )
