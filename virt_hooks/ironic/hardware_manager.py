# SPDX-License-Identifier: Apache-2.0
"""Hardware manager of ironic-python-agent: steps on accelerators.

The manager adds steps and replaces none of the agent's methods. A node whose
last inspection and whose machine show no accelerator gets no step.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ironic_python_agent import hardware, utils
from oslo_config import cfg

from virt_hooks.ironic import (
    accelerator_steps,
    collector,
    image_download,
)

Node = Mapping[str, Any]
Ports = Sequence[Mapping[str, Any]]
_Step = dict[str, Any]

# Priorities of automated cleaning, after the disks' metadata (99) and before
# their content (10): a verification sees the reset cards.
_SCRUB_PRIORITY, _VERIFY_PRIORITY = 60, 50
_DEVICE = {
    "description": "PCI address of a card, as 0000:41:00.0; all cards by"
    " default",
    "required": False,
}
_PROGRAM = {
    "url": {"description": "URL of the FPGA image", "required": True},
    "checksum": {
        "description": "SHA-256 or SHA-512 of the image, in hexadecimal",
        "required": True,
    },
    "device": {
        "description": "address of a card or of a region; all regions that"
        " the image fits by default",
        "required": False,
    },
}
_SET_MODE = {
    "mig": {
        "description": "true to switch MIG mode on, false to switch it off",
        "required": False,
    },
    "num_vfs": {
        "description": "number of virtual functions of a card",
        "required": False,
    },
    "device": _DEVICE,
}


# A kernel parameter is the default, as for the agent's own options.
_IMAGE_HOSTS = cfg.ListOpt(
    "image_hosts",
    default=[
        host
        for host in utils.get_agent_params()
        .get("nova-accel-image-hosts", "")
        .split(",")
        if host
    ],
    help="Hosts from which accel_program downloads FPGA images, as HOST or"
    " HOST:PORT. Without one it downloads none.",
)
cfg.CONF.register_opt(_IMAGE_HOSTS, group="nova_accel")


class AcceleratorHardwareManager(hardware.HardwareManager):
    """Verifies, scrubs and configures the accelerators of a node."""

    HARDWARE_MANAGER_NAME = "AcceleratorHardwareManager"
    HARDWARE_MANAGER_VERSION = "1.0"

    def evaluate_hardware_support(self) -> int:
        """Return a level above the agent's own manager."""
        return int(hardware.HardwareSupport.SERVICE_PROVIDER)

    def get_clean_steps(self, node: Node, ports: Ports) -> list[_Step]:
        """Return the steps of automated and manual cleaning."""
        return _list_steps(
            node,
            accel_scrub=_SCRUB_PRIORITY,
            accel_verify=_VERIFY_PRIORITY,
            accel_program=0,
            accel_set_mode=0,
        )

    def get_deploy_steps(self, node: Node, ports: Ports) -> list[_Step]:
        """Return the steps that deploy templates may name."""
        return _list_steps(
            node, accel_verify=0, accel_program=0, accel_set_mode=0
        )

    def get_service_steps(self, node: Node, ports: Ports) -> list[_Step]:
        """Return the steps that a service of a deployed node may name."""
        return _list_steps(
            node, accel_verify=0, accel_program=0, accel_set_mode=0
        )

    def accel_verify(self, node: Node, ports: Ports) -> dict[str, Any]:
        """Check the health and the number of accelerators."""
        steps = accelerator_steps.AcceleratorSteps()
        return steps.verify(_list_inspected(node))

    def accel_scrub(self, node: Node, ports: Ports) -> dict[str, Any]:
        """Remove all partitions, and reset each accelerator."""
        return accelerator_steps.AcceleratorSteps().scrub()

    def accel_program(
        self,
        node: Node,
        ports: Ports,
        url: str,
        checksum: str,
        device: str = "",
    ) -> dict[str, Any]:
        """Load an image into FPGA regions."""
        steps = accelerator_steps.AcceleratorSteps()
        hosts = cfg.CONF.nova_accel.image_hosts
        with image_download.open_image(url, checksum, hosts) as path:
            return steps.program(path, device)

    def accel_set_mode(
        self,
        node: Node,
        ports: Ports,
        mig: bool | None = None,
        num_vfs: int | None = None,
        device: str = "",
    ) -> dict[str, Any]:
        """Set MIG mode or the number of VFs."""
        steps = accelerator_steps.AcceleratorSteps()
        return steps.set_mode(device, mig, num_vfs)


_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "accel_program": _PROGRAM,
    "accel_set_mode": _SET_MODE,
}


def _list_steps(node: Node, **priorities: int) -> list[_Step]:
    """Return steps by name and priority; none without an accelerator."""
    if not _list_inspected(node) and not _has_accelerator():
        return []
    return [
        {
            "step": name,
            "priority": priority,
            "interface": "deploy",
            "reboot_requested": False,
            "abortable": name == "accel_verify",
            "argsinfo": dict(_ARGUMENTS.get(name, {})),
        }
        for name, priority in priorities.items()
    ]


def _list_inspected(node: Node) -> Sequence[Mapping[str, Any]]:
    with contextlib.suppress(KeyError, TypeError):
        return list(node["properties"]["accelerators"])
    return ()


def _has_accelerator() -> bool:
    """Return whether there is one, or whether that is unknown."""
    report = collector.read_report()
    return bool(report.devices or not report.is_complete)
