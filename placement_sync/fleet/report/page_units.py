# SPDX-License-Identifier: Apache-2.0
"""Units of the report's page: memory in GB, as cards are named.

A GB of a card's memory is 1024 MB, each of 1024 * 1024 bytes.
"""

from nova_accel.model import names
from placement_sync.fleet.devices import (
    device_rows,
    fleet_state,
    holder_rows,
)

_MB = device_rows.UNITS[names.GPU_MEMORY_CLASS]


def format_memory(megabytes: float) -> str:
    """Return ``47.5 GB``, with at most one decimal place."""
    return f"{_count_gb(megabytes)} GB"


def format_usage(usage: device_rows.UnitUsage) -> str:
    """Return ``4/16 GB``, other units as they are, or ``-`` without any."""
    if usage.unit != _MB:
        return str(usage)
    return f"{_count_gb(usage.used)}/{_count_gb(usage.total)} GB"


def format_amount(resource_class: str, amount: int) -> str:
    """Return an amount of a resource class, ``16 GB`` or ``3``."""
    if resource_class == names.GPU_MEMORY_CLASS:
        return format_memory(amount)
    return str(amount)


def format_part(part: holder_rows.HeldPart) -> str:
    """Return the profile of a part, or its amounts: ``4 GB``."""
    return part.name or _format_amounts(part.amounts)


def _format_amounts(amounts: fleet_state.Amounts) -> str:
    if names.GPU_MEMORY_CLASS in amounts:
        return format_memory(amounts[names.GPU_MEMORY_CLASS])
    return holder_rows.format_amounts(amounts)


def _count_gb(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f}".removesuffix(".0")
