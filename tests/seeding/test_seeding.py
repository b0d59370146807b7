"""Corpora are the same everywhere, realistic, of any schema, and never written over somebody's history."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hermes_store import ConflictError, HermesStore, migrations
from hermes_store.seeding import PROFILES, SeedReport, seed
from hermes_store.seeding.words import SCRIPTS, vocabulary

REVISIONS = ["h11", "h13", "h14", "h16", "h17", "h19", "h22", "h25", "h26", "h30", "h31", "head"]

#: What `seed(messages=2000, seed=7)` has always made. Changing it breaks everybody's recorded expectations: say so in
#: the change log.
KNOWN_DIGEST = "0ebbe15d55e920ff5f8dcb0b422c01892cdb6f9e59c9038156d998d4237399e1"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SeedReport:
    return seed(tmp_path_factory.mktemp("small") / "state.db", profile="small", seed=3)


def rows(path: Path, query: str) -> list[tuple]:
    plain = sqlite3.connect(path)
    try:
        return plain.execute(query).fetchall()
    finally:
        plain.close()


def test_the_same_arguments_give_the_same_content_as_ever(tmp_path: Path) -> None:
    one = seed(tmp_path / "a.db", messages=2000, seed=7)
    two = seed(tmp_path / "b.db", messages=2000, seed=7)
    other = seed(tmp_path / "c.db", messages=2000, seed=8)
    assert one.digest == two.digest == KNOWN_DIGEST
    assert other.digest != one.digest
    query = "SELECT id, session_id, role, content, tool_calls, timestamp, active, message_uid FROM messages ORDER BY id"
    assert rows(one.path, query) == rows(two.path, query)
    assert one.needles == two.needles


def test_another_hash_seed_and_another_process_change_nothing(tmp_path: Path) -> None:
    code = "import sys; from hermes_store.seeding import seed; print(seed(sys.argv[1], messages=2000, seed=7).digest)"
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.db")],
        env={"PYTHONHASHSEED": "99", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == KNOWN_DIGEST


@pytest.mark.parametrize("profile", ["tiny", "small", "hostile", "medium"])
def test_every_profile_has_as_many_messages_as_it_says_and_opens(tmp_path: Path, profile: str) -> None:
    report = seed(tmp_path / "state.db", profile=profile)
    stored = rows(report.path, "SELECT count(*) FROM messages")[0][0]
    assert stored == report.messages
    assert stored - PROFILES[profile] in ({0} if profile != "hostile" else {18})
    with HermesStore.open(report.path, migrate="off") as store:
        assert store.sessions.list(limit=5)
        assert not store.schema.rebuild


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_schema_can_be_seeded_and_needs_no_repair(tmp_path: Path, revision: str) -> None:
    report = seed(tmp_path / "state.db", profile="tiny", revision=revision)
    with HermesStore.open(report.path, read_only=True, migrate="off") as store:
        assert store.sessions.list()
        for needle in report.needles[:6]:
            assert {hit.id for hit in store.search(needle.text, limit=100).hits} <= set(needle.message_ids)
    plain = sqlite3.connect(report.path)
    assert plain.execute("PRAGMA integrity_check").fetchone()[0] == "ok" or revision in {
        "h11",
        "h13",
        "h14",
        "h16",
        "h17",
        "h19",
        "h22",
    }
    assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    assert plain.execute("SELECT count(*) FROM messages_fts_docsize").fetchone()[0] == report.messages
    plain.close()
    upgraded = migrations.upgrade(report.path, backup=False)
    assert upgraded.after == migrations.history()[-1].id
    assert rows(report.path, "SELECT count(*) FROM messages") == [(report.messages,)]


def test_needles_are_exactly_where_the_report_says(small: SeedReport) -> None:
    texts = dict(rows(small.path, "SELECT id, COALESCE(content, '') FROM messages"))
    others = dict(rows(small.path, "SELECT id, COALESCE(tool_calls, '') || COALESCE(tool_name, '') FROM messages"))
    assert len(small.needles) == 28
    for needle in small.needles:
        assert [id_ for id_, text in texts.items() if needle.text in text] == list(needle.message_ids)
        assert not [id_ for id_, text in others.items() if needle.text in text]
    assert {needle.kind for needle in small.needles} == {"word", "han1", "han2", "han3", "han4", "glued"}


def test_proportions_are_those_of_a_real_history(small: SeedReport) -> None:
    roles = dict(rows(small.path, "SELECT role, count(*) FROM messages GROUP BY role"))
    sizes = dict(rows(small.path, "SELECT role, sum(length(CAST(content AS BLOB))) FROM messages GROUP BY role"))
    total = sum(roles.values())
    assert 0.35 < roles["tool"] / total < 0.6
    assert sizes["tool"] / sum(sizes.values()) > 0.7
    assert max(rows(small.path, "SELECT max(length(content)) FROM messages WHERE role = 'tool'")[0]) > 30_000
    lengths = rows(small.path, "SELECT avg(length(content)) FROM messages WHERE role = 'user' AND active = 1")[0][0]
    assert lengths < 300
    sources = {source for (source,) in rows(small.path, "SELECT DISTINCT source FROM sessions")}
    assert {"cli", "telegram", "discord", "cron", "subagent", "tool"} <= sources
    reasons = {reason for (reason,) in rows(small.path, "SELECT DISTINCT end_reason FROM sessions")}
    assert {"compression", "branched", "session_reset", None} <= reasons
    flags = rows(small.path, "SELECT sum(active = 0 AND compacted = 0), sum(compacted) FROM messages")[0]
    assert min(flags) > 0
    assert rows(small.path, "SELECT count(*) FROM sessions WHERE title LIKE '% #2'")[0][0]


def test_counters_are_true(small: SeedReport) -> None:
    wrong = rows(
        small.path,
        "SELECT count(*) FROM sessions AS s WHERE message_count <> (SELECT count(*) FROM messages WHERE session_id = s.id AND active = 1)",
    )
    assert wrong == [(0,)]


@pytest.mark.parametrize("script", sorted(set(SCRIPTS.values())))
def test_words_are_many_distinct_and_spread_as_words_are(script: str) -> None:
    words = vocabulary(script, 1)
    assert len(set(words.words)) == len(words.words) >= 30_000
    counts = Counter(words.table)
    assert counts[words.words[0]] > 100 * counts[words.words[-1]]
    assert set(words.words) == set(counts)


def test_a_file_that_was_not_seeded_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    migrations.upgrade(path)
    before = path.read_bytes()
    with pytest.raises(ConflictError, match="not seeded"):
        seed(path, profile="tiny")
    assert path.read_bytes() == before
    assert seed(path, profile="tiny", overwrite=True).messages == 200
    assert seed(path, profile="tiny", seed=1).messages == 200, "a seeded file may be seeded again"


def test_nonsense_is_named(tmp_path: Path) -> None:
    for arguments, what in (
        ({"profile": "giant"}, "profile"),
        ({"locales": ["xx_XX"]}, "locale"),
        ({"locales": []}, "locales"),
        ({"messages": -1}, "messages"),
    ):
        with pytest.raises(ValueError, match=what):
            seed(tmp_path / "state.db", **arguments)
    assert not list(tmp_path.iterdir())


def test_hostile_files_hold_every_kind_of_bad_row_and_can_be_listed_upgraded_and_searched(tmp_path: Path) -> None:
    report = seed(tmp_path / "state.db", profile="hostile", messages=300, revision="h22")
    with HermesStore.open(report.path, read_only=True, migrate="off") as store:
        assert {"bad_text_time", "bad_broken_config"} <= {entry.root_id for entry in store.sessions.list(limit=500)}
        assert any(message.problems for message in store.messages.list("bad_text_time"))
    assert migrations.upgrade(report.path).after
    with HermesStore.open(report.path, migrate="off") as store:
        titles = {entry.title for entry in store.sessions.list(limit=500)}
        assert {"Same title", "Same title #2", "Same title #3"} <= titles
        assert store.search("plain").hits


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_memory_stays_bounded_while_300_000_messages_are_written(tmp_path: Path) -> None:
    # Not getrusage: a process inherits the peak of the one that started it.
    code = (
        "import pathlib, sys; from hermes_store.seeding import seed\n"
        "seed(sys.argv[1], messages=300_000)\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(int(status.partition('VmHWM:')[2].split()[0]) // 1024)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state.db")], capture_output=True, text=True, check=True
    )
    assert int(shown.stdout) < 400


def test_fakers_interface_gives_one_thing_at_a_time() -> None:
    faker = pytest.importorskip("faker")
    from hermes_store.seeding.provider import HermesProvider

    def things() -> list[object]:
        fake = faker.Faker()
        fake.seed_instance(4)
        fake.add_provider(HermesProvider)
        return [
            fake.hermes_user_turn(),
            fake.hermes_title(),
            fake.hermes_session()["id"],
            fake.hermes_tool_call()["name"],
            fake.hermes_model(),
        ]

    assert things() == things()
