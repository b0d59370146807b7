"""The large file, once per process."""

from __future__ import annotations

import pytest
from crash.large import LargeFile, make_large_file


@pytest.fixture(scope="session")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> LargeFile:
    return make_large_file(tmp_path_factory.mktemp("large") / "state.db")
