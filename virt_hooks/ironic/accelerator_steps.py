# SPDX-License-Identifier: Apache-2.0
"""Changes that Ironic's steps make to the accelerators of this machine.

The ramdisk runs as root, and no server runs beside it. Each step reads the
machine again, so a step that was interrupted can be repeated.
"""

import collections
import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.claims import card_reset
from nova_accel.config import policy
from nova_accel.discovery import plugin
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import action_executor, privileged, reset_checks
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.nvidia import plans
from virt_hooks.ironic import node_reader

LOG = logging.getLogger(__name__)

# Checks of `nova-accel doctor` that do not depend on guests.
CHECKS = (
    "pci.bars",
    "pci.link-width",
    "pci.aer-fatal",
    "pci.presence",
    "pci.power",
)
_HARMLESS = (host_checks.Level.OK, host_checks.Level.NOTE)
_NVIDIA, _NVIDIA_DRIVER = "10de", "nvidia"
_RESET = policy.Rule(scrub=policy.RESET)
Result = dict[str, Any]


class NodeStepError(errors.AcceleratorError):
    """A step found or left accelerators in a state that is not accepted."""


class AcceleratorSteps:
    """Steps on one machine. Not thread-safe: Ironic runs one at a time."""

    def __init__(
        self,
        root: str = "/",
        read_gpus: Callable[[], nvml_gpus.NvmlGpus] = gpu_reader.read_gpus,
    ) -> None:
        """Change this machine with the rights of this process.

        :param root: directory of the kernel's files.
        """
        privileged.run_here()
        self._root, self._read_gpus = root, read_gpus
        self._executor = action_executor.Executor(root, read_gpus=read_gpus)

    def _open(self) -> host_reader.HostReader:
        return host_reader.HostReader(self._root, gpus=self._read_gpus())

    # -- verify -----------------------------------------------------------

    def verify(self, expected: Iterable[Mapping[str, Any]]) -> Result:
        """Check health, and that no accelerator of the inspection is gone.

        :param expected: ``properties['accelerators']`` of the node.
        :raises NodeStepError: a device is missing, faulty or unreadable, or
            a check failed; the error lists all of them.
        """
        host = self._open()
        state = node_reader.read_state(host)
        cards = [device for device in state.devices if not device.parent]
        failures = [*_find_missing(cards, expected)]
        failures += [f"{a} can't be read" for a in sorted(state.unknown)]
        failures += [f"{d.address}: {d.fault}" for d in cards if d.fault]
        if not state.complete:
            failures.append(
                "a vendor driver failed, so devices may be missing"
            )
        warnings: list[str] = []
        for level, text in _run_checks(host):
            is_failure = level is host_checks.Level.FAIL
            (failures if is_failure else warnings).append(text)
        for warning in warnings:
            LOG.warning("%s", warning)
        if failures:
            raise NodeStepError("; ".join(failures))
        return {"devices": len(cards), "warnings": warnings}

    # -- scrub ------------------------------------------------------------

    def scrub(self) -> Result:
        """Remove VFs, GPU instances and MIG mode, and reset each function.

        All cards are scrubbed, also after a failure of one of them.

        :returns: the functions that were reset, and those that the kernel
            can't reset: they lose their content when power is cut.
        :raises NodeStepError: a card is not scrubbed.
        """
        host = self._open()
        reset: list[str] = []
        not_reset: list[str] = []
        failures: list[str] = []
        for device in node_reader.read_state(host).devices:
            if device.parent or not pci.is_address(device.address):
                continue
            try:
                self._remove_partitions(device, host)
                functions = (device.address, *device.members)
                for bus in reset_checks.read(self._root, functions):
                    resettable, others = bus.split()
                    reset += self._reset(resettable)
                    not_reset += [function.address for function in others]
            except errors.AcceleratorError as error:
                failures.append(str(error))
        if not_reset:
            LOG.warning("Can't be reset: %s", ", ".join(not_reset))
        if failures:
            raise NodeStepError("; ".join(failures))
        return {"reset": reset, "not_reset": not_reset}

    def _remove_partitions(
        self, device: model.Device, host: host_reader.HostReader
    ) -> None:
        gpu = host.gpus.get(device.address)
        if gpu is not None:
            for kind in sorted({i.kind for i in gpu.instances}):
                self._executor.apply(
                    actions.DestroyInstance(gpu=device.address, kind=kind)
                )
        function = host.function(device.address)
        if function is not None and function.num_vfs:
            self._executor.apply(_build_count(function, 0))
        if gpu is not None and gpu.is_mig:
            self._switch_mig(device.address, is_mig=False)

    def _switch_mig(self, address: str, *, is_mig: bool) -> bool:
        """Switch MIG mode; return whether that needs a reset."""
        try:
            self._executor.apply(
                actions.SetMigMode(gpu=address, is_mig=is_mig)
            )
        except errors.ActionError as error:
            if error.number != errno.EINPROGRESS:
                raise
            LOG.info("%s", error)
            return True
        return False

    def _reset(self, bus: card_reset.BusFunctions) -> list[str]:
        """Reset functions; return their addresses."""
        addresses = [function.address for function in bus.functions]
        if addresses:
            self._executor.apply_scrub((bus,), _RESET)
        for address in addresses:
            if not reset_checks.is_answering(self._root, address):
                raise NodeStepError(
                    f"{address} does not answer after its reset;"
                    " power-cycle the machine, and replace the card if that"
                    " does not help"
                )
        return addresses

    # -- modes ------------------------------------------------------------

    def set_mode(
        self,
        device: str = "",
        mig: bool | None = None,
        num_vfs: int | None = None,
    ) -> Result:
        """Set MIG mode or the number of VFs.

        :param device: address of a card; empty for all cards that have the
            mode.
        :returns: the changed cards, and the GPUs that switch at a reset.
        :raises MalformedError: an argument has another form.
        :raises NodeStepError: no card has the mode.
        :raises ActionError: a card refuses the change.
        """
        is_mode = type(mig) is bool and num_vfs is None
        is_count = type(num_vfs) is int and num_vfs >= 0 and mig is None
        if not (is_mode or is_count):
            raise errors.MalformedError(
                "arguments of accel_set_mode",
                f"mig={mig!r}, num_vfs={num_vfs!r}",
                "mig (true or false) or num_vfs (a number)",
            )
        host = self._open()
        cards = _select_cards(node_reader.read_state(host), device)
        if num_vfs is not None:
            return self._set_counts(device, cards, num_vfs, host)
        gpus = [c.address for c in cards if _has_mig(c.address, host)]
        _require(gpus, "GPU with MIG that its driver shows", device)
        pending = [a for a in gpus if self._switch_mig(a, is_mig=bool(mig))]
        return {"devices": gpus, "needs_reset": pending}

    def _set_counts(
        self,
        device: str,
        cards: Iterable[model.Device],
        count: int,
        host: host_reader.HostReader,
    ) -> Result:
        functions = [
            function
            for card in cards
            if (function := host.function(card.address)) is not None
            and function.total_vfs
        ]
        addresses = [str(function.address) for function in functions]
        _require(addresses, "card that can have VFs", device)
        for function in functions:
            if function.total_vfs < count:
                raise NodeStepError(
                    f"{function.address} has at most {function.total_vfs} VFs"
                )
        for function in functions:
            self._executor.apply(_build_count(function, count))
        return {"devices": addresses, "needs_reset": []}

    # -- FPGA images ------------------------------------------------------

    def program(self, path: str, device: str = "") -> Result:
        """Load an image into FPGA regions.

        :param path: the file, with the header of its vendor.
        :param device: address of a card or region; empty for all regions
            that the image fits.
        :raises BitstreamError: the file can't be used, or fits no region.
        :raises ActionError: a region refuses it.
        """
        with open(path, "rb") as file:
            bitstream = bitstreams.describe_file(path, file.read())
        state = node_reader.read_state(self._open())
        regions = [
            d
            for d in state.devices
            if d.region is not None
            and device in ("", d.address, names.card_address(d.address))
        ]
        reasons = {d.address: _explain_misfit(bitstream, d) for d in regions}
        fitting = [d for d in regions if not reasons[d.address]]
        if not fitting:
            listed = "; ".join(f"{a}: {r}" for a, r in reasons.items())
            raise errors.BitstreamError(
                bitstream.function,
                "it fits no FPGA region of this machine"
                f" ({listed or 'there is none'})",
            )
        drivers = plugin.load()
        for region in fitting:
            claim = _build_claim(region, bitstream)
            self._executor.apply_all(
                drivers[region.plugin].plan_prepare(claim)
            )
        return {
            "devices": [region.address for region in fitting],
            "function": bitstream.function,
        }


def _find_missing(
    cards: Iterable[model.Device], expected: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the models of which fewer cards exist than at the inspection."""
    present = collections.Counter((d.vendor_id, d.product_id) for d in cards)
    inspected = collections.Counter(
        (str(row.get("vendor_id")), str(row.get("device_id")))
        for row in expected
    )
    for (vendor, product), count in sorted((inspected - present).items()):
        yield (
            f"{count} of {inspected[vendor, product]} devices"
            f" {vendor}:{product} of the last inspection are missing; replace"
            " them, or inspect the node again"
        )


def _run_checks(
    host: host_reader.HostReader,
) -> Iterator[tuple[host_checks.Level, str]]:
    checks = registry.select(registry.list_checks(), (), names=CHECKS)
    for result in registry.run(checks, checked_host.CheckedHost(host)):
        for observation in result.observations:
            if observation.level not in _HARMLESS:
                text = f"{result.check.name}: {observation.text}"
                yield observation.level, text


def _select_cards(
    state: model.HostState, address: str
) -> Sequence[model.Device]:
    cards = [d for d in state.devices if not d.parent]
    selected = [d for d in cards if address in ("", d.address)]
    if not selected:
        present = ", ".join(d.address for d in cards) or "there is none"
        raise errors.MalformedError(
            "device", address, f"an accelerator of this machine: {present}"
        )
    return selected


def _has_mig(address: str, host: host_reader.HostReader) -> bool:
    gpu = host.gpus.get(address)
    return gpu is not None and gpu.is_mig is not None


def _require(addresses: Sequence[str], kind: str, device: str) -> None:
    if not addresses:
        raise NodeStepError(f"{device or 'this machine'} has no {kind}")


def _build_count(function: pci.PciFunction, count: int) -> actions.SetVfCount:
    is_nvidia = (
        function.vendor == _NVIDIA and function.driver == _NVIDIA_DRIVER
    )
    return actions.SetVfCount(
        function=str(function.address),
        count=count,
        before=function.num_vfs,
        tool=plans.VF_TOOL if is_nvidia else "",
    )


def _explain_misfit(bitstream: model.Bitstream, device: model.Device) -> str:
    """Return why an image can't be loaded into a region, or ""."""
    if device.region is None or not device.slots:
        return "its function is not visible"
    with contextlib.suppress(errors.AcceleratorError):
        return bitstreams.explain_mismatch(
            bitstream, device.region, device.vendor_id
        )
    return "its interface can't be read"


def _build_claim(
    device: model.Device, bitstream: model.Bitstream
) -> model.Claim:
    """Return the claim by which the vendor driver plans the load."""
    return model.Claim(
        consumer="",
        provider="",
        device=device.address,
        profile="",
        slot=device.slots[0],
        parent=device.parent,
        handle=device.slots[0],
        technology=device.technology,
        plugin=device.plugin,
        members=device.members,
        region=device.region,
        bitstream=bitstream,
        is_forced=True,
    )
