"""Make a file of long conversations for `scripts/bench list`: chains of twelve sessions, forty messages each.

    bench_chains.py FILE SESSIONS

Below the first session of all there is a tree of 1,000 delegates. Triggers and indexes are taken off while rows are
written, and made again from their own texts.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from hermes_store import migrations

#: Sessions of a conversation, messages of a session, and delegates below the first session of all.
CHAIN, MESSAGES, TREE = 12, 40, 1000
_WORDS = ["alpha", "beta", "gamma", "delta", "house", "garden", "river", "deploy", "issue", "fix"]
_START, _SPAN = 1_750_000_000.0, 300 * 86_400.0


def make(path: Path, sessions: int) -> None:
    """Write the file.

    Args:
        path: A file that does not exist.
        sessions: How many sessions, about.
    """
    migrations.upgrade(path)
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("PRAGMA synchronous=OFF")
    taken = plain.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE type = 'trigger' OR (type = 'index' AND sql IS NOT NULL"
        " AND tbl_name = 'messages') ORDER BY type"
    ).fetchall()
    for kind, name, _ in taken:
        plain.execute(f"DROP {kind} {name}")
    chance = random.Random(7)
    plain.execute("BEGIN")
    plain.executemany(
        "INSERT INTO sessions (id, source, parent_session_id, started_at, ended_at, end_reason, title, model,"
        " model_config, message_count) VALUES (?, ?, ?, ?, ?, ?, ?, 'vendor/model', '{\"temperature\": 0.7}', ?)",
        _sessions(chance, sessions),
    )
    # Written in the order of time, as Hermes writes.
    plain.execute(
        "INSERT INTO messages (session_id, role, content, timestamp, message_uid, display_order)"
        f" WITH n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MESSAGES - 1}),"
        f" said AS (SELECT s.id, i, s.started_at + (coalesce(s.ended_at, s.started_at + 3600) - s.started_at) * (i + 0.5) / {MESSAGES} AS at"
        "   FROM sessions AS s, n WHERE s.source <> 'subagent')"
        " SELECT id, CASE i % 2 WHEN 0 THEN 'user' ELSE 'assistant' END, 'words of ' || id || ' number ' || i, at,"
        "   lower(hex(randomblob(16))), row_number() OVER (ORDER BY at) FROM said ORDER BY at"
    )
    for _, _, sql in taken:
        plain.execute(sql)
    for index in ("messages_fts", "messages_fts_trigram"):
        plain.execute(f"INSERT INTO {index} ({index}) VALUES ('rebuild')")
    plain.execute("COMMIT")
    plain.close()
    migrations.upgrade(path, backup=False)


def _sessions(chance: random.Random, sessions: int) -> Iterator[tuple[object, ...]]:
    for conversation in range(sessions // CHAIN):
        start, parent = _START + chance.random() * _SPAN, None
        for place in range(CHAIN):
            end = start + 600 + chance.random() * 2 * 86_400
            last = place == CHAIN - 1
            id_ = f"20250101_{conversation:06}_{place:02}{chance.randrange(16**4):04x}"
            title = f"{chance.choice(_WORDS)} {conversation}" + (f" #{place + 1}" if place else "")
            source = "telegram" if conversation % 3 == 0 else "cli"
            yield id_, source, parent, start, None if last else end, None if last else "compression", title, MESSAGES
            if conversation == place == 0:
                above = [id_]
                for number in range(TREE):
                    yield (
                        f"work_{number:04}",
                        "subagent",
                        chance.choice(above[-50:]),
                        start + number,
                        None,
                        None,
                        None,
                        0,
                    )
                    above.append(f"work_{number:04}")
            start, parent = end, id_


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
