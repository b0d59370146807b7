"""Are the search indexes whole, and do they stay whole under every kind of write? Asked of SQLite, not of our code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from migrations.files import DRIVER, connect

#: Index name to its columns, and to the statement for the text of every message that belongs in it (layout 3).
INDEXES = {
    "messages_fts": (
        "content, tool_name, tool_calls",
        (
            "SELECT id, CASE WHEN role = 'tool' THEN substr(COALESCE(content, ''), 1, 8192) ELSE content END AS content,"
            " tool_name, tool_calls FROM messages"
        ),
    ),
    "messages_fts_trigram": (
        "content, tool_name",
        (
            "SELECT m.id, m.content, m.tool_name FROM messages AS m JOIN sessions AS s ON s.id = m.session_id"
            " WHERE m.role <> 'tool' AND s.source NOT IN ('cron', 'subagent') AND (CASE WHEN json_valid(s.model_config)"
            " THEN json_extract(s.model_config, '$._delegate_from') END) IS NULL"
        ),
    ),
}
#: Messages whose content starts as structured content does; the two libraries index them differently.
STRUCTURED = "SELECT id FROM messages WHERE instr(content, char(0)) > 0"
_TOKENIZERS = {"messages_fts": "unicode61", "messages_fts_trigram": "trigram"}


def troubles(path: Path) -> list[str]:
    """Everything that is wrong with the indexes of an upgraded file; an empty list when they are whole.

    Rows of structured content begin with a NUL, at which the substring tokenizer of one library stops and that of the
    other does not. Where only such rows can be what the strict check is about, the index is compared entry by entry
    with one made here from all other messages.
    """
    found = []
    with connect(path) as connection:
        found += [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        for name, (_, rows) in INDEXES.items():
            if not _passes(connection, name, rank=0):
                found.append(f"{name}: plain check failed")
            if not _passes(connection, name, rank=1):
                structured = connection.execute(f"{STRUCTURED} AND id IN (SELECT id FROM ({rows}))").fetchall()
                if not structured or entries_differ(connection, name):
                    found.append(f"{name}: strict check failed")
            for these, those in ((rows, f"SELECT id FROM {name}_docsize"), (f"SELECT id FROM {name}_docsize", rows)):
                differing = connection.execute(f"SELECT id FROM ({these}) EXCEPT SELECT id FROM ({those})").fetchall()
                if differing:
                    found.append(f"{name}: {len(differing)} rows of {these[:40]} have no counterpart")
        settings = connection.execute("SELECT k, v FROM messages_fts_config WHERE k <> 'version'").fetchall()
        found += [f"setting {key} left at {value}" for key, value in settings if (key, value) not in _DEFAULTS]
        found += [
            f"{kind} {name} is left"
            for kind, name in connection.execute(
                "SELECT type, name FROM sqlite_master WHERE name LIKE 'fts!_v22!_trash!_%' ESCAPE '!'"
            )
        ]
        leftover = (
            "SELECT key FROM state_meta WHERE key IN ('fts_rebuild_high_water', 'fts_rebuild_progress', 'fts_stale')"
        )
        found += [f"marker {key} is left" for (key,) in connection.execute(leftover)]
    return found


#: What FTS5 itself uses where nothing is set.
_DEFAULTS = {("automerge", 4), ("crisismerge", 16)}


def _passes(connection: Any, name: str, *, rank: int) -> bool:
    try:
        connection.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('integrity-check', ?)", (rank,))
    except DRIVER.DatabaseError as error:
        if "malformed" not in str(error):
            raise
        return False
    return True


def entries_differ(connection: Any, name: str, ignored: str = STRUCTURED) -> bool:
    """Compare an index with one made anew, entry by entry, leaving some messages out."""
    columns, rows = INDEXES[name]
    connection.execute(f"CREATE TEMP TABLE ignored_messages AS {ignored}")
    connection.execute(f"CREATE VIRTUAL TABLE temp.reference USING fts5({columns}, tokenize='{_TOKENIZERS[name]}')")
    connection.execute(
        f"INSERT INTO temp.reference (rowid, {columns}) SELECT * FROM ({rows}) WHERE id NOT IN ignored_messages"
    )
    connection.execute(f"CREATE VIRTUAL TABLE temp.found USING fts5vocab(main, {name}, instance)")
    connection.execute("CREATE VIRTUAL TABLE temp.wanted USING fts5vocab(temp, reference, instance)")
    found = "SELECT term, doc, col, offset FROM temp.found WHERE doc NOT IN ignored_messages"
    wanted = "SELECT term, doc, col, offset FROM temp.wanted"
    differ = any(
        connection.execute(f"SELECT 1 FROM ({these} EXCEPT {those}) LIMIT 1").fetchone()
        for these, those in ((found, wanted), (wanted, found))
    )
    for table in ("found", "wanted", "reference", "ignored_messages"):
        connection.execute(f"DROP TABLE temp.{table}")
    return differ


#: Texts a message may have: words, scripts, structured content, long and empty ones.
TEXTS = [
    "plain words, a path src/app/main.py and TODO: fix",
    "重构数据库迁移脚本 修改youer服务端",
    "ภาษาไทยไม่มีช่องว่าง",
    "한국어 문장 자모 ㄱㄴㄷ",
    "emoji 👩‍👩‍👧‍👦 and \U00020000 and combining e\u0301",
    "\0json:" + '[{"type": "text", "text": "\\u91cd\\u6784 structured"}]',
    "long " + "filler words " * 700 + "beyond",
    "",
    "汉" * 8300 + "末尾",
    None,
]


def write_every_kind(path: Path) -> None:
    """Insert, change and delete rows of every kind, old and new ones, with nothing but SQLite."""
    with connect(path) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("BEGIN IMMEDIATE")
        old = connection.execute(
            f"SELECT id, role FROM messages WHERE id NOT IN ({STRUCTURED}) ORDER BY role, id"
        ).fetchall()
        _insert(connection)
        new = [row[0] for row in connection.execute("SELECT id FROM messages WHERE session_id GLOB 'written-*'")]
        changed = [id_ for id_, _ in old[::7]] + new[::2]
        for number, id_ in enumerate(changed):
            _change(connection, id_, number)
        for id_ in [id_ for id_, _ in old[3::9]] + new[1::4]:
            connection.execute("DELETE FROM messages WHERE id = ?", (id_,))
        connection.execute("DELETE FROM messages WHERE session_id = 'written-gone'")
        connection.execute("DELETE FROM sessions WHERE id = 'written-gone'")
        connection.execute("COMMIT")


def _insert(connection: Any) -> None:
    sessions = {
        "written-cli": ("cli", None),
        "written-gone": ("telegram", '{"model": "x"}'),
        "written-cron": ("cron", None),
        "written-subagent": ("subagent", None),
        "written-delegate": ("cli", '{"_delegate_from": "written-cli"}'),
        "written-broken": ("cli", "{not json"),
    }
    for id_, (source, config) in sessions.items():
        connection.execute(
            "INSERT INTO sessions (id, source, model_config, started_at) VALUES (?, ?, ?, 1.0)", (id_, source, config)
        )
        for role in ("user", "assistant", "tool", "system"):
            for text in TEXTS if id_ == "written-cli" else TEXTS[::2]:
                calls = '[{"function": {"name": "run", "arguments": "{}"}}]' if role == "assistant" else None
                tool = "terminal" if role == "tool" else None
                connection.execute(
                    "INSERT INTO messages (session_id, role, content, tool_name, tool_calls, timestamp)"
                    " VALUES (?, ?, ?, ?, ?, 2.0)",
                    (id_, role, text, tool, calls),
                )


def _change(connection: Any, id_: int, number: int) -> None:
    changes = [
        ("content = ?", (TEXTS[number % len(TEXTS)],)),
        ("role = CASE role WHEN 'tool' THEN 'user' ELSE 'tool' END", ()),
        ("content = COALESCE(content, '') || ? ", (" grown" * 1400,)),
        ("content = substr(content, 1, 40)", ()),
        ("tool_name = 'renamed', tool_calls = '[]'", ()),
        ("active = 0, compacted = 1", ()),
        ("content = NULL", ()),
    ]
    assignment, parameters = changes[number % len(changes)]
    connection.execute(f"UPDATE messages SET {assignment} WHERE id = ?", (*parameters, id_))
