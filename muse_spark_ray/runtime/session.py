"""Start an embedded Ray, or join one that runs."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from muse_spark_ray.errors import ClusterError

# The resource that trials of Tune hold instead of CPUs: a CPU, or a part of one, that a light proxy holds is missing
# to the workers it waits for, and the two then wait for each other without an error.
TRIAL_SLOT = "trial_slot"
TRIAL_SLOTS = 10_000.0
CONNECT_SECONDS = 5.0
# Gangs read their own data; the object store only carries small messages.
OBJECT_STORE_BYTES = 256 * 1024**2

# Settings of Ray that are set before it starts, unless the user has set them; workers of an embedded Ray inherit them.
SETTINGS: dict[str, str] = {
    # No question about usage statistics and none sent.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's announced future default: an actor without GPUs keeps the environment's device list. Without it, a warning.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # How often Ray Train looks at its workers: a dead one is noticed after half a second, not two.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Gangs run in the driver's folder, so that relative paths in a config mean what they say.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # The controller runs in the driver and must not change the driver's logging; workers need no files of their own.
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Workers that hang in a collective are not waited for when their group is replaced (30 s by default).
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "3",
}
# An embedded Ray is one node that goes down with its driver: nobody announces its preemption to it.
EMBEDDED_SETTINGS: dict[str, str] = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
# Ray turns token authentication on by itself only for a cluster it starts; whoever joins one has to ask for it.
JOINED_SETTINGS: dict[str, str] = {"RAY_AUTH_MODE": "token"}

_started_here = False


@dataclass
class RaySession:
    """A connection to Ray; closing it ends an embedded Ray and leaves a joined one running.

    Args:
        address: address of the cluster's control store (GCS).
        is_embedded: whether this process started the cluster.
    """

    address: str
    is_embedded: bool
    _settings: dict[str, str] = field(default_factory=dict)
    _own_dir: str | None = None

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; what this session started is shut down, what it set in the environment is taken back."""
        global _started_here
        import ray

        ray.shutdown()
        _started_here = False
        _unset(self._settings)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
            self._own_dir = None


def open_ray(address: str | None = None, *, num_cpus: int | None = None, temp_dir: str | None = None) -> RaySession:
    """Start an embedded Ray or join a running cluster.

    Args:
        address: None or "local" starts one that ends with this session; "auto" or "host:port" joins one.
        num_cpus: logical CPUs of an embedded Ray; None counts those of the machine.
        temp_dir: folder of an embedded Ray's files and sockets (a short path); None makes one and removes it later.

    Raises:
        ClusterError: Ray did not start, cannot be joined at this address, or this process is connected already.
    """
    import ray

    if ray.is_initialized():
        raise ClusterError("this process is connected to Ray already", hint="close that session or use it")
    is_embedded = address in (None, "local")
    if not is_embedded:
        _check_reachable(str(address))
    settings = _set({**SETTINGS, **(EMBEDDED_SETTINGS if is_embedded else JOINED_SETTINGS)})
    own_dir = tempfile.mkdtemp(prefix="muse-ray-") if is_embedded and temp_dir is None else None
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": True, "logging_level": logging.WARNING}
    _import_torch_meanwhile()
    # "Token authentication is enabled ...", at every start.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    try:
        if is_embedded:
            _start_embedded(**_embedded_options(num_cpus, temp_dir or own_dir), **quiet)
        else:
            _read_settings_again()
            ray.init(address=address, **quiet)
    except Exception as error:
        _unset(settings)
        if own_dir is not None:
            shutil.rmtree(own_dir, ignore_errors=True)
        raise ClusterError(f"Ray cannot be {_where(address)}: {error}", hint=_hint(address)) from error
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    global _started_here
    _started_here = is_embedded
    return RaySession(ray.get_runtime_context().gcs_address, is_embedded, settings, own_dir)


def _start_embedded(**options: Any) -> None:
    """Start Ray, a second time if the first fails: a port it had found free may be taken the moment after."""
    import ray

    try:
        ray.init(address="local", **options)
    except (RuntimeError, OSError, TimeoutError) as error:
        logging.getLogger(__name__).warning("Ray did not start, trying once more: %s", error)
        ray.shutdown()
        ray.init(address="local", **options)


def worker_environment() -> dict[str, str] | None:
    """Settings that the workers of this process's cluster do not inherit; None when they inherit all."""
    if _started_here:
        return None
    return {name: os.environ[name] for name in SETTINGS if name in os.environ and name.startswith("RAY_TRAIN_")}


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    target = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if not target:
        return
    host, _, port = target.rpartition(":")
    if not host or not port.isdigit() or "//" in host:
        raise ClusterError(
            f"Ray cannot be joined at {target!r}; an address is 'auto' or 'host:port'", hint=_hint(target)
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(f"Ray cannot be joined at {target!r}: {error}", hint=_hint(target)) from error


def _read_settings_again() -> None:
    """Make Ray's compiled part, which reads the environment when it is imported, see what was set since."""
    try:
        from ray._raylet import Config  # type: ignore[attr-defined]  # compiled, without stubs
    except ImportError:  # moved by another version of Ray: settings then count only if set before the import
        return
    Config.initialize("")


def _embedded_options(num_cpus: int | None, temp_dir: str | None) -> dict[str, Any]:
    return {
        "num_cpus": num_cpus,
        "resources": {TRIAL_SLOT: TRIAL_SLOTS},
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": temp_dir,
    }


def _import_torch_meanwhile() -> None:
    """Load torch while Ray's processes come up; the driver needs it for its first gang.

    Only torch: importing parts of Ray in two threads at once can leave one with a half-made module.
    """
    threading.Thread(target=__import__, args=("torch",), name="import-torch", daemon=True).start()


def _set(settings: dict[str, str]) -> dict[str, str]:
    """Set what is not set yet; returns what was."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    return new


def _unset(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        if os.environ.get(name) == value:
            del os.environ[name]


def _where(address: str | None) -> str:
    return "started on this machine" if address in (None, "local") else f"joined at {address!r}"


def _hint(address: str | None) -> str:
    if address in (None, "local"):
        return "look at free memory and disk; a path given as temp_dir must be short and writable"
    return "check that the cluster runs there and that its token is in RAY_AUTH_TOKEN or ~/.ray/auth_token"
