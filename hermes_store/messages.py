"""Messages: reading a session's transcript, and everything that changes one.

Order is that of ids, everywhere: clocks step back, ids do not. A row is visible if it is live (``active`` 1), or was
archived by compaction (``active`` 0, ``compacted`` 1) and has no live copy. A rewound row (0, 0) is not, anywhere,
unless it is asked for; nor is one that Hermes marked ``hidden``, except to the model.

Every change is checked before anything is written, is one transaction, and leaves the counters of its session true.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func
from sqlalchemy.orm import Session

from hermes_store import compaction, revising, transfer, windows
from hermes_store.conversation import conversation
from hermes_store.message_reading import rows, to_record
from hermes_store.message_rows import NewMessage, encode_changes, encode_message, encode_messages
from hermes_store.models import Message
from hermes_store.records import ImportReport, MessageInfo, MessageWindow, Replacement, Rewind
from hermes_store.scope import Scope
from hermes_store.search.rows import MESSAGES, visible
from hermes_store.transcript import LIVE, OF_SESSION, append_rows, require_session, rows_of

#: Whose messages `MessageRepository.anchored` shows, unless it is told.
SPEAKERS = ("user", "assistant")

_USER_TURNS = (
    rows()
    .where(
        OF_SESSION,
        LIVE,
        visible(MESSAGES, include_inactive=False),
        Message.role == "user",
        Message.compressed_summary == 0,
        func.coalesce(Message.observed, 0) == 0,
    )
    .order_by(Message.id.desc())
    .limit(bindparam("n"))
)


class MessageRepository:
    """Reads and changes messages."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get(self, message_id: int) -> MessageInfo:
        """Read one message, visible or not.

        Args:
            message_id: Its id.

        Raises:
            NotFoundError: There is no such message.
        """
        with self._scope.reading() as session:
            return to_record(revising.find(session, message_id))

    def list(
        self,
        session_id: str,
        *,
        include_inactive: bool = False,
        include_archived: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> builtins.list[MessageInfo]:
        """Read a session's live messages, oldest first.

        Args:
            session_id: The session.
            include_inactive: Also rows that compaction archived and rows that were rewound.
            include_archived: Also messages that compaction archived, each once.
            limit: At most so many: the latest ones.
            offset: Leave out so many of the latest ones first.

        Raises:
            NotFoundError: There is no such session.
            ValueError: Limit or offset is negative.
        """
        _require_counts(limit=limit, offset=offset)
        wanted = rows().where(Message.session_id == session_id)
        if not include_inactive:
            wanted = wanted.where(visible(MESSAGES, include_inactive=False))
            if not include_archived:
                wanted = wanted.where(LIVE)
        with self._scope.reading() as session:
            require_session(session, session_id)
            # The latest N are found from the end, then turned round.
            found = session.execute(wanted.order_by(Message.id.desc()).limit(limit).offset(offset or None)).all()
            return [to_record(row) for row in reversed(found)]

    def conversation(self, session_id: str, *, include_ancestors: bool = False) -> builtins.list[dict[str, Any]]:
        """Read the live messages of a session as a model takes them, hidden ones included.

        Args:
            session_id: The session.
            include_ancestors: Also the sessions that it continues, without what was handed on twice.

        Returns:
            Dictionaries with ``role``, ``content`` and whatever of ``tool_calls``, ``tool_call_id``, ``tool_name``,
            ``reasoning``, ``timestamp``, ``message_uid`` and so on the message has, and its id as ``_row_id``. They
            can be given to `append_many`, `replace` and `archive_and_compact` as they are.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            return conversation(session, session_id, include_ancestors=include_ancestors)

    def around(self, session_id: str, message_id: int, window: int = 5) -> MessageWindow:
        """Read a message with its neighbours, of those that may be shown.

        Args:
            session_id: The session.
            message_id: The message; if compaction copied it, its live copy is read.
            window: How many on each side.

        Raises:
            NotFoundError: The session has no such message that may be shown.
            ValueError: The window is negative.
        """
        _require_counts(window=window)
        with self._scope.reading() as session:
            return windows.around(session, session_id, message_id, window)

    def anchored(
        self,
        session_id: str,
        message_id: int,
        window: int = 5,
        bookend: int = 3,
        *,
        roles: Sequence[str] | None = SPEAKERS,
    ) -> MessageWindow:
        """Read a message with its neighbours, and how its session began and ended.

        Args:
            session_id: The session.
            message_id: The message, shown whatever its role; if compaction copied it, its live copy is read.
            window: How many on each side, counted over all roles.
            bookend: How many messages that say something, from the beginning and from the end.
            roles: Whose messages are shown; None for all.

        Raises:
            NotFoundError: The session has no such message that may be shown.
            ValueError: Window or bookend is negative.
        """
        _require_counts(window=window, bookend=bookend)
        with self._scope.reading() as session:
            return windows.anchored(session, session_id, message_id, window, bookend=bookend, roles=roles)

    def recent_user_turns(self, session_id: str, limit: int = 10) -> builtins.list[MessageInfo]:
        """Read what the user said last: the messages that `rewind` can go back to.

        Args:
            session_id: The session.
            limit: At most so many: the latest ones, oldest first.

        Raises:
            NotFoundError: There is no such session.
            ValueError: The limit is negative.
        """
        _require_counts(limit=limit)
        with self._scope.reading() as session:
            require_session(session, session_id)
            return [to_record(row) for row in reversed(rows_of(session, _USER_TURNS, owner=session_id, n=limit))]

    def watermark(self, session_id: str) -> int:
        """Say which live message is the last one: what a compressor notes when it begins.

        Args:
            session_id: The session.

        Returns:
            Its id; 0 when there is none.

        Raises:
            NotFoundError: There is no such session.
        """
        with self._scope.reading() as session:
            require_session(session, session_id)
            return compaction.watermark(session, session_id)

    def append(
        self,
        session_id: str,
        role: str,
        content: Any = None,
        *,
        tool_name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        timestamp: Any = None,
        **columns: Any,
    ) -> int:
        """Add a message to the end of a session.

        Args:
            session_id: The session.
            role: Who speaks: ``user``, ``assistant``, ``tool``, ``system``.
            content: Text, or the list or mapping of structured content.
            tool_name: The tool that a tool message comes from.
            tool_calls: The calls an assistant's message makes: a list, or its JSON text.
            tool_call_id: The call that a tool message answers.
            timestamp: Epoch seconds or an aware datetime; now when not given.
            columns: Other columns, by the names of `hermes_store.models.Message`.

        Returns:
            The message's id.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression; the error names where its conversation goes on.
            InvalidMessageError: A value cannot be stored (bytes, a time that cannot be believed, broken JSON), or there
                is no such column. Nothing was written.
        """
        given = {
            "role": role, "content": content, "tool_name": tool_name, "tool_calls": tool_calls,
            "tool_call_id": tool_call_id, "timestamp": timestamp, **columns,
        }  # fmt: skip
        message = encode_message(given, time.time())
        return self._scope.run(lambda session: append_rows(session, session_id, [message])[0], kind="transcript")

    def append_many(self, session_id: str, messages: Iterable[Mapping[str, Any]]) -> builtins.list[int]:
        """Add messages to the end of a session: all of them, or none.

        Args:
            session_id: The session.
            messages: Mappings with the arguments of `append`, or the dictionaries of `conversation`.

        Returns:
            The ids, in order.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression; the error names where its conversation goes on.
            InvalidMessageError: One of them cannot be stored; its place in the list is named.
        """
        ready = encode_messages(messages, time.time())
        return self._scope.run(lambda session: append_rows(session, session_id, ready), kind="transcript")

    def edit(self, session_id: str, message_id: int, *, holder: str | None = None, **changes: Any) -> MessageInfo:
        """Change what a message says; it stays the same message, in its place.

        Args:
            session_id: The session.
            message_id: The message, also one that is not live.
            holder: Who asks, if they hold the session's compression lock or its conversation's turn.
            changes: New values of columns: ``content``, ``tool_calls`` and so on. The text that is sent to the model in
                place of the content goes with the old content, unless it is given too.

        Returns:
            The message as it is now.

        Raises:
            NotFoundError: The session has no such message.
            InvalidMessageError: A value cannot be stored, or a column not be changed.
            LockHeldError: Somebody else works on the session.
        """
        new = encode_changes(changes).values
        if "content" in new:
            new.setdefault("api_content", None)
        return self._scope.run(lambda session: revising.edit(session, session_id, message_id, new, holder=holder))

    def delete(self, session_id: str, message_ids: int | Iterable[int], *, holder: str | None = None) -> int:
        """Delete messages for good, with the copies that compaction made of them.

        Args:
            session_id: The session.
            message_ids: One message or several, also ones that are not live.
            holder: Who asks, if they hold the session's compression lock or its conversation's turn.

        Returns:
            How many rows went.

        Raises:
            NotFoundError: The session has no such message; nothing was deleted.
            LockHeldError: Somebody else works on the session.
        """
        wanted = [message_ids] if isinstance(message_ids, int) else sorted(set(message_ids))
        return self._scope.run(lambda session: revising.remove(session, session_id, wanted, holder=holder))

    def rewind(self, session_id: str, to_message_id: int, *, holder: str | None = None) -> Rewind:
        """Take back a message of the user and all that came after it.

        Args:
            session_id: The session.
            to_message_id: The user's message, which is taken back as well.
            holder: Who asks, if they hold the session's compression lock or its conversation's turn.

        Returns:
            What was taken back, with the message to edit.

        Raises:
            NotFoundError: The session has no such message.
            InvalidMessageError: It is not the user's.
            ConflictError: Compaction archived it; the conversation cannot go back behind a summary.
            SessionContinuedError: The session ended by compression.
            LockHeldError: Somebody else works on the session.
        """
        return self._scope.run(lambda session: revising.rewind(session, session_id, to_message_id, holder=holder))

    def restore(self, session_id: str, from_message_id: int, *, holder: str | None = None) -> tuple[int, ...]:
        """Undo a rewind: messages that were taken back are live again.

        Those that compaction archived stay archived, and a message that lives on in a copy does not come back beside
        it.

        Args:
            session_id: The session.
            from_message_id: The first message to bring back; all rewound ones after it come back too.
            holder: Who asks, if they hold the session's compression lock or its conversation's turn.

        Returns:
            The messages that are live again.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression.
            LockHeldError: Somebody else works on the session.
        """
        return self._scope.run(lambda session: revising.restore(session, session_id, from_message_id, holder=holder))

    def replace(
        self, session_id: str, messages: Iterable[Mapping[str, Any]], *, holder: str | None = None
    ) -> Replacement:
        """Put another transcript in the place of a session's live one.

        What both begin with stays as it is. What else was live is kept as rewound, what compaction archived is not
        touched.

        Args:
            session_id: The session.
            messages: The whole new transcript, as for `append_many`.
            holder: Who asks, if they hold the session's compression lock or its conversation's turn.

        Returns:
            The live messages now, and what became of the others.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression.
            InvalidMessageError: One of the messages cannot be stored.
            LockHeldError: Somebody else works on the session.
        """
        ready = encode_messages(messages, time.time())
        return self._scope.run(
            lambda session: compaction.replace(session, session_id, _copies(ready), holder=holder), kind="transcript"
        )

    def archive_and_compact(
        self,
        session_id: str,
        messages: Iterable[Mapping[str, Any]],
        *,
        watermark: int | None = None,
        tail_count: int = 0,
        holder: str | None = None,
    ) -> Replacement:
        """Put a summary in the place of a session's live messages, which stay in the archive, to be found.

        Args:
            session_id: The session.
            messages: The summary and what is carried over, as for `append_many`. Messages of `conversation` that are
                given back unchanged are carried over: their originals are not found beside them.
            watermark: The last live message when the compressor began, see `watermark`. Messages that came later stay
                live, behind the new ones. None: there are none.
            tail_count: How many of the messages, at the end, are the last ones that the compressor read; for
                messages without their uid and time.
            holder: Who holds the session's compression lock.

        Returns:
            The live messages now, and what became of the others.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression.
            InvalidMessageError: One of the messages cannot be stored.
            LockLostError: The holder does not hold the lock any more.
            LockHeldError: No holder was given, and somebody compresses the session.
        """
        _require_counts(watermark=watermark, tail_count=tail_count)
        ready = encode_messages(messages, time.time())
        return self._scope.run(
            lambda session: compaction.archive_and_compact(
                session, session_id, _copies(ready), above=watermark, tail=tail_count, holder=holder
            ),
            kind="transcript",
        )

    def publish_compression_child(
        self,
        session_id: str,
        messages: Iterable[Mapping[str, Any]],
        *,
        watermark: int | None = None,
        watermark_ceiling: int | None = None,
        tail_count: int = 0,
        holder: str | None = None,
        **child: Any,
    ) -> Replacement:
        """End a session by compression and go on in a new one that begins with a summary, all or nothing.

        Args:
            session_id: The session that ends.
            messages: What the new one begins with; see `archive_and_compact`.
            watermark: The last live message when the compressor began. Messages that came later go along, behind the
                new ones. None: there are none.
            watermark_ceiling: The last message that goes along; later ones are in the new messages already.
            tail_count: See `archive_and_compact`.
            holder: Who holds the session's compression lock.
            child: ``id``, ``source``, ``model``, ``model_config``, ``system_prompt`` and other columns of the new
                session; what is not given it takes over from the old one.

        Returns:
            The new session, its messages, and what became of the old one's.

        Raises:
            NotFoundError: There is no such session.
            SessionContinuedError: It ended by compression already.
            ConflictError: It ended otherwise, or the new session's id is taken.
            InvalidMessageError: There is no message, or one of them cannot be stored.
            ValueError: A column of the new session means nothing.
            LockLostError: The holder does not hold the lock any more.
            LockHeldError: No holder was given, and somebody compresses the session.
        """
        _require_counts(watermark=watermark, watermark_ceiling=watermark_ceiling, tail_count=tail_count)
        ready = encode_messages(messages, time.time())
        return self._scope.run(
            lambda session: compaction.publish_child(
                session, session_id, _copies(ready),
                child=child, above=watermark, up_to=watermark_ceiling, tail=tail_count, holder=holder,
            ),
            kind="transcript",
        )  # fmt: skip

    def export(
        self, session_ids: str | Iterable[str] | None = None, *, include_inactive: bool = False
    ) -> builtins.list[dict[str, Any]]:
        """Read sessions with their messages as plain data that `json` can write and `import_` can read.

        Args:
            session_ids: One session or several; None for all.
            include_inactive: Also messages that were rewound, and originals that compaction copied.

        Returns:
            A dictionary for each session, in the order of their ids.

        Raises:
            NotFoundError: There is no such session.
        """
        wanted = None if session_ids is None else [session_ids] if isinstance(session_ids, str) else [*session_ids]
        with self._scope.reading() as session:
            return transfer.export(session, wanted, include_inactive=include_inactive)

    def import_(self, documents: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> ImportReport:
        """Add sessions and messages that are not there yet; doing it again adds nothing.

        Args:
            documents: Sessions as `export` gives them, or a Hermes export.
            dry_run: Change nothing.

        Returns:
            What was added, what was skipped and why; or what would be.

        Raises:
            InvalidMessageError: One of them cannot be stored; nothing was written.
        """
        incoming, unknown = transfer.prepare(documents)

        def write(session: Session) -> ImportReport:
            if not dry_run:
                return transfer.import_sessions(session, incoming, unknown)
            with session.begin_nested() as attempt:
                report = transfer.import_sessions(session, incoming, unknown)
                attempt.rollback()
            return report

        return self._scope.run(write, kind="transcript")


def _copies(messages: Sequence[NewMessage]) -> builtins.list[NewMessage]:
    return [message.copy() for message in messages]


def _require_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 0:
            raise ValueError(f"{name} must not be negative")
