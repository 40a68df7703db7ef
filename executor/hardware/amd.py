"""AMD devices, out of `amd-smi static --asic --vram --driver --json`, or of `rocm-smi` where there is no amd-smi."""

import json
import re
from typing import Any

from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.unreadable import Unreadable

_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "MIB": 2**20, "GIB": 2**30}


def parse_amd_smi(text: str) -> list[Device]:
    """A list of devices, or newer releases' object with `gpu_data`. Raises Unreadable."""
    found = _json("amd-smi", text)
    if isinstance(found, dict):
        found = found.get("gpu_data")
    try:
        return [
            _device(
                each["gpu"],
                each["asic"]["market_name"],
                each["asic"]["target_graphics_version"],
                _bytes(each.get("vram", {}).get("size", 0)),
                each.get("driver", {}).get("version", ""),
            )
            for each in found
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"amd-smi: not as expected ({error!r})") from error


def parse_rocm_smi(text: str) -> list[Device]:
    """Objects `card0`, `card1` and so on; `system` has the driver's version. Raises Unreadable."""
    found = _json("rocm-smi", text)
    try:
        driver = str(found.get("system", {}).get("Driver version", ""))
        cards = sorted((name for name in found if re.fullmatch(r"card\d+", name)), key=lambda name: int(name[4:]))
        return [
            _card(index, {key.lower(): value for key, value in found[name].items()}, driver)
            for index, name in enumerate(cards)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"rocm-smi: not as expected ({error!r})") from error


def _card(index: int, card: dict[str, str], driver: str) -> Device:
    """Keys in lower case: releases spell them differently."""
    name = card.get("card series") or card.get("card model") or "AMD device"
    return _device(index, name, card["gfx version"], int(card["vram total memory (b)"]), driver)


def _device(index: int, name: str, version: str, memory_bytes: int, driver: str) -> Device:
    architecture = version.split(":")[0].lower()
    if not re.fullmatch(r"gfx[0-9a-f]{3,4}", architecture):
        raise ValueError(f"{version!r} is no graphics version")
    return Device(DeviceKind.ROCM, int(index), name, architecture, memory_bytes, driver)


def _json(tool: str, text: str) -> Any:
    """Warnings may stand before it."""
    begin = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=-1)
    try:
        return json.loads(text[begin:] if begin >= 0 else text)
    except ValueError as error:
        words = " ".join(text.split())[:120] or "no output"
        raise Unreadable(f"{tool}: {words}") from error


def _bytes(size: Any) -> int:
    """{"value": 196592, "unit": "MB"}, or a bare number of megabytes."""
    if isinstance(size, dict):
        return int(size["value"]) * _UNITS[str(size.get("unit", "MB")).upper()]
    return int(size) * 2**20
