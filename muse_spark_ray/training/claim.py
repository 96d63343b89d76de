"""One training at a time writes to a checkpoint folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

_NAME = ".lock"
_PATIENCE_SECONDS = 5.0


class Claim:
    """A lock on a folder, which the kernel gives back when the process ends, however it ends.

    Args:
        folder: What is claimed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._file: IO[str] | None = None

    def take(self) -> str | None:
        """Claim the folder, after waiting a little for one who is about to end.

        Returns:
            None, or who holds it. Where the file system has no locks, nobody is kept out.
        """
        if self._file is not None:
            return None
        file = self._path.open("a+")
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    with file:
                        file.seek(0)
                        return file.read().strip() or "another process"
                time.sleep(0.05)
            except OSError:
                break
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file
        return None

    def give_back(self) -> None:
        """Let others have it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
