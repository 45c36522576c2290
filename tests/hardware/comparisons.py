# SPDX-License-Identifier: Apache-2.0
"""Values that nova-accel reads of a GPU, beside nvidia-smi's."""

import dataclasses
import enum
from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.host import nvml_gpus
from nova_accel.model import usage
from tests.hardware.smi import SmiGpu

# What may lie between two readings of a figure that varies.
MEMORY_MB, CELSIUS, WATTS, PERCENT = 64, 5, 60, 35
# Engines, and their names in nvidia-smi's XML.
ENGINES = {
    "compute": "gpu",
    "memory": "memory",
    "encoder": "encoder",
    "decoder": "decoder",
}
# Elements of the power in nvidia-smi's XML, before R535 the last.
POWER = (
    "gpu_power_readings/instant_power_draw",
    "gpu_power_readings/power_draw",
    "power_readings/power_draw",
)
_MEBIBYTE = 1024 * 1024


class Result(enum.StrEnum):
    """Result of a comparison."""

    AGREES = "agrees"
    DIFFERS = "DIFFERS"
    UNSUPPORTED = "not supported"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the report."""

    subject: str
    value: str
    result: Result
    read: str = ""
    expected: str = ""


def compare(subject: str, value: str, read: object, expected: object) -> Row:
    """Return a row; None on both sides is a value that no side has."""
    if read is None and expected is None:
        return Row(subject, value, Result.UNSUPPORTED)
    result = Result.AGREES if read == expected else Result.DIFFERS
    return Row(subject, value, result, str(read), str(expected))


def compare_range(
    subject: str,
    value: str,
    read: float | None,
    samples: Sequence[float | None],
    tolerance: float,
) -> Row:
    """Return a row for a figure that varies.

    :param samples: of nvidia-smi, before and after the reading.
    """
    figures = [sample for sample in samples if sample is not None]
    if read is None or len(figures) < len(samples):
        return compare(subject, value, read, None if not figures else figures)
    low, high = min(figures) - tolerance, max(figures) + tolerance
    return Row(
        subject,
        value,
        Result.AGREES if low <= read <= high else Result.DIFFERS,
        f"{read:g}",
        f"{low:g} to {high:g}",
    )


def compare_state(
    gpu: nvml_gpus.NvmlGpu, version: str, smi: SmiGpu, links: int
) -> Iterator[Row]:
    """Yield what the state of a GPU is, beside nvidia-smi's.

    :param links: number of its active NVLinks in nvidia-smi.
    """
    mixed = smi.text("gpu_virtualization_mode/vgpu_heterogeneous_mode")
    fabric = smi.text("fabric/state")
    recovery = smi.text("gpu_recovery_action")
    state = gpu.fabric and gpu.fabric[0].replace("_", " ")
    for value, read, expected in (
        ("driver", gpu.driver_version, version),
        ("memory, MiB", gpu.memory_mb, smi.number("fb_memory_usage/total")),
        ("MIG", gpu.is_mig, smi.mig and smi.mig[0]),
        ("mixed sizes", gpu.is_mixed, mixed and mixed == "Enabled"),
        (
            "ECC: now, pending",
            gpu.ecc,
            smi.modes("ecc_mode/current_ecc", "ecc_mode/pending_ecc"),
        ),
        (
            "fabric",
            None if state == "not supported" else state,
            fabric and fabric.lower(),
        ),
        (
            "needs recovery",
            None if gpu.recovery is None else gpu.recovery != 0,
            recovery and recovery != "None",
        ),
        (
            "has NVLinks",
            bool(gpu.links and (gpu.links.peers or gpu.links.is_switched)),
            links > 0,
        ),
        ("fault", gpu.fault, ""),
    ):
        yield compare(gpu.address, value, read, expected)


def compare_usage(
    measured: usage.DeviceUsage, before: SmiGpu, after: SmiGpu
) -> Iterator[Row]:
    """Yield the usage of a GPU, beside two readings of nvidia-smi."""
    read = {engine.engine: engine.ratio for engine in measured.engines}
    used = measured.memory_used
    for value, figure, paths, tolerance in (
        (
            "memory in use, MiB",
            None if used is None else used / _MEBIBYTE,
            ("fb_memory_usage/used",),
            MEMORY_MB,
        ),
        (
            "temperature, Celsius",
            measured.temperature_celsius,
            ("temperature/gpu_temp",),
            CELSIUS,
        ),
        (
            "power, W",
            measured.power_watts,
            POWER,
            WATTS,
        ),
        *(
            (
                f"utilisation of {name}, %",
                None if name not in read else read[name] * 100,
                (f"utilization/{tag}_util",),
                PERCENT,
            )
            for name, tag in ENGINES.items()
        ),
    ):
        samples = [smi.number(*paths) for smi in (before, after)]
        yield compare_range(
            measured.address, value, figure, samples, tolerance
        )


def compare_kinds(
    where: str,
    kinds: Sequence[model.InstanceKind],
    others: Sequence[model.InstanceKind],
    source: str,
) -> Iterator[Row]:
    """Yield the MIG kinds of a GPU, beside those of another source."""
    read = {kind.name: _describe(kind) for kind in kinds}
    expected = {kind.name: _describe(kind) for kind in others}
    for name in sorted(read.keys() | expected.keys()):
        yield compare(
            where,
            f"MIG {name}, as {source}",
            read.get(name),
            expected.get(name),
        )


def _describe(kind: model.InstanceKind) -> str:
    starts = ",".join(map(str, kind.starts))
    return f"{starts}:{kind.size}, at most {kind.limit}"
