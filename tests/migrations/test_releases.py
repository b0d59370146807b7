"""Released versions of Hermes on files that we upgraded, half upgraded, or made: they work, and leave them whole.

What a release may change by merely opening such a file is listed, and nothing else is allowed. Where the newest one
answers otherwise than on a file it upgraded itself, the difference must stand in a table here, with the fault of
Hermes it comes from; the sections named are those of ``upstream-behaviour.md`` and ``schema-history.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import releases
from fixture_files import FIXTURES, HAVE_FIXTURES, RELEASED
from migrations.files import DRIVER, HEAD, cells, connect, content_of, copy_of, copy_released, upgrade
from migrations.indexes import INDEXES, troubles

from hermes_store import migrations
from hermes_store.migrations import Progress

pytestmark = pytest.mark.peer
needs_files = pytest.mark.skipif(not HAVE_FIXTURES, reason=f"no released files here: {FIXTURES} is missing")

FOUR = (releases.V0_19_0, releases.V0_20_1_2, releases.V0_21_5, releases.V0_22_2)
OTHER_LIBRARY = {"sqlite3": "pysqlite3", "pysqlite3": "sqlite3"}[releases.LIBRARY]

#: Files that stand for all others when time is short, and the tests that take them.
USUAL = {
    "v11-0.13.0.db": "open write compare turns",
    "v16-0.17.0.db": "open",
    "v22-0.19.0.db": "open layout-2 filling",
    "v26-axisrow-0.20.1.2.db": "open write compare swapped",
    "v30-iot-0.21.3.post1.db": "open compare",
    "v31-iot-0.22.2.post1.db": "open write turns",
    "upgrade/u5-v31-iot-0.22.2.db": "open write compare",
    "upgrade/y2-v31-from-v30-layout2.db": "open",
    "upgrade/z2-v31-touched-by-0.19.0.db": "open",
    "optimize/v26-iot-0.20.4-partial.db": "open",
    "optimize/v31-trigram-gap-from-v26-partial.db": "open write compare spoiled",
    "cjk/v31-iot-0.22.2-cjk.db": "open write",
    "journal/v26-iot-0.20.4.post1-delete-journal-sqlite3401.db": "open write",
}


def files(test: str) -> list[Any]:
    """All released files as parameters of a test; only the usual ones in a short run."""
    return [param(name, usual=is_usual(name, test)) for name in RELEASED]


def is_usual(name: str, test: str) -> bool:
    return test in USUAL.get(name, "").split()


def param(*values: Any, usual: bool) -> Any:
    """A set of parameters for both runs, or for the long one only."""
    return pytest.param(*values, marks=[] if usual else [pytest.mark.full])


def assert_found(path: Path, release: str) -> None:
    """Check that what a release wrote is in both indexes: words of all rows, parts of words of all but tool rows."""
    expected = {
        ("messages_fts", "peerword"): ["user"],
        ("messages_fts", "answer"): ["assistant"],
        ("messages_fts", "terminal"): ["tool"],
        ("messages_fts", "peertailword"): [],  # beyond the 8192 characters of a tool row that are indexed
        ("messages_fts_trigram", "升级后写入的消息"): ["user"],
        ("messages_fts_trigram", "nswe"): ["assistant"],
        ("messages_fts_trigram", "ermina"): [],
    }
    with connect(path) as connection:
        for (index, word), roles in expected.items():
            rows = connection.execute(
                f"SELECT m.role FROM {index} AS i JOIN messages AS m ON m.id = i.rowid"
                f" WHERE {index} MATCH ? AND m.session_id = ?",
                (f'"{word}"', releases.session_of(release)),
            ).fetchall()
            assert [row[0] for row in rows] == roles, (index, word)


def assert_clean(path: Path) -> None:
    """Check that indexes are whole, that head is reached, and that a further upgrade writes nothing."""
    assert troubles(path) == []
    before = content_of(path)
    report = upgrade(path, backup=False)
    assert (report.changed, report.notes, report.pending) == (False, [], [])
    assert content_of(path) == before
    status = migrations.check(path, driver=DRIVER)
    assert (status.revision, status.is_behind, status.pending) == (HEAD, False, False)


# A file at head


@pytest.fixture(scope="module")
def upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file a test is parametrised with, upgraded once; tests take copies of it."""
    path = copy_released(request.param, tmp_path_factory.mktemp("upgraded"))
    upgrade(path, backup=False)
    return path


@pytest.mark.parametrize("upgraded", files("open"), indirect=True)
@pytest.mark.parametrize("release", FOUR)
def test_a_release_that_opens_an_upgraded_file_writes_nothing_but_its_bookkeeping(
    upgraded: Path, release: str, tmp_path: Path
) -> None:
    path = copy_of(upgraded, tmp_path)
    before = releases.everything(path)
    answer = releases.run(release, "open", path)
    assert answer["log"] == []
    assert releases.changes(before, releases.everything(path)) == releases.bookkeeping(release, before)
    assert not answer.get("optimize_available")


@pytest.mark.parametrize("upgraded", files("write"), indirect=True)
@pytest.mark.parametrize("release", FOUR)
def test_what_a_release_writes_to_an_upgraded_file_is_found_and_leaves_nothing_to_reconcile(
    upgraded: Path, release: str, tmp_path: Path
) -> None:
    path = copy_of(upgraded, tmp_path)
    before = releases.everything(path)
    assert releases.run(release, "open", path, "--write")["log"] == []
    assert releases.without_indexes(releases.changes(before, releases.everything(path))) == releases.own_rows(
        before
    ) | releases.bookkeeping(release, before)
    assert_found(path, release)
    assert_clean(path)


@pytest.mark.parametrize("upgraded", files("turns"), indirect=True)
def test_releases_take_turns_on_a_file_on_two_sqlite_libraries(upgraded: Path, tmp_path: Path) -> None:
    path = copy_of(upgraded, tmp_path)
    for number, release in enumerate(FOUR):
        library = (releases.LIBRARY, OTHER_LIBRARY)[number % 2]
        before = releases.everything(path)
        assert releases.run(release, "open", path, "--write", library=library)["log"] == []
        assert releases.without_indexes(releases.changes(before, releases.everything(path))) == releases.own_rows(
            before
        ) | releases.bookkeeping(release, before)
    for release in FOUR:
        assert_found(path, release)
    assert_clean(path)


@pytest.mark.parametrize("upgraded", files("layout-2"), indirect=True)
def test_the_triggers_of_0_21_3_are_taken_off_again_and_the_indexes_made_anew(upgraded: Path, tmp_path: Path) -> None:
    path = copy_of(upgraded, tmp_path)
    before = releases.everything(path)
    assert releases.run(releases.V0_21_3, "open", path, "--write")["log"] == []
    changed = releases.without_indexes(releases.changes(before, releases.everything(path)))
    # It takes any word index for its own layout 2, in which old tool rows are indexed whole (schema-history 5).
    triggers = {f"messages_fts_{action}" for action in ("insert", "update", "delete")}
    assert {key[1] for key in changed if key[0] == "trigger"} == triggers | {"messages_display_identity_update"}
    keys = {releases.STAMP, ("state_meta", "fts_tool_full_content_high_water")}
    assert {key for key in changed if key[0] != "trigger"} == keys | releases.own_rows(before).keys()

    report = upgrade(path, backup=False)
    assert [note.partition(":")[0] for note in report.notes] == ["search indexes laid out anew"]
    stamped = releases.bookkeeping(releases.V0_22_2, before)
    changed = releases.without_indexes(releases.changes(before, releases.everything(path)))
    assert changed == releases.own_rows(before) | stamped
    assert_found(path, releases.V0_21_3)
    assert_clean(path)


# The newest release as the measure

#: Besides the queries the files come with: parts of words, which only the substring index answers.
PARTS_OF_WORDS = ["phanlookalik", "ested delegat", "elegate finis"]

_HIDDEN = (
    "schema-history 4, step 16b (upstream-behaviour N8): Hermes tags an untitled short session that used a tool as"
    " __orphaned__, which hides it for good and keeps it out of the substring index"
)
_HIJACKED = (
    "schema-history 4, step 16a: since 0.18 any child of a compressed session counts as its continuation, so a"
    " subagent without a marker gets none, is indexed, and is taken for the tip"
)
_TOOL_RUN = "schema-history 4, step 16a: Hermes also tags the child session of a tool"


@dataclass(frozen=True)
class Difference:
    """What the newest release says of our file, and what it says of its own.

    Attributes:
        about: ``marker``, ``list``, ``tips``, ``resume``, ``search`` or ``order``.
        subject: A session's id or a query.
        ours: Its delegate marker, whether it is listed, the session it leads to, or where only our file has hits.
        twin: The same on the file that the release upgraded itself.
    """

    about: str
    subject: str
    ours: Any
    twin: Any


MARKERS = (
    "SELECT id, CASE WHEN json_valid(model_config) THEN json_extract(model_config, '$._delegate_from') END"
    " FROM sessions"
)
#: Columns that both sides write anew: the one with the markers, and random numbers.
REWRITTEN = {"model_config", "message_uid"}
BOOKKEEPING = {"state_meta", "hermes_store_version"}

#: On files from before the delegate markers, which come with schema 16; on all others there must be no difference.
EXPLAINED = {
    Difference("marker", "20260714_130000_hhhh01", None, "__orphaned__"): _HIDDEN,
    Difference("marker", "cron_job42_20260714_120000", None, "__orphaned__"): _HIDDEN,
    Difference("marker", "20260710_092000_bbbb03", "20260710_091500_bbbb02", None): _HIJACKED,
    Difference("marker", "20260711_121500_bbbb23", "20260711_120000_dddd02", None): _HIJACKED,
    Difference("marker", "20260710_093000_cccc04", None, "20260710_090000_aaaa01"): _TOOL_RUN,
    Difference("list", "20260714_130000_hhhh01", True, False): _HIDDEN,
    Difference("list", "cron_job42_20260714_120000", True, False): _HIDDEN,
    Difference("search", "phanlookalik", ("20260714_130000_hhhh01",), ()): _HIDDEN,
    Difference("tips", "20260710_091500_bbbb02", "20260710_091800_bbbb02c", "20260710_092000_bbbb03"): _HIJACKED,
    Difference("resume", "20260710_091500_bbbb02", "20260710_091800_bbbb02c", "20260710_092000_bbbb03"): _HIJACKED,
    Difference("search", "ested delegat", (), ("20260710_092000_bbbb03",)): _HIJACKED,
}
BEFORE_MARKERS = {"v11-0.13.0.db", "v13-0.15.2.db", "v14-0.16.0.db"}

#: Files another release left part-way, which 0.22.2 cannot finish (schema-history 8, "Cross-release resume loses data
#: silently"): it raises because a trash name is taken, or says ok and leaves the substring index with gaps.
SPOILED_BY_RESUMING = {
    "optimize/v25-iot-0.20.0-partial.db": "another table or index with this name",
    "optimize/v26-iot-0.20.4-backfilled-trash.db": "another table or index with this name",
    "optimize/v26-iot-0.20.4-demoted.db": "another table or index with this name",
    "optimize/v26-iot-0.20.4-partial.db": "another table or index with this name",
    "optimize/v31-trigram-gap-from-v26-partial.db": "another table or index with this name",
    "optimize/v30-iot-0.21.3-partial.db": None,
}


@pytest.mark.parametrize("upgraded", files("compare"), indirect=True)
def test_the_newest_release_answers_as_on_a_file_that_it_upgraded_and_optimised_itself(
    upgraded: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = request.node.callspec.params["upgraded"]
    ours, twin = copy_of(upgraded, tmp_path / "ours"), copy_released(name, tmp_path / "twin")
    if name in SPOILED_BY_RESUMING:
        remove_search(twin)  # it makes missing indexes anew, and completely
    assert releases.run(releases.V0_22_2, "optimize", twin)["result"]["ok"]  # it opens and upgrades the file first
    assert differences(ours, twin) == set(EXPLAINED if name in BEFORE_MARKERS else ())


@needs_files
@pytest.mark.parametrize(
    ("name", "error"),
    [param(*item, usual=is_usual(item[0], "spoiled")) for item in SPOILED_BY_RESUMING.items()],
)
def test_the_files_for_which_the_newest_release_is_no_measure_are_those_it_spoils(
    name: str, error: str | None, tmp_path: Path
) -> None:
    path = copy_released(name, tmp_path)
    if error is not None:
        with pytest.raises(releases.ReleaseError, match=error):
            releases.run(releases.V0_22_2, "optimize", path)
        return
    assert releases.run(releases.V0_22_2, "optimize", path)["result"]["ok"]
    _, rows = INDEXES["messages_fts_trigram"]
    with connect(path) as connection:
        gaps = f"SELECT id FROM ({rows}) EXCEPT SELECT id FROM messages_fts_trigram_docsize"
        assert connection.execute(gaps).fetchall()


def queries() -> list[str]:
    """Every query the released files come with, and ours."""
    known = {query for path in FIXTURES.glob("**/*.expect.json") for query in json.loads(path.read_text())["search"]}
    assert len(known) >= 42
    return sorted(known) + PARTS_OF_WORDS


def differences(ours: Path, twin: Path) -> set[Difference]:
    """Everything the newest release says differently of two files."""
    wanted = queries()
    opened = [releases.run(releases.V0_22_2, "open", path) for path in (ours, twin)]
    assert opened[0]["flags"] == opened[1]["flags"]
    assert [answer["optimize_available"] for answer in opened] == [False, False]
    found = marker_differences(ours, twin) | list_differences(*(answer["list"] for answer in opened))
    for about in ("tips", "resume"):
        left, right = (answer[about] for answer in opened)
        found |= {
            Difference(about, id_, left.get(id_), right.get(id_))
            for id_ in left.keys() | right.keys()
            if left.get(id_) != right.get(id_)
        }
    left, right = (releases.search(releases.V0_22_2, path, wanted, limit=50) for path in (ours, twin))
    with connect(ours) as connection:
        session_of = dict(connection.execute("SELECT id, session_id FROM messages").fetchall())
    for query, hits in left.items():
        sides = (hits, right[query]), (right[query], hits)
        only = [tuple(sorted({session_of[id_] for id_ in these if id_ not in those})) for these, those in sides]
        if only != [(), ()]:
            found.add(Difference("search", query, *only))
        elif hits != right[query]:
            found.add(Difference("order", query, tuple(hits), tuple(right[query])))
    return found


def marker_differences(ours: Path, twin: Path) -> set[Difference]:
    """Delegate markers only one file has; every other cell must be the same, but for uids, which are random."""
    data, markers = [], []
    for path in (ours, twin):
        with connect(path) as connection:
            markers.append(dict(connection.execute(MARKERS).fetchall()))
            tables = cells(connection)
        for row in (row for rows in tables.values() for row in rows.values()):
            for column in REWRITTEN:
                row.pop(column, None)
        data.append({name: list(rows.values()) for name, rows in tables.items() if name not in BOOKKEEPING})
    assert data[0] == data[1]
    left, right = markers
    return {Difference("marker", id_, left[id_], right[id_]) for id_ in left if left[id_] != right[id_]}


def list_differences(ours: list[list[Any]], twin: list[list[Any]]) -> set[Difference]:
    """Rows only one list has; the others must be the same, in the same order."""
    assert [row for row in ours if row in twin] == [row for row in twin if row in ours]
    return {
        Difference("list", row[0], row in ours, row in twin) for row in ours + twin if (row in ours) != (row in twin)
    }


def remove_search(path: Path) -> None:
    """Take everything off a file that has to do with its search indexes."""
    with connect(path) as connection:
        objects = connection.execute(
            "SELECT type, name FROM sqlite_master WHERE name IN ('messages_fts', 'messages_fts_trigram')"
            " OR (type IN ('trigger', 'view') AND name GLOB 'messages_fts*')"
            " OR (type = 'table' AND name GLOB 'fts_v22_trash_*') ORDER BY type DESC"
        ).fetchall()
        for kind, name in objects:
            connection.execute(f"DROP {kind} {name}")
        connection.execute("DELETE FROM state_meta WHERE key GLOB 'fts_*'")


# Files half-way


class StopHere(Exception):  # noqa: N818 - it is no error
    """Raised from a progress callback, where a kill would end the upgrade."""


def stop_after_the_swap(progress: Progress) -> None:
    if progress.phase == "revision" and progress.detail == HEAD:  # the one that swaps is committed by now
        raise StopHere


def stop_while_filling(progress: Progress) -> None:
    if progress.phase == "index" and progress.done < progress.total:
        raise StopHere


def stop_while_emptying_trash(progress: Progress) -> None:
    if progress.phase == "clean":
        raise StopHere


STOPS = {"swapped": stop_after_the_swap, "filling": stop_while_filling, "emptying": stop_while_emptying_trash}
FIVE = (*FOUR[:2], releases.V0_21_3, *FOUR[2:])
#: Files of every layout, and one that another release left part-way.
TO_STOP = [
    "v11-0.13.0.db",
    "v22-0.19.0.db",
    "v26-axisrow-0.20.1.2.db",
    "v30-iot-0.21.3.post1.db",
    "upgrade/u5-v31-iot-0.22.2.db",
    "optimize/v26-iot-0.20.4-partial.db",
]
HALF_WAY = [param(f"{name} {stop}", usual=is_usual(name, stop)) for name in TO_STOP for stop in STOPS]


@pytest.fixture(scope="module")
def half_way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with enough text to be indexed in several steps, its upgrade stopped; tests take copies of it."""
    name, stop = request.param.split()
    path = copy_released(name, tmp_path_factory.mktemp("half_way"))
    with connect(path) as connection:
        session_id, content = connection.execute(
            "SELECT session_id, content FROM messages WHERE role = 'user' AND content GLOB '* *' LIMIT 1"
        ).fetchone()
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', ?, ?)",
            [(session_id, f"grown {n} {content * (20_000 // len(content))}", 1e9 + n) for n in range(25)],
        )
        connection.execute("COMMIT")
    with pytest.raises(StopHere):
        upgrade(path, progress=STOPS[stop], backup=False)
    assert (("state_meta", "fts_rebuild_high_water") in releases.everything(path)) == (stop != "emptying")
    return path


@needs_files
@pytest.mark.parametrize("half_way", HALF_WAY, indirect=True)
@pytest.mark.parametrize("release", FIVE)
def test_a_release_may_write_to_a_file_half_way_and_the_upgrade_goes_on_to_a_clean_end(
    half_way: Path, release: str, tmp_path: Path
) -> None:
    path = copy_of(half_way, tmp_path)
    before = releases.everything(path)
    answer = releases.run(release, "open", path, "--write")
    assert releases.alarms(answer) == []
    written = releases.changes(before, releases.everything(path))
    assert written[("rows", "sessions")] == (0, 1)
    gone, come = written[("rows", "messages")]
    assert come == gone + 3  # 0.22.2 goes on giving uids to old messages

    report = upgrade(path, backup=False)
    assert (report.after, report.pending) == (HEAD, [])
    assert_found(path, release)
    assert_clean(path)


#: A file half-way is searched by LIKE where it is not indexed yet (schema-history 8), which knows no accents and cannot
#: see past the NUL of structured content (upstream-behaviour D2).
BLIND_SPOTS_OF_LIKE = {"cafe", "multimodalword"}


@needs_files
@pytest.mark.parametrize("half_way", [one for one in HALF_WAY if "emptying" not in one.values[0]], indirect=True)
def test_the_newest_release_finds_in_a_file_half_way_all_that_it_finds_in_the_end(
    half_way: Path, tmp_path: Path
) -> None:
    path = copy_of(half_way, tmp_path)
    wanted = queries()
    early = releases.search(releases.V0_22_2, path, wanted, limit=500)
    upgrade(path, backup=False)
    late = releases.search(releases.V0_22_2, path, wanted, limit=500)
    assert {query for query, hits in late.items() if set(hits) - set(early[query])} <= BLIND_SPOTS_OF_LIKE


# Revisions on the way

#: By revision, releases that know its schema; first the one it is made after.
KNOWN_BY = {
    "h16": (releases.V0_17_0, releases.V0_18_2, releases.V0_20_0, *FIVE),
    "h22": (releases.V0_19_0, releases.V0_20_0, *FIVE[1:]),
    "h26": (releases.V0_21_0, releases.V0_20_4, *FIVE[1:]),
    "h30": (releases.V0_21_5, releases.V0_21_3, releases.V0_22_2),
}
#: What 0.20.0 and later do to the update triggers of a file in layout 0: they name the columns that are indexed.
NARROWED = {("trigger", "messages_fts_update"), ("trigger", "messages_fts_trigram_update")}


@needs_files
@pytest.mark.parametrize(
    ("revision", "release"),
    [param(revision, release, usual=release == known[0]) for revision, known in KNOWN_BY.items() for release in known],
)
def test_a_release_that_knows_a_revisions_schema_works_on_a_file_upgraded_that_far(
    revision: str, release: str, tmp_path: Path
) -> None:
    path = copy_released("v11-0.13.0.db", tmp_path)
    upgrade(path, revision, backup=False)
    before = releases.everything(path)
    answer = releases.run(release, "open", path, "--write")
    assert releases.alarms(answer) == []
    changed = releases.without_indexes(releases.changes(before, releases.everything(path)))
    if release == KNOWN_BY[revision][0]:
        assert {key: value for key, value in changed.items() if key not in NARROWED} == releases.own_rows(before)
    report = upgrade(path, backup=False)
    assert (report.before, report.after, report.pending) == (revision, HEAD, [])
    assert report.rows_after["messages"] == before[("rows", "messages")].total() + 3
    assert_found(path, release)
    assert_clean(path)


# Files of our own making


@pytest.mark.parametrize(
    ("revision", "release"),
    [param(*pair, usual=pair[0] in {"h11", "h25"}) for pair in releases.OF_REVISION.items()]
    + [("head", release) for release in FOUR],
)
def test_a_file_made_by_the_chain_is_what_the_release_of_its_revision_takes_for_its_own(
    revision: str, release: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    upgrade(path, revision)
    before = releases.everything(path)
    answer = releases.run(release, "open", path)
    assert answer["log"] == []
    assert not answer.get("optimize_available")
    opened = releases.everything(path)
    allowed = releases.bookkeeping(release, before) if revision in {"h25", "h26", "h30", "h31", "head"} else {}
    assert releases.changes(before, opened) == allowed
    assert releases.run(release, "open", path, "--write")["log"] == []
    assert releases.without_indexes(releases.changes(opened, releases.everything(path))) == releases.own_rows(opened)
    report = upgrade(path, backup=False)
    assert (report.after, report.pending) == (HEAD, [])
    if revision == "head":
        assert not report.changed
    assert_found(path, release)
    assert_clean(path)
