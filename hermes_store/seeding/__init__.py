"""Seeding corpora for tests and benchmarks: realistic, of any size and schema, the same everywhere.

`seed` makes a file with our own revisions, so any schema can be had, and fills it with conversations whose words,
lineage and sizes look like a real history. Every choice comes from one seed (`chance`), words are made up (`words`),
texts are put together from pools (`texts`), conversations are made one at a time (`conversations`) and written by the
thousand (`writer`). Planted needles (`needles`) come back in the report with every place they are at.

Proportions of a corpus, about: half of the messages are tool rows, which hold nine tenths of the text (40 % of them
about 200 characters, 2 % up to 60,000); every fourth answer holds code; every third message in an unspaced script has
a Latin word glued into it; 2 % of what people write is multimodal; 12 % of the conversations were compressed into
chains (up to 12 deep), 7 % compacted in place, 7 % have branches, 9 % delegates, 6 % are chats begun anew, 5 % were
rewound, 4 % are cron runs; 4 % of the sessions are archived, 2 % pinned, 2 % hidden, 70 % have a title.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine

from hermes_store import migrations
from hermes_store.errors import ConflictError
from hermes_store.seeding.conversations import Conversations, Schema
from hermes_store.seeding.hostile import write_bad_rows
from hermes_store.seeding.needles import Needle, Planter
from hermes_store.seeding.texts import Writer
from hermes_store.seeding.words import script_of
from hermes_store.seeding.writer import CorpusWriter, SeedProgress
from hermes_store.sqlite.engine import BEGIN_OPTION, make_engine
from hermes_store.sqlite.readonly import open_reader
from hermes_store.sqlite.shape import inspect
from hermes_store.target import resolve_target

__all__ = ["LOCALES", "PROFILES", "Needle", "SeedReport", "seed"]

#: Profile to its number of messages.
PROFILES = {
    "tiny": 200,
    "small": 5_000,
    "medium": 100_000,
    "large": 1_000_000,
    "huge": 5_000_000,
    "hostile": 2_000,
}
LOCALES = ("en_US", "zh_CN", "ja_JP", "ko_KR")
#: The key of ``state_meta`` by which a file is known to have been seeded.
SEED_KEY = "hs_seed"


@dataclass(frozen=True, slots=True)
class SeedReport:
    """What was seeded.

    Attributes:
        path: The file.
        revision: The revision of its schema.
        profile: The profile.
        seed: The seed.
        sessions: Sessions written.
        messages: Messages written.
        size: Bytes of the file.
        digest: SHA-256 of the logical content; the same arguments give the same one everywhere.
        needles: The planted terms and where they are.
        writing_seconds: Time for the rows.
        indexing_seconds: Time for the indexes.
    """

    path: Path
    revision: str
    profile: str
    seed: int
    sessions: int
    messages: int
    size: int
    digest: str
    needles: tuple[Needle, ...]
    writing_seconds: float
    indexing_seconds: float

    @property
    def messages_per_second(self) -> float:
        """Messages written in a second, before the indexes are filled."""
        return self.messages / max(self.writing_seconds, 1e-9)


def seed(
    target: str | os.PathLike[str] | URL,
    *,
    profile: str = "small",
    messages: int | None = None,
    seed: int = 0,
    locales: Sequence[str] = LOCALES,
    revision: str = "head",
    overwrite: bool = False,
    progress: SeedProgress | None = None,
) -> SeedReport:
    """Make a file full of made-up conversations.

    Args:
        target: The file; it must be named, the default store is never touched.
        profile: ``tiny``, ``small``, ``medium``, ``large``, ``huge``, or ``hostile`` (with every kind of bad row).
        messages: How many messages, instead of the profile's number.
        seed: The same seed and arguments give the same content.
        locales: The languages, such as ``zh_CN``; see `hermes_store.seeding.words.SCRIPTS`.
        revision: The schema, such as ``h16`` for that of release 0.17.0.
        overwrite: Replace an existing file, whoever made it.
        progress: Called with what is being done, how much is done, and how much there is (0: not known).

    Returns:
        What was seeded.

    Raises:
        ValueError: A profile, a locale or a number is none.
        ConflictError: The file exists and was not seeded; nothing was changed.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is unknown; there are {', '.join(PROFILES)}")
    if not locales:
        raise ValueError("locales must not be empty")
    if messages is not None and messages < 0:
        raise ValueError("messages must not be negative")
    for locale in locales:
        script_of(locale)
    path = resolve_target(target)
    if path.exists():
        _require_seeded(path, overwrite=overwrite)
        _remove(path)
    wanted = PROFILES[profile] if messages is None else messages
    reached = str(migrations.upgrade(path, revision, backup=False).after)
    engine = make_engine(path)
    try:
        schema = _schema(engine)
        planter = Planter(seed, wanted)
        writer = CorpusWriter(engine, planter, progress or _silent)
        writer.write(Conversations(seed, Writer(seed, locales), schema), wanted)
        extra = _finish(
            engine, hostile=profile == "hostile", seeded={"profile": profile, "seed": seed, "messages": wanted}
        )
    finally:
        engine.dispose()
    return SeedReport(
        path=path,
        revision=reached,
        profile=profile,
        seed=seed,
        sessions=writer.sessions,
        messages=writer.messages + extra,
        size=path.stat().st_size,
        digest=writer.digest.hexdigest(),
        needles=planter.report(),
        writing_seconds=writer.writing_seconds,
        indexing_seconds=writer.indexing_seconds,
    )


def _schema(engine: Engine) -> Schema:
    with engine.connect() as connection:
        return Schema(inspect(connection).schema_version or 0)


def _finish(engine: Engine, *, hostile: bool, seeded: dict[str, Any]) -> int:
    """Add the bad rows, and the mark by which the file may be seeded over."""
    extra = 0
    with engine.connect().execution_options(**{BEGIN_OPTION: "immediate"}) as connection:
        raw: Any = connection.connection.driver_connection
        raw.execute("PRAGMA foreign_keys=OFF")
        with connection.begin():
            if hostile:
                extra = write_bad_rows(connection, inspect(connection))
            connection.exec_driver_sql(
                "INSERT INTO state_meta (key, value) VALUES (?, ?)", (SEED_KEY, json.dumps(seeded))
            )
        raw.execute("PRAGMA foreign_keys=ON")
    return extra


def _require_seeded(path: Path, *, overwrite: bool) -> None:
    if overwrite:
        return
    seeded = False
    if path.stat().st_size:
        reader = open_reader(path)
        try:
            with reader.engine.connect() as connection:
                if inspect(connection).has("table", "state_meta"):
                    mark = connection.exec_driver_sql("SELECT 1 FROM state_meta WHERE key = ?", (SEED_KEY,)).first()
                    seeded = mark is not None
        finally:
            reader.engine.dispose()
    if not seeded:
        raise ConflictError(
            f"{path} exists and was not seeded by this package; name another file, or say overwrite (--force)"
        )


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _silent(_what: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
