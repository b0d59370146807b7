"""A file at head with a session to write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_files import FIXTURES, HAVE_FIXTURES
from migrations.files import NEWEST, copy_of, copy_released, session, upgrade
from writing.damages import SESSION

from hermes_store import HermesStore


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAVE_FIXTURES:
        pytest.skip(f"no released files in {FIXTURES}")
    path = copy_released(NEWEST, tmp_path_factory.mktemp("whole"))
    upgrade(path)
    session(path, SESSION)
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return copy_of(whole, tmp_path / "home")


@pytest.fixture
def store(path: Path) -> Iterator[HermesStore]:
    with HermesStore.open(path) as opened:
        yield opened
