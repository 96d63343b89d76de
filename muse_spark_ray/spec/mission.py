"""The spelling of the mission's guides, translated once to the one internal spelling.

    mission key                         internal key
    use_amp: true | false               precision.amp: on | off
    adaptive_sampling: {...}            strategies.adaptive_sampling: {...}
    label_smoothing: 0.1                strategies.label_smoothing: {epsilon: 0.1}
    dynamic_lr_scheduler: {...}         schedule: {...}
    gradient_clipping: 1.0              clip_norm: 1.0

`gradient_accumulation_steps` and `checkpoint{save_dir, save_freq, keep_last}` are spelled the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Place = tuple[str, ...]


def _amp(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _epsilon(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"epsilon": value} if is_number else value


def _same(value: Any) -> Any:
    return value


MISSION_KEYS: dict[str, tuple[Place, Callable[[Any], Any]]] = {
    "use_amp": (("precision", "amp"), _amp),
    "adaptive_sampling": (("strategies", "adaptive_sampling"), _same),
    "label_smoothing": (("strategies", "label_smoothing"), _epsilon),
    "dynamic_lr_scheduler": (("schedule",), _same),
    "gradient_clipping": (("clip_norm",), _same),
}


def translate(data: Any) -> Any:
    """Move the mission's keys to their internal places.

    Args:
        data: A training config as read; anything but a mapping is returned as it is.

    Returns:
        A copy without mission keys.

    Raises:
        ValueError: If a mission key and its internal key are both given.
    """
    if not isinstance(data, dict) or not MISSION_KEYS.keys() & data.keys():
        return data
    result = {key: value for key, value in data.items() if key not in MISSION_KEYS}
    for key in MISSION_KEYS.keys() & data.keys():
        place, convert = MISSION_KEYS[key]
        _put(result, place, convert(data[key]), key)
    return result


def _put(target: dict[str, Any], place: Place, value: Any, key: str) -> None:
    for name in place[:-1]:
        inner = target.get(name)
        target[name] = dict(inner) if isinstance(inner, dict) else {}
        target = target[name]
    if place[-1] in target:
        raise ValueError(f"{key} and {'.'.join(place)} say the same thing; give one of them")
    target[place[-1]] = value
