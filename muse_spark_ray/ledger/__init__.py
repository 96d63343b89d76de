"""The ledger of a sweep: append-only Parquet tables of trials, epochs and cost intervals, in any store."""

from muse_spark_ray.ledger.names import check_name, suggestion
from muse_spark_ray.ledger.reader import (
    LedgerWarning,
    read_epochs,
    read_intervals,
    read_table,
    read_trials,
)
from muse_spark_ray.ledger.state import (
    Driver,
    effective_state,
    read_state,
    request_stop,
    stop_requested,
)
from muse_spark_ray.ledger.store import Store
from muse_spark_ray.ledger.writer import LedgerWriter, create_sweep

__all__ = [
    "Driver",
    "LedgerWarning",
    "LedgerWriter",
    "Store",
    "check_name",
    "create_sweep",
    "effective_state",
    "read_epochs",
    "read_intervals",
    "read_state",
    "read_table",
    "read_trials",
    "request_stop",
    "stop_requested",
    "suggestion",
]
