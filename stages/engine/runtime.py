"""MindSpore, started one way. Import this module before anything that imports MindSpore."""

import os
from typing import Literal

# GNU OpenMP's threads spin between two kernels by default, which burns the cores that the next
# process needs and slows our own. Read once, when the library loads: hence before the import.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# MindSpore's log level: warnings about its own internals are not the user's to act on.
os.environ.setdefault("GLOG_v", "3")
# MindSpore's cache of compiled graphs runs a stale one after a number that is no tensor changed.
os.environ["MS_COMPILER_CACHE_ENABLE"] = "0"

import mindspore

from artifacts.errors import BadInput

Device = Literal["auto", "CPU", "GPU", "Ascend"]

_started: str | None = None


def start(device: Device = "auto", seed: int = 0) -> str:
    """Set graph mode, the device and MindSpore's seeds; returns the device's name.

    May be called again with the same device. Raises BadInput for a device that is not there.
    """
    global _started
    target = _pick(device)
    if _started is None:
        if not mindspore.hal.is_available(target):
            raise BadInput(f"device: is {device!r}; MindSpore finds no such device here, use auto")
        mindspore.set_device(target)
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        _started = target
    elif _started != target:
        raise BadInput(f"device: is {device!r}; this process runs on {_started} already")
    mindspore.set_seed(seed)
    return target


def _pick(device: Device) -> str:
    if device != "auto":
        return device
    if _started is not None:
        return _started
    for target in ("Ascend", "GPU"):
        if mindspore.hal.is_available(target):
            return target
    return "CPU"
