# SPDX-License-Identifier: Apache-2.0
"""Changes of the number of VFs of an Intel FPGA card, with its ports."""

from collections.abc import Iterator

from nova_accel.config import policy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors.common import vf_card
from nova_accel.vendors.intel_dfl import card_ports, fpga_card


def check_change(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> str:
    """Return why the number of a card's VFs can't be changed, or ""."""
    manager = card.manager
    if manager.driver != dfl.IN_KERNEL or not card.layout.node:
        return (
            f"it is bound to {manager.driver or 'no driver'}, and only"
            f" {dfl.IN_KERNEL} can do it"
        )
    if _has_unknown_ports(card):
        return "its ports are unknown"
    if requested > manager.total_vfs:
        return f"it has {manager.total_vfs}; lower num_vfs"
    ports = card_ports.read_ports(card, host)
    if not _has_portless_vfs(card, ports) and requested > len(ports.numbers):
        return f"it has {len(ports.numbers)} ports; lower num_vfs"
    return _check_vf_use(manager, host)


def explain_change(
    card: fpga_card.DflCard, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return how each region gets a function of its own, or why it can't."""
    count = _choose_count(card, card_ports.read_ports(card, host))
    if count is None:
        total = card.manager.total_vfs or "none"
        return f"its static part has {total}: flash one with more"
    if count == rule.num_vfs:
        return "num_vfs changes that when nova-compute starts"
    if obstacle := check_change(card, count, host):
        return f"that can't be changed: {obstacle}"
    line = vf_card.build_line(card.manager, rule, count)
    return f"{line} changes that when nova-compute starts"


def _choose_count(
    card: fpga_card.DflCard, ports: card_ports.CardPorts
) -> int | None:
    """Return the number of VFs with which each region has a function.

    None for a card without such a number: the total is set when the static
    part is made (Intel's PCIe IP, "Initial VFs and Total VFs Registers").
    """
    total = card.manager.total_vfs
    if _has_portless_vfs(card, ports):
        return total or None
    if total >= len(ports.numbers):
        return len(ports.numbers)
    return 0 if len(ports.numbers) == 1 else None


def _check_vf_use(
    manager: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return why a VF may be in use, or ""."""
    if manager.num_vfs > len(manager.virtual_functions):
        return "not all of its virtual functions are to be found"
    for address in manager.virtual_functions:
        function = host.function(str(address))
        if function is None or function.driver not in (
            None,
            *fpga_card.DRIVERS,
        ):
            return f"{address} may be in use by a guest, or by the host"
    return ""


def _has_unknown_ports(card: fpga_card.DflCard) -> bool:
    """Return whether the ports of the PF are not all known."""
    layout = card.layout
    return (
        layout.node is None
        or layout.interfaces is None
        or any(port.number is None for port in layout.ports)
    )


def _has_portless_vfs(
    card: fpga_card.DflCard, ports: card_ports.CardPorts
) -> bool:
    """Return whether VFs need no released port, as on N6000 cards."""
    return not ports.pf_ports and bool(card.layout.ports)


def plan_change(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> tuple[actions.Action, ...]:
    """Return the actions that release ports and enable as many VFs.

    The kernel accepts only the number of released ports, and only while
    the number is 0 (drivers/fpga/dfl.c, dfl_fpga_cdev_config_ports_vf).
    """
    count = card.manager.num_vfs
    changes = _plan_ports(card, requested, card_ports.read_ports(card, host))
    if requested == count and (
        requested or not changes or _has_unknown_ports(card)
    ):
        return ()
    enable = actions.SetVfCount(function=card.address, count=requested)
    disable = actions.SetVfCount(function=card.address, count=0, before=count)
    return (
        *([disable] if count else []),
        *changes,
        *([enable] if requested else ()),
        *(_plan_rebind(card) if changes and not requested else ()),
    )


def _plan_rebind(card: fpga_card.DflCard) -> Iterator[actions.BindDriver]:
    """Yield the actions that make host drivers bind to returned ports.

    They do not by themselves (observed with Linux 6.1).
    """
    driver = card.driver
    yield actions.BindDriver(function=card.address, driver="", before=driver)
    yield actions.BindDriver(function=card.address, driver=driver)


def _plan_ports(
    card: fpga_card.DflCard, requested: int, ports: card_ports.CardPorts
) -> tuple[actions.SetPort, ...]:
    """Return the actions that release ports, or take them back.

    As many ports as requested VFs are released, in the order of numbers.
    """
    if _has_portless_vfs(card, ports):
        return ()
    released = tuple(ports.region_vfs)
    to_release = tuple(ports.pf_ports)[: max(requested - len(released), 0)]
    return (
        *(
            actions.SetPort(card=card.address, number=n, is_released=True)
            for n in to_release
        ),
        *(
            actions.SetPort(card=card.address, number=n, is_released=False)
            for n in released[requested:]
        ),
    )
