"""Does an index hold what belongs in it? A quick look before it is believed.

An interrupted re-layout that another release "finished" leaves an index without its oldest messages, and no marker
tells of it. Comparing all ids takes time in proportion to the file and is the upgrade's work. A search only looks at
`SAMPLES` messages spread evenly over the file: any missing stretch that is longer than the distance between two of
them is found, which an interrupted fill always is in practice.
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from hermes_store.sqlite.damage import is_damage
from hermes_store.sqlite.shape import IndexShape, Layout, Shape

#: Messages looked at; each costs two lookups by id.
SAMPLES = 64

_EVERY_ROW = "1"
_NO_TOOL_ROWS = "m.role <> 'tool'"
#: Which sessions (``sessions AS s``) the substring index covers from layout 2 on.
SUBSTRING_SESSIONS = (
    "s.source NOT IN ('cron', 'subagent') AND json_extract("
    "CASE WHEN json_valid(s.model_config) THEN s.model_config ELSE '{}' END, '$._delegate_from') IS NULL"
)
_CONVERSATIONS_ONLY = (
    f"m.role <> 'tool' AND EXISTS (SELECT 1 FROM main.sessions AS s WHERE s.id = m.session_id AND {SUBSTRING_SESSIONS})"
)


def incomplete_indexes(connection: Connection, shape: Shape) -> frozenset[str]:
    """Name the search indexes in which messages are missing that no marker accounts for.

    Args:
        connection: A connection inside a transaction.
        shape: The file's shape.

    Returns:
        Names of virtual tables; one whose tables are not even there, or cannot be read, is among them.
    """
    if not shape.has("table", "messages") or not shape.has("table", "sessions"):
        return frozenset()
    # Both in one SELECT would read every id.
    low, high = (
        connection.exec_driver_sql(f"SELECT {end}(id) FROM main.messages").scalar_one() for end in ("MIN", "MAX")
    )
    if low is None:
        return frozenset()
    return frozenset(
        index.name
        for index, belongs in ((shape.word, _EVERY_ROW), (shape.trigram, _trigram_rows(shape)))
        if index.layout not in {Layout.ABSENT, Layout.UNKNOWN}
        and _has_gap(connection, shape, index, belongs, (low, high))
    )


def _trigram_rows(shape: Shape) -> str:
    return {Layout.INLINE: _EVERY_ROW, Layout.EXTERNAL: _NO_TOOL_ROWS}.get(shape.trigram.layout, _CONVERSATIONS_ONLY)


def _has_gap(connection: Connection, shape: Shape, index: IndexShape, belongs: str, ends: tuple[int, int]) -> bool:
    if not shape.has("table", f"{index.name}_docsize"):
        return True
    low, high = ends
    pending = shape.rebuild or (high, high)
    next_one = (
        f"SELECT m.id FROM main.messages AS m WHERE m.id >= ? + n * ? / {SAMPLES} AND {belongs} ORDER BY m.id LIMIT 1"
    )
    query = (
        f"WITH RECURSIVE points (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM points WHERE n < {SAMPLES}),"
        f" sample (id) AS (SELECT ({next_one}) FROM points)"
        " SELECT 1 FROM sample WHERE id IS NOT NULL AND NOT (id > ? AND id <= ?)"
        f" AND NOT EXISTS (SELECT 1 FROM main.{index.name}_docsize AS d WHERE d.id = sample.id) LIMIT 1"
    )
    try:
        return connection.exec_driver_sql(query, (low, high - low, *pending)).first() is not None
    except DatabaseError as error:
        # The list of what is in the index cannot be read, or the messages cannot, which whoever scans them finds out.
        if not is_damage(error):
            raise
        return True
