"""Runs a function on several gloo ranks of this host, each a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes


def on_ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Call `function(*arguments)` on each rank.

    Args:
        function: Defined at the top of a module, so that a new process can import it.
        world_size: Number of ranks.
        *arguments: Values that can be pickled.

    Returns:
        What each rank returned, by rank: tensors and plain values.

    Raises:
        AssertionError: With a rank's traceback if any rank failed.
    """
    # Importing torch takes longer than most tests: a server that has done so once is forked for each rank.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["muse_spark_ray.testing.warm"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _rank,
            args=(world_size, _free_port(), folder, function, arguments),
            nprocs=world_size,
            start_method="forkserver",
        )
        results = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]
    failed = [result["error"] for result in results if "error" in result]
    if failed:
        raise AssertionError(failed[0])
    return [result["value"] for result in results]


def _rank(rank: int, world_size: int, port: int, folder: str, function: Callable[..., Any], arguments: Any) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    try:
        result = {"value": function(*arguments)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    torch.save(result, Path(folder) / f"{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
