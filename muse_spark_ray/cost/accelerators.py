"""Names of accelerators and of priced resources: many spellings, one of them ours."""

from __future__ import annotations

import re

ALIASES = {
    "A100-80GB-SXM": "A100-80GB",
    "H100-SXM": "H100",
    "H200-SXM": "H200",
    "RTX-6000-Ada": "RTX6000-Ada",
    "RTX-A6000": "RTXA6000",
    "A6000": "RTXA6000",
}
"""Other spellings in price lists; the left one is never stored."""

_BOARD = r"(-(SXM\d*|PCIE|NVL))?"
_PATTERNS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (rf"A100{_BOARD}-80GB?{_BOARD}", "A100-80GB"),
        (rf"A100{_BOARD}(-40GB?)?{_BOARD}", "A100"),
        (rf"H100{_BOARD}(-\d+GB)?(-HBM\d\w*)?{_BOARD}", "H100"),
        (rf"H200{_BOARD}(-\d+GB)?(-HBM\d\w*)?", "H200"),
        (r"GH200(-\d+GB)?(-HBM\d\w*)?", "GH200"),
        (rf"B200{_BOARD}(-\d+GB)?", "B200"),
        (rf"B300{_BOARD}(-AC)?", "B300"),
        (rf"V100{_BOARD}-32GB{_BOARD}", "V100-32GB"),
        (rf"V100{_BOARD}(-16GB)?", "V100"),
        (r"(RTX-?)?A6000", "RTXA6000"),
        (r"RTX-?6000-ADA(-GENERATION)?", "RTX6000-Ada"),
        (r"(QUADRO-)?RTX-?6000", "RTX6000"),
        (r"RTX-PRO-6000(-BLACKWELL)?(-(SERVER|WORKSTATION)-EDITION)?", "RTX-PRO-6000"),
        (r"RTX-?(3090|4090|5090)", r"RTX\1"),
        (r"(T4|L4|L40S|A10|A10G|A40)(-24GB|-48GB)?", r"\1"),
    )
)


def accelerator_name(device_name: str) -> str:
    """Return the catalogue's name of an accelerator from any spelling of it.

    Known are the names that the driver and torch report ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3",
    "Tesla V100-SXM2-16GB"), Ray's accelerator types ("A100-80G") and those of price lists (`ALIASES`), in any case.
    SXM, PCIe and NVL boards of one chip have one name, as price lists do not tell them apart everywhere. A slice
    ("... MIG 3g.40gb") has the name of its whole device.

    Args:
        device_name: such as what `torch.cuda.get_device_name()` returns.

    Returns:
        A name as in the catalogue, or for an unknown device its own name without the maker, joined by "-".
    """
    plain = re.sub(r"\s+MIG\s.*", "", device_name.strip(), flags=re.IGNORECASE)
    plain = re.sub(r"\b(NVIDIA|TESLA|GEFORCE)\b", " ", plain, flags=re.IGNORECASE)
    joined = re.sub(r"[\s_\-]+", "-", plain).strip("-")
    for pattern, name in _PATTERNS:
        match = pattern.fullmatch(joined.upper())
        if match:
            return match.expand(name)
    return joined


def resource_key(resource: str) -> str:
    """Return the one spelling that prices are looked up by: lower case, known accelerator, no "on-demand".

    "gpu:NVIDIA H100 80GB HBM3@Lambda:on-demand" is "gpu:h100@lambda".
    """
    kind, _, rest = resource.strip().partition(":")
    if not rest:
        return kind.strip().lower()
    place, _, market = rest.partition(":")
    name, _, cloud = place.partition("@")
    key = f"{kind.strip().lower()}:{accelerator_name(name).lower()}"
    if cloud:
        key += f"@{cloud.strip().lower()}"
    market = market.strip().lower()
    return key if market in ("", "on-demand") else f"{key}:{market}"


def broader_keys(key: str) -> tuple[str, ...]:
    """Return the keys whose price also holds for this one, the narrowest first: without the cloud, then the kind alone.

    A market is never dropped but with the whole type: an on-demand price says nothing about spot.
    """
    without_cloud = re.sub(r"@[^:]*", "", key)
    return tuple(dict.fromkeys((key, without_cloud, re.split("[:@]", key)[0])))
