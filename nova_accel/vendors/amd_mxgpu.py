# SPDX-License-Identifier: Apache-2.0
"""Driver of AMD GPUs with SR-IOV: S7150, MI25, V620, MI300X.

AMD's host driver gim enables VFs when it is loaded (``vf_num``), never
through ``sriov_numvfs``: a write there fails with ENOENT. It divides the
card equally among the VFs, and no file shows a VF's share.
"""

import errno
import re
from collections.abc import Iterable, Mapping

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader, modules
from nova_accel.model import names, pci
from nova_accel.vendors.common import driver_base, vf_card

_AMD = "1002"
_GIM = "gim"
_DRIVERS = ("amdgpu", _GIM)
# VF counts of cards that support a few counts only (MI300X), by PCI product
# id of the PF.
_COUNTS: Mapping[str, tuple[int, ...]] = {"74a1": (1, 8)}

# Attributes of gim and amdgpu, each with the part of its trait's name and
# the pattern of its value. If gim fails, the read succeeds and returns a
# message ("failed to get current mp mode").
_ATTRIBUTES: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "spatial_partition_mode": ("SPATIAL", re.compile(r"([A-Z]PX)\b")),
    "memory_partition_mode": (
        "MEMORY",
        re.compile(r"memory_partition_mode:\s*(NPS\d+)\b"),
    ),
    "xgmi_hive_info/xgmi_hive_id": (
        "XGMI_HIVE",
        re.compile(r"(?:0x)?([0-9A-Fa-f]+)\s*$"),
    ),
}


class AmdMxgpuDriver(driver_base.VfDriver):
    """Describes AMD GPUs whose VFs gim has enabled.

    It plans nothing: VF counts change only when gim is loaded.
    """

    name = "amd_mxgpu"

    def is_supported(self, function: pci.PciFunction) -> bool:
        return function.vendor == _AMD and pci_ids.is_gpu(function)

    def check_vf_count(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> str:
        total, present, requested = (
            function.total_vfs,
            function.num_vfs,
            rule.num_vfs,
        )
        if requested is not None and requested != present:
            return (
                f"device_spec asks for {requested} virtual functions,"
                f" {present} are enabled, and only loading gim changes that:"
                f" {_describe_gim(function, host)}"
            )
        if present or requested == 0:
            return ""
        if (
            function.driver not in _DRIVERS
            and rule.use is not policy.DeviceUse.VF
        ):
            return ""
        return (
            f"none of its {total} virtual functions is enabled; have gim make"
            f" them: {_describe_gim(function, host)}"
        )

    def list_drivers(self, function: pci.PciFunction) -> tuple[str, ...]:
        return (_GIM,)

    def build_card(
        self, function: pci.PciFunction, host: host_reader.HostReader
    ) -> tuple[vf_card.VfCard, Iterable[model.Problem]]:
        traits, problems = _read_traits(function, host)
        card = vf_card.VfCard(
            function=function,
            plugin=self.name,
            drivers=_DRIVERS,
            traits=traits,
        )
        return card, problems


def _describe_gim(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return how gim makes VFs of a card: with options when it is loaded."""
    counts = _COUNTS.get(function.product)
    allowed = (
        " or ".join(map(str, counts))
        if counts
        else f"1 to {function.total_vfs}"
    )
    options = (
        "write `options gim vf_num=N` (N for each card, from"
        f" {allowed} for this one) to a file in modprobe.d"
    )
    if function.driver == _GIM:
        return (
            f"{options}, and load gim again while no guest has a virtual"
            " function"
        )
    other = function.driver or "no driver"
    start = f"it is bound to {other}, which makes none"
    return f"{start}; {_describe_installation(host)}{options}, and reboot"


def _describe_installation(host: host_reader.HostReader) -> str:
    """Return what is missing before gim can have a card, or ""."""
    blacklist = "blacklist amdgpu, "
    if modules.has_driver(host.files, _GIM):
        return blacklist
    if modules.is_installed(host.files, _GIM):
        return f"{blacklist}{remedy.LoadModule(module=_GIM)}, "
    install = remedy.InstallModule(package="AMD's host driver", module=_GIM)
    return f"{blacklist}{install}, "


def _read_traits(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[frozenset[str], list[model.Problem]]:
    """Return the traits from driver attributes, and read problems."""
    traits, problems = set(), []
    for name, (label, pattern) in _ATTRIBUTES.items():
        try:
            text = host.attribute(str(function.address), name)
        except errors.UnreadableError as error:
            # Only root may read the files of gim, and the service is not
            # root: EACCES is no fault of the card.
            if error.number not in (errno.ENOENT, errno.EACCES):
                problems.append(
                    model.Problem.of_device(
                        function.address, f"{name} can't be read: {error}"
                    )
                )
            continue
        match = pattern.match(text)
        if match:
            traits.add(names.custom_name("ACCELERATOR", label, match[1]))
        else:
            problems.append(
                model.Problem.of_device(
                    function.address,
                    f"{name} has no value: {text.strip()[:40]!r}; see the"
                    " kernel's log for what its driver says",
                )
            )
    return frozenset(traits), problems
