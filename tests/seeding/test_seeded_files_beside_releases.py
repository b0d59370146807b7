"""A seeded file of a schema is, to the release of that schema, a file of its own with nothing to repair."""

from __future__ import annotations

from pathlib import Path

import pytest
import releases

from hermes_store.seeding import seed

pytestmark = pytest.mark.peer


@pytest.mark.parametrize(
    ("revision", "release"),
    [
        ("h11", releases.V0_13_0),
        ("h16", releases.V0_17_0),
        ("h22", releases.V0_19_0),
        ("h26", releases.V0_20_1_2),
        ("h31", releases.V0_22_2),
        ("head", releases.V0_22_2),
    ],
)
def test_a_release_opens_a_seeded_file_of_its_schema_without_repairing_anything(
    revision: str, release: str, tmp_path: Path
) -> None:
    path = seed(tmp_path / "state.db", profile="tiny", messages=2000, revision=revision).path
    before = releases.everything(path)
    answer = releases.run(release, "open", path)
    assert releases.alarms(answer) == []
    assert not answer.get("optimize_available")
    assert releases.changes(before, releases.everything(path)) == releases.bookkeeping(release, before)
    assert releases.alarms(releases.run(release, "open", path, "--write")) == []
    changed = releases.without_indexes(releases.changes(before, releases.everything(path)))
    changed = {key: value for key, value in changed.items() if key != releases.STAMP}  # of a file in its own layout
    assert changed == releases.own_rows(before)
