"""Reading never changes a file, sees what a writer has committed, and says what it cannot do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_files import Released

from hermes_store import HermesStore, NotAStoreError, NotFoundError, ReadOnlyError, StoreBusyError
from hermes_store.sqlite import readonly
from hermes_store.sqlite.readonly import open_reader


@pytest.fixture
def locked_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the folder cannot be written: tests may run as root, whom permissions do not stop."""
    monkeypatch.setattr(readonly.os, "access", lambda path, mode: mode != os.W_OK)


def test_what_a_hot_write_ahead_log_holds_is_seen_and_the_log_stays(released: Released) -> None:
    path = released("journal/v22-0.19.0-hotwal.db")
    log = path.with_name("state.db-wal")
    before = (path.read_bytes(), log.read_bytes())
    with HermesStore.open(path, read_only=True, migrate="off") as store, store.read() as tx:
        assert tx.session.connection().exec_driver_sql("SELECT count(*) FROM messages").scalar_one() == 365
    assert (path.read_bytes(), log.read_bytes()) == before


def test_rows_a_live_writer_commits_are_seen_by_the_next_read(released: Released) -> None:
    path = released("v22-0.19.0.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        known = len(store.messages.list(store.sessions.list()[0].id))
        session = store.sessions.list()[0].id
        writer.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'brandnewword', 1e9)",
            (session,),
        )
        assert len(store.messages.list(session)) == known + 1
        assert [hit.session_id for hit in store.search("brandnewword").hits] == [session]
    writer.close()


def test_a_closed_file_in_a_folder_that_cannot_be_written_is_read_without_sidecars(
    released: Released, locked_folder: None
) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        assert store.sessions.list()
        assert [side.name for side in path.parent.iterdir()] == ["state.db"]


def test_an_immutable_read_that_saw_the_file_change_is_an_error_and_the_next_one_is_right(
    released: Released, locked_folder: None
) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        with pytest.raises(StoreBusyError, match="changed while it was read"), store.read():
            os.utime(path, (1, 1))
        assert store.sessions.list()


def as_nobody(action: Callable[[], str]) -> str:
    """Run something in a child that permissions hold for, also where the tests run as root."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            answer = action()
        except BaseException as error:  # noqa: BLE001 - the child must not run on as a second test process
            answer = f"{type(error).__name__}: {error}"
        os.write(write_end, answer.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        return pipe.read()


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions and fork")
def test_a_log_without_shared_memory_is_read_right_or_is_an_error_that_never_says_to_delete_it(
    released: Released,
) -> None:
    path = released("journal/v22-0.19.0-hotwal.db")
    with tempfile.TemporaryDirectory() as open_folder:
        folder = Path(open_folder)
        for name in ("state.db", "state.db-wal"):
            shutil.copyfile(path.with_name(name), folder / name)
            (folder / name).chmod(0o644)
        folder.chmod(0o555)
        try:
            answer = as_nobody(lambda: str(count_messages(folder / "state.db")))
        finally:
            folder.chmod(0o755)
        assert sorted(side.name for side in folder.iterdir()) == ["state.db", "state.db-wal"]
    assert answer == "365" or ("ReadOnlyError" in answer and "copy the file together with its -wal" in answer)
    assert "delete" not in answer


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions and fork")
def test_a_file_in_a_read_only_folder_is_read_by_somebody_who_may_only_read(released: Released) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    with tempfile.TemporaryDirectory() as open_folder:
        folder = Path(open_folder)
        shutil.copyfile(path, folder / "state.db")
        (folder / "state.db").chmod(0o444)
        folder.chmod(0o555)
        try:
            answer = as_nobody(lambda: str(count_messages(folder / "state.db")))
        finally:
            folder.chmod(0o755)
        assert [side.name for side in folder.iterdir()] == ["state.db"]
    assert answer == "362"


def count_messages(path: Path) -> int:
    with HermesStore.open(path, read_only=True, migrate="off") as store, store.read() as tx:
        return int(tx.session.connection().exec_driver_sql("SELECT count(*) FROM messages").scalar_one())


def test_a_hot_rollback_journal_is_an_error_that_says_what_to_do(released: Released) -> None:
    path = released("journal/v31-iot-0.22.2.post1-delete-journal-sqlite3401.db")
    crash = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size=5')\n"
        "c.execute('BEGIN IMMEDIATE')\n"
        'c.execute("UPDATE messages SET api_content = hex(zeroblob(3000))")\n'
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", crash, str(path)], check=False)
    assert path.with_name("state.db-journal").stat().st_size > 0
    before = path.read_bytes()
    with pytest.raises(ReadOnlyError, match="open it once for writing"):
        HermesStore.open(path, read_only=True, migrate="off")
    assert path.read_bytes() == before


def test_a_journal_of_an_interrupted_write_is_never_ignored_by_reading_without_locks(
    released: Released, locked_folder: None
) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    path.with_name("state.db-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with pytest.raises(ReadOnlyError, match="rollback journal"):
        open_reader(path)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"\0" * 8192, NotAStoreError), (b"this is a text file, not a database" * 40, NotAStoreError)],
    ids=["zeros", "text"],
)
def test_what_is_no_database_is_named_as_such(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    for read_only in (True, False):
        with pytest.raises(error, match="not a SQLite database"):
            HermesStore.open(path, read_only=read_only, migrate="off")
    assert path.read_bytes() == content


def test_a_missing_file_and_a_folder_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        HermesStore.open(tmp_path / "state.db", read_only=True, migrate="off")
    with pytest.raises(NotAStoreError, match="not a file"):
        HermesStore.open(tmp_path, read_only=True, migrate="off")


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?.db", "a#b.db", "数据.db", "p;q&r=s.db"])
def test_any_file_name_can_be_opened(released: Released, name: str) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    odd = path.rename(path.with_name(name))
    with HermesStore.open(odd, read_only=True, migrate="off") as store:
        assert store.sessions.list()


def test_a_file_that_is_locked_for_good_is_a_typed_error_whoever_finds_out(released: Released) -> None:
    path = released("journal/v31-iot-0.22.2.post1-delete-journal-sqlite3401.db")
    with HermesStore.open(path, migrate="off", timeout=0.2) as store:
        assert store.sessions.list()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusyError):
            store.sessions.list()
        other.execute("ROLLBACK")
        other.close()
        assert store.sessions.list()
