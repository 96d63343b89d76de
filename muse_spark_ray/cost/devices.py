"""Which physical GPU is meant: visible devices, unique ids, slices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SLICES_PER_GPU = 7
"""Compute slices of a GPU that can be split, such as A100, H100 and H200; an A30 has 4."""


def visible_devices(
    cuda_visible_devices: str | None, uuids_by_index: Sequence[str], *, parents: Mapping[str, int] | None = None
) -> list[int]:
    """Return the driver's indices of the GPUs that CUDA shows, in CUDA's order.

    As CUDA does: unset shows all, "" none; the list ends at the first entry that names no device; a device named
    twice leaves nothing visible. An entry is an index or the beginning of exactly one unique id ("GPU-...").
    Indices are CUDA's: they equal the driver's if all GPUs are of one kind or CUDA_DEVICE_ORDER is PCI_BUS_ID;
    unique ids are right always.

    Args:
        cuda_visible_devices: the environment variable, None if unset.
        uuids_by_index: unique id of each physical GPU, by the driver's index.
        parents: {unique id of a slice ("MIG-..."): index of its physical GPU}.
    """
    if cuda_visible_devices is None:
        return list(range(len(uuids_by_index)))
    found: list[int] = []
    seen: set[str] = set()
    for entry in cuda_visible_devices.split(","):
        index = _index_of(entry.strip(), uuids_by_index, parents or {})
        if index is None:
            break
        # Two slices of one GPU are two devices; one GPU named twice is an error to CUDA.
        identity = entry.strip() if entry.strip().startswith("MIG-") else str(index)
        if identity in seen:
            return []
        seen.add(identity)
        found.append(index)
    return found


def _index_of(entry: str, uuids: Sequence[str], parents: Mapping[str, int]) -> int | None:
    if entry.startswith("MIG-GPU-"):
        return _only_match(entry.removeprefix("MIG-").partition("/")[0], uuids)
    if entry.startswith("MIG-"):
        return parents.get(entry)
    if entry.startswith("GPU-"):
        return _only_match(entry, uuids)
    # CUDA reads the number that an entry begins with and ignores what follows it.
    number = re.match(r"\+?(\d+)", entry)
    if number is None or int(number[1]) >= len(uuids):
        return None
    return int(number[1])


def _only_match(beginning: str, uuids: Sequence[str]) -> int | None:
    matches = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(beginning.lower())]
    return matches[0] if len(matches) == 1 else None


def gpu_fraction(mig_profile_slices: int, total: int = SLICES_PER_GPU) -> float:
    """Return which part of a GPU a slice is: 3 compute slices of 7 are 3/7, what its time is billed as."""
    return mig_profile_slices / total
