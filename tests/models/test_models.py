"""The classes against real files: what they say about schema 31, and what they do to a file when they are used."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased, configure_mappers
from sqlalchemy.schema import CreateIndex, CreateTable

from hermes_store.models import (
    SCHEMA_VERSION,
    AsyncDelegation,
    Base,
    GatewayRouting,
    HermesSession,
    Message,
    SchemaVersion,
    SessionModelUsage,
    StateMeta,
    SystemPrompt,
)

Released = Callable[[str], Path]

NEWEST = "v31-iot-0.22.2.post1.db"
UPGRADED = ["upgrade/u5-v31-iot-0.22.2.db", "upgrade/y2-v31-from-v30-layout2.db", "upgrade/z2-v31-touched-by-0.19.0.db"]
#: One file per release, oldest first.
RELEASES = [
    (11, "v11-0.13.0.db"),
    (13, "v13-0.15.2.db"),
    (14, "v14-0.16.0.db"),
    (16, "v16-0.17.0.db"),
    (17, "v17-0.18.0.db"),
    (19, "v19-0.18.2.db"),
    (22, "v22-0.19.0.db"),
    (25, "v25-iot-0.20.0.post2.db"),
    (26, "v26-axisrow-0.20.1.2.db"),
    (26, "v26-iot-0.21.0.post1.db"),
    (30, "v30-iot-0.21.3.post1.db"),
    (30, "v30-iot-0.21.5.post2.db"),
    (31, NEWEST),
]
OURS = "ix_hs_messages_timestamp"

ROOT = "20260711_100000_dddd01"
TABLES = sorted(Base.metadata.tables)
COLUMNS = [column for table in Base.metadata.sorted_tables for column in table.columns]


@contextmanager
def engine_on(path: Path) -> Iterator[Engine]:
    """Give a plain engine, as an application would make it, with foreign keys enforced as Hermes does."""
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA foreign_keys=ON"))
    try:
        yield engine
    finally:
        engine.dispose()


@pytest.fixture
def store(released: Released) -> Iterator[Engine]:
    with engine_on(released(NEWEST)) as engine:
        yield engine


@pytest.fixture
def session(store: Engine) -> Iterator[Session]:
    with Session(store) as session:
        yield session


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Collect the SQL that the engine is given."""
    seen: list[str] = []

    def note(_connection, _cursor, statement, _parameters, _context, _many):
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def described(path: Path, table: str) -> dict[str, tuple[str, int, str | None, int]]:
    """What SQLite says of each column: type, NOT NULL, default, position in the primary key."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return {name: (kind, not_null, default, key) for _, name, kind, not_null, default, key in rows}


def index_texts(path: Path) -> dict[str, str]:
    """Every index on a mapped table, its SQL without case, quotes and blanks (no literal in it has any)."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql, tbl_name FROM sqlite_master WHERE type = 'index'").fetchall()
    rows = [(name, sql) for name, sql, table in rows if sql is not None and table in TABLES]
    return {name: re.sub(r"\s*([(),])\s*", r"\1", " ".join(sql.lower().replace('"', "").split())) for name, sql in rows}


def foreign_keys(path: Path, table: str) -> set[tuple[str, str, str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
    return {(column, target, key, on_delete) for _, _, target, column, key, _, on_delete, _ in rows}


@pytest.fixture
def created(tmp_path: Path) -> Path:
    """Make an empty file from the classes alone."""
    path = tmp_path / "created.db"
    with engine_on(path) as engine:
        Base.metadata.create_all(engine)
    return path


class TestAFileBornWithSchema31:
    @pytest.mark.parametrize("table", TABLES)
    def test_has_exactly_our_columns_types_defaults_and_keys(
        self, released: Released, created: Path, table: str
    ) -> None:
        real = described(released(NEWEST), table)
        assert real
        assert described(created, table) == real

    @pytest.mark.parametrize("table", TABLES)
    def test_has_exactly_our_foreign_keys(self, released: Released, created: Path, table: str) -> None:
        assert foreign_keys(created, table) == foreign_keys(released(NEWEST), table)

    def test_has_exactly_our_indexes_word_for_word_but_for_one_of_our_own(
        self, released: Released, created: Path
    ) -> None:
        ours = index_texts(created)
        assert ours.pop(OURS) == f"create index {OURS} on messages(timestamp desc,id desc)"
        assert ours == index_texts(released(NEWEST))

    def test_keeps_message_ids_from_being_used_again_as_ours_does(self, released: Released, created: Path) -> None:
        for path in (released(NEWEST), created):
            with closing(sqlite3.connect(path)) as connection:
                sql = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'messages'").fetchone()[0]
            assert "AUTOINCREMENT" in sql

    def test_stores_the_schema_number_that_the_classes_describe(self, session: Session) -> None:
        assert session.scalars(select(SchemaVersion)).one().version == SCHEMA_VERSION


def differences(path: Path) -> list[tuple[object, ...]]:
    """Run Alembic's comparison of a file with the classes, over the tables that the classes know.

    One foreign key is left out: SQLAlchemy does not read ON DELETE CASCADE where it is written at the column, as Hermes
    does, so that Alembic would always propose to put it back. (``PRAGMA foreign_key_list`` is compared further up.)
    """

    def compared(item, _name, kind, _reflected, _compare_to) -> bool:
        return kind != "foreign_key_constraint" or item.table.name != "session_model_usage"

    with engine_on(path) as engine, engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "target_metadata": Base.metadata,
                "include_object": compared,
                "include_name": lambda name, kind, _parents: kind != "table" or name in Base.metadata.tables,
            },
        )
        # Neither SQLAlchemy nor Alembic can read back the one index that is over an expression, and both say so.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            changes = compare_metadata(context, Base.metadata)
    assert caught
    assert all("idx_sessions_effective_activity" in str(warning.message) for warning in caught)
    return changes


class TestAutogenerate:
    def test_finds_nothing_to_do_on_a_fresh_file_but_our_own_index(self, released: Released) -> None:
        changes = differences(released(NEWEST))
        assert [(change[0], change[1].name) for change in changes] == [("add_index", OURS)]

    @pytest.mark.parametrize("name", UPGRADED)
    def test_finds_only_the_prompt_foreign_key_more_on_an_upgraded_file(self, released: Released, name: str) -> None:
        changes = {(change[0], change[1].name) for change in differences(released(name))}
        assert changes <= {("add_index", OURS), ("add_fk", "fk_sessions_system_prompt_hash_system_prompts")}

    def test_would_see_a_column_that_is_missing(self, released: Released) -> None:
        path = released(NEWEST)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE gateway_heartbeats DROP COLUMN host")
        assert ("add_column", "host") in [
            (change[0], change[3].name) for change in differences(path) if len(change) > 3
        ]


class TestNames:
    @pytest.mark.parametrize("table", [name for name in TABLES if name != "schema_version"])
    def test_of_constraints_are_all_given(self, table: str) -> None:
        assert None not in {constraint.name for constraint in Base.metadata.tables[table].constraints}

    def test_of_the_version_table_include_no_primary_key_because_the_file_has_none(self) -> None:
        assert not Base.metadata.tables["schema_version"].primary_key.columns

    def test_of_attributes_are_those_of_the_columns_but_for_two(self) -> None:
        configure_mappers()
        renamed = {
            (mapper.class_.__name__, attribute.key, attribute.columns[0].name)
            for mapper in Base.registry.mappers
            for attribute in mapper.column_attrs
            if attribute.key != attribute.columns[0].name
        }
        assert renamed == {
            ("HermesSession", "system_prompt_inline", "system_prompt"),
            ("Message", "compressed_summary", "_compressed_summary"),
        }

    def test_carry_no_schema_so_that_temporary_views_can_stand_in_front(self) -> None:
        assert {table.schema for table in Base.metadata.tables.values()} == {None}


def since(column) -> tuple[int, bool]:
    """The schema a comment names (11 if none), and whether a later release of that schema brought it."""
    match = re.search(r"Since schema (\d+)( \(0\.\d+\.\d+\))?\.$", column.comment)
    return (int(match[1]), bool(match[2])) if match else (11, False)


class TestComments:
    @pytest.mark.parametrize("column", COLUMNS, ids=str)
    def test_tell_of_every_column_what_it_holds(self, column) -> None:
        assert column.comment
        assert len(column.comment) > 10

    @pytest.mark.parametrize("table", TABLES)
    def test_tell_of_every_table_what_it_holds(self, table: str) -> None:
        assert Base.metadata.tables[table].comment

    @pytest.mark.parametrize("column", [column for column in COLUMNS if column.type.python_type is float], ids=str)
    def test_give_the_unit_of_every_real_number(self, column) -> None:
        assert re.search(r"epoch seconds|US dollars", column.comment)

    def test_name_the_schema_that_brought_each_column(self, released: Released) -> None:
        first: dict[tuple[str, str], tuple[int, bool]] = {}
        versions: list[int] = []
        for version, name in RELEASES:
            path = released(name)
            for table in TABLES:
                for column in described(path, table):
                    first.setdefault((table, column), (version, version in versions))
            versions.append(version)
        assert {(column.table.name, column.name): since(column) for column in COLUMNS} == first


class TestRelationships:
    def test_give_the_messages_of_a_session_in_the_order_of_their_ids(self, store: Engine, session: Session) -> None:
        conversation = session.get_one(HermesSession, "20260710_090000_aaaa01")
        with statements(store) as seen:
            ids = [message.id for message in conversation.messages]
        assert seen[0].endswith("ORDER BY messages.id")  # without it the order would be the planner's choice
        assert len(ids) == 146
        assert ids == sorted(ids)
        assert all(message.session is conversation for message in conversation.messages)

    def test_lead_from_parent_to_children_and_back(self, session: Session) -> None:
        child = session.get_one(HermesSession, "20260710_091800_bbbb02c")
        assert child.parent is not None
        assert child in child.parent.children
        assert [one.started_at for one in child.parent.children] == sorted(
            one.started_at for one in child.parent.children
        )
        assert session.get_one(HermesSession, "20260710_090000_aaaa01").parent is None

    def test_lead_to_the_usage_and_the_prompt(self, session: Session) -> None:
        used = session.scalars(select(HermesSession).where(HermesSession.usage.any())).first()
        assert used is not None
        assert {row.session for row in used.usage} == {used}
        prompted = session.scalars(select(HermesSession).where(HermesSession.prompt.has())).first()
        assert prompted is not None
        assert prompted.prompt is not None
        assert prompted.prompt.hash == prompted.system_prompt_hash

    def test_can_be_joined_and_filtered_in_a_query(self, session: Session) -> None:
        statement = (
            select(HermesSession.id, Message.id)
            .join(HermesSession.messages)
            .where(Message.role == "tool", HermesSession.source == "cron")
        )
        pairs = session.execute(statement).all()
        with closing(sqlite3.connect(str(session.get_bind().url.database))) as connection:
            expected = connection.execute(
                "SELECT s.id, m.id FROM sessions s JOIN messages m ON m.session_id = s.id "
                "WHERE m.role = 'tool' AND s.source = 'cron'"
            ).fetchall()
        assert expected
        assert sorted(map(tuple, pairs)) == sorted(expected)

    def test_load_nothing_before_they_are_asked(self, store: Engine) -> None:
        with Session(store) as session, statements(store) as seen:
            session.scalars(select(HermesSession)).all()
            assert len(seen) == 1


class TestWritingThroughTheClasses:
    def test_adds_a_session_with_its_messages_and_takes_the_defaults_of_the_file(self, store: Engine) -> None:
        with Session(store) as session:
            session.add(
                HermesSession(
                    id="new",
                    source="cli",
                    started_at=1.5,
                    messages=[Message(role="user", content="hello", timestamp=1.75)],
                )
            )
            session.commit()
        with Session(store) as session:
            new = session.get_one(HermesSession, "new")
            assert (new.message_count, new.archived, new.expiry_finalized, new.title) == (0, 0, 0, None)
            assert (new.started_at, new.messages[0].timestamp) == (1.5, 1.75)
            assert (new.messages[0].active, new.messages[0].compacted, new.messages[0].observed) == (1, 0, 0)

    def test_shows_what_the_triggers_of_the_file_filled_in(self, session: Session) -> None:
        message = Message(session_id=ROOT, role="user", content="hello", timestamp=2.0)
        session.add(message)
        session.flush()
        assert message.display_order == message.id
        assert message.message_uid is not None
        assert re.fullmatch("[0-9a-f]{32}", message.message_uid)

    def test_shows_what_the_triggers_of_the_file_took_away(self, session: Session) -> None:
        message = session.scalars(select(Message).where(Message.display_identity.is_not(None))).first()
        assert message is not None
        assert isinstance(message.display_identity, bytes)
        assert len(message.display_identity) == 32
        message.content = "something else"
        session.flush()
        assert (message.display_identity, message.display_order) == (None, None)

    def test_fills_the_parts_of_a_key_that_default_to_nothing(self, session: Session) -> None:
        session.add(SessionModelUsage(session_id=ROOT, model="m"))
        session.add(GatewayRouting(session_key="k", entry_json="{}", updated_at=1.0))
        session.add(
            AsyncDelegation(delegation_id="d", origin_session="", state="running", dispatched_at=1.0, updated_at=1.0)
        )
        session.commit()
        assert session.get_one(SessionModelUsage, (ROOT, "m", "", "", "", "")).estimated_cost_usd == 0
        assert session.get_one(GatewayRouting, ("", "k")).entry_json == "{}"
        assert session.get_one(AsyncDelegation, "d").delivery_state == "pending"

    @pytest.mark.parametrize("loaded", [False, True], ids=["unseen", "loaded"])
    def test_neither_reads_nor_changes_messages_when_their_session_is_deleted(
        self, store: Engine, loaded: bool
    ) -> None:
        with Session(store) as session:
            conversation = session.get_one(HermesSession, ROOT)
            if loaded:
                assert conversation.messages
                assert conversation.children
            session.delete(conversation)
            with statements(store) as seen, pytest.raises(IntegrityError):
                session.flush()
        assert len(seen) == 1
        assert seen[0].startswith("DELETE FROM sessions")

    def test_deletes_a_session_after_its_messages_and_leaves_its_children_to_the_application(
        self, store: Engine
    ) -> None:
        with Session(store) as session:
            conversation = session.get_one(HermesSession, ROOT)
            for child in list(conversation.children):
                child.parent = None
            deleted = {message.id for message in conversation.messages}
            for message in list(conversation.messages):
                session.delete(message)
            session.delete(conversation)
            session.commit()
            assert session.get(HermesSession, ROOT) is None
            assert session.scalars(select(Message).where(Message.session_id == ROOT)).all() == []
            assert session.scalars(select(SessionModelUsage).where(SessionModelUsage.session_id == ROOT)).all() == []
            indexed = (
                "SELECT (SELECT group_concat(id) FROM messages_fts_docsize), (SELECT group_concat(id) FROM messages)"
            )
            ids, kept = session.execute(text(indexed)).one()
            assert sorted(ids.split(",")) == sorted(kept.split(","))
            trigrams = set(session.scalars(text("SELECT id FROM messages_fts_trigram_docsize")))
            assert trigrams
            assert trigrams.isdisjoint(deleted)

    def test_does_not_lose_a_message_that_is_taken_off_the_list(self, store: Engine) -> None:
        with Session(store) as session:
            conversation = session.get_one(HermesSession, ROOT)
            conversation.messages.remove(conversation.messages[0])
            with pytest.raises(IntegrityError):
                session.flush()

    def test_moves_a_child_to_another_parent(self, session: Session) -> None:
        child = session.get_one(HermesSession, "20260710_091800_bbbb02c")
        new_parent = session.get_one(HermesSession, ROOT)
        new_parent.children.append(child)
        session.commit()
        assert child.parent_session_id == ROOT


class TestTheSystemPrompt:
    @pytest.fixture
    def prompts(self, session: Session) -> dict[str, str | None]:
        """Sessions that keep their prompt in each of the possible places, and what should be read from them."""
        session.add(SystemPrompt(hash="h", prompt="by hash"))
        session.flush()
        for name, inline, by_hash in [
            ("hash", None, "h"),
            ("inline", "in the row", None),
            ("both", "in the row", "h"),
            ("none", None, None),
        ]:
            session.add(
                HermesSession(
                    id=name, source="cli", started_at=1.0, system_prompt_inline=inline, system_prompt_hash=by_hash
                )
            )
        session.commit()
        return {"hash": "by hash", "inline": "in the row", "both": "by hash", "none": None}

    def test_is_the_shared_text_or_else_the_text_of_the_row(
        self, session: Session, prompts: dict[str, str | None]
    ) -> None:
        assert {name: session.get_one(HermesSession, name).system_prompt for name in prompts} == prompts

    def test_is_the_same_in_sql(self, session: Session, prompts: dict[str, str | None]) -> None:
        statement = select(HermesSession.id, HermesSession.system_prompt).where(HermesSession.id.in_(prompts))
        assert dict(session.execute(statement).all()) == prompts

    def test_can_be_searched_under_an_alias(self, session: Session, prompts: dict[str, str | None]) -> None:
        other = aliased(HermesSession)
        statement = select(other.id).where(other.system_prompt == "by hash")
        assert sorted(session.scalars(statement)) == ["both", "hash"]

    def test_can_be_asked_for_beside_the_prompts_themselves(
        self, session: Session, prompts: dict[str, str | None]
    ) -> None:
        statement = select(HermesSession.system_prompt, SystemPrompt.prompt).join(HermesSession.prompt)
        rows = session.execute(statement.where(HermesSession.id.in_(prompts))).all()
        assert len(rows) == 2
        assert all(resolved == shared for resolved, shared in rows)

    def test_agrees_between_python_and_sql_for_every_session_of_the_file(self, session: Session) -> None:
        rows = session.execute(select(HermesSession, HermesSession.system_prompt)).all()
        assert any(resolved for _, resolved in rows)
        assert all(conversation.system_prompt == resolved for conversation, resolved in rows)

    def test_is_read_only_because_where_to_store_it_is_not_for_a_column_to_decide(self, session: Session) -> None:
        conversation = session.get_one(HermesSession, ROOT)
        with pytest.raises(AttributeError):
            conversation.system_prompt = "other"


class TestAnOlderFileBehindViews:
    """Views under the names of the tables, columns in another order, NULL where the file has none."""

    @pytest.fixture
    def old(self, released: Released) -> Iterator[Session]:
        path = released("v11-0.13.0.db")
        with engine_on(path) as engine, engine.connect() as connection:
            for table in Base.metadata.sorted_tables:
                real = described(path, table.name)
                columns = sorted((column.name for column in table.columns), reverse=True)
                fields = ", ".join(f'"{name}"' if name in real else f'NULL AS "{name}"' for name in columns)
                source = f'FROM main."{table.name}"' if real else "WHERE 0"
                connection.exec_driver_sql(f'CREATE TEMP VIEW "{table.name}" AS SELECT {fields} {source}')
            with Session(connection) as session:
                yield session

    def test_is_read_through_every_class(self, old: Session) -> None:
        counts = {mapper.class_: len(old.scalars(select(mapper.class_)).all()) for mapper in Base.registry.mappers}
        assert counts[HermesSession] > 20
        assert counts[Message] > 300
        assert counts[SystemPrompt] == 0
        assert counts[SchemaVersion] == 1
        assert counts[StateMeta] > 0

    def test_answers_over_relationships_and_the_prompt(self, old: Session) -> None:
        conversation = old.get_one(HermesSession, "20260710_090000_aaaa01")
        assert [message.id for message in conversation.messages] == sorted(
            message.id for message in conversation.messages
        )
        assert conversation.messages[0].message_uid is None
        assert conversation.usage == []
        assert conversation.system_prompt == conversation.system_prompt_inline is not None
        statement = select(HermesSession.system_prompt).where(HermesSession.id == conversation.id)
        assert old.scalar(statement) == conversation.system_prompt


class TestAStrangeRow:
    def test_is_shown_as_it_is_stored(self, store: Engine) -> None:
        with store.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE messages SET timestamp = 'yesterday', token_count = 'many', tool_calls = '{broken', "
                "content = x'ff00', display_identity = 'text' WHERE id = 1"
            )
            connection.exec_driver_sql("UPDATE messages SET display_identity = 'text' WHERE id = 1")
        with Session(store) as session:
            message = session.get_one(Message, 1)
            assert (message.timestamp, message.token_count, message.tool_calls) == ("yesterday", "many", "{broken")
            assert (message.content, message.display_identity) == (b"\xff\x00", "text")


class TestPostgreSQL:
    def test_gets_eight_byte_numbers_and_no_sqlite_words(self) -> None:
        dialect = postgresql.dialect()
        tables = {table.name: str(CreateTable(table).compile(dialect=dialect)) for table in Base.metadata.sorted_tables}
        everything = "\n".join(tables.values())
        assert not re.search(r"\bREAL\b|\bINTEGER\b|\bBLOB\b|AUTOINCREMENT", everything)
        assert "id BIGSERIAL" in tables["messages"]
        assert "timestamp DOUBLE PRECISION NOT NULL" in tables["messages"]
        assert "display_identity BYTEA" in tables["messages"]
        assert "CONSTRAINT fk_messages_session_id_sessions FOREIGN KEY" in tables["messages"]

    def test_gets_every_partial_index_with_the_same_condition(self) -> None:
        partial = set()
        for table in Base.metadata.sorted_tables:
            for index in table.indexes:
                on_sqlite, on_postgresql = (
                    index.dialect_options[engine]["where"] for engine in ("sqlite", "postgresql")
                )
                assert str(on_sqlite) == str(on_postgresql)
                sql = str(CreateIndex(index).compile(dialect=postgresql.dialect()))
                assert (" WHERE " in sql) == (on_sqlite is not None)
                partial |= {index.name} if on_sqlite is not None else set()
        assert len(partial) == 8

    def test_gets_the_expression_index_in_its_own_syntax(self) -> None:
        index = next(i for i in Base.metadata.tables["sessions"].indexes if i.name == "idx_sessions_effective_activity")
        sql = str(CreateIndex(index).compile(dialect=postgresql.dialect()))
        assert sql.endswith("ON sessions (coalesce(last_activity_at, started_at) DESC, started_at DESC)")


def test_importing_the_classes_opens_no_database() -> None:
    code = (
        "import sys\n"
        "def refuse(name, _arguments):\n"
        "    if name.startswith(('sqlite3.', 'socket.')): raise RuntimeError(name)\n"
        "sys.addaudithook(refuse)\n"
        "import hermes_store.models\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_every_class_is_on_the_one_metadata() -> None:
    configure_mappers()
    assert {mapper.local_table.name for mapper in Base.registry.mappers} == set(TABLES)
