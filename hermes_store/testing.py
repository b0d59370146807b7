"""Pytest fixtures with seeded stores, for projects that read or write a ``state.db``.

    pytest_plugins = ["hermes_store.testing"]

    def test_mine(seeded_store):
        assert seeded_store.sessions.list()

    def test_old_schema(seeded_path):
        path = seeded_path("small", "h16")

Each corpus is made once per test session and copied for each test, so tests may change what they get.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_store.errors import MissingDependencyError
from hermes_store.seeding import SeedReport, seed
from hermes_store.store import HermesStore

try:
    import pytest
except ImportError as error:
    raise MissingDependencyError("hermes_store.testing needs pytest: pip install pytest") from error

SeededPath = Callable[..., Path]


@pytest.fixture(scope="session")
def seeded_corpora(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], SeedReport]:
    """Corpora by profile and revision, each made once; not to be changed."""
    made: dict[tuple[str, str], SeedReport] = {}

    def corpus(profile: str, revision: str) -> SeedReport:
        if (profile, revision) not in made:
            folder = tmp_path_factory.mktemp(f"seeded-{profile}-{revision}")
            made[profile, revision] = seed(folder / "state.db", profile=profile, revision=revision)
        return made[profile, revision]

    return corpus


@pytest.fixture
def seeded_path(seeded_corpora: Callable[[str, str], SeedReport], tmp_path: Path) -> SeededPath:
    """Copy a seeded file: ``seeded_path(profile="tiny", revision="head")``."""

    def copy(profile: str = "tiny", revision: str = "head") -> Path:
        target = tmp_path / f"seeded-{profile}-{revision}" / "state.db"
        target.parent.mkdir()
        shutil.copyfile(seeded_corpora(profile, revision).path, target)
        target.chmod(0o600)
        return target

    return copy


@pytest.fixture
def seeded_store(seeded_path: SeededPath) -> Iterator[HermesStore]:
    """An open, writable store with the corpus ``tiny``."""
    with HermesStore.open(seeded_path(), migrate="off") as store:
        yield store
