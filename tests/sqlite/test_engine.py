"""How a transaction begins, how a writer waits, and what a connection does on every engine we make."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from hermes_store import HermesStore, migrations
from hermes_store.errors import StoreBusyError
from hermes_store.models import Base, Message
from hermes_store.sqlite.engine import (
    BEGIN_OPTION,
    JOURNAL_SIZE_LIMIT,
    POOL_SIZE,
    TIMEOUT_OPTION,
    UndecodableText,
    busy_as_typed,
    file_uri,
    is_busy,
    make_engine,
)

IMMEDIATE, DEFERRED, NONE = ({BEGIN_OPTION: mode} for mode in ("immediate", "deferred", "none"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "state.db"
    with closing(sqlite3.connect(found)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);"
            "CREATE TABLE note (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent, body TEXT);"
        )
    return found


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    made = make_engine(path, timeout=0.2)
    yield made
    made.dispose()


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection that holds the write lock."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other
        if other.in_transaction:
            other.execute("ROLLBACK")


def write(engine: Engine, body: str, **options: Any) -> None:
    with engine.connect().execution_options(**IMMEDIATE | options) as connection, connection.begin():
        connection.exec_driver_sql("INSERT INTO note (body) VALUES (?)", (body,))


def bodies(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT body FROM note ORDER BY id").scalars())


def begins(engine: Engine) -> list[str]:
    """Every BEGIN that the engine sends from now on."""
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("BEGIN"):
            sent.append(statement)

    return sent


class TestHowATransactionBegins:
    def test_a_reader_defers_its_locks(self, engine: Engine, path: Path) -> None:
        sent = begins(engine)
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql("SELECT 1 FROM note").all()
            with locked(path):
                pass
        assert sent == ["BEGIN"]

    def test_a_writer_takes_the_write_lock_first(self, engine: Engine, path: Path) -> None:
        sent = begins(engine)
        with (
            engine.connect().execution_options(**IMMEDIATE) as connection,
            connection.begin(),
            closing(sqlite3.connect(path, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        assert sent == ["BEGIN IMMEDIATE"]

    def test_vacuum_runs_without_a_transaction(self, engine: Engine) -> None:
        sent = begins(engine)
        with engine.connect().execution_options(**NONE) as connection:
            connection.exec_driver_sql("VACUUM")
        assert sent == []

    def test_vacuum_is_refused_inside_one(self, engine: Engine) -> None:
        with (
            engine.connect() as connection,
            pytest.raises(OperationalError, match="cannot VACUUM from within a transaction"),
        ):
            connection.exec_driver_sql("VACUUM")

    def test_one_engine_serves_all_three_in_turn(self, engine: Engine) -> None:
        sent = begins(engine)
        for options in (IMMEDIATE, DEFERRED, NONE, IMMEDIATE):
            with engine.connect().execution_options(**options) as connection:
                connection.exec_driver_sql("SELECT 1")
        assert sent == ["BEGIN IMMEDIATE", "BEGIN", "BEGIN IMMEDIATE"]

    def test_a_failed_transaction_leaves_nothing_not_even_tables(self, engine: Engine) -> None:
        with (
            pytest.raises(OperationalError),
            engine.connect().execution_options(**IMMEDIATE) as connection,
            connection.begin(),
        ):
            connection.exec_driver_sql("CREATE TABLE half_made (x)")
            connection.exec_driver_sql("INSERT INTO note (body) VALUES ('half')")
            connection.exec_driver_sql("SELECT * FROM nowhere")
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE name = 'half_made'").first() is None
        assert bodies(engine) == []

    def test_a_session_of_the_orm_follows_the_same_rules(self, path: Path, engine: Engine) -> None:
        sent = begins(engine)
        with Session(engine.execution_options(**IMMEDIATE)) as session, session.begin():
            session.execute(text("INSERT INTO note (body) VALUES ('by the ORM')"))
        with Session(engine) as session:
            assert session.execute(text("SELECT body FROM note")).scalar_one() == "by the ORM"
        assert sent == ["BEGIN IMMEDIATE", "BEGIN"]


class TestHowAWriterWaits:
    def test_it_gets_the_lock_when_the_other_is_done(self, engine: Engine, path: Path) -> None:
        with locked(path) as other:
            timer = threading.Timer(0.3, other.execute, ("COMMIT",))
            timer.start()
            started = time.monotonic()
            write(engine, "patient", **{TIMEOUT_OPTION: 30.0})
            waited = time.monotonic() - started
            timer.join()
        assert waited >= 0.25
        assert bodies(engine) == ["patient"]

    @pytest.mark.parametrize("budget", [0.0, 0.2])
    def test_it_gives_up_when_its_time_is_spent(self, path: Path, budget: float) -> None:
        engine = make_engine(path, timeout=budget)
        with locked(path):
            started = time.monotonic()
            with pytest.raises(StoreBusyError, match="write lock was not free"):
                write(engine, "never")
            waited = time.monotonic() - started
        assert budget <= waited < budget + 3
        write(engine, "now")
        assert bodies(engine) == ["now"]
        engine.dispose()

    def test_a_transaction_may_have_a_budget_of_its_own(self, path: Path) -> None:
        engine = make_engine(path, timeout=60.0)
        with locked(path):
            started = time.monotonic()
            with pytest.raises(StoreBusyError):
                write(engine, "never", **{TIMEOUT_OPTION: 0.1})
            assert time.monotonic() - started < 10
        engine.dispose()

    def test_it_waits_with_jitter_in_short_steps_and_then_in_long_ones(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, naps = [100.0], []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            now[0] += seconds

        monkeypatch.setattr("hermes_store.sqlite.engine.time.monotonic", lambda: now[0])
        monkeypatch.setattr("hermes_store.sqlite.engine.time.sleep", sleep)
        engine = make_engine(path, timeout=20.0)
        with locked(path), pytest.raises(StoreBusyError):
            write(engine, "never")
        engine.dispose()
        asleep = [sum(naps[:n]) for n in range(len(naps))]
        eager = [nap for nap, since in zip(naps, asleep, strict=True) if since < 2.0]
        patient = [nap for nap, since in zip(naps, asleep, strict=True) if since >= 2.0]
        assert all(0.020 <= nap <= 0.150 for nap in eager)
        assert all(0.250 <= nap <= 1.0 for nap in patient[:-1])
        assert sum(naps) == pytest.approx(20.0, abs=0.01)
        assert len(set(naps)) == len(naps)

    def test_waiting_in_vain_leaks_no_connection(self, engine: Engine, path: Path) -> None:
        with locked(path):
            for _ in range(3 * POOL_SIZE):
                with pytest.raises(StoreBusyError):
                    write(engine, "never", **{TIMEOUT_OPTION: 0.0})
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.checkedout() == 0
        write(engine, "after all")
        assert bodies(engine) == ["after all"]

    def test_another_failure_of_begin_leaks_none_either(self, engine: Engine, path: Path) -> None:
        write(engine, "before")
        engine.dispose()
        path.write_bytes(b"no database any more " * 400)
        for _ in range(3 * POOL_SIZE):
            with pytest.raises(DBAPIError, match="not a database"):
                write(engine, "never")
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.checkedout() == 0

    def test_a_connection_that_waited_in_vain_can_go_on(self, engine: Engine, path: Path) -> None:
        with engine.connect().execution_options(**IMMEDIATE) as connection:
            with locked(path), pytest.raises(StoreBusyError):
                connection.exec_driver_sql("INSERT INTO note (body) VALUES ('never')")
            connection.rollback()
            with connection.begin():
                connection.exec_driver_sql("INSERT INTO note (body) VALUES ('later')")
        assert bodies(engine) == ["later"]

    def test_waiting_leaves_the_time_out_of_its_reads_as_it_was(self, engine: Engine, path: Path) -> None:
        with engine.connect().execution_options(**IMMEDIATE) as connection:
            with locked(path), pytest.raises(StoreBusyError):
                connection.begin()
            raw: Any = connection.connection.driver_connection
            assert raw.execute("PRAGMA busy_timeout").fetchone() == (200,)

    def test_many_writers_all_get_their_turn(self, path: Path) -> None:
        engine = make_engine(path, timeout=60.0)
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda number: write(engine, f"writer {number}"), range(60)))
        assert sorted(bodies(engine)) == sorted(f"writer {number}" for number in range(60))
        engine.dispose()

    def test_a_transaction_that_reads_first_cannot_fail_to_write(self, path: Path) -> None:
        """A deferred one does, at once and whatever the time-out, when somebody wrote after it had read."""
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            deferred = make_engine(path, timeout=60.0)
            with deferred.connect() as connection:
                connection.exec_driver_sql("SELECT * FROM note").all()
                other.execute("INSERT INTO note (body) VALUES ('meanwhile')")
                with pytest.raises(OperationalError) as caught:
                    connection.exec_driver_sql("INSERT INTO note (body) VALUES ('too late')")
                assert is_busy(caught.value)
            deferred.dispose()

    def test_what_a_store_writes_never_begins_deferred(self, tmp_path: Path) -> None:
        store = HermesStore.open(tmp_path / "home" / "state.db", migrate="auto")
        sent = begins(store._engine)
        with store.write() as tx:
            tx.session.execute(text("SELECT * FROM sessions")).all()
            tx.session.execute(text("INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1.0)"))
        assert set(sent) == {"BEGIN IMMEDIATE"}
        store.close()

    def test_nor_does_what_an_upgrade_writes(self, tmp_path: Path) -> None:
        written: list[tuple[str, str]] = []

        def note(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            verb = statement.split(None, 1)[0].upper()
            if (
                verb in {"INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP"}
                and "temp." not in statement
            ):
                written.append((connection.get_execution_options().get(BEGIN_OPTION, "deferred"), statement))

        event.listen(Engine, "before_cursor_execute", note)
        try:
            path = tmp_path / "home" / "state.db"
            migrations.upgrade(path, "h22")
            with closing(sqlite3.connect(path)) as db:
                db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1.0)")
                db.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('s', 'user', 1.0)")
                db.commit()
            migrations.upgrade(path)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert len(written) > 100
        assert [statement for begin, statement in written if begin != "immediate"] == []


class TestWhatEveryConnectionDoes:
    def test_foreign_keys_are_enforced(self, engine: Engine) -> None:
        with pytest.raises(IntegrityError), engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO note (parent) VALUES (99)")

    def test_logs_and_journals_are_cut_back(self, engine: Engine) -> None:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_size_limit").scalar_one() == JOURNAL_SIZE_LIMIT

    def test_invalid_utf_8_is_read_with_replacement_and_flagged(self, engine: Engine) -> None:
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            connection.exec_driver_sql("INSERT INTO note (body) VALUES ('whole'), (CAST(x'6f6bff21' AS TEXT))")
        whole, broken = bodies(engine)
        assert (whole, type(whole)) == ("whole", str)
        assert (broken, type(broken)) == ("ok\N{REPLACEMENT CHARACTER}!", UndecodableText)

    def test_a_lone_surrogate_is_read_too(self, engine: Engine) -> None:
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            connection.exec_driver_sql("INSERT INTO note (body) VALUES (CAST(x'eda080' AS TEXT))")
        assert isinstance(bodies(engine)[0], UndecodableText)

    def test_the_orm_reads_such_text_in_the_middle_of_a_fetch(self, tmp_path: Path) -> None:
        engine = make_engine(None)
        Base.metadata.create_all(engine)
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql("INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1.0)")
            for stored in ("'fine'", "CAST(x'ff' AS TEXT)", "'fine again'"):
                connection.exec_driver_sql(
                    f"INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', {stored}, 1.0)"
                )
        with Session(engine) as session:
            read = [message.content for message in session.query(Message).order_by(Message.id)]
        assert [isinstance(content, UndecodableText) for content in read] == [False, True, False]
        engine.dispose()

    def test_message_text_stays_out_of_exceptions(self, engine: Engine) -> None:
        with pytest.raises(OperationalError) as caught, engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO nowhere (body) VALUES (?)", ("a private word",))
        assert "private" not in str(caught.value)
        assert "private" not in repr(caught.value)

    def test_the_pool_is_bounded_and_named(self, engine: Engine) -> None:
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.size() == POOL_SIZE

    def test_it_is_in_autocommit_mode_outside_a_transaction(self, engine: Engine) -> None:
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            assert raw.isolation_level is None
            assert not raw.in_transaction


class TestReadOnly:
    @pytest.fixture
    def reader(self, path: Path) -> Iterator[Engine]:
        made = make_engine(path, mode="ro", timeout=0.2)
        yield made
        made.dispose()

    @pytest.mark.parametrize("options", [DEFERRED, IMMEDIATE, NONE], ids=["deferred", "immediate", "none"])
    def test_it_cannot_write(self, reader: Engine, path: Path, options: dict[str, str]) -> None:
        before = path.read_bytes()
        with (
            pytest.raises(OperationalError, match="readonly"),
            reader.connect().execution_options(**options) as connection,
        ):
            connection.exec_driver_sql("INSERT INTO note (body) VALUES ('never')")
        assert path.read_bytes() == before

    def test_it_reads_while_another_process_writes(self, reader: Engine, path: Path) -> None:
        with locked(path) as other:
            other.execute("INSERT INTO note (body) VALUES ('committed')")
            assert bodies(reader) == []
            other.execute("COMMIT")
            assert bodies(reader) == ["committed"]

    def test_it_makes_no_file(self, tmp_path: Path) -> None:
        engine = make_engine(tmp_path / "missing.db", mode="ro")
        with pytest.raises(OperationalError, match="unable to open"):
            engine.connect()
        assert not (tmp_path / "missing.db").exists()
        engine.dispose()

    def test_nor_does_one_that_writes(self, tmp_path: Path) -> None:
        engine = make_engine(tmp_path / "missing.db")
        with pytest.raises(OperationalError, match="unable to open"):
            engine.connect()
        assert not (tmp_path / "missing.db").exists()
        engine.dispose()


NAMES = [
    "plain.db",
    "what?.db",
    "hash#1.db",
    "100%.db",
    "%41.db",
    "with space.db",
    "数据库 ü.db",
    "a&mode=ro.db",
    "q'\"uote.db",
]


class TestPaths:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_file_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / f"folder of {name}" / name
        path.parent.mkdir()
        path.touch()
        engine = make_engine(path)
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            connection.exec_driver_sql("CREATE TABLE note (id INTEGER PRIMARY KEY, body TEXT)")
        write(engine, name)
        engine.dispose()
        assert [found.name for found in path.parent.iterdir()] == [name]
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT body FROM note").fetchall() == [(name,)]

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows any byte in a file's name")
    def test_a_name_need_not_be_unicode(self, tmp_path: Path) -> None:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.db"))
        path.touch()
        engine = make_engine(path)
        with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
            connection.exec_driver_sql("CREATE TABLE note (body TEXT)")
        engine.dispose()
        assert path.stat().st_size > 0

    def test_a_relative_path_is_meant_from_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert file_uri(Path("state.db"), mode="rw").startswith(f"file:{tmp_path.as_posix()}/state.db?mode=rw")


class TestBusyErrors:
    def test_they_become_our_own_and_name_the_file(self, engine: Engine, path: Path) -> None:
        with (
            locked(path),
            pytest.raises(StoreBusyError, match=r"state\.db is locked"),
            busy_as_typed(path),
            engine.connect() as connection,
        ):
            connection.exec_driver_sql("INSERT INTO note (body) VALUES ('never')")

    def test_other_errors_stay_what_they_are(self, engine: Engine, path: Path) -> None:
        with pytest.raises(OperationalError), busy_as_typed(path), engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM nowhere")


FORKED = """
import os, sys
from pathlib import Path
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine

def write(engine, body):
    with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection, connection.begin():
        connection.exec_driver_sql("INSERT INTO note (body) VALUES (?)", (body,))

path = Path(sys.argv[1])
engine = make_engine(path)
write(engine, "before the fork")
child = os.fork()
if child == 0:
    engine.dispose(close=False)
    mine = make_engine(path)
    for number in range(50):
        write(mine, f"child {number}")
    mine.dispose()
    os._exit(0)
for number in range(50):
    write(engine, f"parent {number}")
_, status = os.waitpid(child, 0)
engine.dispose()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_after_a_fork_a_child_opens_its_own(path: Path, engine: Engine) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(path)], check=True, timeout=60)
    written = ["before the fork", *(f"{who} {number}" for who in ("child", "parent") for number in range(50))]
    assert sorted(bodies(engine)) == sorted(written)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
