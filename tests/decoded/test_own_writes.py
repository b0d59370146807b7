"""Our own writes move what waits into the index, and never suffer for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from decoded.texts import DAMAGES, ENCODED, indexed, queued, structured, wanted, write
from migrations.files import DRIVER, connect, run, upgrade
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DatabaseError

from hermes_store import HermesStore
from hermes_store.sqlite.decoded import drain, is_index_failure
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine


@pytest.fixture
def writer(path: Path) -> Iterator[Connection]:
    engine = make_engine(path, driver=DRIVER, timeout=0.1)
    with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def waiting(path: Path) -> list[int]:
    with connect(path) as connection:
        return write(connection, ENCODED)


def rename(store: HermesStore, key: str) -> None:
    with store.write() as unit:
        unit.meta.set(key, "written")


def test_a_write_moves_what_waits(path: Path, waiting: list[int]) -> None:
    with HermesStore.open(path, driver=DRIVER) as store:
        rename(store, "a")
    assert queued(path) == []
    assert indexed(path) == wanted(path)
    assert not upgrade(path).changed


def test_so_does_a_write_through_an_applications_engine(path: Path, waiting: list[int]) -> None:
    engine = create_engine(f"sqlite:///{path}", module=DRIVER, connect_args={"timeout": 7})
    rename(HermesStore(engine), "a")
    assert queued(path) == []
    engine.dispose()


def test_a_write_moves_no_more_than_a_little(path: Path) -> None:
    with connect(path) as connection:
        for _ in range(4):
            write(connection, {"large": ("user", structured("很长" * 8_000), None)})
    with HermesStore.open(path, driver=DRIVER) as store:
        rename(store, "a")
        assert 0 < len(queued(path)) < 4
        rename(store, "b")
        rename(store, "c")
    assert queued(path) == []


def test_what_fails_in_the_block_moves_nothing(path: Path, waiting: list[int]) -> None:
    with HermesStore.open(path, driver=DRIVER) as store, pytest.raises(ZeroDivisionError), store.write():
        raise ZeroDivisionError
    assert queued(path) == waiting


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_write_beside_a_damaged_index_is_kept(
    damage: Callable[[Path], object], path: Path, waiting: list[int]
) -> None:
    damage(path)
    with HermesStore.open(path, driver=DRIVER, migrate="off") as store:
        for key in ("first", "second"):
            rename(store, key)
        assert store.meta.get("second") == "written"
    assert run(path, "SELECT count(*) FROM state_meta WHERE key IN ('first', 'second')") == [(2,)]
    assert upgrade(path).pending == []
    assert indexed(path) == wanted(path)


def test_a_write_does_not_wait_for_another_writer(
    path: Path, waiting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(path) as other, HermesStore.open(path, driver=DRIVER) as store:
        original = store._after_commit

        def locked(*arguments: Any) -> None:
            other.execute("BEGIN IMMEDIATE")
            original(*arguments)
            other.execute("ROLLBACK")

        monkeypatch.setattr(store, "_after_commit", locked)
        rename(store, "a")
    assert queued(path) == waiting
    assert run(path, "SELECT value FROM state_meta WHERE key = 'a'") == [("written",)]


class TestDrain:
    def test_at_least_one_message_is_moved_and_in_the_end_all(
        self, path: Path, waiting: list[int], writer: Connection
    ) -> None:
        for left in range(len(waiting) - 1, -1, -1):
            with writer.begin():
                assert drain(writer, 1) == 1
            assert len(queued(path)) == left
        with writer.begin():
            assert drain(writer, 1) == 0
        assert indexed(path) == wanted(path)

    def test_changed_and_deleted_messages_lose_their_old_text(self, path: Path, writer: Connection) -> None:
        old = list(indexed(path))
        run(
            path,
            ("UPDATE messages SET content = ? WHERE id = ?", (structured("新的文字"), old[0])),
            ("UPDATE messages SET content = 'plain', tool_calls = NULL WHERE id = ?", (old[1],)),
            ("DELETE FROM messages WHERE id = ?", (old[2],)),
            ("UPDATE messages SET id = 100000 WHERE id = ?", (old[3],)),
            ("UPDATE messages SET role = 'tool' WHERE role = 'user'", ()),
        )
        with writer.begin():
            drain(writer, 10**9)
        assert queued(path) == []
        assert indexed(path) == wanted(path)
        assert old[3] not in indexed(path)
        run(path, "INSERT INTO hs_text_fts (hs_text_fts) VALUES ('integrity-check')")

    @pytest.mark.parametrize("name", [name for name in DAMAGES if "structure" in name or "drop" in name])
    def test_a_failure_of_the_index_is_told_from_others(
        self, name: str, path: Path, waiting: list[int], writer: Connection
    ) -> None:
        DAMAGES[name](path)
        failure = None
        try:
            with writer.begin():
                drain(writer, 10**9)
        except DatabaseError as error:
            failure = error
        # One of the two libraries does not notice every kind.
        assert failure is None or (is_index_failure(failure) and queued(path) == waiting)
