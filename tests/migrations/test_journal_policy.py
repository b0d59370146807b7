"""Which journal a new file gets: a write-ahead log, unless this SQLite or this mount would lose what is in it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from migrations.files import DRIVER, run, upgrade

from hermes_store.sqlite import journal
from hermes_store.sqlite.journal import create_file, file_system, journal_mode_for_new_file, wal_is_safe

SAFE, UNSAFE = (3, 53, 4), (3, 40, 1)

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt/share rw,relatime shared:7 - nfs4 server:/export rw,vers=4.2
31 22 0:41 / /mnt/guest rw,relatime - virtiofs hostshare rw
32 31 254:16 / /mnt/guest/disk rw,relatime - ext4 /dev/vdb rw
33 22 0:42 / /mnt/nine rw - 9p hgfs rw,trans=virtio
34 22 0:43 / /mnt/with\\040blank rw - cifs //server/share rw
35 22 0:44 / /mnt/over rw - ext4 /dev/vdc rw
36 22 0:45 / /mnt/over rw - fuse.sshfs user@host: rw
37 22 0:46 / /mnt/c rw,noatime - drvfs C: rw
a line of something else
38 22 0:47 / /mnt/tagged rw shared:1 master:2 - overlay overlay rw
"""


@pytest.fixture(autouse=True)
def nothing_was_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_said", set())


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 6, 23), True),
        ((3, 7, 0), False),
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 44, 9), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 0), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 53, 4), True),
        ((4, 0, 0), True),
    ],
)
def test_the_builds_that_can_lose_commits_are_known(version: tuple[int, int, int], safe: bool) -> None:
    assert wal_is_safe(version) is safe


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/home/user/.hermes", "ext4", "wal"),
        ("/mnt/share", "nfs4", "delete"),
        ("/mnt/share/deep/down", "nfs4", "delete"),
        ("/mnt/shared-not", "ext4", "wal"),
        ("/mnt/guest/home", "virtiofs", "delete"),
        ("/mnt/guest/disk/home", "ext4", "wal"),
        ("/mnt/nine/home", "9p", "delete"),
        ("/mnt/with blank/home", "cifs", "delete"),
        ("/mnt/over/home", "fuse.sshfs", "delete"),
        ("/mnt/c/Users/ann", "drvfs", "delete"),
        ("/mnt/tagged/home", "overlay", "wal"),
    ],
)
def test_the_mount_decides(path: str, kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_system(Path(path), MOUNTS) == kind
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(journal, "_MOUNTINFO", tmp_path / "mountinfo")
    assert journal_mode_for_new_file(Path(path) / "state.db", SAFE) == mode


def test_without_a_list_of_mounts_nothing_is_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOUNTINFO", tmp_path / "missing")
    assert file_system(tmp_path) is None
    assert journal_mode_for_new_file(tmp_path / "state.db", SAFE) == "wal"


def test_each_reason_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(journal, "_MOUNTINFO", tmp_path / "mountinfo")
    with caplog.at_level(logging.WARNING, "hermes_store"):
        for _ in range(3):
            journal_mode_for_new_file(Path("/mnt/share/state.db"), SAFE)
            journal_mode_for_new_file(Path("/home/state.db"), UNSAFE)
    assert [record.name for record in caplog.records] == ["hermes_store.sqlite"] * 2
    assert "nfs4" in caplog.messages[0]
    assert "3.40.1" in caplog.messages[1]


@pytest.mark.parametrize(("version", "mode"), [(SAFE, "wal"), (UNSAFE, "delete")])
def test_a_new_file_gets_the_chosen_journal(version: tuple[int, int, int], mode: str, tmp_path: Path) -> None:
    driver: Any = SimpleNamespace(**vars(DRIVER))
    driver.sqlite_version_info = version
    create_file(tmp_path / "state.db", driver=driver)
    assert run(tmp_path / "state.db", "PRAGMA journal_mode") == [(mode,)]


def test_an_upgrade_creates_its_file_by_the_same_rule(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    upgrade(path)
    mode = "wal" if wal_is_safe(DRIVER.sqlite_version_info) else "delete"
    assert run(path, "PRAGMA journal_mode") == [(mode,)]


def test_an_existing_file_is_never_created_again(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("something")
    with pytest.raises(FileExistsError):
        create_file(path)
    assert path.read_text() == "something"
