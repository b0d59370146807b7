"""Files of every released schema are read as they are, without a byte changing."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from fixture_files import FIXTURES, FRESH, STORES, Released
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from hermes_store import HermesStore, NotFoundError, ReadOnlyError, SchemaBehindError, bind
from hermes_store.models import Base, HermesSession, Message


def digests(path: Path) -> dict[str, str]:
    return {
        side.name: hashlib.sha256(side.read_bytes()).hexdigest()
        for side in (path, path.with_name(path.name + "-wal"))
        if side.exists() and side.stat().st_size
    }


@pytest.mark.parametrize("name", STORES)
def test_a_released_file_is_listed_searched_and_walked_without_a_byte_changing(released: Released, name: str) -> None:
    path = released(name)
    before = digests(path)
    plain = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    sessions = {row[0] for row in plain.execute("SELECT id FROM sessions")}
    plain.close()
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        entries = store.sessions.list(limit=200, include_children=True, include_archived=True, include_hidden=True)
        assert {entry.root_id for entry in entries} <= sessions
        assert len(entries) > 10
        for entry in entries[::4]:
            assert store.sessions.get(entry.id).id == entry.id
            assert store.lineage.root(entry.id) in sessions
            assert store.lineage.tip(entry.root_id) == entry.id
        messages = [m for entry in entries[:8] for m in store.messages.list(entry.id, include_inactive=True)]
        assert messages
        for query in ("docker", "数据库", "项目", "gateway/run.py"):
            assert store.search(query).hits, query
    assert digests(path) == before


@pytest.mark.parametrize("name", FRESH)
def test_every_column_of_the_models_can_be_read_on_every_schema(released: Released, name: str) -> None:
    with HermesStore.open(released(name), read_only=True, migrate="off") as store, store.read() as tx:
        for mapper in Base.registry.mappers:
            tx.session.query(mapper.class_).all()
        message = tx.session.query(Message).order_by(Message.id).first()
        assert message is not None
        assert message.active == 1
        assert message.session.id == message.session_id
        assert isinstance(tx.session.query(HermesSession).first().hidden, int)


@pytest.mark.parametrize("name", FRESH)
def test_tips_agree_with_the_release_where_it_is_right(released: Released, name: str) -> None:
    expected = json.loads((FIXTURES / name).with_suffix(".expect.json").read_text(encoding="utf-8"))
    chain = expected["did"].get("compression_chain") or []
    with HermesStore.open(released(name), read_only=True, migrate="off") as store:
        for member in chain:
            assert store.lineage.tip(member) == chain[-1]
        listed = {entry.id for entry in store.sessions.list(limit=200)}
        assert not chain or chain[-1] in listed
        assert not set(chain[:-1]) & listed


def test_an_old_file_is_refused_by_check_and_readable_with_off_but_not_writable(released: Released) -> None:
    path = released("v16-0.17.0.db")
    with pytest.raises(SchemaBehindError, match=r"hermes-store upgrade .*state\.db"):
        HermesStore.open(path)
    with HermesStore.open(path, migrate="off") as store:
        assert store.sessions.list()
        with pytest.raises(SchemaBehindError, match="hermes-store upgrade"), store.write():
            pass
        with pytest.raises(SchemaBehindError):
            store.meta.set("k", "v")


def test_a_store_that_reads_only_refuses_to_write(released: Released) -> None:
    path = released("v31-iot-0.22.2.post1.db")
    with HermesStore.open(path, read_only=True, migrate="off") as store:
        with pytest.raises(ReadOnlyError), store.write():
            pass
        with pytest.raises(ReadOnlyError), store.read() as tx:
            tx.session.add(HermesSession(id="x", source="cli", started_at=1.0))
            tx.session.flush()


def test_auto_creates_a_missing_file_and_upgrades_an_old_one(released: Released, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="migrate='auto'"):
        HermesStore.open(tmp_path / "none.db")
    with HermesStore.open(tmp_path / "new" / "state.db", migrate="auto") as store:
        assert store.sessions.list() == []
        assert store.schema.schema_version == 31
    with HermesStore.open(released("v22-0.19.0.db"), migrate="auto") as store:
        assert store.schema.schema_version == 31
        store.meta.set("app:seen", "1")
        assert store.meta.get("app:seen") == "1"
        assert store.meta.delete("app:seen")
        assert "app:seen" not in store.meta.items()


def test_views_follow_when_another_process_upgrades_the_file(released: Released) -> None:
    path = released("v13-0.15.2.db")
    with HermesStore.open(path, migrate="off") as store:
        before = store.sessions.list(limit=200)
        with sqlite3.connect(path) as other:
            other.execute("ALTER TABLE sessions ADD COLUMN archived INTEGER NOT NULL DEFAULT 0")
            other.execute("UPDATE sessions SET archived = 1 WHERE id = ?", (before[0].root_id,))
        other.close()
        after = store.sessions.list(limit=200)
        assert {entry.root_id for entry in before} - {entry.root_id for entry in after} == {before[0].root_id}


@pytest.mark.parametrize("name", ["v16-0.17.0.db", "v31-iot-0.22.2.post1.db"])
def test_an_applications_engine_may_forbid_writes(released: Released, name: str) -> None:
    engine = create_engine(f"sqlite:///{released(name)}")
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only=ON"))
    store = HermesStore(engine)
    assert store.search("项目").hits
    assert store.search("docker").hits
    with Session(engine) as session:
        assert bind(session).search("项目").hits
        assert session.connection().exec_driver_sql("PRAGMA query_only").scalar_one() == 1
    engine.dispose()
