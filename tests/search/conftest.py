"""A file to search in, built message by message, and released files opened as the store opens them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fixture_files import Released
from search.corpora import Corpus, Opened

from hermes_store import migrations
from hermes_store.models import Base
from hermes_store.sqlite.engine import make_engine
from hermes_store.sqlite.views import fit_connection


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "state.db"
    migrations.upgrade(path)
    return path


@pytest.fixture
def new_corpus(empty_file: Path, tmp_path: Path) -> Iterator[Callable[[], Corpus]]:
    with ExitStack() as stack:

        def make() -> Corpus:
            path = tmp_path / f"corpus{len(list(tmp_path.iterdir()))}.db"
            shutil.copyfile(empty_file, path)
            engine = make_engine(path)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())
            corpus = Corpus(path, connection, fit_connection(connection, Base.metadata))
            corpus.session("s")
            return corpus

        yield make


@pytest.fixture
def corpus(new_corpus: Callable[[], Corpus]) -> Corpus:
    return new_corpus()


@pytest.fixture
def opened(released: Released) -> Iterator[Callable[[str], Opened]]:
    """Open the copy of a released file; several at a time if need be."""
    with ExitStack() as stack:

        def open_copy(name: str) -> Opened:
            path = released(name)
            engine = make_engine(path)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())
            return Opened(path, connection, fit_connection(connection, Base.metadata))

        yield open_copy


@pytest.fixture
def plain() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()
