"""Questions about sessions' relatives: what one is to its parent, where its conversation began and goes on, its kin.

What an edge means is `hermes_store.edges`' to say, and how one walks along them `hermes_store.walks`', whose builders
are to be had from here as well. Each question takes a constant number of statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from sqlalchemy import ColumnElement, literal_column, select
from sqlalchemy.orm import Session

from hermes_store.cells import Problems, read_text, read_timestamp
from hermes_store.edges import ACTIVITY, EDGES, LINEAGE
from hermes_store.errors import no_such_session, require_sessions
from hermes_store.records import Kind, LineageNode, LineageReport
from hermes_store.scope import Scope
from hermes_store.search.rows import MESSAGES, SESSIONS, live_messages, s
from hermes_store.walks import (
    Ids,
    among,
    ancestors,
    chain_upward,
    continuations,
    continued,
    conversation_root,
    descendants,
    in_bytes,
    top,
    upward,
)

__all__ = ["Ids", "LineageRepository", "ancestors", "chain_upward", "continuations", "conversation_root", "descendants"]


class LineageRepository:
    """Questions about sessions' relatives."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def kind(self, session_id: str) -> Kind:
        """Say what a session is to its parent.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        return cast("Kind", self._one(session_id, EDGES.c.kind))

    def root(self, session_id: str) -> str:
        """The topmost ancestor there is, over edges of every kind; the session itself when it has none.

        Args:
            session_id: The session.

        Returns:
            Its id; of a ring the smallest one in it.

        Raises:
            NotFoundError: There is no such session.
        """
        return str(self._one(session_id, LINEAGE.c.root_id))

    def conversation_root(self, session_id: str) -> str:
        """The session that began a session's conversation, over compression edges only.

        Args:
            session_id: The session.

        Returns:
            Its id; of a ring the smallest one in it.

        Raises:
            NotFoundError: There is no such session.
        """
        return self.conversation_roots([session_id])[session_id]

    def conversation_roots(self, session_ids: Collection[str]) -> dict[str, str]:
        """The same for many sessions, with one statement.

        Args:
            session_ids: The sessions.

        Raises:
            NotFoundError: One of them does not exist.
        """
        with self._scope.reading() as session:
            parents = continued(session, session_ids)
        require_sessions(session_ids, parents)
        return {one: top(one, parents) for one in session_ids}

    def tip(self, session_id: str) -> str:
        """Where a session's conversation goes on, over compression edges.

        Where a session was continued several times, it goes on where the freshest messages are.

        Args:
            session_id: The session.

        Returns:
            The tip's id; the session itself when it was never continued.

        Raises:
            NotFoundError: There is no such session.
        """
        return str(self._one(session_id, LINEAGE.c.tip_id))

    def tips(self, session_ids: Collection[str]) -> dict[str, str]:
        """The same for many sessions, with one statement.

        Args:
            session_ids: The sessions.

        Raises:
            NotFoundError: One of them does not exist.
        """
        statement = select(LINEAGE.c.session_id, LINEAGE.c.tip_id).where(among(LINEAGE.c.session_id, session_ids))
        with self._scope.reading() as session:
            found = {str(row[0]): str(row[1]) for row in session.execute(statement)}
        require_sessions(session_ids, found)
        return found

    def resume_target(self, session_id: str) -> str:
        """The session to go on with when somebody resumes this one: its tip.

        A session that was never compressed is resumed itself, whatever branches, resets or delegates it has.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        return self.tip(session_id)

    def chain(self, session_id: str) -> list[str]:
        """All members of a session's conversation, parents first; the same whichever member is named.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            head = conversation_root(session, session_id)
            walk = continuations(head)
            statement = select(SESSIONS.c.id, SESSIONS.c.parent_session_id).join(walk, walk.c.id == SESSIONS.c.id)
            # Sorted here: SQLite might walk all sessions to have them in order.
            rows = sorted(session.execute(statement).all())
        require_sessions([session_id], [row.id for row in rows])
        below: dict[str | None, list[str]] = {}
        for id_, parent_id in rows:
            below.setdefault(parent_id, []).append(str(id_))
        line = [head]
        for one in line:  # grows while it is walked; a ring ends at its head
            line.extend(child for child in below.get(one, ()) if child != head)
        return line

    def ancestors(self, session_id: str) -> list[str]:
        """All ancestors, from the parent up to the root.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        walk = ancestors(session_id)
        statement = select(SESSIONS.c.id, SESSIONS.c.parent_session_id).join(walk, walk.c.id == SESSIONS.c.id)
        with self._scope.reading() as session:
            parents = {str(row[0]): row[1] for row in session.execute(statement)}
        require_sessions([session_id], parents)
        return upward(session_id, parents)[1:]

    def descendants(self, session_id: str) -> list[str]:
        """All sessions below, over edges of every kind, in the order of their ids.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        walk = descendants(session_id)
        with self._scope.reading() as session:
            found = [str(id_) for id_ in session.scalars(select(walk.c.id).order_by(walk.c.id))]
        require_sessions([session_id], found)
        return [one for one in found if one != session_id]

    def children(self, session_id: str) -> dict[str, Kind]:
        """Direct children and what each is, in the order of their ids.

        Args:
            session_id: The session.

        Raises:
            NotFoundError: There is no such session.
        """
        below = select(EDGES.c.session_id, EDGES.c.kind).where(
            EDGES.c.parent_id == session_id, EDGES.c.session_id != session_id
        )
        with self._scope.reading() as session:
            found = session.scalars(select(SESSIONS.c.id).where(SESSIONS.c.id == session_id)).all()
            require_sessions([session_id], found)
            rows = session.execute(below.order_by(EDGES.c.session_id)).all()
        return {str(id_): cast("Kind", kind) for id_, kind in rows}

    def tree(self, session_id: str) -> LineageNode:
        """A session with all that descends from it.

        Args:
            session_id: The session at the top; `root` finds the one above all.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            return _tree(session, session_id)

    def check(self) -> LineageReport:
        """Look through the whole file for what is odd about its lineage."""
        with self._scope.reading() as session:
            return _check(session)

    def _one(self, session_id: str, column: ColumnElement[Any]) -> Any:
        key = cast("Any", column).table.c.session_id
        with self._scope.reading() as session:
            found = session.execute(select(column).where(key == session_id)).first()
        if found is None:
            raise no_such_session(session_id)
        return found[0]


def _tree(session: Session, session_id: str) -> LineageNode:
    walk = descendants(session_id)
    rows = session.execute(
        select(
            s.c.id,
            s.c.parent_session_id,
            s.c.source,
            s.c.title,
            s.c.started_at,
            s.c.end_reason,
            EDGES.c.kind,
            literal_column(ACTIVITY).label("activity"),
            live_messages(s).label("messages"),
        )
        .join(walk, walk.c.id == s.c.id)
        .join(EDGES, EDGES.c.session_id == s.c.id)
    ).all()
    by_id = {str(row.id): row for row in rows}
    require_sessions([session_id], by_id)
    continued = {row.parent_session_id for row in rows if row.kind == "compression"}
    heads = {id_ for id_, row in by_id.items() if id_ == session_id or row.kind != "compression"}
    walked = session.scalars(select(LINEAGE.c.tip_id).where(among(LINEAGE.c.session_id, heads & continued)))
    tips = (heads - continued) | set(walked)
    below: dict[str, list[str]] = {}
    for id_, row in by_id.items():
        if id_ not in {session_id, row.parent_session_id}:
            below.setdefault(row.parent_session_id, []).append(id_)
    order = [session_id]
    for one in order:
        order.extend(below.get(one, ()))
    nodes: dict[str, LineageNode] = {}
    for id_ in reversed(order):
        children = [nodes[child] for child in below.get(id_, ())]
        children.sort(key=lambda node: (node.started or 0.0, node.id))
        nodes[id_] = _node(by_id[id_], id_ in tips, tuple(children))
    return nodes[session_id]


def _node(row: Any, is_tip: bool, children: tuple[LineageNode, ...]) -> LineageNode:
    problems = Problems()
    return LineageNode(
        id=str(row.id),
        kind=cast("Kind", row.kind),
        source=read_text(row.source, "source", problems),
        title=read_text(row.title, "title", problems),
        started=read_timestamp(row.started_at, "started_at", problems),
        last_activity=row.activity or None,
        end_reason=read_text(row.end_reason, "end_reason", problems),
        message_count=row.messages,
        is_tip=is_tip,
        children=children,
    )


def _check(session: Session) -> LineageReport:
    rows = session.execute(
        select(EDGES.c.session_id, EDGES.c.parent_id, EDGES.c.kind, SESSIONS.c.end_reason)
        .join(SESSIONS, SESSIONS.c.id == EDGES.c.session_id)
        .order_by(EDGES.c.session_id)
    ).all()
    parents = {str(row.session_id): row.parent_id for row in rows}
    continued: dict[str, list[str]] = {}
    for row in rows:
        if row.kind == "compression":
            continued.setdefault(row.parent_id, []).append(str(row.session_id))
    orphans = select(MESSAGES.c.id).where(MESSAGES.c.session_id.not_in(select(SESSIONS.c.id))).order_by(MESSAGES.c.id)
    missing = {one: parent for one, parent in parents.items() if parent is not None and parent not in parents}
    return LineageReport(
        cycles=tuple(_rings(parents)),
        missing_parents=missing,
        forks={parent: tuple(several) for parent, several in continued.items() if len(several) > 1},
        unfinished=tuple(
            str(row.session_id) for row in rows if row.end_reason == "compression" and row.session_id not in continued
        ),
        orphaned_messages=tuple(session.scalars(orphans)),
    )


def _rings(parents: Mapping[str, str | None]) -> list[tuple[str, ...]]:
    """Find each ring once, beginning with its smallest id; a session that is its own parent is one, too."""
    rings: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in parents:
        line: dict[str, int] = {}
        current: str | None = start
        while current is not None and current in parents and current not in done and current not in line:
            line[current] = len(line)
            current = parents[current]
        if current in line:
            ring = list(line)[line[current] :]
            first = ring.index(min(ring, key=in_bytes))
            rings.append(tuple(ring[first:] + ring[:first]))
        done.update(line)
    return rings
