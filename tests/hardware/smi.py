# SPDX-License-Identifier: Apache-2.0
"""Output of nvidia-smi."""

import pathlib
import re
import subprocess
from xml.etree import ElementTree

from nova_accel import model
from nova_accel.host.nvml import gpu_state

SYSFS = pathlib.Path("/sys/bus/pci/devices")
COMMAND_TIMEOUT_S = 120
# Elements of nvidia-smi's XML that identify a board or a program.
_PRIVATE = {
    "serial",
    "board_part_number",
    "gpu_part_number",
    "uuid",
    "process_name",
    "pdi",
    "chassis_serial_number",
    "cluster_uuid",
    "clusteruuid",
    "gpu_fabric_guid",
    "host_id",
    "peer_type",
    "module_id",
}


class SmiGpu:
    """A GPU in ``nvidia-smi -q -x``; its N/A is None."""

    def __init__(self, element: ElementTree.Element) -> None:
        self._element = element
        self.address = gpu_state.parse_bus_id(element.get("id", ""))

    def text(self, path: str) -> str | None:
        """Return the text of an element."""
        text = (self._element.findtext(path) or "").strip()
        return None if text in {"", "N/A"} else text

    def number(self, *paths: str) -> float | None:
        """Return the number before a unit: MiB, C, W, %.

        :param paths: the element, in newer and in older releases.
        """
        texts = [self.text(path) or "" for path in paths]
        match = re.match(r"-?[0-9.]+", next(filter(None, texts), ""))
        return float(match[0]) if match else None

    def modes(self, now: str, pending: str) -> tuple[bool, bool] | None:
        """Return whether a mode is on, and whether it will be."""
        if self.text(now) is None:
            return None
        return self.text(now) == "Enabled", self.text(pending) == "Enabled"

    @property
    def mig(self) -> tuple[bool, bool] | None:
        """Return the present and the pending MIG mode."""
        return self.modes("mig_mode/current_mig", "mig_mode/pending_mig")

    @property
    def is_used(self) -> bool:
        """Return whether programs or GPU instances use the GPU."""
        paths = ("processes/process_info", "mig_devices/mig_device")
        return any(self._element.find(path) is not None for path in paths)


def parse_smi(text: str) -> tuple[str, dict[str, SmiGpu]]:
    """Return the driver's version, and the GPUs by PCI address."""
    root = ElementTree.fromstring(text)
    gpus = [SmiGpu(element) for element in root.iter("gpu")]
    version = root.findtext("driver_version", "")
    return version, {gpu.address: gpu for gpu in gpus}


def remove_identity(text: str) -> str:
    """Return nvidia-smi's XML without serial numbers and program names."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        if element.tag in _PRIVATE and element.text:
            element.text = "removed"
    return ElementTree.tostring(root, encoding="unicode")


def parse_kinds(profiles: str, places: str) -> list[model.InstanceKind]:
    """Return the kinds in ``mig -lgip`` and ``mig -lgipp``.

    Their slices are not printed, and 0.
    """
    placements = {
        number: (starts, size)
        for number, starts, size in re.findall(
            r"Profile ID\s+([0-9]+)\s+Placements?\s*:"
            r"\s*\{([0-9, ]+)\}\s*:\s*([0-9]+)",
            places,
        )
    }
    return [
        model.InstanceKind(
            name=name,
            size=int(placements[number][1]),
            slices=0,
            starts=tuple(sorted(map(int, placements[number][0].split(",")))),
            limit=int(limit),
        )
        for name, number, limit in re.findall(
            r"MIG\s+(\S+)\s+([0-9]+)\s+[0-9]+/([0-9]+)", profiles
        )
        if number in placements
    ]


def parse_instances(text: str) -> set[tuple[str, int, int]]:
    """Return kind, start and size of the instances of ``mig -lgi``."""
    return {
        (kind, int(start), int(size))
        for kind, start, size in re.findall(
            r"MIG\s+(\S+)\s+[0-9]+\s+[0-9]+\s+([0-9]+):([0-9]+)", text
        )
    }


def count_links(text: str) -> int:
    """Return how many links of ``nvidia-smi nvlink -s`` are active."""
    return len(re.findall(r"Link [0-9]+:\s*[0-9.]+ GB/s", text))


def parse_types(text: str) -> dict[str, str]:
    """Return the names of ``nvidia-smi vgpu -s -v`` by decimal number."""
    numbers = re.findall(r"vGPU Type ID\s*:\s*0x([0-9a-fA-F]+)", text)
    names = re.findall(r"^\s*Name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return {
        str(int(number, 16)): re.sub(r"^(GRID|NVIDIA) ", "", name)
        for number, name in zip(numbers, names, strict=False)
    }


def run(*words: str) -> str:
    """Return a program's output; empty if it fails or is missing."""
    try:
        completed = subprocess.run(  # noqa: S603 - words of this file
            words,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout


def read_smi() -> tuple[str, dict[str, SmiGpu]]:
    """Return nvidia-smi's state of all GPUs."""
    return parse_smi(run("nvidia-smi", "-q", "-x"))


def list_printed_kinds(address: str) -> list[model.InstanceKind]:
    """Return the MIG kinds that nvidia-smi prints, in either mode."""
    smi = ("nvidia-smi", "mig", "-i", address)
    return parse_kinds(run(*smi, "-lgip"), run(*smi, "-lgipp"))
