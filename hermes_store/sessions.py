"""Sessions: reading them, finding one by what people call it, listing them as conversations."""

from __future__ import annotations

from typing import Literal, Unpack

from sqlalchemy import func, select

from hermes_store.cells import Problems, read_json, read_number, read_text, read_timestamp
from hermes_store.cells import read_count as read_whole
from hermes_store.errors import ConflictError, NotFoundError, no_such_session
from hermes_store.listing import ListArguments, by_activity, by_start, count, make_list_filters, page, summaries
from hermes_store.models import HermesSession
from hermes_store.records import SessionInfo, SessionSummary
from hermes_store.scope import Scope
from hermes_store.search.filters import read_count

Order = Literal["activity", "started"]


class SessionRepository:
    """Reads sessions and lists conversations."""

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
                heads = by_activity(connection, wanted, expected=limit + offset)
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


def to_record(row: HermesSession) -> SessionInfo:
    """Turn a row into a record; never fails.

    Args:
        row: The row, attached to its session: the system prompt may live in another table.
    """
    problems = Problems()

    def text(name: str) -> str | None:
        return read_text(getattr(row, name), name, problems)

    def whole(name: str) -> int | None:
        return read_whole(getattr(row, name), name, problems)

    def instant(name: str) -> float | None:
        return read_timestamp(getattr(row, name), name, problems)

    return SessionInfo(
        id=str(row.id),
        source=text("source"),
        title=text("title"),
        title_source=text("title_source"),
        model=text("model"),
        model_config=read_json(row.model_config, "model_config", problems),
        system_prompt=text("system_prompt"),
        parent_session_id=text("parent_session_id"),
        user_id=text("user_id"),
        session_key=text("session_key"),
        display_name=text("display_name"),
        cwd=text("cwd"),
        git_branch=text("git_branch"),
        profile_name=text("profile_name"),
        started=instant("started_at"),
        ended=instant("ended_at"),
        end_reason=text("end_reason"),
        last_activity=instant("last_activity_at"),
        message_count=whole("message_count"),
        tool_call_count=whole("tool_call_count"),
        input_tokens=whole("input_tokens"),
        output_tokens=whole("output_tokens"),
        cache_read_tokens=whole("cache_read_tokens"),
        cache_write_tokens=whole("cache_write_tokens"),
        reasoning_tokens=whole("reasoning_tokens"),
        estimated_cost_usd=read_number(row.estimated_cost_usd, "estimated_cost_usd", problems),
        actual_cost_usd=read_number(row.actual_cost_usd, "actual_cost_usd", problems),
        cost_status=text("cost_status"),
        archived=row.archived == 1,
        pinned=row.pinned == 1,
        hidden=row.hidden == 1,
        problems=problems.as_tuple(),
    )
