"""Every error that muse_spark_ray raises on purpose.

    MuseSparkError
    ├── ConfigError          fix the config, the flag or the name            exit 2
    ├── DataError            fix the data                                    exit 2
    ├── LedgerError          a sweep or trial that is not there, a bad file  exit 2
    │   └── StoreError       the store itself cannot be reached              exit 5
    ├── TrialError           one trial failed; the sweep goes on             exit 1
    ├── PreemptedError       told to end; all is saved, the same goes on     exit 143
    └── ClusterError         Ray or a node cannot be reached                 exit 5

A message says where, what was seen, what is allowed and what to do; `hint` holds the last of these
so that the command line can print it on a line of its own. Catch a class by what you would do about it.
"""

from __future__ import annotations


class MuseSparkError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what `muse-spark` exits with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling between processes, hint included."""
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(kind: type[MuseSparkError], message: str, hint: str | None) -> MuseSparkError:
    return kind(message, hint=hint)


class ConfigError(MuseSparkError):
    """A config, flag, name or combination that is not allowed; nothing was started."""

    exit_code = 2


class DataError(MuseSparkError):
    """Data that is missing, corrupt or does not fit the task."""

    exit_code = 2


class LedgerError(MuseSparkError):
    """A sweep, trial or ledger file that is missing or cannot be used."""

    exit_code = 2


class StoreError(LedgerError):
    """The store cannot be reached."""

    exit_code = 5


class TrialError(MuseSparkError):
    """One trial failed; what it cost is kept."""

    exit_code = 1


class PreemptedError(MuseSparkError):
    """The process was told to end; what it had done is saved, and starting it again goes on from there."""

    exit_code = 143


class ClusterError(MuseSparkError):
    """Ray, a node or a gang cannot be reached or started."""

    exit_code = 5
