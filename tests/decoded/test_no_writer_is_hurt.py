"""Whatever state our index is in, a program that writes messages does not notice it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import releases
from decoded.texts import DAMAGES, ENCODED, PLAIN, indexed, matches, queued, structured, wanted, write
from migrations.files import connect, run, upgrade
from migrations.indexes import troubles

STATES: dict[str, Callable[[Path], object]] = {"it is whole": lambda path: None} | DAMAGES

#: Written through 0.22.2's own session store, as its gateway does.
MULTIMODAL = """
parts = [{"type": "text", "text": "多模态消息"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
calls = [{"id": "c", "type": "function", "function": {"name": "run", "arguments": json.dumps({"text": "调用参数"})}}]
db.create_session("multimodal", "cli", model="m")
db.append_message("multimodal", "user", parts)
db.append_message("multimodal", "assistant", "plain", tool_calls=calls)
db.replace_messages("multimodal", [{"role": "user", "content": parts}, {"role": "user", "content": "words"}])
db.append_message("multimodal", "user", parts)
"""


@pytest.fixture(params=STATES.values(), ids=STATES)
def any_state(request: pytest.FixtureRequest, path: Path) -> Path:
    request.param(path)
    return path


def change_everything(connection: Any) -> None:
    everything = ENCODED | PLAIN
    ids = write(connection, everything)
    ids += write(connection, everything, "INSERT OR IGNORE") + write(connection, everything, "INSERT OR ABORT")
    for verb in ("REPLACE", "FAIL", "ABORT", "IGNORE", "ROLLBACK"):
        for id_ in ids:
            connection.execute(f"UPDATE OR {verb} messages SET content = content || ' grown' WHERE id = ?", (id_,))
    columns = "id, session_id, role, content, tool_calls, timestamp"
    for id_ in ids[::2]:
        connection.execute(
            f"INSERT OR REPLACE INTO messages ({columns}) SELECT {columns} FROM messages WHERE id = {id_}"
        )
    connection.execute('UPDATE messages SET tool_calls = \'[{"a": "\\u6c49"}]\' WHERE id % 3 = 0')
    connection.execute("UPDATE messages SET content = 'words now' WHERE id % 5 = 0")
    connection.execute("UPDATE messages SET role = 'tool' WHERE id % 7 = 0")
    connection.execute("DELETE FROM messages WHERE id % 4 = 0")


@pytest.mark.parametrize("recursive", [0, 1])
def test_every_kind_of_change_succeeds_and_the_next_upgrade_catches_up(any_state: Path, recursive: int) -> None:
    with connect(any_state) as connection:
        connection.execute(f"PRAGMA recursive_triggers={recursive}")
        connection.execute("BEGIN IMMEDIATE")
        change_everything(connection)
        connection.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM messages WHERE content = 'words now'").fetchone()[0] > 50
    assert upgrade(any_state).pending == []
    assert indexed(any_state) == wanted(any_state)
    assert queued(any_state) == []
    assert troubles(any_state) == []
    assert not upgrade(any_state).changed


@pytest.mark.parametrize("verb", ["REPLACE", "IGNORE", "FAIL", "ABORT", "ROLLBACK"])
def test_the_conflict_clause_of_a_writer_never_meets_a_conflict_of_ours(path: Path, verb: str) -> None:
    with connect(path) as connection:
        (id_,) = write(connection, {"one": ENCODED["structured content"]}, f"INSERT OR {verb}")
        assert connection.execute("SELECT changes()").fetchone() == (1,)
        for number in range(3):  # its id is waiting already
            connection.execute(
                f"UPDATE OR {verb} messages SET content = ? WHERE id = ?", (structured(f"{number}"), id_)
            )
            assert connection.execute("SELECT changes()").fetchone() == (1,)
        connection.execute("DELETE FROM messages WHERE id = ?", (id_,))
        again = connection.execute(
            f"INSERT OR {verb} INTO messages (id, session_id, role, content, timestamp)"
            " VALUES (?, (SELECT MIN(id) FROM sessions), 'user', ?, 1.0) RETURNING id",
            (id_, structured("again")),
        ).fetchall()
        assert again == [(id_,)]
    assert queued(path) == [id_]


def test_only_encoded_messages_are_noted(path: Path) -> None:
    with connect(path) as connection:
        write(connection, PLAIN)
        assert queued(path) == []
        ids = write(connection, ENCODED)
    assert queued(path) == ids


def test_a_message_that_was_replaced_unnoticed_is_found_out_by_an_upgrade(path: Path) -> None:
    (gone,) = matches(path, "苹果派说明书")
    run(
        path,
        f"INSERT OR REPLACE INTO messages (id, session_id, role, content, timestamp) SELECT id, session_id, role, 'words', 1.0 FROM messages WHERE id = {gone}",
    )
    assert queued(path) == []
    assert upgrade(path).changed
    assert matches(path, "苹果派说明书") == set()
    assert indexed(path) == wanted(path)


@pytest.mark.peer
def test_0_22_2_appends_as_if_we_were_not_there(any_state: Path) -> None:
    before = releases.everything(any_state) if "hs_text_fts_content" in tables(any_state) else None
    answer = releases.run(releases.V0_22_2, "open", any_state, "--write")
    assert releases.alarms(answer) == []
    if before is not None:
        changed = releases.without_indexes(releases.changes(before, releases.everything(any_state)))
        assert changed == releases.own_rows(before) | releases.bookkeeping(releases.V0_22_2, before)
    assert releases.alarms(releases.call(releases.V0_22_2, any_state, MULTIMODAL)) == []
    assert releases.alarms(releases.run(releases.V0_22_2, "append", any_state, "--messages", "5")) == []
    assert len(queued(any_state)) == 4  # of those that are left, and of those that were replaced
    assert releases.alarms(releases.run(releases.V0_22_2, "optimize", any_state)) == []
    assert upgrade(any_state).pending == []
    assert indexed(any_state) == wanted(any_state)
    assert len(matches(any_state, "多模态消息")) == 2
    assert troubles(any_state) == []


@pytest.mark.peer
def test_0_22_2_leaves_our_index_alone(path: Path) -> None:
    before = releases.everything(path)
    for command in ("open", "optimize"):
        assert releases.alarms(releases.run(releases.V0_22_2, command, path)) == []
        changed = releases.changes(before, releases.everything(path))
        assert changed == releases.bookkeeping(releases.V0_22_2, before)


def tables(path: Path) -> set[str]:
    return {name for (name,) in run(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
