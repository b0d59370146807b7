"""What ``alembic/env.py`` does; kept here so that the script stays thin and this stays typed.

Alembic starts it in two ways: from `hermes_store.migrations`, which hands it a connection with everything around
already taken care of, or from the ``alembic`` command, where this module takes the same care itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.schema import ForeignKeyConstraint, SchemaItem

from hermes_store.errors import HermesStoreError, SchemaBehindError, UpgradeError
from hermes_store.migrations.chain import VERSION_TABLE, stamped_revision
from hermes_store.migrations.filelock import upgrade_lock
from hermes_store.migrations.preflight import require_store
from hermes_store.migrations.report import Progress, UpgradeReport
from hermes_store.migrations.runner import RevisionRun, run_upgrade
from hermes_store.models import Base
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine
from hermes_store.sqlite.readonly import open_reader, require_file
from hermes_store.target import resolve_target

CONNECTION = "hermes_store_connection"
RUN = "hermes_store_run"

#: The names of the callbacks of Alembic's commands, as far as they differ from reading to us.
_COMMANDS = {"upgrade": "upgrade", "downgrade": "downgrade", "do_stamp": "stamp", "retrieve_migrations": "compare"}


def run(context: EnvironmentContext) -> None:
    """Run what Alembic was asked for.

    Args:
        context: Alembic's environment, as ``env.py`` has it.

    Raises:
        CommandError: ``--sql`` was given, or the command failed; the message says why.
    """
    if context.is_offline_mode():
        raise CommandError("--sql cannot work here: every revision looks at the file to see what it lacks")
    attributes = context.config.attributes
    if CONNECTION in attributes:
        run_on(context, attributes[CONNECTION], attributes.get(RUN))
        return
    try:
        _run_command(context)
    except HermesStoreError as error:
        raise CommandError(str(error)) from error


def run_on(context: EnvironmentContext, connection: Connection, run_state: RevisionRun | None) -> None:
    """Run Alembic's revisions on a connection, each in a write transaction of its own.

    A downgrade is one transaction as a whole, so that one which has to be refused half-way changes nothing.

    Args:
        context: Alembic's environment.
        connection: A connection of an engine made by `hermes_store.sqlite.engine`, with no transaction begun.
        run_state: What to report to; None when there is nothing to report.
    """
    up = run_state is not None

    def applied(
        ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
    ) -> None:
        del ctx, heads, run_args  # Alembic passes them by name
        if run_state is not None:
            run_state.applied(connection, str(step.up_revision_id))

    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        transaction_per_migration=up,
        on_version_apply=applied,
        include_name=is_ours_to_reflect,
        include_object=is_ours_to_compare,
        compare_type=True,
        compare_server_default=True,
        report=run_state.report if run_state is not None else UpgradeReport(),
    )
    with context.begin_transaction():
        context.run_migrations()


def is_ours_to_reflect(name: str | None, kind: str, _parents: Any) -> bool:
    """Keep autogenerate from looking at tables the models do not name; an index of a missing tokenizer cannot be.

    Args:
        name: The table, column or index.
        kind: What it is, in Alembic's words.
    """
    return kind != "table" or name in Base.metadata.tables


def is_ours_to_compare(
    item: SchemaItem, name: str | None, kind: str, reflected: bool, compare_to: SchemaItem | None
) -> bool:
    """Keep autogenerate from proposing what must not be done, or cannot be.

    Left out are: whatever the models do not name (FTS5 tables and their shadows, tables and columns of other programs
    and of newer releases), and two foreign keys. A file that grew by ADD COLUMN has none on
    ``sessions.system_prompt_hash``; that of ``session_model_usage`` has an inline ON DELETE that reflection cannot see.
    The one expression index cannot be reflected either. ``async_delegations.origin_session_id`` may be nullable: the
    delegation tool of 0.21.0 added it ahead of the schema, and no release changes it.

    Args:
        item: The table, column, index or constraint.
        name: Its name.
        kind: What it is, in Alembic's words.
        reflected: It comes from the file, not from the models.
        compare_to: Its counterpart on the other side.
    """
    if (reflected and compare_to is None) or name == "idx_sessions_effective_activity":
        return False
    if name == "origin_session_id":
        return compare_to is None
    if kind == "foreign_key_constraint" and isinstance(item, ForeignKeyConstraint):
        return item.table.name != "session_model_usage" and item.column_keys != ["system_prompt_hash"]
    return True


def _run_command(context: EnvironmentContext) -> None:
    options = context.get_x_argument(as_dictionary=True)
    path = resolve_target(options.get("db"))
    command = _command_name(context)
    if command == "upgrade":

        def run_revisions(connection: Connection, run_state: RevisionRun) -> None:
            run_on(context, connection, run_state)

        report = run_upgrade(
            path,
            str(context.get_revision_argument()),
            run_revisions,
            progress=_Printer(),
            backup=options.get("backup", "yes") != "no",
        )
        _print_report(path, report)
    elif command in {"downgrade", "stamp"}:
        require_file(path)
        engine = make_engine(path)
        try:
            shape = require_store(path, engine)
            with engine.connect() as connection:
                if command == "downgrade" and stamped_revision(connection, shape) is None:
                    raise UpgradeError(f"{path} has no revision of ours that could be taken back")
            with upgrade_lock(path), engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
                run_on(context, connection, None)
        finally:
            engine.dispose()
    else:
        engine = open_reader(path).engine
        try:
            shape = require_store(path, engine)
            with engine.connect() as connection, warnings.catch_warnings():
                # Alembic would make the stamp's table to compare with.
                if command == "compare" and stamped_revision(connection, shape) is None:
                    raise SchemaBehindError(f"{path} was never upgraded; run: alembic -x db={path} upgrade head")
                warnings.filterwarnings("ignore", ".*expression-based index.*")  # left out, see is_ours_to_compare
                run_on(context, connection, None)
        finally:
            engine.dispose()


def _command_name(context: EnvironmentContext) -> str:
    """What Alembic was asked for; only its callback tells when a program asks, and not the command line."""
    options = getattr(context, "_proxy", context).context_opts  # ``alembic.context`` stands in front of the real one
    return _COMMANDS.get(options["fn"].__name__, "another one")


class _Printer:
    """Progress on a terminal: one line per phase, written again as it moves."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        share = f" {100 * progress.done // progress.total} %" if progress.total else ""
        line = f"{progress.phase} {progress.detail}{share}".strip()
        if line != self._last and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        self._last = line


def _print_report(path: Path, report: UpgradeReport) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    lines = [f"{path}: {report.before or 'new'} -> {report.after}" if report.changed else f"{path}: nothing to do"]
    if report.backup:
        lines.append(f"backup: {report.backup}")
    lines += report.notes + [f"left to do: {left}" for left in report.pending]
    sys.stdout.write("\n".join(lines) + "\n")
