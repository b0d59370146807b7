"""The typed SQLAlchemy 2 data layer for Hermes Agent's ``state.db``.

`HermesStore.open` opens a file of any released schema; `hermes_store.migrations.upgrade` brings it to the newest.
"""

from hermes_store.errors import (
    ConflictError,
    CorruptIndexError,
    CorruptStoreError,
    HermesStoreError,
    HolderError,
    InvalidMessageError,
    LockHeldError,
    LockLostError,
    MissingDependencyError,
    NotAStoreError,
    NotFoundError,
    QueryError,
    ReadOnlyError,
    SchemaBehindError,
    SchemaTooNewError,
    SessionContinuedError,
    StoreBusyError,
    StoreReplacedError,
    UpgradeError,
)
from hermes_store.maintenance.verify import VerifyFinding, VerifyReport
from hermes_store.migrations.optimize import OptimizeReport
from hermes_store.migrations.rebuild import RebuildReport
from hermes_store.records import (
    HolderState,
    ImportReport,
    Kind,
    LockInfo,
    MessageInfo,
    MessageWindow,
    Replacement,
    Rewind,
    SessionInfo,
    SessionSummary,
)
from hermes_store.search.records import ContextMessage, SearchHit, SearchPage, SearchPlan
from hermes_store.store import HermesStore, UnitOfWork, bind

__all__ = [
    "ConflictError",
    "ContextMessage",
    "CorruptIndexError",
    "CorruptStoreError",
    "HermesStore",
    "HermesStoreError",
    "HolderError",
    "HolderState",
    "ImportReport",
    "InvalidMessageError",
    "Kind",
    "LockHeldError",
    "LockInfo",
    "LockLostError",
    "MessageInfo",
    "MessageWindow",
    "MissingDependencyError",
    "NotAStoreError",
    "NotFoundError",
    "OptimizeReport",
    "QueryError",
    "ReadOnlyError",
    "RebuildReport",
    "Replacement",
    "Rewind",
    "SchemaBehindError",
    "SchemaTooNewError",
    "SearchHit",
    "SearchPage",
    "SearchPlan",
    "SessionContinuedError",
    "SessionInfo",
    "SessionSummary",
    "StoreBusyError",
    "StoreReplacedError",
    "UnitOfWork",
    "UpgradeError",
    "VerifyFinding",
    "VerifyReport",
    "bind",
]

__version__ = "0.1.0"
