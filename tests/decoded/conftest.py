"""A file at head with encoded messages in its index."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoded.texts import ENCODED, PLAIN, write
from fixture_files import FIXTURES, HAVE_FIXTURES
from migrations.files import connect, copy_of, copy_released, upgrade


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAVE_FIXTURES:
        pytest.skip(f"no released files in {FIXTURES}")
    path = copy_released("v31-iot-0.22.2.post1.db", tmp_path_factory.mktemp("filled"))
    with connect(path) as connection:
        write(connection, ENCODED | PLAIN)
    upgrade(path)
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    return copy_of(filled, tmp_path / "home")
