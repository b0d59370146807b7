"""Every command on a real file, as a user types it."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fixture_files import Released

from hermes_store.cli.commands import cli

README = Path(__file__).parents[2] / "README.md"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def old(released: Released) -> Path:
    return released("v22-0.19.0.db")


def test_upgrade_says_what_it_did_and_then_that_there_is_nothing_to_do(old: Path) -> None:
    first = invoke("upgrade", old)
    assert first.exit_code == 0, first.output
    assert "~h22 -> hs" in first.output
    assert "messages: 360 rows, unchanged" in first.output.replace("\n", " ")
    assert "backup: " in first.output
    second = invoke("upgrade", old)
    assert "nothing to do" in second.output


def test_upgrade_without_a_backup_leaves_none(old: Path) -> None:
    assert invoke("upgrade", old, "--no-backup").exit_code == 0
    assert not list(old.parent.glob("*.backup-*"))


def test_upgrade_to_a_revision_and_as_json(old: Path) -> None:
    report = json.loads(invoke("upgrade", old, "--revision", "h25", "--json").output)
    assert report["after"] == "h25"
    assert report["rows_before"]["messages"] == report["rows_after"]["messages"] == 360


def test_a_damaged_index_is_found_and_made_anew(released: Released) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    assert invoke("verify", path).exit_code == 0
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER messages_fts_insert")
    connection.close()
    found = invoke("verify", path, "--level", "indexes")
    assert found.exit_code == 1
    assert "messages_fts is not fed" in found.output
    assert "damaged" in found.output
    assert json.loads(invoke("verify", path, "--json").output)["findings"][0]["kind"] == "index"
    assert "made anew: messages_fts" in invoke("rebuild-index", path).output
    assert json.loads(invoke("rebuild-index", path, "--json").output)["reasons"] == []
    assert "made anew: asked for" in invoke("rebuild-index", path, "--force").output
    assert "merged messages_fts" in invoke("optimize", path).output
    assert "no damage found" in invoke("verify", path, "--level", "full").output


def test_list_search_and_info_read_an_old_file_without_changing_it(old: Path) -> None:
    before = old.read_bytes()
    assert "Refactor auth middleware" in invoke("list", old, "--limit", 50).output
    entries = json.loads(invoke("list", old, "--json").output)
    assert {"id", "root_id", "kind", "title", "last_activity"} <= entries[0].keys()
    found = invoke("search", old, "docker deployment", "--limit", 2)
    assert found.exit_code == 0, found.output
    assert "2 messages by" in found.output
    page = json.loads(invoke("search", old, "项目", "--json").output)
    assert page["hits"]
    shown = invoke("info", old).output
    assert "Hermes schema 22" in shown
    assert "messages_fts_trigram" in shown
    assert json.loads(invoke("info", old, "--json").output)["indexes"][0]["layout"] == "0"
    assert old.read_bytes() == before


def test_explain_names_the_way_of_each_term(old: Path) -> None:
    shown = invoke("explain", old, "docker 漓江", "--sort", "newest").output
    assert "understood as: docker AND 漓江" in shown
    assert "docker: by word, in about" in shown
    assert "漓江: by gram" in shown
    assert "SELECT m.id" in shown


def test_info_says_what_is_pending(released: Released) -> None:
    shown = invoke("info", released("optimize/v31-iot-0.22.2-partial.db")).output
    assert "search indexes to fill: message 180 of 375" in shown
    assert "retired index tables" in shown


def test_errors_are_one_line(tmp_path: Path) -> None:
    missing = invoke("list", tmp_path / "none.db")
    assert missing.exit_code == 1
    assert missing.output.startswith("Error: ")
    assert "does not exist" in missing.output
    assert "Traceback" not in missing.output


def test_a_query_with_nothing_to_search_for_is_an_error(old: Path) -> None:
    assert invoke("search", old, "NOT x").exit_code == 1


def test_backup_writes_a_copy_only_its_owner_can_read(old: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    assert invoke("backup", old, target).exit_code == 0
    assert target.stat().st_mode & 0o777 == 0o600
    assert invoke("backup", old, target).exit_code == 1


def test_where_names_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HERMES_STORE_URL", raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    assert invoke("where").output.strip().replace("\n", "") == str(tmp_path / "state.db")


def test_every_command_is_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for name in cli.commands:
        assert re.search(rf"hermes-store {name}\b", text), name
