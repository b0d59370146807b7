"""Sessions: reading and listing them, and everything that changes one.

Flags belong to conversations: archiving, pinning, hiding and reading apply to all members of a compression chain, the
same whichever is named, and never to branches, resets or delegates. What happens to other rows when a session goes is
`hermes_store.removal`'s to say, and when it is old enough `hermes_store.retention`'s.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Unpack

from sqlalchemy import ColumnElement, Select, case, func, select, update
from sqlalchemy.orm import Session

from hermes_store.edges import EDGES, LINEAGE
from hermes_store.errors import ConflictError, NotFoundError, no_such_session, require_sessions
from hermes_store.listing import HEADS, ListArguments, by_activity, by_start, count, make_list_filters, page
from hermes_store.locks import require_free
from hermes_store.models import HermesSession, Message
from hermes_store.records import Kind, Removal, SessionInfo, SessionStats, SessionSummary
from hermes_store.removal import plan, remove
from hermes_store.retention import cutoffs, prunable, stale
from hermes_store.scope import Scope
from hermes_store.search.filters import read_count, read_names
from hermes_store.search.rows import SESSIONS
from hermes_store.session_rows import (
    encode_config,
    is_covered,
    make_id,
    new_row,
    require_text,
    require_time,
    store_prompt,
    to_record,
)
from hermes_store.summaries import summaries
from hermes_store.titles import OnConflict, clean_title, next_title, settle_title
from hermes_store.walks import among, continuations, conversation_root

Order = Literal["activity", "started"]


class SessionRepository:
    """Reads, lists and changes sessions."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get(self, session_id: str) -> SessionInfo:
        """Read one session.

        Args:
            session_id: Its id.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            row = session.scalars(select(HermesSession).where(HermesSession.id == session_id)).first()
            if row is None:
                raise no_such_session(session_id)
            return to_record(row)

    def resolve(self, name: str) -> str:
        """Find the session that is meant by an id, the beginning of one, or a title.

        Args:
            name: The id, at least four characters of its beginning, or the title (upper and lower case count as one
                if nothing matches exactly).

        Returns:
            The session's id.

        Raises:
            NotFoundError: Nothing matches.
            ConflictError: Several sessions match; the message names some.
        """
        exact = HermesSession.id == name
        prefix = func.substr(HermesSession.id, 1, len(name)) == name
        folded = func.lower(HermesSession.title) == name.lower()
        tries = [exact, HermesSession.title == name] + ([prefix] if len(name) >= 4 else []) + [folded]  # noqa: PLR2004 - as documented
        with self._scope.reading() as session:
            for condition in tries:
                found = session.scalars(select(HermesSession.id).where(condition).limit(4)).all()
                if len(found) == 1:
                    return str(found[0])
                if found:
                    shown = ", ".join(str(one) for one in found[:3])
                    raise ConflictError(f"{name!r} can mean several sessions ({shown}); give more of the id")
        raise NotFoundError(f"no session has the id or title {name!r}")

    def list(
        self, limit: int = 20, offset: int = 0, *, order: Order = "activity", **filters: Unpack[ListArguments]
    ) -> list[SessionSummary]:
        """List conversations, newest first.

        Args:
            limit: At most so many.
            offset: Leave out so many first.
            order: By last activity, or by when the conversation started.
            filters: Which ones; see `hermes_store.listing.ListArguments`.

        Returns:
            The entries; one per conversation.

        Raises:
            ValueError: A filter has a value that means nothing; the message names it.
        """
        if order not in {"activity", "started"}:
            raise ValueError(f"order must be 'activity' or 'started', not {order!r}")
        limit, offset = read_count("limit", limit), read_count("offset", offset)
        wanted = make_list_filters(filters)
        with self._scope.reading() as session:
            connection = session.connection()
            if order == "activity":
                heads = by_activity(connection, wanted, expected=limit + offset, skipped=offset)
            else:
                heads = by_start(connection, wanted)
            return summaries(connection, page(heads, limit, offset))

    def total(self, **filters: Unpack[ListArguments]) -> int:
        """Count the conversations that `list` gives over all pages.

        Args:
            filters: As for `list`.

        Raises:
            ValueError: A filter has a value that means nothing.
        """
        wanted = make_list_filters(filters)
        with self._scope.reading() as session:
            return count(session.connection(), wanted)

    def stats(self) -> SessionStats:
        """Count what the file holds; takes time in proportion to its sessions and the index entries of its messages."""
        with self._scope.reading() as session:
            rows = session.execute(_classes()).all()
            messages = session.scalar(select(func.count()).select_from(Message)) or 0
            live = session.scalar(select(func.count()).select_from(Message).where(Message.active == 1)) or 0
        kinds: Counter[Kind] = Counter()
        sources: Counter[str] = Counter()
        flags: Counter[str] = Counter()
        for row in rows:
            kinds[row.kind] += row.sessions
            sources[str(row.source)] += row.sessions
            flags.update({name: getattr(row, name) for name in ("open", "archived", "hidden", "pinned")})
        return SessionStats(
            sessions=kinds.total(),
            conversations=sum(kinds[kind] for kind in HEADS),
            by_kind=dict(kinds),
            by_source=dict(sources),
            open=flags["open"],
            archived=flags["archived"],
            hidden=flags["hidden"],
            pinned=flags["pinned"],
            messages=messages,
            live_messages=live,
        )

    def next_title(self, title: str) -> str:
        """Find a title that nobody has: the plain one, else ``title #2`` and so on.

        Args:
            title: The title, with or without a number.

        Raises:
            ValueError: The title is empty, or longer than 100 characters with its number.
        """
        with self._scope.reading() as session:
            return next_title(session, title)

    def create(
        self,
        source: str,
        *,
        id: str | None = None,  # noqa: A002 - the name of the column, and part of the fixed interface
        parent_session_id: str | None = None,
        model: str | None = None,
        model_config: Mapping[str, Any] | None = None,
        title: str | None = None,
        on_conflict: OnConflict = "error",
        **columns: Any,
    ) -> SessionInfo:
        """Add a session.

        Args:
            source: The platform it comes from, such as ``cli``.
            id: Its id; made from the time, as Hermes makes it, when not given.
            parent_session_id: The session it comes from.
            model: The model's name.
            model_config: Settings, and the lineage markers ``_branched_from``, ``_reset_from``, ``_delegate_from``.
            title: Its title.
            on_conflict: What to do when another session has the title; see `rename`.
            columns: Other columns, by the names of `hermes_store.models.HermesSession`; ``started_at`` is now when it
                is not given, ``system_prompt`` is stored once for all sessions that share it.

        Returns:
            The new session.

        Raises:
            ConflictError: The id or the title is taken.
            NotFoundError: There is no such parent.
            ValueError: A value means nothing, or there is no such column.
        """
        row = new_row(source, model_config=model_config, model=model, **columns)
        with self._scope.writing() as session:
            row.id = id if id is not None else make_id(row.started_at)
            require_text("id", row.id)
            if session.get(HermesSession, row.id) is not None:
                raise ConflictError(f"there is a session {row.id} already")
            if parent_session_id is not None:
                row.parent_session_id = _find(session, parent_session_id).id
            store_prompt(session, row, columns.get("system_prompt"))
            session.add(row)
            session.flush()
            if title is not None:
                _set_title(session, row, title, on_conflict)
            session.flush()
            return to_record(row)

    def end(self, session_id: str, reason: str) -> SessionInfo:
        """End a session; the first reason stays until it is reopened.

        Args:
            session_id: The session.
            reason: Why, such as ``user_exit``.

        Returns:
            The session as it is now.

        Raises:
            NotFoundError: There is no such session.
            ValueError: The reason is no text, or empty.
        """
        require_text("reason", reason)
        with self._scope.writing() as session:
            row = _find(session, session_id)
            if row.ended_at is None:
                row.ended_at, row.end_reason = time.time(), reason
                session.flush()
            return to_record(row)

    def reopen(self, session_id: str) -> SessionInfo:
        """Take back the end of a session.

        Branches and resets that only the end told of get the marker first, so that they stay what they are.

        Args:
            session_id: The session.

        Returns:
            The session as it is now.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: It was continued; the message names where its conversation goes on.
            LockHeldError: It is being compressed just now.
        """
        with self._scope.writing() as session:
            row = _find(session, session_id)
            children = session.execute(
                select(EDGES.c.session_id, EDGES.c.kind).where(EDGES.c.parent_id == row.id)
            ).all()
            if any(child.kind == "compression" for child in children):
                tip = session.scalar(select(LINEAGE.c.tip_id).where(LINEAGE.c.session_id == row.id))
                raise ConflictError(f"session {row.id} was continued; its conversation goes on in {tip}")
            if row.end_reason == "compression":
                require_free(session, row.id)
            for child in children:
                if child.kind in _MARKERS and child.session_id != row.id:
                    _mark(session.get_one(HermesSession, child.session_id), _MARKERS[child.kind], str(row.id))
            row.ended_at = row.end_reason = None
            session.flush()
            return to_record(row)

    def rename(self, session_id: str, title: str | None, *, on_conflict: OnConflict = "error") -> SessionInfo:
        """Give a session a title.

        Args:
            session_id: The session.
            title: The title; control and invisible characters go, blanks collapse. None or blank: no title.
            on_conflict: When another session has it: ``error``; ``suffix``, take the next number of it; ``take_over``,
                take it from another member of the same conversation.

        Returns:
            The session as it is now.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: The title is taken.
            ValueError: It is longer than 100 characters, or the policy unknown.
        """
        with self._scope.writing() as session:
            row = _find(session, session_id)
            _set_title(session, row, title, on_conflict)
            session.flush()
            return to_record(row)

    def set_model_config(self, session_id: str, model_config: Mapping[str, Any] | None) -> SessionInfo:
        """Replace a session's settings.

        Args:
            session_id: The session.
            model_config: The settings with their lineage markers; None for none.

        Returns:
            The session as it is now.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: It would become a delegate, or be none any more, and has messages: the substring index
                holds those of conversations only, and would be wrong from then on.
            ValueError: The settings are no mapping that JSON can hold.
        """
        text = encode_config(model_config)
        with self._scope.writing() as session:
            row = _find(session, session_id)
            _require_same_coverage(session, row, str(row.source), text)
            row.model_config = text
            session.flush()
            return to_record(row)

    def set_source(self, session_id: str, source: str) -> SessionInfo:
        """Move a session to another platform.

        Args:
            session_id: The session.
            source: The platform.

        Returns:
            The session as it is now.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: One of the two is ``cron`` or ``subagent``, and it has messages; see `set_model_config`.
            ValueError: The source is no text, or empty.
        """
        require_text("source", source)
        with self._scope.writing() as session:
            row = _find(session, session_id)
            _require_same_coverage(session, row, source, row.model_config)
            row.source = source
            session.flush()
            return to_record(row)

    def archive(self, session_id: str, flag: bool = True) -> tuple[str, ...]:
        """Put a conversation away, or take it back.

        Args:
            session_id: Any member of it.
            flag: False takes it back.

        Returns:
            The members, all of which have the flag now.

        Raises:
            NotFoundError: There is no such session.
        """
        return self._flag(session_id, archived=int(flag), auto_archived=0)

    def pin(self, session_id: str, flag: bool = True) -> tuple[str, ...]:
        """Pin a conversation, or unpin it; see `archive`.

        Args:
            session_id: Any member of it.
            flag: False unpins it.
        """
        return self._flag(session_id, pinned=int(flag))

    def hide(self, session_id: str, flag: bool = True) -> tuple[str, ...]:
        """Hide a conversation, or show it; see `archive`.

        Args:
            session_id: Any member of it.
            flag: False shows it.
        """
        return self._flag(session_id, hidden=int(flag))

    def mark_read(self, session_id: str, at: float | None = None) -> tuple[str, ...]:
        """Note when a conversation was read last; see `archive`.

        Args:
            session_id: Any member of it.
            at: When, epoch seconds; now when not given.

        Raises:
            ValueError: The time cannot be believed.
        """
        return self._flag(session_id, last_read_at=time.time() if at is None else require_time("at", at))

    def delete(self, ids: str | Iterable[str], *, detach: bool = False, dry_run: bool = False) -> Removal:
        """Delete conversations, whichever member is named, with the delegates and tool runs that worked for them.

        Branches and resets that came from them stay, without a parent. Their locks, usage and the prompts that nobody
        else uses go as well. All of it is one transaction.

        Args:
            ids: One session or several.
            detach: Only these sessions rather than their conversations: what continues them stays, without a parent.
            dry_run: Change nothing.

        Returns:
            What went, or would go.

        Raises:
            NotFoundError: One of the sessions does not exist; nothing was deleted.
        """
        wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))

        def planned(session: Session) -> Removal:
            _require_all(session, wanted)
            return plan(session, wanted, detach=detach)

        return self._remove(planned, dry_run=dry_run)

    def prune(
        self,
        older_than_days: float,
        *,
        sources: Iterable[str] | None = None,
        per_source: Mapping[str, float | None] | None = None,
        dry_run: bool = False,
    ) -> Removal:
        """Delete conversations that ended and whose last activity is long ago.

        Pinned ones stay, and open ones, and those without a time that can be believed, and every conversation that
        another one stems from which stays.

        Args:
            older_than_days: Days since the last activity.
            sources: Only conversations of these sources; None for all.
            per_source: Other ages for some sources; None keeps everything of a source.
            dry_run: Change nothing.

        Returns:
            What went, or would go.

        Raises:
            ValueError: An age is no number of days, 0 or more.
        """
        moments = cutoffs(time.time(), older_than_days, per_source or {})
        only = read_names("sources", sources)
        return self._remove(lambda session: plan(session, prunable(session, moments, only)), dry_run=dry_run)

    def archive_stale(self, idle_days: float, *, dry_run: bool = False) -> tuple[str, ...]:
        """Archive conversations that were idle for long, open ones too; pinned ones stay.

        Args:
            idle_days: Days since the last activity; 0 archives nothing.
            dry_run: Change nothing.

        Returns:
            The heads of the conversations that were, or would be, archived.

        Raises:
            ValueError: It is no number of days, 0 or more.
        """
        moment = cutoffs(time.time(), idle_days, {})[None]
        if not idle_days:
            return ()
        with self._scope.reading() if dry_run else self._scope.writing() as session:
            heads = stale(session, moment)
            if not dry_run:
                members = select(continuations(heads).c.id)
                _set_flags(session, members, archived=1, auto_archived=1)
            return tuple(heads)

    def _remove(self, planned: Callable[[Session], Removal], *, dry_run: bool) -> Removal:
        if dry_run:
            with self._scope.reading() as session:
                return planned(session)
        return self._scope.run(lambda session: remove(session, planned(session)))

    def _flag(self, session_id: str, **values: float) -> tuple[str, ...]:
        with self._scope.writing() as session:
            _find(session, session_id)
            walk = continuations(conversation_root(session, session_id))
            members = tuple(str(one) for one in session.scalars(select(walk.c.id).order_by(walk.c.id)))
            _set_flags(session, members, **values)
            return members


#: The marker that says of a child by itself what its parent's end says.
_MARKERS = {"branch": "_branched_from", "reset": "_reset_from"}


def _find(session: Session, session_id: str) -> HermesSession:
    row = session.get(HermesSession, session_id)
    if row is None:
        raise no_such_session(session_id)
    return row


def _require_all(session: Session, ids: Collection[str]) -> None:
    require_sessions(ids, set(session.scalars(select(HermesSession.id).where(among(SESSIONS.c.id, ids)))))


def _set_flags(session: Session, members: Any, **values: float) -> None:
    session.execute(
        update(HermesSession).where(among(SESSIONS.c.id, members)).values(**values),
        execution_options={"synchronize_session": False},
    )
    session.expire_all()


def _set_title(session: Session, row: HermesSession, title: str | None, on_conflict: OnConflict) -> None:
    cleaned = None if title is None else clean_title(title)
    row.title = None if cleaned is None else settle_title(session, str(row.id), cleaned, on_conflict)
    row.title_source = "user" if cleaned is not None else None


def _mark(row: HermesSession, name: str, value: str) -> None:
    """Add a lineage marker, unless there is one, or the settings cannot be read."""
    try:
        config = json.loads(row.model_config) if row.model_config else {}
    except (ValueError, TypeError):
        return
    if isinstance(config, dict) and name not in config:
        row.model_config = json.dumps(config | {name: value})


def _require_same_coverage(session: Session, row: HermesSession, source: str, config: str | None) -> None:
    """The substring index holds a session's messages or does not, by its source and delegate marker as they are now."""
    if is_covered(str(row.source), row.model_config) == is_covered(source, config):
        return
    if session.scalar(select(Message.id).where(Message.session_id == row.id).limit(1)) is not None:
        raise ConflictError(
            f"session {row.id} has messages, and whether substring search covers them would change; "
            "make a new session instead"
        )


def _classes() -> Select[Any]:
    def number(condition: ColumnElement[bool], name: str) -> ColumnElement[int]:
        return func.sum(case((condition, 1), else_=0)).label(name)

    return (
        select(
            EDGES.c.kind,
            SESSIONS.c.source,
            func.count().label("sessions"),
            number(SESSIONS.c.ended_at.is_(None), "open"),
            number(SESSIONS.c.archived == 1, "archived"),
            number(SESSIONS.c.hidden == 1, "hidden"),
            number(SESSIONS.c.pinned == 1, "pinned"),
        )
        .join(EDGES, EDGES.c.session_id == SESSIONS.c.id)
        .group_by(EDGES.c.kind, SESSIONS.c.source)
    )
