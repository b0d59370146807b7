"""The sides of a benchmark: each reads jobs from standard input and answers with ids and milliseconds, line by line.

`ours` calls this package, `release` the Hermes on the path, `floor` runs the same statement by hand. `jobs` prints what
to ask, chosen from the corpus's own vocabulary: rare, middling and frequent terms of several scripts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if os.environ.get("BENCH_SQLITE") == "pysqlite3":
    import sqlite3 as _standard

    import pysqlite3  # type: ignore[import-untyped] # it has no types
    import pysqlite3.dbapi2  # type: ignore[import-untyped] # the same

    for _module in (pysqlite3, pysqlite3.dbapi2):
        for _name in dir(_standard):
            if _name.startswith("SQLITE_") and not hasattr(_module, _name):
                setattr(_module, _name, getattr(_standard, _name))
    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

Work = Callable[[dict[str, Any]], list[Any]]


def main() -> None:
    """Answer jobs until the input ends."""
    side, what, path = sys.argv[1:4]
    if side == "jobs":
        print(json.dumps(jobs(what, Path(path), int(sys.argv[4]))))
        return
    work: Work = {"ours": ours, "floor": floor, "release": release}[side](what, path)
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        ids = work(job)
        elapsed = (time.perf_counter() - start) * 1000
        print(json.dumps({"ms": elapsed, "ids": ids}), flush=True)


def jobs(what: str, path: Path, limit: int) -> dict[str, dict[str, Any]]:
    """Name the work: a label to the arguments of one search, or of one listing."""
    if what == "list":
        return _list_jobs(path, limit)
    if what == "append":
        return {"50 appends": {"single": 50}, "1,000 appends": {"single": 1000}, "1,000 at once": {"batch": 1000}}
    import sqlite3

    from hermes_store.seeding.words import vocabulary

    plain = sqlite3.connect(path)
    mark = plain.execute("SELECT value FROM state_meta WHERE key = 'hs_seed'").fetchone()
    plain.close()
    if mark is None:
        sys.exit(f"{path} is not a seeded file; leave --file out to make one")
    number = json.loads(mark[0])["seed"]
    latin, han = vocabulary("latin", number).words, vocabulary("han", number).words
    of_length = {size: [word for word in han if len(word) == size] for size in (1, 2, 3, 4)}
    short = _short_terms(path)
    queries = {
        "word, frequent": latin[0],
        "word, middling": latin[300],
        "word, rare": latin[20_000],
        "two words": f"{latin[20]} {latin[40]}",
        "phrase": f'"{latin[0]} {latin[1]}"',
        "words with OR": f"{latin[300]} OR {latin[500]}",
        "words with NOT": f"{latin[100]} NOT {latin[0]}",
        "prefix": f"{latin[300][:4]}*",
        "no hit": "zzzqqqxyw",
        "no hit, two words": f"{latin[0]} zzzqqqxyw",
        "3 characters": of_length[3][50],
        "4 characters": of_length[4][50],
        "2 characters, frequent": short[2][0],
        "2 characters, rare": short[2][-1],
        "1 character, frequent": short[1][0],
        "1 character, rare": short[1][-1],
        "2 characters AND 1": f"{short[2][1]} {short[1][1]}",
        "2 characters OR 2": f"{short[2][-1]} OR {short[2][-2]}",
        "2 characters NOT 1": f"{short[2][2]} NOT {short[1][0]}",
    }
    work: dict[str, dict[str, Any]] = {label: {"query": query, "limit": limit} for label, query in queries.items()}
    work["word, newest first"] = {"query": latin[300], "limit": limit, "sort": "newest"}
    work["word, oldest first"] = {"query": latin[300], "limit": limit, "sort": "oldest"}
    work["frequent word, newest first"] = {"query": latin[0], "limit": limit, "sort": "newest"}
    work["word, limit 300"] = {"query": latin[300], "limit": 300}
    return work


def _list_jobs(path: Path, limit: int) -> dict[str, dict[str, Any]]:
    import sqlite3

    plain = sqlite3.connect(path)
    heads = [row[0] for row in plain.execute(
        "SELECT id FROM sessions WHERE parent_session_id IS NULL AND end_reason = 'compression' ORDER BY id LIMIT 300"
    )]  # fmt: skip
    plain.close()
    jobs: dict[str, dict[str, Any]] = {
        "page 1": {"limit": limit, "offset": 0},
        "page 50": {"limit": limit, "offset": 49 * limit},
    }
    if heads:
        jobs |= {"tip of a chain": {"tips": heads[:1]}, f"tips of {len(heads)} chains": {"tips": heads}}
        jobs["tree below a session"] = {"tree": heads[0]}
    return jobs


def _short_terms(path: Path) -> dict[int, list[str]]:
    """Han terms of one and two characters that are in the file, the most frequent ones first."""
    import sqlite3
    from collections import Counter

    plain = sqlite3.connect(path)
    sample = plain.execute(
        "SELECT content FROM messages WHERE role IN ('user', 'assistant') AND content IS NOT NULL ORDER BY id LIMIT 20000"
    )
    counts: dict[int, Counter[str]] = {1: Counter(), 2: Counter()}
    for (content,) in sample:
        han = [0x4E00 <= ord(letter) <= 0x9FFF for letter in content]  # noqa: PLR2004 - the Han block
        for length, counter in counts.items():
            starts = range(len(content) - length + 1)
            counter.update({content[at : at + length] for at in starts if all(han[at : at + length])})
    plain.close()
    return {length: [term for term, _ in counter.most_common()] for length, counter in counts.items()}


def ours(what: str, path: str) -> Work:
    """This package."""
    from hermes_store import HermesStore

    if what == "append":
        return _our_appends(path)
    store = HermesStore.open(path, read_only=True, migrate="off")
    if what == "list":

        def answer(job: dict[str, Any]) -> list[Any]:
            if "tree" in job:
                return sorted(node.id for _, node in store.lineage.tree(job["tree"]).walk())
            if "tips" in job:
                return sorted(store.lineage.tips(job["tips"]).values())
            return [entry.id for entry in store.sessions.list(limit=job["limit"], offset=job["offset"])]

        return answer
    return lambda job: [hit.id for hit in store.search(job.pop("query"), **job).hits]


def _our_appends(path: str) -> Work:
    from hermes_store import HermesStore

    store = HermesStore.open(path, migrate="off")
    store.sessions.create("cli", id="bench")

    def append(job: dict[str, Any]) -> list[Any]:
        if "batch" in job:
            store.messages.append_many("bench", [{"role": "user", "content": _text(at)} for at in range(job["batch"])])
        else:
            for number in range(job["single"]):
                store.messages.append("bench", "user", _text(number))
        return []

    return append


def _text(number: int) -> str:
    return f"let us look at the docker network of the staging host once more, and at 数据库连接池 ({number})"


def release(what: str, path: str) -> Work:
    """The Hermes on the path."""
    from hermes_state import SessionDB  # type: ignore[import-not-found] # only there when a release is

    database = SessionDB(db_path=Path(path))
    if what == "append":
        database.create_session("bench", "cli")

        def append(job: dict[str, Any]) -> list[Any]:
            # There is no call for many that it offers to others; its own batches go through the same one.
            for number in range(job.get("single", job.get("batch", 0))):
                database.append_message("bench", "user", _text(number))
            return []

        return append
    if what == "list":

        def answer(job: dict[str, Any]) -> list[Any]:
            if "tree" in job:
                return []  # there is no such call
            if "tips" in job:
                return sorted(map(database.get_compression_tip, job["tips"]))
            return [row["id"] for row in database.list_sessions_rich(order_by_last_active=True, **job)]

        return answer
    return lambda job: [row["id"] for row in database.search_messages(job.pop("query"), **job)]


def floor(what: str, path: str) -> Work:  # noqa: C901 - one hand-written program
    """The same by hand: candidates in the final order, then their rows and neighbours."""
    import sqlite3

    plain = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    if what == "list":
        newest = (
            "SELECT s.id FROM sessions AS s LEFT JOIN (SELECT session_id, max(timestamp) AS t FROM messages GROUP BY 1) AS m"
            " ON m.session_id = s.id WHERE s.archived = 0 AND s.hidden = 0 AND coalesce(s.end_reason, '') <> 'compression'"
            " AND s.source <> 'subagent' ORDER BY COALESCE(m.t, s.started_at) DESC, s.id DESC LIMIT ? OFFSET ?"
        )
        child = "SELECT id FROM sessions WHERE parent_session_id = ? AND source NOT IN ('subagent', 'tool')"
        below = (
            "WITH RECURSIVE b (id) AS (SELECT ? UNION SELECT s.id FROM b JOIN sessions AS s ON s.parent_session_id = b.id)"
            " SELECT s.id, s.title, s.source, s.started_at, s.end_reason FROM b JOIN sessions AS s ON s.id = b.id"
        )

        def answer(job: dict[str, Any]) -> list[Any]:
            if "tree" in job:
                return sorted(row[0] for row in plain.execute(below, (job["tree"],)))
            if "tips" in job:
                tips = []
                for tip in job["tips"]:
                    while found := plain.execute(child, (tip,)).fetchone():
                        tip = found[0]  # noqa: PLW2901 - it walks on
                    tips.append(tip)
                return sorted(tips)
            return [row[0] for row in plain.execute(newest, (job["limit"], job["offset"]))]

        return answer
    live = "(m.active = 1 OR m.compacted = 1) AND COALESCE(m.display_kind, '') <> 'hidden' AND s.archived = 0 AND s.hidden = 0"
    joined = f"JOIN messages AS m ON m.id = f.rowid JOIN sessions AS s ON s.id = m.session_id WHERE {live}"
    shown = f"{live} AND m.role <> 'tool' AND s.source NOT IN ('cron', 'subagent')"
    walked = (
        f"SELECT m.id FROM messages AS m JOIN sessions AS s ON s.id = m.session_id WHERE {shown}"
        " AND {} ORDER BY m.timestamp DESC, m.id DESC LIMIT ?"
    )
    looked_up = (
        f"SELECT m.id FROM messages AS m JOIN sessions AS s ON s.id = m.session_id WHERE m.id IN ({{}}) AND {shown}"
        " AND {} ORDER BY +m.timestamp DESC, m.id DESC LIMIT ?"
    )
    for kind in ("row", "instance"):
        plain.execute(f"CREATE VIRTUAL TABLE temp.gram_{kind} USING fts5vocab(main, messages_fts_trigram, {kind})")
    rows = "SELECT id, session_id, role, content, timestamp, tool_name FROM messages WHERE id IN ({})"
    context = "SELECT max(id) FROM messages WHERE session_id = ? AND id < ? UNION ALL SELECT min(id) FROM messages WHERE session_id = ? AND id > ?"

    def ids_of(term: str) -> str:
        after = f"'{term[:-1]}{chr(ord(term[-1]) + 1)}'"
        ends = (
            f"SELECT id FROM messages WHERE role <> 'tool' AND substr(content, -2) = '{term}'" if len(term) > 1 else
            f"SELECT id FROM messages WHERE role <> 'tool' AND substr(content, -1) = '{term}' UNION ALL"
            f" SELECT id FROM messages WHERE role <> 'tool' AND substr(content, -2) >= '{term}' AND substr(content, -2) < {after}"
        )  # fmt: skip
        return f"SELECT doc FROM temp.gram_instance WHERE term >= '{term}' AND term < {after} UNION ALL {ends}"

    def short(query: str, terms: list[str], limit: int) -> tuple[str, tuple[int]]:
        def holds(term: str) -> str:
            return f"instr(m.content, '{term}') > 0"

        test = (
            " OR ".join(map(holds, terms)) if " OR " in query else
            f"{holds(terms[0])} AND NOT {holds(terms[1])}" if " NOT " in query else " AND ".join(map(holds, terms))
        )  # fmt: skip
        positive = terms[:1] if " NOT " in query else terms
        count = "SELECT sum(doc) FROM (SELECT doc FROM temp.gram_row WHERE term >= ? AND term < ? LIMIT 500)"
        counts = {
            term: plain.execute(count, (term, term[:-1] + chr(ord(term[-1]) + 1))).fetchone()[0] or 0
            for term in positive
        }
        frequent = (limit * plain.execute("SELECT max(id) FROM messages").fetchone()[0]) ** 0.5
        if " OR " in query and max(counts.values()) < frequent:
            return looked_up.format(" UNION ALL ".join(map(ids_of, terms)), f"({test})"), (limit,)
        if " OR " not in query and min(counts.values()) < frequent:
            return looked_up.format(ids_of(min(counts, key=lambda term: counts[term])), f"({test})"), (limit,)
        return walked.format(f"({test})"), (limit,)

    def work(job: dict[str, Any]) -> list[Any]:
        query, limit = job["query"], job["limit"]
        han = any(ord(letter) > 0x2E80 for letter in query)  # noqa: PLR2004 - where the unspaced scripts begin
        order = {
            "newest": "m.timestamp DESC, m.id DESC",
            "oldest": "m.timestamp, m.id",
        }.get(job.get("sort", "rank"), "f.rank, m.timestamp DESC, m.id DESC")
        terms = [term for term in query.split() if term not in {"OR", "NOT"}]
        if han and all(len(term) < 3 for term in terms):  # noqa: PLR2004 - what the trigram index cannot look up
            ids = [row[0] for row in plain.execute(*short(query, terms, limit))]
        else:
            table = "messages_fts_trigram" if han else "messages_fts"
            text = f'"{query}"' if han else query  # two words are two terms, as in ours
            select = f"SELECT m.id FROM {table} AS f {joined} AND {table} MATCH ? ORDER BY {order} LIMIT ?"
            ids = [row[0] for row in plain.execute(select.replace(f"{table} MATCH", f"f.{table} MATCH"), (text, limit))]
        found = plain.execute(rows.format(", ".join("?" * len(ids))), ids).fetchall()
        for row in found:
            plain.execute(context, (row[1], row[0], row[1], row[0])).fetchall()
        return ids

    return work


if __name__ == "__main__":
    main()
