"""What an upgrade does before it writes: is it a store, is it sound, is there a copy; and that it writes nothing else."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_files import FIXTURES, HAVE_FIXTURES, Released
from migrations.files import (
    DRIVER,
    HEAD,
    NEWEST,
    backups,
    cells,
    connect,
    content_of,
    copy_released,
    message,
    run,
    session,
    upgrade,
)
from migrations.indexes import troubles

from hermes_store import migrations
from hermes_store.errors import (
    CorruptStoreError,
    HermesStoreError,
    NotAStoreError,
    StoreBusyError,
    UpgradeError,
)
from hermes_store.migrations import ensure

OLD = "v22-0.19.0.db"
PAGE = 4096

needs_released_files = pytest.mark.skipif(not HAVE_FIXTURES, reason="no released files here")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def journal(path: Path) -> str:
    return str(run(path, "PRAGMA journal_mode")[0][0])


def damage(path: Path, *tables: str) -> None:
    """Overwrite the root page of tables or indexes."""
    with connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        roots = [
            connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
            for table in tables
        ]
    with path.open("r+b") as file:
        for root in roots:
            file.seek((root - 1) * PAGE)
            file.write(b"\xff" * PAGE)


def other_program(*statements: str) -> Callable[[Path], object]:
    return lambda path: run(path, *statements)


NO_STORES: dict[str, Callable[[Path], object]] = {
    "zeros": lambda path: path.write_bytes(b"\0" * 2 * PAGE),
    "text": lambda path: path.write_text("hello, this is no database\n" * 100),
    "a header and nothing else": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "another program's database": other_program("CREATE TABLE users (id INTEGER PRIMARY KEY)"),
    "another program's sessions": other_program(
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, user_id INTEGER)", "CREATE TABLE messages (id INTEGER, body TEXT)"
    ),
    "another program's messages": other_program(
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, timestamp REAL)",
        "CREATE TABLE chats (id INTEGER)",
    ),
    "another program's stamp": other_program("CREATE TABLE alembic_version (version_num TEXT)"),
    "another program's state": other_program("CREATE TABLE state_meta (k TEXT, v TEXT)"),
    "a view named sessions": other_program("CREATE TABLE x (a)", "CREATE VIEW sessions AS SELECT * FROM x"),
}


class TestFilesThatAreNoStores:
    @pytest.mark.parametrize("make", NO_STORES.values(), ids=NO_STORES)
    def test_are_refused_untouched(self, make: Callable[[Path], object], tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        make(path)
        before = content_of(path)
        for call in (
            lambda: upgrade(path),
            lambda: upgrade(path, backup=False),
            lambda: migrations.downgrade(path, "base", driver=DRIVER),
            lambda: migrations.stamp_existing(path, driver=DRIVER),
        ):
            with pytest.raises((NotAStoreError, UpgradeError)):
                call()
        assert content_of(path) == before
        assert backups(path) == []

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "state.db").mkdir()
        with pytest.raises(NotAStoreError, match="not a file"):
            upgrade(tmp_path / "state.db")

    @needs_released_files
    def test_a_store_whose_first_page_is_zeroed_is_refused_untouched(self, released: Released) -> None:
        path = released(OLD)
        with path.open("r+b") as file:
            file.write(b"\0" * PAGE)
        before = content_of(path)
        with pytest.raises(NotAStoreError):
            upgrade(path)
        assert content_of(path) == before
        assert backups(path) == []

    def test_an_empty_file_becomes_a_store(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        path.touch()
        report = upgrade(path)
        assert report.after == HEAD
        assert report.backup is None
        assert troubles(path) == []


@needs_released_files
class TestDamagedFiles:
    @pytest.mark.parametrize(
        "table",
        ["messages", "sessions", "state_meta", "schema_version", "idx_messages_session", "session_model_usage"],
    )
    def test_damage_in_a_table_of_conversations_is_refused_untouched(self, table: str, released: Released) -> None:
        path = released(OLD)
        damage(path, table)
        before = content_of(path)
        for _ in range(3):
            with pytest.raises(CorruptStoreError):
                upgrade(path)
        assert content_of(path) == before
        assert backups(path) == []

    def test_damage_further_down_in_the_messages_is_found_too(self, released: Released) -> None:
        path = released(OLD)
        content = path.read_bytes()
        at = content.index(b"finish the refactor", 8 * PAGE) // PAGE * PAGE
        leaf = next(page for page in range(at, len(content), PAGE) if content[page] == 0x0D)  # a table's leaf page
        with path.open("r+b") as file:
            file.seek(leaf)
            file.write(b"\x0d\xff\xff\xff\xff" * 800)
        before = content_of(path)
        with pytest.raises(CorruptStoreError):
            upgrade(path)
        assert content_of(path) == before
        assert backups(path) == []

    def test_half_a_file_is_refused_untouched(self, released: Released) -> None:
        path = released(OLD)
        os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)
        before = content_of(path)
        with pytest.raises(CorruptStoreError):
            upgrade(path)
        assert content_of(path) == before

    def test_damage_in_another_programs_table_is_found_by_the_backup(self, released: Released) -> None:
        path = released(OLD)
        damage(path, "telegram_dm_topic_bindings")
        with pytest.raises(CorruptStoreError, match="telegram_dm_topic_bindings"):
            upgrade(path)
        assert backups(path) == []

    @pytest.mark.parametrize(
        "parts",
        [("data",), ("docsize",), ("idx", "config")],
        ids="-".join,
    )
    @pytest.mark.parametrize("index", ["messages_fts", "messages_fts_trigram"])
    @pytest.mark.parametrize("name", [OLD, NEWEST, "optimize/v31-iot-0.22.2-partial.db"])
    def test_damaged_indexes_are_made_anew(
        self, name: str, index: str, parts: tuple[str, ...], released: Released
    ) -> None:
        path = released(name)
        messages = run(path, "SELECT id, content FROM messages ORDER BY id")
        damage(path, *[f"{index}_{part}" for part in parts])
        report = upgrade(path)
        assert report.after == HEAD
        assert report.pending == []
        assert report.backup is not None
        # The pages of a damaged table cannot be freed, only left behind; VACUUM gives them back.
        assert any("VACUUM would give its space back" in note for note in report.notes)
        assert all("never used" in trouble for trouble in troubles(path))
        run(path, "VACUUM")
        assert troubles(path) == []
        assert run(path, "SELECT id, content FROM messages ORDER BY id") == messages
        assert not upgrade(path).changed

    @pytest.mark.parametrize("index", ["messages_fts", "messages_fts_trigram"])
    def test_an_index_damaged_at_head_is_made_anew(self, index: str, released: Released) -> None:
        path = released(OLD)
        upgrade(path)
        damage(path, f"{index}_data")
        assert upgrade(path).changed
        run(path, "VACUUM")
        assert troubles(path) == []

    def test_rows_that_break_their_declarations_are_no_damage(self, released: Released) -> None:
        path = released(OLD)
        run(
            path,
            "PRAGMA writable_schema=ON",
            "UPDATE sqlite_master SET sql = replace(sql, 'timestamp REAL NOT NULL', 'timestamp REAL')"
            " WHERE name = 'messages'",
        )
        run(path, "UPDATE messages SET timestamp = NULL WHERE id % 2 = 0")
        run(
            path,
            "PRAGMA writable_schema=ON",
            "UPDATE sqlite_master SET sql = replace(sql, 'timestamp REAL', 'timestamp REAL NOT NULL')"
            " WHERE name = 'messages'",
        )
        assert "NULL value in messages.timestamp" in run(path, "PRAGMA quick_check")[0][0]
        report = upgrade(path)
        assert report.after == HEAD
        assert report.backup is not None
        assert len(run(path, "SELECT 1 FROM messages WHERE typeof(timestamp) = 'null'")) == 180


@needs_released_files
class TestBackups:
    @pytest.mark.parametrize("name", [OLD, "journal/v22-0.19.0-hotwal.db", "v26-axisrow-0.20.1.2.db"])
    def test_the_old_state_is_kept_beside_the_file(self, name: str, released: Released, tmp_path: Path) -> None:
        with connect(copy_released(name, tmp_path / "twin")) as connection:
            before = cells(connection)
        path = released(name)
        report = upgrade(path)
        assert report.backup is not None
        assert backups(path) == [report.backup]
        assert report.backup.name.startswith("state.db.backup-")
        assert mode(report.backup) == 0o600
        with connect(report.backup) as connection:
            assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
            assert cells(connection) == before

    def test_an_upgrade_from_the_backup_works(self, released: Released, tmp_path: Path) -> None:
        backup = upgrade(released(OLD)).backup
        assert backup is not None
        path = Path(shutil.copy(backup, tmp_path / "state.db"))
        assert upgrade(path).after == HEAD
        assert troubles(path) == []

    def test_five_failing_upgrades_leave_one_backup(self, released: Released, monkeypatch: pytest.MonkeyPatch) -> None:
        path = released(OLD)

        def fail(*_: Any, **__: Any) -> None:
            raise UpgradeError("out of luck")

        monkeypatch.setattr("hermes_store.migrations.ensure.indexes", fail)
        for _ in range(5):
            with pytest.raises(UpgradeError, match="out of luck"):
                upgrade(path)
        assert len(backups(path)) == 1
        monkeypatch.undo()
        assert upgrade(path).backup == backups(path)[0]

    def test_upgrades_stopped_at_the_backup_leave_nothing(self, released: Released) -> None:
        path = released(OLD)
        before = content_of(path)

        def stop(progress: migrations.Progress) -> None:
            if progress.phase == "backup":
                raise KeyboardInterrupt

        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                upgrade(path, progress=stop)
        assert backups(path) == []
        assert content_of(path) == before

    def test_a_later_state_has_a_backup_of_its_own(self, released: Released) -> None:
        path = released(OLD)
        upgrade(path, "h25")
        upgrade(path)
        assert len(backups(path)) == 2

    def test_a_disk_without_room_is_refused_untouched(
        self, released: Released, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = released(OLD)
        before = content_of(path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=path.stat().st_size // 2))
        with pytest.raises(UpgradeError, match="no room for a backup"):
            upgrade(path)
        assert content_of(path) == before
        assert backups(path) == []
        assert upgrade(path, backup=False).after == HEAD
        assert backups(path) == []

    def test_a_file_without_rows_needs_none(self, tmp_path: Path) -> None:
        path = tmp_path / "state.db"
        upgrade(path, "h14")
        run(path, "DELETE FROM schema_version", "DELETE FROM state_meta")
        assert upgrade(path).backup is None
        assert backups(path) == []

    def test_the_report_counts_rows_before_and_after(self, released: Released) -> None:
        report = upgrade(released("v19-0.18.2.db"))
        assert report.rows_before["messages"] == report.rows_after["messages"] == 360
        assert "session_model_usage" not in report.rows_before
        assert report.rows_after["session_model_usage"] == 4
        assert report.before == "~h19"
        assert report.seconds > 0

    def test_progress_names_every_phase(self, released: Released) -> None:
        phases: list[str] = []
        upgrade(released(OLD), progress=lambda progress: phases.append(progress.phase))
        seen = list(dict.fromkeys(phases))
        assert seen == ["check", "backup", "revision", "identify", "index", "merge", "decode", "clean"]


class TestFilesAndJournals:
    def test_a_new_file_can_be_read_by_its_owner_only(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "home" / "state.db"
        before = os.umask(0)
        try:
            report = upgrade(path)
        finally:
            os.umask(before)
        assert report.created
        assert report.backup is None
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        assert {mode(beside) for beside in path.parent.iterdir()} == {0o600}

    @needs_released_files
    @pytest.mark.parametrize("name", [OLD, "journal/v22-0.19.0-hotwal.db", NEWEST])
    @pytest.mark.parametrize("wanted", ["wal", "delete", "persist"])
    def test_an_existing_file_keeps_its_mode_and_its_journal(self, name: str, wanted: str, released: Released) -> None:
        path = released(name)
        run(path, f"PRAGMA journal_mode={wanted}")
        header = path.read_bytes()[18:20]
        path.chmod(0o640)
        upgrade(path)
        assert path.read_bytes()[18:20] == header == (b"\2\2" if wanted == "wal" else b"\1\1")
        assert mode(path) == 0o640

    @needs_released_files
    def test_every_row_of_a_log_that_was_left_is_there_after(self, released: Released) -> None:
        path = released("journal/v22-0.19.0-hotwal.db")
        assert path.with_name("state.db-wal").stat().st_size > 0
        assert upgrade(path).rows_after["messages"] == 365
        assert journal(path) == "wal"

    def test_names_that_urls_and_shells_dislike_work(self, tmp_path: Path) -> None:
        path = tmp_path / "a %41 #b?c=d 项目 'q' \"r\"" / "state%20?mode=ro#.db"
        upgrade(path, "h22")
        session(path, "a")
        message(path, "a")
        report = upgrade(path)
        assert report.backup is not None
        assert troubles(path) == []
        assert {other.name.partition(".db")[0] for other in path.parent.iterdir()} == {"state%20?mode=ro#"}


@needs_released_files
class TestTransactions:
    def test_a_held_write_lock_is_a_typed_error_and_changes_nothing(self, released: Released) -> None:
        path = released("v26-axisrow-0.20.1.2.db")
        with connect(path) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusyError):
                upgrade(path, timeout=0.2)
            other.execute("ROLLBACK")
        assert "hermes_store_version" not in {row[0] for row in run(path, "SELECT name FROM sqlite_master")}
        assert upgrade(path).after == HEAD

    @pytest.mark.parametrize("wanted", ["wal", "delete"])
    def test_a_file_that_needs_nothing_waits_for_no_writer(self, wanted: str, released: Released) -> None:
        path = released(OLD)
        upgrade(path, backup=False)
        run(path, f"PRAGMA journal_mode={wanted}")
        with connect(path) as other:
            other.execute("BEGIN IMMEDIATE")
            report = upgrade(path, timeout=0.0)
            other.execute("ROLLBACK")
        assert not report.changed
        assert backups(path) == []

    def test_foreign_keys_are_off_for_the_revisions_and_on_again_after(self, released: Released) -> None:
        seen: list[str] = []

        class Watched(DRIVER.Connection):  # type: ignore[misc, name-defined]
            def execute(self, sql: str, *parameters: Any) -> Any:
                if "foreign_keys" in sql:
                    seen.append(sql.partition("=")[2])
                return super().execute(sql, *parameters)

        driver = SimpleNamespace(**vars(DRIVER))
        driver.connect = lambda *args, **options: DRIVER.connect(*args, factory=Watched, **options)
        upgrade(released("v14-0.16.0.db"), driver=driver)
        assert seen.count("OFF") == 1
        assert seen[seen.index("OFF") + 1] == "ON"
        assert seen[-1] == "ON"

    def test_orphans_are_kept_and_never_stop_an_upgrade(self, released: Released) -> None:
        path = released("v16-0.17.0.db")
        session(path, "child", parent_session_id="long gone")
        message(path, "nowhere", "a message without a session")
        orphans = run(path, "PRAGMA foreign_key_check")
        assert len(orphans) == 2
        upgrade(path)
        assert sorted(run(path, "PRAGMA foreign_key_check")) == sorted(orphans)
        assert troubles(path) == []

    def test_a_revision_that_breaks_a_foreign_key_is_rolled_back(
        self, released: Released, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = released("v16-0.17.0.db")
        original = migrations.environment.RevisionRun.applied

        def sabotage(run_state: Any, connection: Any, revision: str) -> None:
            if revision == "h25":
                connection.exec_driver_sql("UPDATE messages SET session_id = 'nobody' WHERE id IN (1, 2)")
            original(run_state, connection, revision)

        monkeypatch.setattr(migrations.environment.RevisionRun, "applied", sabotage)
        with pytest.raises(UpgradeError, match="h25 would break foreign keys in messages"):
            upgrade(path)
        assert run(path, "SELECT version_num FROM hermes_store_version") == [("h22",)]
        assert run(path, "PRAGMA foreign_key_check") == []
        monkeypatch.undo()
        assert upgrade(path).after == HEAD

    def test_a_revision_that_fails_leaves_nothing_of_itself(
        self, released: Released, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = released("v16-0.17.0.db")
        original = ensure.reached

        def fail(version: int, **options: Any) -> None:
            if version == 26:
                raise UpgradeError("the third statement failed")
            original(version, **options)

        monkeypatch.setattr(ensure, "reached", fail)
        with pytest.raises(UpgradeError, match="third"):
            upgrade(path)
        names = {name for (name,) in run(path, "SELECT name FROM sqlite_master")}
        assert "system_prompts" in names
        assert "gateway_heartbeats" not in names
        assert run(path, "SELECT version FROM schema_version") == [(25,)]
        assert run(path, "SELECT version_num FROM hermes_store_version") == [("h25",)]
        monkeypatch.undo()
        assert upgrade(path).after == HEAD
        assert troubles(path) == []


def test_no_error_names_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    upgrade(path, "h22")
    session(path, "a")
    message(path, "a", "a private matter")
    damage(path, "idx_messages_session")
    with pytest.raises(HermesStoreError) as caught:
        upgrade(path)
    assert "private" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_folder_of_fixtures_is_never_written() -> None:
    assert not list(FIXTURES.glob("**/*backup*"))
    assert not list(FIXTURES.glob("**/*.lock"))
