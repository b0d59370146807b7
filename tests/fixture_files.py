"""Which released files there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

FIXTURES = Path(os.environ.get("HERMES_STORE_FIXTURES", Path(__file__).parents[2] / "shared" / "fixtures"))
HAVE_FIXTURES = FIXTURES.is_dir()

#: Every released file, as a path below the fixtures folder.
RELEASED = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.glob("**/*.db")) if HAVE_FIXTURES else []
#: Those that hold sessions and messages (one holds nothing but a delegation table).
STORES = [name for name in RELEASED if "async-delegations-only" not in name]
#: One file per release, with nothing else done to it.
FRESH = [name for name in RELEASED if "/" not in name]

Released = Callable[[str], Path]
