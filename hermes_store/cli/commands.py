"""The commands themselves: each opens a store, calls one method, and shows what it returned.

Errors of this package become one line and exit status 1; with ``--json`` the output is for programs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hermes_store import HermesStore, HermesStoreError, SearchPage, SearchPlan, migrations
from hermes_store.cli.tree import as_mermaid, as_rows, as_tree
from hermes_store.maintenance.info import StoreInfo, describe
from hermes_store.migrations.runner import summarise
from hermes_store.seeding import LOCALES, PROFILES
from hermes_store.seeding import seed as make_corpus
from hermes_store.target import resolve_target

#: Columns where nobody looks at the output but a program: enough for nothing to be cut.
_PIPED = 240

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED)
err = Console(stderr=True, highlight=False, soft_wrap=True)

PATH = click.argument("path", type=click.Path(path_type=Path))
PATH_OR_DEFAULT = click.argument("path", type=click.Path(path_type=Path), required=False)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
LIMIT = click.option("--limit", default=20, show_default=True, type=click.IntRange(min=0), help="At most so many.")
OFFSET = click.option("--offset", default=0, show_default=True, type=click.IntRange(min=0), help="Leave out so many.")

_PHASES = {
    "check": "checking the tables",
    "backup": "keeping a backup",
    "revision": "revision",
    "identify": "naming messages",
    "index": "filling the search indexes",
    "merge": "merging index segments",
    "decode": "indexing decoded texts",
    "clean": "emptying retired tables",
    "writing": "writing messages",
    "indexing": "filling the indexes",
}


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show an error of this package as one line instead of a traceback.

    Args:
        command: The command.
    """

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (HermesStoreError, ValueError) as error:
            raise click.ClickException(str(error)) from error

    return run


@click.group()
@click.version_option(package_name="hermes-store")
def cli() -> None:
    """Open, upgrade and search the state.db of Hermes Agent."""


@cli.command()
@PATH_OR_DEFAULT
@click.option("--revision", default="head", show_default=True, help="Where to, such as h22.")
@click.option("--no-backup", is_flag=True, help="Keep no copy of the old state beside the file.")
@JSON
@one_line_errors
def upgrade(path: Path | None, revision: str, no_backup: bool, as_json: bool) -> None:
    """Upgrade a file to the newest schema, with a backup; go on where a run was stopped.

    Without PATH: $HERMES_STORE_URL, else $HERMES_HOME/state.db, else ~/.hermes/state.db.
    """
    with _progress_bar(shown=not as_json) as callback:
        report = migrations.upgrade(path, revision, callback, backup=not no_backup)
    if as_json:
        _print_json(report)
        return
    if not report.changed:
        out.print(f"{report.path}: nothing to do, at {report.after or report.before}")
    else:
        out.print(f"{report.path}: {report.before or 'new'} -> {report.after} in {report.seconds:.1f} s")
        if report.backup:
            out.print(f"backup: {report.backup}")
        for line in summarise(report.rows_before, report.rows_after):
            out.print(f"  {line}")
    for note in report.notes:
        out.print(f"- {note}")
    for left in report.pending:
        out.print(f"left to do: {left}", style="yellow")


SEARCH_OPTIONS = (
    PATH,
    click.argument("query"),
    LIMIT,
    OFFSET,
    click.option("--role", "roles", multiple=True, help="Only this role; repeat for several."),
    click.option("--source", "sources", multiple=True, help="Only this source; repeat for several."),
    click.option("--session", "session_ids", multiple=True, help="Only this session; repeat for several."),
    click.option("--after", help="Only messages from then on: ISO date, or 7d, 24h, 2w ago."),
    click.option("--before", help="Only messages before then."),
    click.option("--sort", type=click.Choice(["rank", "newest", "oldest"]), default="rank", show_default=True),
    click.option("--archived", "include_archived", is_flag=True, help="Also archived sessions."),
    click.option("--hidden", "include_hidden", is_flag=True, help="Also hidden sessions."),
    click.option("--titles", is_flag=True, help="Also sessions whose title or id matches."),
    JSON,
)


def search_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments and options of a search; it gets them as `HermesStore.search` takes them."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        for name in ("roles", "sources", "session_ids"):
            options[name] = list(options[name]) or None
        command(*arguments, **options)

    for option in reversed(SEARCH_OPTIONS):
        run = option(run)
    return run


@cli.command()
@search_options
@one_line_errors
def search(path: Path, query: str, as_json: bool, **filters: Any) -> None:
    """Find messages; PATH may be of any released schema and is not changed."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        page = store.search(query, **filters)
    if as_json:
        _print_json(page)
        return
    for session in page.sessions:
        out.print(Text(f"session {session.id}  {session.title or ''}", style="bold"))
    for hit in page.hits:
        out.print(Text.assemble((f"{_when(hit.timestamp)} ", "dim"), (f"{hit.role or '?'} ", "cyan"),
                                (f"[{hit.id}] {hit.session_id}", "dim")))  # fmt: skip
        out.print(_highlighted(hit.snippet))
    found = f"{len(page.hits)} messages by {page.route} in {page.elapsed_ms:.1f} ms"
    out.print(found if page.hits else f"nothing found ({page.route}, {page.elapsed_ms:.1f} ms)", style="dim")
    _print_notes(page)


@cli.command()
@search_options
@one_line_errors
def explain(path: Path, query: str, as_json: bool, **filters: Any) -> None:
    """Say how QUERY would be looked for in PATH, without looking."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        plan = store.explain(query, **filters)
    if as_json:
        _print_json(plan)
        return
    out.print(Text(f"understood as: {plan.query}"))
    for term, route in plan.routes:
        count = plan.estimates.get(term)
        out.print(Text(f"{term}: by {route}{'' if count is None else f', in about {count:,} messages'}"))
    for statement in plan.statements:
        out.print(Text(f"\n{statement.purpose}:", style="bold"))
        out.print(Text(statement.sql))
        out.print(Text(f"with {dict(statement.parameters)}", style="dim"))
    _print_notes(plan)


@cli.command("list")
@PATH
@LIMIT
@OFFSET
@click.option("--source", "sources", multiple=True, help="Only this source; repeat for several.")
@click.option("--order", type=click.Choice(["activity", "started"]), default="activity", show_default=True)
@click.option("--query", help="Only conversations whose title or id holds this text.")
@click.option("--cwd", "cwd_prefix", metavar="FOLDER", help="Only those at work in this folder or below it.")
@click.option("--model", help="Only those that use this model now.")
@click.option("--after", help="Last active from then on: a date, a time, or 7d, 24h, 2w ago.")
@click.option("--before", help="Last active before then.")
@click.option("--children", "include_children", is_flag=True, help="Also delegates and tool runs.")
@click.option("--archived", "include_archived", is_flag=True, help="Also archived conversations.")
@click.option("--hidden", "include_hidden", is_flag=True, help="Also hidden conversations.")
@JSON
@one_line_errors
def list_conversations(path: Path, as_json: bool, sources: tuple[str, ...], **options: Any) -> None:
    """List conversations, newest first; PATH may be of any released schema and is not changed."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        entries = store.sessions.list(sources=list(sources) or None, **options)
    if as_json:
        _print_json(entries)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("last activity", "source", "kind", "messages"):
        table.add_column(column, no_wrap=True)
    table.add_column("id", overflow="fold", min_width=max((len(entry.id) for entry in entries), default=0))
    table.add_column("title or beginning", no_wrap=True, overflow="ellipsis")
    for entry in entries:
        table.add_row(
            _when(entry.last_activity),
            Text(entry.source or "?"),
            entry.kind,
            str(entry.message_count),
            Text(entry.id),
            Text(entry.title or entry.preview or ""),
        )
    out.print(table)


@cli.command()
@PATH
@click.argument("name", metavar="ID")
@click.option("--below", is_flag=True, help="Only what descends from it, not the whole tree it is in.")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flow chart.")
@JSON
@one_line_errors
def tree(path: Path, name: str, below: bool, mermaid: bool, as_json: bool) -> None:
    """Draw the tree of sessions that ID (an id, the beginning of one, or a title) belongs to."""
    with HermesStore.open(path, read_only=True, migrate="off") as store, store.read() as unit:
        session_id = unit.sessions.resolve(name)
        top = unit.lineage.tree(session_id if below else unit.lineage.root(session_id))
    if as_json:
        _print_json(list(as_rows(top)))
    elif mermaid:
        click.echo(as_mermaid(top))
    else:
        out.print(as_tree(top, session_id))


@cli.command()
@PATH
@JSON
@one_line_errors
def info(path: Path, as_json: bool) -> None:
    """Show what a file is like: schema, indexes, sizes, pending work, and what this SQLite can do."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        found = describe(store)
    if as_json:
        _print_json(found)
    else:
        _print_info(found)


@cli.command()
@PATH
@click.argument("target", type=click.Path(path_type=Path))
@one_line_errors
def backup(path: Path, target: Path) -> None:
    """Write a verified copy of a store, also while it is in use."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        out.print(f"{store.backup(target)} written")


@cli.command("verify")
@PATH
@click.option("--level", type=click.Choice(["quick", "indexes", "full"]), default="quick", show_default=True)
@JSON
@one_line_errors
def verify_command(path: Path, level: Literal["quick", "indexes", "full"], as_json: bool) -> None:
    """Check a file's tables, its search indexes, or all of it; exit status 1 if something is damaged."""
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        report = store.verify(level)
    if as_json:
        _print_json(report)
    else:
        for finding in report.findings:
            out.print(f"{finding.name} {finding.problem}: {finding.remedy}", style="red" if not report.ok else "yellow")
        out.print(f"{path}: {'no damage found' if report.ok else 'damaged'} ({level}, {report.seconds:.1f} s)")
    if not report.ok:
        sys.exit(1)


@cli.command("rebuild-index")
@PATH
@click.option("--force", is_flag=True, help="Also if nothing seems to be wrong.")
@JSON
@one_line_errors
def rebuild_index(path: Path, force: bool, as_json: bool) -> None:
    """Make the search indexes whole, beside whoever uses the file."""
    with HermesStore.open(path, migrate="off") as store, _progress_bar(shown=not as_json) as callback:
        report = store.rebuild_index(callback, force=force)
    if as_json:
        _print_json(report)
        return
    out.print(f"{path}: {'made anew: ' + '; '.join(report.reasons) if report.reasons else 'nothing to make anew'}")
    for left in report.pending:
        out.print(f"left to do: {left}", style="yellow")


@cli.command()
@PATH
@one_line_errors
def optimize(path: Path) -> None:
    """Merge what many small writes left in the search indexes."""
    with HermesStore.open(path, migrate="off") as store, _progress_bar(shown=True) as callback:
        report = store.optimize(callback)
    out.print(f"{path}: merged {', '.join(report.merged) or 'nothing'} in {report.seconds:.1f} s")
    for reason in report.skipped:
        out.print(f"left out: {reason}", style="yellow")


@cli.command()
@PATH
@click.option(
    "--profile", type=click.Choice(sorted(PROFILES, key=PROFILES.__getitem__)), default="small", show_default=True
)
@click.option("--messages", type=click.IntRange(min=0), help="How many messages, instead of the profile's number.")
@click.option("--seed", "number", default=0, show_default=True, help="The same number gives the same content.")
@click.option("--locale", "locales", multiple=True, help="A language, such as zh_CN; repeat for several.")
@click.option("--revision", default="head", show_default=True, help="The schema, such as h16 for release 0.17.0.")
@click.option("--force", is_flag=True, help="Replace an existing file, whoever made it.")
@JSON
@one_line_errors
def seed(path: Path, profile: str, messages: int | None, number: int, locales: tuple[str, ...],
         revision: str, force: bool, as_json: bool) -> None:  # fmt: skip
    """Make a file full of made-up conversations, for tests and benchmarks."""
    with _progress_bar(shown=not as_json) as callback:
        report = make_corpus(
            path, profile=profile, messages=messages, seed=number, locales=locales or LOCALES, revision=revision,
            overwrite=force, progress=lambda what, done, total: callback(migrations.Progress(what, done, total)),
        )  # fmt: skip
    if as_json:
        _print_json(report)
        return
    out.print(f"{report.path}: {report.messages:,} messages in {report.sessions:,} sessions, {report.size:,} bytes")
    out.print(
        f"{report.messages_per_second:,.0f} messages a second; then {report.indexing_seconds:.1f} s for the indexes"
    )
    for needle in report.needles:
        out.print(f"needle {needle.text} ({needle.kind}): {len(needle.message_ids):,} messages")


@cli.command()
@PATH_OR_DEFAULT
@one_line_errors
def where(path: Path | None) -> None:
    """Print the file that is meant when no path is given."""
    out.print(str(resolve_target(path)))


def _print_notes(found: SearchPage | SearchPlan) -> None:
    for note in [found.degraded, *found.notes]:
        if note:
            err.print(f"note: {note}", style="yellow")


def _print_info(found: StoreInfo) -> None:
    stamp = found.revision or f"not stamped, shape of {found.recognised or 'no known revision'}"
    out.print(f"{found.path}: Hermes schema {found.schema_version}, revision {stamp} (newest: {found.head})")
    out.print(f"{found.size:,} bytes, {found.free:,} of them free; journal {found.journal_mode}")
    table = Table(box=None, pad_edge=False)
    for column in ("search index", "layout", "state", "messages", "bytes"):
        table.add_column(column)
    for index in found.indexes:
        table.add_row(index.name, index.layout, index.state, _number(index.rows), _number(index.size))
    out.print(table)
    out.print("rows: " + ", ".join(f"{name} {rows:,}" for name, rows in found.rows.items() if rows))
    for text in found.pending:
        out.print(f"pending: {text}", style="yellow")
    for name in found.unknown_triggers:
        out.print(f"trigger {name} on messages is not Hermes's and not ours", style="yellow")
    out.print(f"SQLite {found.capabilities.sqlite_version}")
    for name, remedy in found.capabilities.missing.items():
        out.print(f"missing: {name}: {remedy}", style="yellow")


@contextmanager
def _progress_bar(*, shown: bool) -> Iterator[Callable[[migrations.Progress], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not (shown and err.is_terminal)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(progress: migrations.Progress) -> None:
            name = f"{_PHASES[progress.phase]} {progress.detail}".strip()
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=progress.total or None, count="")
            count = f"{progress.done:,} of {progress.total:,}" if progress.total else ""
            bar.update(tasks[name], completed=progress.done, total=progress.total or None, count=count)

        yield show


def _highlighted(snippet: str | None) -> Text:
    text = Text("  ")
    for place, part in enumerate((snippet or "").replace("<<<", ">>>").split(">>>")):
        text.append(part.replace("\n", " "), style="bold yellow" if place % 2 else "")
    return text


def _when(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _print_json(value: Any) -> None:
    click.echo(json.dumps(_plain(value), ensure_ascii=False, indent=2))


def _plain(value: Any) -> Any:
    """Records as plain JSON values; text that is no valid Unicode must not stop the output."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return value if isinstance(value, int | float | bool | None) else str(value)
