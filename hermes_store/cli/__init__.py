"""The command ``hermes-store``; needs the extra ``cli`` (``pip install 'hermes-store[cli]'``)."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which packages it needs."""
    try:
        from hermes_store.cli.commands import cli
    except ImportError as error:
        if error.name not in {"click", "rich", "platformdirs"}:
            raise
        sys.exit(f"hermes-store: the command line needs {error.name}: pip install 'hermes-store[cli]'")
    cli()
