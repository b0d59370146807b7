"""Schema 31 of Hermes's ``state.db`` as SQLAlchemy classes: the one description of its tables.

The idea: `Base.metadata` says exactly what a file born with schema 31 says (names, types, nullability, defaults, keys
and indexes), plus a comment on every column and one index of our own. Alembic compares files against it, PostgreSQL is
created from it, and applications write ORM queries over it.

The invariant: nothing here decides anything about a file. A value is what is stored (epoch seconds stay floats, flags
stay 0 and 1, JSON stays text); importing this module touches no file and registers no event; and every class works on
an older file too, where temporary views stand in front of the tables. So no class may use a rowid, the order of
columns or a schema-qualified name.

Other tables of the same file (search indexes, ``telegram_*``, delivery ledgers, whatever a plugin adds) are left out on
purpose: we neither create nor change them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FetchedValue,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    func,
    select,
    text,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, object_session, relationship
from sqlalchemy.types import REAL, TypeEngine

from hermes_store.edges import EDGES

#: The Hermes schema that these classes describe, as ``schema_version`` stores it.
SCHEMA_VERSION = 31

#: Every constraint gets a name, so that a revision on PostgreSQL can address it (Hermes itself names none).
NAMING_CONVENTION = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "ix": "ix_%(table_name)s_%(column_0_name)s",
}

# Plain numbers and texts with the default or key that Hermes's DDL gives them; the name says what they hold.
Count = Annotated[int, mapped_column(server_default=text("0"))]
Flag = Annotated[int, mapped_column(server_default=text("0"))]
Dollars = Annotated[float, mapped_column(server_default=text("0"))]
Label = Annotated[str, mapped_column(server_default=text("''"))]
KeyPart = Annotated[str, mapped_column(primary_key=True, server_default=text("''"))]
# Nullable, because Hermes's DDL is: SQLite gives a text key NOT NULL only where that is written out, and a column that
# differs here would show up in every comparison. PostgreSQL makes every primary key NOT NULL in any case.
Key = Annotated[str, mapped_column(primary_key=True, nullable=True)]


class Base(DeclarativeBase):
    """The declarative base of every table that Hermes and this package share."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)

    # SQLite's REAL is eight bytes wide and its INTEGER grows to eight. PostgreSQL's types of the same names have four:
    # they would round epoch seconds to two minutes and overflow at a long session's cached tokens.
    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        str: Text(),
        int: Integer().with_variant(BigInteger(), "postgresql"),
        float: Double().with_variant(REAL(), "sqlite"),
        bytes: LargeBinary(),
    }


def _partial_index(name: str, *columns: str | ColumnElement[Any], where: str, unique: bool = False) -> Index:
    """Describe an index over the rows that satisfy ``where``, the same on SQLite and PostgreSQL."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class SchemaVersion(Base):
    """The schema number that Hermes last brought the file to. It does not say what is in the file; its shape does."""

    __tablename__ = "schema_version"
    __table_args__ = ({"comment": "One row: the schema number of the Hermes that last upgraded the file."},)

    version: Mapped[int] = mapped_column(comment="Schema number, 11 to 31; never lowered by a release.")

    # The table has no primary key; one row means that its only column can serve as the identity of the object.
    __mapper_args__ = {"primary_key": [version]}  # noqa: RUF012 - the base declares it without ClassVar


class StateMeta(Base):
    """Key/value state of the file: markers of the search indexes, background jobs, goals."""

    __tablename__ = "state_meta"
    __table_args__ = ({"comment": "Key/value state of the file and of background jobs."},)

    key: Mapped[Key] = mapped_column(comment="Name of the entry.")
    value: Mapped[str | None] = mapped_column(comment="Text; a number, a flag or JSON text, depending on the key.")


class SystemPrompt(Base):
    """A text shared by sessions, stored once under its hash: a system prompt, or the JSON text of a tool list.

    Not only ``sessions.system_prompt_hash`` refers to it: since schema 30 ``sessions.tool_names`` holds hashes of this
    table too, without a foreign key. A prompt is unused only when neither column names it.
    """

    __tablename__ = "system_prompts"
    __table_args__ = ({"comment": "Texts shared by sessions, addressed by content. Since schema 25."},)

    hash: Mapped[Key] = mapped_column(comment="SHA-256 of the text, 64 hex digits. Since schema 25.")
    prompt: Mapped[str] = mapped_column(comment="System prompt, or JSON text of a tool list. Since schema 25.")


class HermesSession(Base):
    """One conversation, or one segment of it: a compression, branch, reset or delegation starts a child session.

    The relationships save what an application adds to them and do nothing else. Deleting a session neither loads nor
    changes its children and messages (``passive_deletes="all"``): while any are left a foreign key refuses the delete,
    and ``usage`` goes with it by ON DELETE CASCADE. Both need ``PRAGMA foreign_keys=ON``, which Hermes and the engines
    of this package set and a plain ``create_engine`` does not. The order matters to more than tidiness: the triggers of
    the search indexes read the session row while its messages are deleted. A delete or delete-orphan cascade was
    rejected: it would read every message to remove it, and turn ``session.messages.remove(...)`` into a silent loss.
    """

    __tablename__ = "sessions"

    id: Mapped[Key] = mapped_column(comment="Session id, a date, a time and a suffix by convention.")
    source: Mapped[str] = mapped_column(comment="Where it runs now: cli, telegram, cron, subagent, tool, …")
    created_source: Mapped[str | None] = mapped_column(
        comment="Source it was created with; stays when source changes. Since schema 31."
    )
    user_id: Mapped[str | None] = mapped_column(comment="User id on the platform, as text.")
    session_key: Mapped[str | None] = mapped_column(
        comment="Key of the chat lane that the gateway routes to this session. Since schema 17."
    )
    chat_id: Mapped[str | None] = mapped_column(comment="Chat id on the platform, as text. Since schema 17.")
    chat_type: Mapped[str | None] = mapped_column(comment="Kind of chat: dm, group, channel, … Since schema 17.")
    thread_id: Mapped[str | None] = mapped_column(comment="Thread or topic id in the chat. Since schema 17.")
    display_name: Mapped[str | None] = mapped_column(comment="Name of the chat for people. Since schema 19.")
    origin_json: Mapped[str | None] = mapped_column(comment="JSON text: the chat it came from. Since schema 19.")
    expiry_finalized: Mapped[Flag | None] = mapped_column(
        comment="Flag 0/1: the gateway has done its work on expiry. Since schema 19."
    )
    model: Mapped[str | None] = mapped_column(comment="Model name, usually vendor/name.")
    model_config: Mapped[str | None] = mapped_column(
        comment="JSON text: model settings and the lineage markers _branched_from, _delegate_from, _reset_from."
    )
    system_prompt_inline: Mapped[str | None] = mapped_column(
        "system_prompt", comment="System prompt as text; from schema 25 on normally NULL, see system_prompt_hash."
    )
    system_prompt_hash: Mapped[str | None] = mapped_column(
        ForeignKey(SystemPrompt.hash), comment="Hash of the prompt in system_prompts. Since schema 25."
    )
    parent_session_id: Mapped[str | None] = mapped_column(
        ForeignKey("sessions.id"), comment="Session that this one continues, branches from or works for."
    )
    started_at: Mapped[float] = mapped_column(comment="Start, epoch seconds.")
    ended_at: Mapped[float | None] = mapped_column(comment="End, epoch seconds; NULL while open.")
    end_reason: Mapped[str | None] = mapped_column(
        comment="Why it ended (compression, branched, cli_close, …); the first reason stays until it is reopened."
    )
    message_count: Mapped[Count | None] = mapped_column(
        comment="Count of messages, kept by the writers, not by a trigger."
    )
    tool_call_count: Mapped[Count | None] = mapped_column(comment="Count of tool calls, kept by the writers.")
    input_tokens: Mapped[Count | None] = mapped_column(comment="Count of input tokens.")
    output_tokens: Mapped[Count | None] = mapped_column(comment="Count of output tokens.")
    cache_read_tokens: Mapped[Count | None] = mapped_column(comment="Count of tokens read from the provider's cache.")
    cache_write_tokens: Mapped[Count | None] = mapped_column(comment="Count of tokens written to the provider's cache.")
    reasoning_tokens: Mapped[Count | None] = mapped_column(comment="Count of reasoning tokens.")
    cwd: Mapped[str | None] = mapped_column(comment="Working folder, an absolute path. Since schema 14.")
    git_branch: Mapped[str | None] = mapped_column(comment="Git branch in cwd. Since schema 17.")
    git_repo_root: Mapped[str | None] = mapped_column(comment="Root of the Git work tree, a path. Since schema 17.")
    git_metadata_generation: Mapped[Count] = mapped_column(
        comment="Count of changes of cwd; tells a late Git look-up from a fresh one. Since schema 26."
    )
    billing_provider: Mapped[str | None] = mapped_column(comment="Who bills: openrouter, anthropic, …")
    billing_base_url: Mapped[str | None] = mapped_column(comment="URL of the billing provider's API.")
    billing_mode: Mapped[str | None] = mapped_column(comment="How it is billed: api_key, subscription_included, …")
    estimated_cost_usd: Mapped[float | None] = mapped_column(comment="Estimated cost, US dollars.")
    actual_cost_usd: Mapped[float | None] = mapped_column(comment="Cost the provider reported, US dollars.")
    cost_status: Mapped[str | None] = mapped_column(comment="actual, estimated, included or unknown.")
    cost_source: Mapped[str | None] = mapped_column(comment="Where the prices came from.")
    pricing_version: Mapped[str | None] = mapped_column(comment="Version of the price table used.")
    title: Mapped[str | None] = mapped_column(comment="Title, unique in the file, at most 100 characters.")
    title_source: Mapped[str | None] = mapped_column(
        comment="Who gave the title: user, llm or derived; NULL counts as user. Since schema 26."
    )
    last_activity_at: Mapped[float | None] = mapped_column(
        comment="Last sign of activity, epoch seconds; messages do not move it. Since schema 25."
    )
    last_activity_description: Mapped[str | None] = mapped_column(
        comment="What went on then, at most 120 characters. Since schema 25."
    )
    last_activity_provenance: Mapped[str | None] = mapped_column(
        comment="Who noted it: unknown, agent.compression, … Since schema 25."
    )
    api_call_count: Mapped[Count | None] = mapped_column(comment="Count of calls to the model.")
    handoff_state: Mapped[str | None] = mapped_column(
        comment="Move to another platform: pending, running, completed or failed."
    )
    handoff_platform: Mapped[str | None] = mapped_column(comment="Platform the session is to move to.")
    handoff_error: Mapped[str | None] = mapped_column(comment="Why the move failed, at most 500 characters.")
    compression_failure_cooldown_until: Mapped[float | None] = mapped_column(
        comment="No compression is tried before this time, epoch seconds. Since schema 17."
    )
    compression_failure_error: Mapped[str | None] = mapped_column(
        comment="Error text of the last failed compression. Since schema 17."
    )
    compression_fallback_streak: Mapped[Count] = mapped_column(
        comment="Count of compressions in a row that used the fallback. Since schema 22."
    )
    compression_ineffective_count: Mapped[Count] = mapped_column(
        comment="Count of compressions in a row that saved too little. Since schema 25."
    )
    compression_recovery_deadline: Mapped[float | None] = mapped_column(
        comment="When a paused compression is tried again, epoch seconds; NULL: not paused. Since schema 30."
    )
    compression_overload_streak: Mapped[Count] = mapped_column(
        comment="Count of compressions in a row that an overloaded provider ended. Since schema 31."
    )
    profile_name: Mapped[str | None] = mapped_column(comment="Hermes profile it runs under. Since schema 22.")
    transport_profile: Mapped[str | None] = mapped_column(
        comment="Profile whose bot receives the chat; NULL: not known. Since schema 30 (0.21.5)."
    )
    rewind_count: Mapped[Count] = mapped_column(comment="Count of rewinds. Since schema 14.")
    archived: Mapped[Flag] = mapped_column(comment="Flag 0/1: put away, not in lists by default. Since schema 14.")
    auto_archived: Mapped[Flag] = mapped_column(
        comment="Flag 0/1: archived by the sweep, not by a person. Since schema 31."
    )
    pinned: Mapped[Flag] = mapped_column(comment="Flag 0/1: pinned; the sweeps leave it alone. Since schema 25.")
    hidden: Mapped[Flag] = mapped_column(comment="Flag 0/1: kept out of lists. Since schema 26.")
    last_read_at: Mapped[float | None] = mapped_column(
        comment="Read up to this time, epoch seconds; 0: unread; NULL: counts as read. Since schema 25."
    )
    tool_names: Mapped[str | None] = mapped_column(
        comment="Hash of the tool list in system_prompts, or JSON text of the names. Since schema 30."
    )

    __table_args__ = (
        Index("idx_sessions_source", "source"),
        Index("idx_sessions_source_id", "source", "id"),
        Index("idx_sessions_parent", "parent_session_id"),
        Index("idx_sessions_started", started_at.desc()),
        Index("idx_sessions_session_key", "session_key", started_at.desc()),
        Index("idx_sessions_gateway_peer", "source", "user_id", "chat_id", "chat_type", "thread_id", started_at.desc()),
        Index("idx_sessions_handoff_state", "handoff_state", "started_at"),
        Index("idx_sessions_system_prompt_hash", "system_prompt_hash"),
        Index("idx_sessions_tool_names", "tool_names"),
        Index("idx_sessions_effective_activity", func.coalesce(last_activity_at, started_at).desc(), started_at.desc()),
        _partial_index("idx_sessions_title_unique", "title", where="title IS NOT NULL", unique=True),
        {"comment": "Conversations, or segments of one; parent_session_id links a segment to the one before."},
    )

    parent: Mapped[HermesSession | None] = relationship(
        back_populates="children", remote_side="HermesSession.id", lazy="select"
    )
    children: Mapped[list[HermesSession]] = relationship(
        back_populates="parent",
        order_by="(HermesSession.started_at, HermesSession.id)",
        lazy="select",
        passive_deletes="all",
    )
    messages: Mapped[list[Message]] = relationship(
        back_populates="session", order_by="Message.id", lazy="select", passive_deletes="all"
    )
    usage: Mapped[list[SessionModelUsage]] = relationship(
        back_populates="session", lazy="select", passive_deletes="all"
    )
    prompt: Mapped[SystemPrompt | None] = relationship(lazy="select")

    @hybrid_property
    def kind(self) -> str | None:
        """What the session is to its parent: root, branch, compression, reset, delegate or tool.

        Read-only, and asked of the file each time. The connection must have the view ``hs_session_edges``: those of
        this package do, and so does an upgraded file itself. None for an object that is in no file.
        """
        session = object_session(self)
        return None if session is None else session.scalar(select(EDGES.c.kind).where(EDGES.c.session_id == self.id))

    @kind.inplace.expression
    @classmethod
    def _kind_expression(cls) -> ColumnElement[str]:
        kind = select(EDGES.c.kind).where(EDGES.c.session_id == cls.id)
        return kind.correlate_except(EDGES).scalar_subquery()

    @hybrid_property
    def system_prompt(self) -> str | None:
        """The system prompt, wherever it is stored: the one its hash names, else the text in the row.

        Read-only. Both places can be in use in one file, so neither column alone is the answer.
        """
        return self.system_prompt_inline if self.prompt is None else self.prompt.prompt

    @system_prompt.inplace.expression
    @classmethod
    def _system_prompt_expression(cls) -> ColumnElement[str | None]:
        # correlate_except: the subquery keeps its own system_prompts even in a statement that joins that table.
        by_hash = select(SystemPrompt.prompt).where(SystemPrompt.hash == cls.system_prompt_hash)
        return func.coalesce(by_hash.correlate_except(SystemPrompt).scalar_subquery(), cls.system_prompt_inline)


class Message(Base):
    """One message of a session: a turn of the user, of the assistant, or the result of a tool.

    ``active`` and ``compacted`` together say what became of it: (1, 0) live, (0, 1) replaced by a summary but still
    part of the history, (0, 0) rewound and not to be shown.
    """

    __tablename__ = "messages"

    # Hermes's triggers fill columns after the row is written. RETURNING would hand out the values from before them, so
    # such columns (FetchedValue below) are read again when they are next looked at.
    __mapper_args__ = {"eager_defaults": False}  # noqa: RUF012 - the base declares it without ClassVar

    id: Mapped[int] = mapped_column(primary_key=True, nullable=True, comment="Message id; grows, never reused.")
    session_id: Mapped[str] = mapped_column(ForeignKey(HermesSession.id), comment="Session it belongs to.")
    role: Mapped[str] = mapped_column(comment="Who speaks: user, assistant, tool or system.")
    content: Mapped[str | None] = mapped_column(
        comment="Text; structured content is a NUL character, 'json:' and JSON text with ASCII escapes."
    )
    tool_call_id: Mapped[str | None] = mapped_column(comment="Tool call that a tool message answers.")
    tool_calls: Mapped[str | None] = mapped_column(comment="JSON text: list of the tool calls the assistant made.")
    tool_name: Mapped[str | None] = mapped_column(comment="Tool that a tool message comes from.")
    effect_disposition: Mapped[str | None] = mapped_column(
        comment="Whether a tool call cut short had an effect: none or unknown; NULL: not cut short. Since schema 22."
    )
    timestamp: Mapped[float] = mapped_column(comment="When it was written, epoch seconds.")
    token_count: Mapped[int | None] = mapped_column(comment="Count of tokens, where it is known.")
    finish_reason: Mapped[str | None] = mapped_column(comment="Why the model stopped: stop, tool_calls, length, …")
    reasoning: Mapped[str | None] = mapped_column(comment="Reasoning text for people.")
    reasoning_content: Mapped[str | None] = mapped_column(comment="Reasoning text exactly as the provider sent it.")
    reasoning_details: Mapped[str | None] = mapped_column(
        comment="JSON text: reasoning blocks to send back as they are."
    )
    codex_reasoning_items: Mapped[str | None] = mapped_column(
        comment="JSON text: encrypted reasoning items (Responses API)."
    )
    codex_message_items: Mapped[str | None] = mapped_column(comment="JSON text: message items (Responses API).")
    platform_message_id: Mapped[str | None] = mapped_column(
        comment="Message id on the chat platform, as text. Since schema 13."
    )
    observed: Mapped[Flag | None] = mapped_column(
        comment="Flag 0/1: overheard in a group, not said to the agent. Since schema 13."
    )
    compressed_summary: Mapped[Flag] = mapped_column(
        "_compressed_summary", comment="Flag 0/1: the summary that a compression left. Since schema 26 (0.20.6)."
    )
    active: Mapped[int] = mapped_column(
        server_default=text("1"), comment="Flag 0/1: in the live conversation. Since schema 14."
    )
    compacted: Mapped[Flag] = mapped_column(comment="Flag 0/1: replaced by a summary, still history. Since schema 17.")
    api_content: Mapped[str | None] = mapped_column(
        comment="Text sent to the model in place of content, where the two differ. Since schema 22."
    )
    display_kind: Mapped[str | None] = mapped_column(
        comment="How to show it: hidden, steer, failed_turn, …; NULL: as a plain message. Since schema 25."
    )
    display_metadata: Mapped[str | None] = mapped_column(comment="JSON text: details for showing it. Since schema 25.")
    display_identity: Mapped[bytes | None] = mapped_column(
        server_onupdate=FetchedValue(),
        comment="SHA-256, 32 bytes, shared by all copies of one message; NULL: not computed yet. Since schema 30.",
    )
    display_order: Mapped[int | None] = mapped_column(
        server_default=FetchedValue(),
        server_onupdate=FetchedValue(),
        comment="Id of the first copy of the message, its place in the history. Since schema 30.",
    )
    message_uid: Mapped[str | None] = mapped_column(
        server_default=FetchedValue(), comment="Id that all copies of a message keep, 32 hex digits. Since schema 31."
    )
    absorbed_message_uids: Mapped[str | None] = mapped_column(
        comment="JSON text: list of the uids of messages merged into this one. Since schema 31."
    )
    tool_call_uids: Mapped[str | None] = mapped_column(
        comment="JSON text: provider's tool call id to a uid of its own. Since schema 31."
    )
    tool_call_uid: Mapped[str | None] = mapped_column(
        comment="Uid of the call a tool message answers. Since schema 31."
    )

    __table_args__ = (
        Index("idx_messages_session", "session_id", "timestamp"),
        Index("idx_messages_session_id", "session_id", "id"),
        Index("idx_messages_session_active", "session_id", "active", "timestamp"),
        _partial_index(
            "idx_messages_platform_msg_id", "session_id", "platform_message_id", where="platform_message_id IS NOT NULL"
        ),
        _partial_index("idx_messages_active_null", "active", where="active IS NULL"),
        _partial_index(
            "idx_messages_assistant_calls_by_session",
            "session_id",
            where="role = 'assistant' AND tool_calls IS NOT NULL",
        ),
        _partial_index(
            "idx_messages_display_page",
            "session_id",
            "display_order",
            active.desc(),
            id.desc(),  # noqa: A003 - the column is meant
            where="active = 1 OR compacted = 1",
        ),
        _partial_index(
            "idx_messages_display_backfill",
            "session_id",
            where="(display_order IS NULL OR display_identity IS NULL) AND (active = 1 OR compacted = 1)",
        ),
        _partial_index(
            "idx_messages_display_identity",
            "session_id",
            "display_identity",
            "display_order",
            where="display_identity IS NOT NULL AND (active = 1 OR compacted = 1)",
        ),
        _partial_index("idx_messages_session_uid", "session_id", "message_uid", where="active = 1"),
        # Ours: newest messages first, over all sessions, without reading the whole table.
        Index("ix_hs_messages_timestamp", timestamp.desc(), id.desc()),  # noqa: A003 - the column is meant
        # AUTOINCREMENT: a deleted id must never come back, the markers of a half-filled search index depend on it.
        {"comment": "Messages of the sessions, in the order of id.", "sqlite_autoincrement": True},
    )

    session: Mapped[HermesSession] = relationship(back_populates="messages", lazy="select")


class SessionModelUsage(Base):
    """Tokens and cost of one session on one model, billing route and task."""

    __tablename__ = "session_model_usage"

    session_id: Mapped[str] = mapped_column(
        ForeignKey(HermesSession.id, ondelete="CASCADE"), primary_key=True, comment="Session. Since schema 22."
    )
    model: Mapped[str] = mapped_column(primary_key=True, comment="Model name. Since schema 22.")
    billing_provider: Mapped[KeyPart] = mapped_column(comment="Who bills; '' when not known. Since schema 22.")
    billing_base_url: Mapped[KeyPart] = mapped_column(
        comment="URL of the provider's API; '' when not known. Since schema 22."
    )
    billing_mode: Mapped[KeyPart] = mapped_column(comment="How it is billed; '' when not known. Since schema 22.")
    task: Mapped[KeyPart] = mapped_column(comment="Side task (title_generation, …); '' is the chat. Since schema 22.")
    api_call_count: Mapped[Count] = mapped_column(comment="Count of model calls. Since schema 22.")
    input_tokens: Mapped[Count] = mapped_column(comment="Count of input tokens. Since schema 22.")
    output_tokens: Mapped[Count] = mapped_column(comment="Count of output tokens. Since schema 22.")
    cache_read_tokens: Mapped[Count] = mapped_column(comment="Count of tokens read from cache. Since schema 22.")
    cache_write_tokens: Mapped[Count] = mapped_column(comment="Count of tokens written to cache. Since schema 22.")
    reasoning_tokens: Mapped[Count] = mapped_column(comment="Count of reasoning tokens. Since schema 22.")
    estimated_cost_usd: Mapped[Dollars] = mapped_column(comment="Estimated cost, US dollars. Since schema 22.")
    actual_cost_usd: Mapped[Dollars] = mapped_column(comment="Cost the provider reported, US dollars. Since schema 22.")
    cost_status: Mapped[str | None] = mapped_column(comment="actual, estimated, included or unknown. Since schema 22.")
    cost_source: Mapped[str | None] = mapped_column(comment="Where the prices came from. Since schema 22.")
    first_seen: Mapped[float | None] = mapped_column(comment="First use, epoch seconds. Since schema 22.")
    last_seen: Mapped[float | None] = mapped_column(comment="Last use, epoch seconds. Since schema 22.")

    __table_args__ = (
        Index("idx_session_model_usage_session", "session_id"),
        Index("idx_session_model_usage_model", "model"),
        {"comment": "Tokens and cost by session, model, billing route and task. Since schema 22."},
    )

    session: Mapped[HermesSession] = relationship(back_populates="usage", lazy="select")


class CompressionLock(Base):
    """Who is compressing a session, and until when; the session need not exist, and the row survives its deletion."""

    __tablename__ = "compression_locks"

    session_id: Mapped[Key] = mapped_column(comment="Session being compressed; no foreign key. Since schema 14.")
    holder: Mapped[str] = mapped_column(comment="Who holds it: pid=…:tid=…:agent=…:nonce=… Since schema 14.")
    acquired_at: Mapped[float] = mapped_column(comment="When it was taken, epoch seconds. Since schema 14.")
    expires_at: Mapped[float] = mapped_column(comment="When it may be taken over, epoch seconds. Since schema 14.")

    __table_args__ = (
        Index("idx_compression_locks_expires", "expires_at"),
        {"comment": "Leases on the compression of a session. Since schema 14."},
    )


class SessionTurnLease(Base):
    """Who is running a turn of a conversation, and until when."""

    __tablename__ = "session_turn_leases"

    conversation_id: Mapped[Key] = mapped_column(
        comment="Session at the root of the compression chain. Since schema 26."
    )
    holder: Mapped[str] = mapped_column(comment="Who holds it: pid=…:tid=… Since schema 26.")
    acquired_at: Mapped[float] = mapped_column(comment="When it was taken, epoch seconds. Since schema 26.")
    expires_at: Mapped[float] = mapped_column(comment="When it may be taken over, epoch seconds. Since schema 26.")

    __table_args__ = (
        Index("idx_session_turn_leases_expires", "expires_at"),
        {"comment": "Leases on the running turn of a conversation. Since schema 26."},
    )


class ConversationGeneration(Base):
    """How often a chat was reset; the row is never removed, so that no number is ever given twice."""

    __tablename__ = "conversation_generations"
    __table_args__ = ({"comment": "Count of resets by chat; rows are never removed. Since schema 30."},)

    source: Mapped[str] = mapped_column(primary_key=True, comment="Platform of the chat. Since schema 30.")
    session_key: Mapped[str] = mapped_column(primary_key=True, comment="Key of the chat lane. Since schema 30.")
    generation: Mapped[Count] = mapped_column(comment="Count of resets so far; only grows. Since schema 30.")


class GatewayRouting(Base):
    """The gateway's routing entry for one chat: which session the next message goes to."""

    __tablename__ = "gateway_routing"
    __table_args__ = ({"comment": "Routing entries of the gateway, one per chat lane. Since schema 19."},)

    scope: Mapped[KeyPart] = mapped_column(comment="Routing index it belongs to; '' is the main one. Since schema 19.")
    session_key: Mapped[str] = mapped_column(primary_key=True, comment="Key of the chat lane. Since schema 19.")
    entry_json: Mapped[str] = mapped_column(comment="JSON text: session_id and the state of the lane. Since schema 19.")
    updated_at: Mapped[float] = mapped_column(comment="Last change, epoch seconds. Since schema 19.")


class GatewayHygieneState(Base):
    """How often in a row the gateway failed to compress a chat's session."""

    __tablename__ = "gateway_hygiene_state"
    __table_args__ = ({"comment": "Failed clean-ups by chat lane. Since schema 26."},)

    session_key: Mapped[Key] = mapped_column(comment="Key of the chat lane. Since schema 26.")
    failure_streak: Mapped[Count] = mapped_column(
        comment="Count of failures in a row; a success removes the row. Since schema 26."
    )


class GatewayHeartbeat(Base):
    """A sign of life from each backend process that shares the file."""

    __tablename__ = "gateway_heartbeats"
    __table_args__ = ({"comment": "Signs of life of the backend processes. Since schema 26 (0.21.0)."},)

    backend_id: Mapped[Key] = mapped_column(comment="Id of the backend. Since schema 26 (0.21.0).")
    pid: Mapped[int] = mapped_column(comment="Process id on its host. Since schema 26 (0.21.0).")
    started_at: Mapped[float] = mapped_column(comment="Start of the backend, epoch seconds. Since schema 26 (0.21.0).")
    last_heartbeat: Mapped[float] = mapped_column(comment="Last sign, epoch seconds. Since schema 26 (0.21.0).")
    profile: Mapped[Label] = mapped_column(comment="Hermes profile. Since schema 26 (0.21.0).")
    host: Mapped[Label] = mapped_column(comment="Host name. Since schema 26 (0.21.0).")


class AsyncDelegation(Base):
    """A task given to subagents in the background, its result, and whether the result reached who asked.

    The delegation tool makes this table too, possibly before anything else is in the file.
    """

    __tablename__ = "async_delegations"

    delegation_id: Mapped[Key] = mapped_column(comment="Id of the delegation. Since schema 22.")
    origin_session: Mapped[str] = mapped_column(comment="Session key of who asked; may be ''. Since schema 22.")
    origin_ui_session_id: Mapped[Label] = mapped_column(
        comment="Tab of the user interface that asked; '' for none. Since schema 22."
    )
    parent_session_id: Mapped[str | None] = mapped_column(
        comment="Session that delegates; no foreign key. Since schema 22."
    )
    state: Mapped[str] = mapped_column(comment="running, finalizing, completed, failed, … Since schema 22.")
    dispatched_at: Mapped[float] = mapped_column(comment="When it was given out, epoch seconds. Since schema 22.")
    completed_at: Mapped[float | None] = mapped_column(comment="When it ended, epoch seconds. Since schema 22.")
    updated_at: Mapped[float] = mapped_column(comment="Last change, epoch seconds. Since schema 22.")
    event_json: Mapped[str | None] = mapped_column(comment="JSON text: the event to deliver. Since schema 22.")
    result_json: Mapped[str | None] = mapped_column(comment="JSON text: result, or partial results. Since schema 22.")
    delivery_state: Mapped[str] = mapped_column(
        server_default=text("'pending'"), comment="pending, delivered or dropped. Since schema 22."
    )
    delivery_attempts: Mapped[Count] = mapped_column(comment="Count of attempts to deliver. Since schema 22.")
    delivered_at: Mapped[float | None] = mapped_column(comment="When it was delivered, epoch seconds. Since schema 22.")
    owner_pid: Mapped[int | None] = mapped_column(comment="Process id of the running task. Since schema 22.")
    owner_started_at: Mapped[int | None] = mapped_column(
        comment="Start time of that process in the unit of its system, to tell a reused pid. Since schema 22."
    )
    task_json: Mapped[str | None] = mapped_column(comment="JSON text: the task as given. Since schema 22.")
    delivery_claim: Mapped[str | None] = mapped_column(comment="Who is delivering it now. Since schema 22.")
    delivery_claimed_at: Mapped[float | None] = mapped_column(
        comment="When that claim was made, epoch seconds. Since schema 22."
    )
    origin_session_id: Mapped[Label] = mapped_column(
        comment="Session id of who asked; '' when not known. Since schema 30."
    )

    __table_args__ = (
        Index("idx_async_delegations_delivery", "delivery_state", "completed_at"),
        {"comment": "Background tasks of subagents and the delivery of their results. Since schema 22."},
    )
