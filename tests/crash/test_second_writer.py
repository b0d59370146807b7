"""While a file is upgraded another process keeps writing to it, and everything it wrote is there and indexed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from crash.large import LargeFile, find
from migrations.files import HEAD, upgrade
from migrations.indexes import troubles

#: Appends one message after the other, waiting for the lock as Hermes does, until its standard input is closed; then
#: prints how many there are. It knows nothing of the newer schema: the triggers must see to everything.
APPEND = """
import random, select, sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=1.0)
written = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        time.sleep(random.uniform(0.020, 0.150))
        continue
    written += 1
    text = f"appendedword w{written:05d}x " + "同时写入的消息" * 3
    db.execute(
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, 1.0)",
        (sys.argv[2], ("user", "tool")[written % 2], text),
    )
    db.commit()
    if written == 1:
        print("writing", flush=True)
    time.sleep(0.02)
print(written)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_what_a_second_writer_appends_during_an_upgrade_is_kept_and_indexed(
    large_file: LargeFile, journal: str, tmp_path: Path
) -> None:
    path = large_file.copy(tmp_path / "home")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(f"PRAGMA journal_mode={journal}").fetchone() == (journal,)
        db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('writer', 'cli', 1.0)")
        db.commit()
    command = [sys.executable, "-c", APPEND, str(path), "writer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        report = upgrade(path, backup=False)
        written = int(writer.communicate()[0])
    assert (report.after, report.pending) == (HEAD, [])
    assert written > 10, "the writer was kept out"
    assert troubles(path) == []
    with closing(sqlite3.connect(path)) as db:
        large_file.assert_all_rows(db)
        appended = {row[0] for row in db.execute("SELECT id FROM messages WHERE session_id = 'writer'")}
        assert len(appended) == written
        assert find(db, "messages_fts", "appendedword") == appended
        assert len(find(db, "messages_fts_trigram", "同时写入")) == written // 2
        lacking = "SELECT count(*) FROM messages WHERE message_uid IS NULL"
        assert db.execute(lacking).fetchone() == (0,)
    assert not upgrade(path, backup=False).changed
