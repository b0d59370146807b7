"""A file of layout 0 large enough for an upgrade to be caught at any moment, and what a search of it must find."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hermes_store import migrations

WORDS = [
    "server",
    "docker",
    "network",
    "timeout",
    "database",
    "migration",
    "index",
    "query",
    "cache",
    "worker",
    "token",
    "session",
    "request",
    "response",
    "build",
    "deploy",
    "container",
    "image",
    "volume",
    "port",
    "proxy",
    "gateway",
    "schema",
    "column",
    "trigger",
    "commit",
    "branch",
    "merge",
    "rebase",
    "release",
]
HAN = "数据库连接池网络超时升级消息服务端配置文件搜索引容器镜像日志错误重试会话请求响应部署测试分支合并"
#: So many messages make a file of about this many bytes with the two indexes of layout 0.
MESSAGES, SIZE = 3_000, 20_000_000
SESSIONS = 30
#: One session in ten is a cron job's, which the substring index of layout 3 leaves out.
CRON = range(9, SESSIONS, 10)


@dataclass(frozen=True)
class LargeFile:
    """A file at schema 22 in layout 0.

    Attributes:
        path: The file; work on copies.
        texts: Message id to its text.
        outside_trigram: Ids of the messages that the substring index of layout 3 leaves out.
    """

    path: Path
    texts: dict[int, str]
    outside_trigram: frozenset[int]

    def copy(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        return Path(shutil.copy(self.path, folder / "state.db"))

    def assert_all_rows(self, db: sqlite3.Connection) -> None:
        assert dict(db.execute("SELECT id, content FROM messages WHERE session_id GLOB 's*'")) == self.texts
        assert db.execute("SELECT count(*) FROM sessions WHERE id GLOB 's*'").fetchone()[0] == SESSIONS

    def assert_search_is_complete(self, db: sqlite3.Connection, chance: random.Random) -> None:
        """Search for some words and some pieces of Chinese text, as Hermes would at this moment."""
        some = chance.sample(sorted(self.texts), 5)
        for word in [*chance.sample(WORDS, 2), *(self.texts[id_].split()[-1] for id_ in some)]:
            assert find(db, "messages_fts", word) == self._with(word), word
        for id_ in chance.sample([id_ for id_, text in self.texts.items() if text[0] in HAN], 5):
            piece = self.texts[id_][:4]
            found, all_of_them = find(db, "messages_fts_trigram", piece), self._with(piece)
            assert all_of_them - self.outside_trigram <= found <= all_of_them, piece

    def _with(self, piece: str) -> set[int]:
        return {id_ for id_, text in self.texts.items() if piece in text}


def find(db: sqlite3.Connection, index: str, piece: str) -> set[int]:
    """Search one index as Hermes does: the index, and a scan of the ids between the markers."""
    marker = "(SELECT CAST(value AS INTEGER) FROM state_meta WHERE key = 'fts_rebuild_{}')".format
    return {
        row[0]
        for row in db.execute(
            f"SELECT rowid FROM {index} WHERE {index} MATCH ? UNION SELECT id FROM messages"
            f" WHERE id > {marker('progress')} AND id <= {marker('high_water')} AND content LIKE ?",
            (f'"{piece}"', f"%{piece}%"),
        )
    }


def make_large_file(path: Path) -> LargeFile:
    """Write it; the same every time."""
    migrations.upgrade(path, "h22")
    chance = random.Random(22)
    texts: dict[int, str] = {}
    outside = set()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")  # as release 0.19.0 leaves it
        db.execute("PRAGMA synchronous=OFF")
        db.execute("BEGIN")
        for number in range(SESSIONS):
            source = "cron" if number in CRON else "cli"
            db.execute(f"INSERT INTO sessions (id, source, started_at) VALUES ('s{number}', '{source}', {number})")
        for id_ in range(1, MESSAGES + 1):
            session, role = chance.randrange(SESSIONS), ("tool", "user", "tool", "assistant")[id_ % 4]
            texts[id_] = f"{_text(chance, role)} n{id_:05d}x"
            if role == "tool" or session in CRON:
                outside.add(id_)
            db.execute(
                "INSERT INTO messages (id, session_id, role, content, timestamp) VALUES (?, ?, ?, ?, ?)",
                (id_, f"s{session}", role, texts[id_], float(id_)),
            )
        db.execute("COMMIT")
    assert path.stat().st_size > SIZE, path.stat().st_size
    return LargeFile(path, texts, frozenset(outside))


def _text(chance: random.Random, role: str) -> str:
    if role == "user" and chance.random() < 0.4:
        return "".join(chance.choices(HAN, k=chance.randrange(60, 300)))
    return " ".join(chance.choices(WORDS, k=chance.randrange(60, 300)))
