"""Where the store is: a path, a URL, or the place Hermes itself would use, decided when it is asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from hermes_store.errors import MissingDependencyError, NotAStoreError

URL_VARIABLE = "HERMES_STORE_URL"
HOME_VARIABLE = "HERMES_HOME"
FILE_NAME = "state.db"
#: Profile names as Hermes accepts them; ``default`` is the home itself.
_PROFILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def resolve_target(target: str | os.PathLike[str] | URL | None = None, *, profile: str | None = None) -> Path:
    """Find the database file that is meant.

    Args:
        target: A path, a ``sqlite:///…`` URL, or None: ``$HERMES_STORE_URL``, else ``$HERMES_HOME/state.db``, else
            ``~/.hermes/state.db``, read at the time of the call.
        profile: A Hermes profile below the home instead of the home's own file; only without a target.

    Returns:
        The file's path; it need not exist.

    Raises:
        ValueError: Target and profile are both given, or the profile's name is none that Hermes accepts.
        NotAStoreError: The URL names no file.
        MissingDependencyError: The URL is of another database system.
    """
    if profile is not None:
        if target is not None:
            raise ValueError("target and profile exclude each other: a target already names its file")
        if not _PROFILE.fullmatch(profile):
            raise ValueError(f"profile {profile!r} is no profile name: lower-case letters, digits, '-' and '_'")
        home = _home()
        return home / FILE_NAME if profile == "default" else home / "profiles" / profile / FILE_NAME
    if target is None:
        target = os.environ.get(URL_VARIABLE) or _home() / FILE_NAME
    if isinstance(target, URL) or (isinstance(target, str) and "://" in target):
        return _path_of(target)
    return Path(target).expanduser()


def _home() -> Path:
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".hermes"


def _path_of(target: str | URL) -> Path:
    try:
        url = make_url(target)
    except ArgumentError:
        raise NotAStoreError("the target looks like a URL but is none; use sqlite:///path/to/state.db") from None
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() != "sqlite":
        raise MissingDependencyError(f"{shown}: this version reads SQLite files only; give a path or a sqlite:/// URL")
    if not url.database or url.database == ":memory:":
        raise NotAStoreError(f"{shown} names no file; use sqlite:///path/to/state.db")
    return Path(url.database.removeprefix("file:").partition("?")[0]).expanduser()
