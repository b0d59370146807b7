"""A failure at any statement leaves what the last commit left, and the next upgrade finishes.

An undisturbed upgrade is recorded first: the state of the file after each of its commits. Then the same upgrade is
run again and again, each time with another statement failing as on a full disk (a commit counts as a statement). Each
time the file must be exactly in the recorded state of the last commit that went through.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from migrations.files import DRIVER, HEAD, connect, copy_released, hermes_objects, upgrade
from migrations.indexes import troubles

from hermes_store import migrations
from hermes_store.errors import HermesStoreError

EMPTY = "no file"
V11, V22, V25 = "v11-0.13.0.db", "v22-0.19.0.db", "v25-iot-0.20.0.post2.db"
LAYOUT_2, PARTIAL = "v30-iot-0.21.3.post1.db", "optimize/v26-iot-0.20.4-partial.db"
#: Values of ``state_meta`` and of the file's header that are random or tell the time.
RANDOM_META = (b"db_file_generation", b"store_instance_id", b"store_created_at_utc")
#: In the normal run, every n-th statement of a file fails, and on two files also every one that changes something. (A
#: failing read leaves what a failing write after it leaves; the full run lets them all fail.)
SAMPLED = 41
#: The suite is run on a second SQLite library too; there one in so many of them is enough.
CHANGING = 1 if DRIVER.__name__ == "sqlite3" else 6
PARTS = 4


class Fault:
    """A driver of which one statement fails; it counts statements and commits."""

    def __init__(self, at: int = 0, *, on_commit: Callable[[], None] = lambda: None) -> None:
        self.at, self.on_commit = at, on_commit
        self.statements: list[str] = []
        self.commits = 0
        self.failed = ""

    @property
    def driver(self) -> ModuleType:
        fault = self

        class Cursor(DRIVER.Cursor):
            def execute(self, sql: str, *parameters: Any) -> Any:
                fault.reach(sql)
                return super().execute(sql, *parameters)

        class Connection(DRIVER.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def execute(self, sql: str, *parameters: Any) -> Any:
                return self.cursor().execute(sql, *parameters)

            def commit(self) -> None:
                fault.reach("COMMIT")
                super().commit()
                fault.commits += 1
                fault.on_commit()

        def open_connection(*args: Any, **kwargs: Any) -> Any:
            connection = DRIVER.connect(*args, factory=Connection, **kwargs)
            super(Connection, connection).cursor().execute("PRAGMA synchronous=OFF")  # nothing here pulls the plug
            return connection

        module = ModuleType("failing_sqlite3")
        module.__dict__.update({name: value for name, value in vars(DRIVER).items() if not name.startswith("__")})
        module.__dict__["connect"] = open_connection
        return module

    def reach(self, sql: str) -> None:
        self.statements.append(sql)
        if len(self.statements) == self.at:
            self.failed = sql
            raise DRIVER.OperationalError("database or disk is full")


@dataclass
class Undisturbed:
    """An upgrade in which nothing failed: its statements, and the state of the file after each commit."""

    source: Path | None
    statements: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    objects: dict[tuple[str, str], Any] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)

    def copy(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        path = folder / "state.db"
        for suffix in ("", "-wal", "-journal"):
            if self.source is not None and (side := Path(f"{self.source}{suffix}")).exists():
                shutil.copyfile(side, f"{path}{suffix}")
        return path


@dataclass(frozen=True)
class State:
    """What is in a file: its objects, and a digest of the rows of each table, shadow tables included."""

    objects: tuple[tuple[str, ...], ...]
    rows: dict[str, str]
    messages: int
    stamp: str | None
    version: int | None


@pytest.fixture(autouse=True)
def same_steps_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending work adapts its steps to the clock and pauses between them; here neither."""
    make_steps_equal(monkeypatch)


def make_steps_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_store.migrations.steps.paced", lambda size, held: size)
    monkeypatch.setattr("hermes_store.migrations.steps.FIRST_WEIGHT", 64 * 1024)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture(scope="module", params=[EMPTY, V11, V22, V25, LAYOUT_2, PARTIAL])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    folder = tmp_path_factory.mktemp("undisturbed")
    source = None if request.param == EMPTY else copy_released(request.param, folder / "source")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_steps_equal(monkeypatch)
        yield record(source, folder / "copy")


def record(source: Path | None, folder: Path) -> Undisturbed:
    recorded = Undisturbed(source)
    path = recorded.copy(folder)
    recorded.states.append(state_of(path))
    fault = Fault(on_commit=lambda: recorded.states.append(state_of(path)))
    assert upgrade(path, backup=False, driver=fault.driver).after == HEAD
    assert troubles(path) == []
    recorded.statements = fault.statements
    recorded.objects, recorded.rows = hermes_objects(path), canonical(recorded.states[-1])
    return recorded


def state_of(path: Path) -> State:
    if not path.exists():
        return State((), {}, 0, None, None)
    with connect(path) as connection:
        connection.text_factory = bytes
        objects = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
        rows = {
            name.decode(): connection.execute(f'SELECT {_columns(connection, name)} FROM "{name.decode()}"').fetchall()
            for (name,) in tables
        }
    if "state_meta" in rows:
        rows["state_meta"] = [(key, value if key not in RANDOM_META else b"") for key, value in rows["state_meta"]]
    stamp = rows.get("hermes_store_version")
    version = rows.get("schema_version")
    return State(
        tuple(tuple(str(cell) for cell in row) for row in objects),
        {name: hashlib.sha256(repr(found).encode()).hexdigest() for name, found in rows.items()},
        len(rows.get("messages", ())),
        stamp[0][0].decode() if stamp else None,
        version[0][0] if version else None,
    )


def _columns(connection: Any, table: bytes) -> str:
    names = [row[1].decode() for row in connection.execute(f'PRAGMA table_info("{table.decode()}")')]
    return ", ".join(f'"{name}" IS NULL' if name == "message_uid" else f'"{name}"' for name in names)


def canonical(state: State) -> dict[str, str]:
    """The rows that must be the same however often an upgrade was interrupted: not how an index is cut into pages."""
    return {
        name: digest
        for name, digest in state.rows.items()
        if not name.startswith(("messages_fts", "hs_text_fts", "sqlite_"))
    }


def changing(undisturbed: Undisturbed) -> list[int]:
    """The numbers of the statements that change something, or begin or end a change."""
    reading = ("SELECT", "PRAGMA main.", "PRAGMA temp.", "PRAGMA busy_timeout")
    return [
        number
        for number, sql in enumerate(undisturbed.statements, 1)
        if sql != "BEGIN" and not sql.lstrip().startswith(reading)
    ]


def fail_at(undisturbed: Undisturbed, statements: Iterable[int], folder: Path, *, finish_each: bool = False) -> None:
    """Let each of these statements fail, in an upgrade of its own; see what that leaves, and that it can go on."""
    finished: set[int] = set()
    for at in statements:
        path = undisturbed.copy(folder / str(at))
        fault = Fault(at)
        with pytest.raises(HermesStoreError):
            upgrade(path, backup=False, driver=fault.driver)
        where = f"statement {at}, after {fault.commits} commits: {fault.failed}"
        assert fault.failed, where
        assert state_of(path) == undisturbed.states[fault.commits], where
        # The state is the recorded one, so finishing from it once is enough.
        if finish_each or fault.commits not in finished:
            finished.add(fault.commits)
            assert_finishes(path, undisturbed, where)
        shutil.rmtree(path.parent)


def assert_finishes(path: Path, undisturbed: Undisturbed, where: str) -> None:
    report = upgrade(path, backup=False)
    assert (report.after, report.pending) == (HEAD, []), where
    assert troubles(path) == [], where
    assert hermes_objects(path) == undisturbed.objects, where
    assert canonical(state_of(path)) == undisturbed.rows, where
    assert not upgrade(path, backup=False).changed, where


def test_no_state_between_two_commits_lacks_a_message_or_a_data_step(undisturbed: Undisturbed) -> None:
    for state in undisturbed.states:
        assert state.messages == undisturbed.states[0].messages
        if state.stamp is not None:
            assert state.version is not None
            assert state.version >= (int(state.stamp[1:]) if state.stamp[1:].isdigit() else 31)


@pytest.mark.parametrize("undisturbed", [EMPTY, V22, V25, PARTIAL], indirect=True)
def test_a_failing_statement_leaves_the_last_commit_and_the_next_upgrade_finishes(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fail_at(undisturbed, range(1, len(undisturbed.statements) + 1, SAMPLED), tmp_path)


@pytest.mark.parametrize("undisturbed", [V11, LAYOUT_2], indirect=True)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_statement_of_any_revision_may_fail(undisturbed: Undisturbed, part: int, tmp_path: Path) -> None:
    sampled = range(1, len(undisturbed.statements) + 1, SAMPLED)
    chosen = sorted({*changing(undisturbed)[::CHANGING], *sampled})
    assert len(chosen) > 100 // CHANGING
    share = -(-len(chosen) // PARTS)
    fail_at(undisturbed, chosen[part * share : (part + 1) * share], tmp_path)


@pytest.mark.full
def test_after_any_failing_statement_the_next_upgrade_finishes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fail_at(undisturbed, range(1, len(undisturbed.statements) + 1), tmp_path, finish_each=True)


class StoppedError(Exception):
    """A caller's progress bar broke, or its user pressed a key."""


@pytest.mark.parametrize("undisturbed", [V11, LAYOUT_2], indirect=True)
@pytest.mark.parametrize("phase", ["check", "backup", "revision", "identify", "index", "merge", "clean"])
def test_an_upgrade_stopped_by_its_caller_can_go_on(undisturbed: Undisturbed, phase: str, tmp_path: Path) -> None:
    path = undisturbed.copy(tmp_path / "home")

    def stop(progress: migrations.Progress) -> None:
        if progress.phase == phase:
            raise StoppedError

    with pytest.raises(StoppedError):
        upgrade(path, progress=stop)
    assert state_of(path) in undisturbed.states
    assert_finishes(path, undisturbed, phase)
