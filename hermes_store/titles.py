"""Titles: cleaned, at most 100 characters, unique in a file, numbered where a name is taken.

The rules are Hermes's: control characters and invisible ones go, blanks collapse, and ``name #2`` follows ``name``.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hermes_store.errors import ConflictError
from hermes_store.models import HermesSession
from hermes_store.walks import continuations, conversation_root

#: Characters of a title at most (Hermes's limit).
LONGEST = 100
#: What to do when another session has the title.
OnConflict = Literal["error", "suffix", "take_over"]

_NUMBER = re.compile(r"(?P<base>.*\S) #(?P<number>[1-9][0-9]{0,8})", re.DOTALL)


def clean_title(title: str) -> str | None:
    """Bring a title into the form that is stored.

    Args:
        title: As somebody typed it.

    Returns:
        The title; None when nothing is left of it.

    Raises:
        ValueError: It is no text, or longer than `LONGEST` characters.
    """
    if not isinstance(title, str):
        raise ValueError(f"title must be text, not {type(title).__name__}")  # noqa: TRY004 - as for other bad values
    # White space first: a line break is a control character, and keeps words apart all the same.
    spaced = "".join(" " if character.isspace() else character for character in title)
    # Cc and Cf are controls and invisible characters, Cs surrogates without their other half.
    visible = "".join(character for character in spaced if unicodedata.category(character) not in {"Cc", "Cf", "Cs"})
    cleaned = " ".join(visible.split())
    if len(cleaned) > LONGEST:
        raise ValueError(f"title has {len(cleaned)} characters, {LONGEST} are allowed")
    return cleaned or None


def next_title(session: Session, title: str) -> str:
    """Find a title that nobody has: the plain one, else the next number of it.

    Args:
        session: Where to look.
        title: The title, with or without a number.

    Returns:
        The title without its number if that is free, else with the number after the highest in use.

    Raises:
        ValueError: The title is empty, or too long with its number.
    """
    wanted = clean_title(title)
    if wanted is None:
        raise ValueError("title must not be empty")
    numbered = _NUMBER.fullmatch(wanted)
    base = numbered["base"] if numbered else wanted
    # By position, not LIKE: nothing in a title is a wildcard.
    mark = f"{base} #"
    similar = select(HermesSession.title).where(
        (HermesSession.title == base) | (func.substr(HermesSession.title, 1, len(mark)) == mark)
    )
    numbers = []
    for taken in session.scalars(similar):
        found = _NUMBER.fullmatch(str(taken))
        if taken == base:
            numbers.append(1)
        elif found and found["base"] == base:
            numbers.append(int(found["number"]))
    if 1 not in numbers:
        return base
    free = clean_title(f"{base} #{max(numbers) + 1}")
    if free is None:
        raise ValueError("title must not be empty")
    return free


def settle_title(session: Session, session_id: str, title: str, on_conflict: OnConflict) -> str:
    """Make room for a title, as a policy says.

    Args:
        session: A session that holds the write lock.
        session_id: Who is to have it.
        title: A cleaned title.
        on_conflict: ``error``, ``suffix`` (take the next free number), or ``take_over`` (from a member of the same
            conversation, which then has none; from anybody else it is an error).

    Returns:
        The title to store.

    Raises:
        ConflictError: Another session has it; the message names it.
        ValueError: The policy is unknown, or the title too long with a number.
    """
    if on_conflict not in {"error", "suffix", "take_over"}:
        raise ValueError(f"on_conflict must be 'error', 'suffix' or 'take_over', not {on_conflict!r}")
    holders = session.scalars(
        select(HermesSession).where(HermesSession.title == title, HermesSession.id != session_id)
    ).all()
    if not holders:
        return title
    if on_conflict == "suffix":
        return next_title(session, title)
    if on_conflict == "take_over":
        walk = continuations(conversation_root(session, session_id))
        relatives = set(session.scalars(select(walk.c.id)))
        if all(holder.id in relatives for holder in holders):
            for holder in holders:
                holder.title = None
            session.flush()  # before another row gets it: the index on titles is unique at every moment
            return title
    raise ConflictError(f"session {holders[0].id} has that title; choose another one, or on_conflict='suffix'")
