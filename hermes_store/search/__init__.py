"""Search: any string in, the same messages out on every route, with the reason when an index could not serve.

The way of a query: `syntax` (a small tree) -> `plan` (a route for each term, from the file's shape) -> `sets` and
`match` and `like` (statements that propose messages) -> `documents` and `verify` (the messages themselves, judged) ->
`records` (one page). The entry points are `search` and `explain`.
"""

from hermes_store.search.execute import explain, search
from hermes_store.search.faults import SearchTimeoutError
from hermes_store.search.filters import Filters, make_filters
from hermes_store.search.records import (
    ContextMessage,
    PendingRebuild,
    PlannedStatement,
    SearchHit,
    SearchPage,
    SearchPlan,
    SessionHit,
)
from hermes_store.search.syntax import Query, parse

__all__ = [
    "ContextMessage",
    "Filters",
    "PendingRebuild",
    "PlannedStatement",
    "Query",
    "SearchHit",
    "SearchPage",
    "SearchPlan",
    "SearchTimeoutError",
    "SessionHit",
    "explain",
    "make_filters",
    "parse",
    "search",
]
