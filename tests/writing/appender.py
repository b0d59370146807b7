"""A program that appends messages as fast as it can: ``appender.py FILE NAME NUMBER``; tells each id that it was given.

It is ready when it says so, and begins when it is told a line. Each line of its output is an id and the seconds that the call took. It is written right after the call returned: what
was said is promised.
"""

from __future__ import annotations

import sys
import time

from sqlalchemy.orm import Session

from hermes_store import HermesStore
from hermes_store.models import Message


def main(path: str, name: str, number: int) -> None:
    with HermesStore.open(path, migrate="off", timeout=60.0) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()  # all of them begin at once
        for count in range(number):
            # Built inside the function, which may be run twice.
            def write(session: Session, count: int = count) -> int:
                text = f"appendedword {name} n{count:06d}x 同时写入的消息"
                row = Message(session_id=name, role=("user", "tool")[count % 2], content=text, timestamp=2e9 + count)
                session.add(row)
                session.flush()
                return row.id

            started = time.perf_counter()
            id_ = store.run(write, kind="transcript")
            sys.stdout.write(f"{id_} {time.perf_counter() - started:.6f}\n")
            sys.stdout.flush()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
