"""The standard checks of an Alembic chain, on ours: one head, models that match, and every revision up and down.

Our environment takes its connection, with its own rules for BEGIN, under a key of its own; giving it that connection
is all that these checks need. Downgrades stop above the revisions that make Hermes's own tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from migrations.files import HEAD, hermes_objects
from pytest_alembic.config import Config
from pytest_alembic.runner import MigrationContext
from pytest_alembic.tests import (  # noqa: F401 - collected here
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import Engine

from hermes_store import migrations
from hermes_store.errors import UpgradeError
from hermes_store.migrations import environment
from hermes_store.migrations.chain import make_config
from hermes_store.migrations.report import UpgradeReport
from hermes_store.migrations.runner import RevisionRun
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine
from hermes_store.sqlite.journal import create_file

LAST_OF_HERMES = "h31"

#: One index of Hermes is on an expression; SQLAlchemy and Alembic say that they cannot compare it.
pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")


@pytest.fixture
def alembic_engine(tmp_path: Path) -> Iterator[Engine]:
    path = tmp_path / "home" / "state.db"
    create_file(path)
    engine = make_engine(path)
    yield engine
    engine.dispose()


@pytest.fixture
def alembic_config(alembic_engine: Engine) -> Iterator[Config]:
    config = make_config()
    with alembic_engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
        config.attributes[environment.CONNECTION] = connection
        config.attributes[environment.RUN] = RevisionRun(UpgradeReport(), lambda progress: None)
        yield Config(alembic_config=config, minimum_downgrade_revision=LAST_OF_HERMES)


def test_there_is_one_way_from_an_empty_file_to_head(alembic_runner: MigrationContext) -> None:
    walked = []
    while revision := alembic_runner.migrate_up_one():
        walked.append(revision)
        if revision == HEAD:
            break
    assert walked == [revision.id for revision in migrations.history()]


def test_our_own_revisions_can_be_walked_up_down_and_up_again(
    alembic_runner: MigrationContext, alembic_engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "home" / "state.db"
    alembic_runner.migrate_up_to(LAST_OF_HERMES)
    without_ours = hermes_objects(path)
    ours = [revision.id for revision in migrations.history() if revision.id.startswith("hs")]
    assert ours
    for revision in ours:
        alembic_runner.migrate_up_one()
        assert alembic_runner.current == revision
    for revision in [*ours[-2::-1], LAST_OF_HERMES]:
        alembic_runner.migrate_down_one()
        assert alembic_runner.current == revision
    assert hermes_objects(path) == without_ours
    alembic_runner.migrate_up_to(HEAD)
    assert alembic_runner.current == HEAD


def test_revisions_of_hermes_are_not_taken_back(alembic_runner: MigrationContext) -> None:
    alembic_runner.migrate_up_to(LAST_OF_HERMES)
    with pytest.raises(UpgradeError, match="belong to Hermes"):
        alembic_runner.migrate_down_one()
    assert alembic_runner.current == LAST_OF_HERMES
