"""The ``alembic`` command in the repository: the same path as everywhere else, with a thin ``env.py``."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from fixture_files import Released
from migrations.files import HEAD, backups, content_of, message, run, session, upgrade
from migrations.indexes import troubles

REPOSITORY = Path(__file__).parents[2]


def alembic(*arguments: str, cwd: Path = REPOSITORY, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HERMES_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "alembic", "-c", str(REPOSITORY / "alembic.ini"), *arguments],
        cwd=cwd,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def used(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    upgrade(path, "h22")
    session(path, "a")
    message(path, "a", "some words")
    return path


def test_upgrade_head_does_everything_and_says_what(released: Released) -> None:
    path = released("v22-0.19.0.db")
    done = alembic("-x", f"db={path}", "upgrade", "head")
    assert done.returncode == 0, done.stderr
    assert f"{path}: ~h22 -> {HEAD}" in done.stdout
    assert f"backup: {backups(path)[0]}" in done.stdout
    assert "search indexes laid out anew" in done.stdout
    assert troubles(path) == []
    before = content_of(path)
    again = alembic("-x", f"db={path}", "upgrade", "head")
    assert f"{path}: nothing to do" in again.stdout
    assert content_of(path) == before


def test_a_backup_can_be_declined_and_the_folder_does_not_matter(used: Path, tmp_path: Path) -> None:
    done = alembic("-x", f"db={used}", "-x", "backup=no", "upgrade", "head", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert backups(used) == []
    assert run(used, "SELECT version_num FROM hermes_store_version") == [(HEAD,)]


def test_the_default_target_is_where_hermes_keeps_its_store(tmp_path: Path) -> None:
    by_home = alembic("upgrade", "head", HERMES_HOME=str(tmp_path / "home"))
    assert by_home.returncode == 0, by_home.stderr
    assert run(tmp_path / "home" / "state.db", "SELECT version_num FROM hermes_store_version") == [(HEAD,)]
    url = f"sqlite:///{tmp_path}/by-url.db"
    by_url = alembic("upgrade", "head", HERMES_HOME=str(tmp_path / "unused"), HERMES_STORE_URL=url)
    assert by_url.returncode == 0, by_url.stderr
    assert (tmp_path / "by-url.db").exists()
    assert not (tmp_path / "unused").exists()


def test_current_and_check_read_and_change_nothing(used: Path) -> None:
    upgrade(used)
    before = content_of(used)
    assert alembic("-x", f"db={used}", "current").stdout.strip() == f"{HEAD} (head)"
    check = alembic("-x", f"db={used}", "check")
    assert check.returncode == 0, check.stderr
    assert "No new upgrade operations detected" in check.stdout + check.stderr
    assert content_of(used) == before


def test_check_is_empty_on_a_file_that_grew_through_all_releases(released: Released) -> None:
    path = released("v11-0.13.0.db")
    upgrade(path)
    check = alembic("-x", f"db={path}", "check")
    assert check.returncode == 0, check.stdout + check.stderr


def test_check_of_a_file_that_was_never_upgraded_names_the_command(released: Released) -> None:
    path = released("v22-0.19.0.db")
    before = content_of(path)
    check = alembic("-x", f"db={path}", "check")
    assert check.returncode != 0
    assert "upgrade head" in check.stderr + check.stdout
    assert "Traceback" not in check.stderr
    assert content_of(path) == before


def test_downgrade_takes_ours_back_and_refuses_the_rest(used: Path) -> None:
    upgrade(used)
    assert alembic("-x", f"db={used}", "downgrade", "h31").returncode == 0
    assert alembic("-x", f"db={used}", "current").stdout.strip() == "h31"
    before = content_of(used)
    refused = alembic("-x", f"db={used}", "downgrade", "base")
    assert refused.returncode != 0
    assert "belong to Hermes" in refused.stderr + refused.stdout
    assert content_of(used) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("upgrade", "head", "--sql"),
        ("upgrade", "h99"),
        ("downgrade", "base"),
        ("stamp", "head"),
        ("current",),
        ("check",),
        ("upgrade", "head"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_said_without_a_traceback_or_a_change(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "other.db"
    run(path, "CREATE TABLE another_programs (id INTEGER)")
    before = content_of(path)
    done = alembic("-x", f"db={path}", *arguments)
    assert done.returncode != 0
    assert "FAILED" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert content_of(path) == before


def test_sql_output_is_refused_on_a_store(used: Path) -> None:
    done = alembic("-x", f"db={used}", "upgrade", "head", "--sql")
    assert done.returncode != 0
    assert "--sql" in done.stderr + done.stdout
    assert "CREATE" not in done.stdout


def test_commands_for_a_missing_file_say_so(tmp_path: Path) -> None:
    for arguments in (("current",), ("downgrade", "h31"), ("stamp", "head")):
        done = alembic("-x", f"db={tmp_path / 'none.db'}", *arguments)
        assert done.returncode != 0
        assert "does not exist" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_hosts_loggers_stay_alive(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_STORE_URL", f"sqlite:///{used}")
    host, root = logging.getLogger("a.host.application"), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    config = Config(REPOSITORY / "alembic.ini")
    command.upgrade(config, "head")
    command.current(config)
    assert not host.disabled
    assert list(root.handlers) == handlers
    assert root.level == level
    assert logging.getLogger("alembic").level == logging.NOTSET
    assert run(used, "SELECT version_num FROM hermes_store_version") == [(HEAD,)]


def test_a_program_that_calls_alembic_itself_is_understood(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_STORE_URL", f"sqlite:///{used}")
    config = Config(REPOSITORY / "alembic.ini")
    command.upgrade(config, "h25")
    assert run(used, "SELECT version_num FROM hermes_store_version") == [("h25",)]
    command.upgrade(config, "head")
    command.check(config)
    command.downgrade(config, "h31")
    assert run(used, "SELECT version_num FROM hermes_store_version") == [("h31",)]
    assert run(used, "SELECT name FROM sqlite_master WHERE name GLOB 'ix_hs_*'") == []
    command.stamp(config, "h22")
    assert run(used, "SELECT version_num FROM hermes_store_version") == [("h22",)]
    assert upgrade(used).after == HEAD
