# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel FPGA cards: Arria 10 PAC, D5005, N3000, N6000.

Each region of a card has a port, behind a PCI function that can go to a
guest. The port shows which function is loaded; the management (FME) on the
PF loads another one.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.intel_dfl import fpga_card, port_regions


class DflDriver:
    """Describes Intel FPGA cards and plans programming of their regions."""

    name = "dfl"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield each card, its regions, and their problems.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        groups: dict[int, str] = {}
        for card, rule in _find_cards(host, rules):
            if card.address in taken:
                continue
            yield _build_device(card)
            yield from _list_card_problems(card, rule, host)
            for port_region in port_regions.list_regions(
                card, host, rules, groups
            ):
                yield port_regions.describe(card, port_region, rule)
                yield from _list_region_problems(card, port_region)
        for stray in fpga_card.find_stray_vfs(host):
            yield model.Problem.of_device(
                stray.address,
                "is not offered: it is a virtual function without its"
                " physical one, half made or half removed; enable them"
                " again, or rescan the bus",
            )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that load the claim's bitstream, if any."""
        return _plan_program(claim)

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that load the blank bitstream, if any."""
        return _plan_program(claim)

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the changes of VF counts that policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for card, rule in _find_cards(host, rules)
            if rule.num_vfs is not None
            and not _check_vf_change(card, rule.num_vfs, host)
            for action in _plan_vf_count(card, rule.num_vfs, host)
        )


def _find_cards(
    host: host_reader.HostReader, rules: policy.DeviceRules
) -> Iterator[tuple[fpga_card.DflCard, policy.Rule]]:
    """Yield the cards whose regions policy offers, each with its rule."""
    for card in fpga_card.find_cards(host):
        manager = card.manager
        rule = rules.rule(card.address, manager.vendor, manager.product)
        if rule.use in (policy.DeviceUse.AUTO, policy.DeviceUse.FPGA):
            yield card, rule


def _build_device(card: fpga_card.DflCard) -> model.Device:
    """Return the card as a device without counters; regions have them."""
    manager = card.manager
    return model.Device(
        address=card.address,
        plugin=DflDriver.name,
        technology="fpga",
        vendor=names.vendor_name(manager.vendor),
        model=card.model,
        resource_class=names.FPGA_CLASS,
        counters={},
        slots=(),
        vendor_id=manager.vendor,
        product_id=manager.product,
        driver=manager.driver,
        numa_node=manager.numa_node,
        traits=card.traits,
        members=card.members,
    )


def _list_card_problems(
    card: fpga_card.DflCard, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    for reason in card.layout.reasons:
        yield model.Problem.of_device(card.address, reason)
    if not port_regions.read_ports(card, host).numbers:
        yield model.Problem.of_device(
            card.address,
            "its function is fixed: it has no region that could be"
            " given to a guest by itself; to give its functions whole, write"
            ' device_spec lines with "use": "passthrough" for them',
        )
        return
    requested = rule.num_vfs
    if requested is None or not _plan_vf_count(card, requested, host):
        return
    obstacle = _check_vf_change(card, requested, host)
    yield model.Problem.of_device(
        card.address,
        f"device_spec asks for {requested} virtual functions,"
        f" {card.manager.num_vfs} are enabled"
        + (
            f", and that can't be changed: {obstacle}"
            if obstacle
            else "; that is changed when nova-compute starts"
        ),
    )


def _list_region_problems(
    card: fpga_card.DflCard, port_region: port_regions.PortRegion
) -> Iterator[model.Problem]:
    where = names.region_address(card.address, port_region.number)
    if port_region.refusal:
        yield model.Problem.of_device(
            where, f"is not offered: {port_region.refusal}"
        )
    if port_region.port is not None and port_region.port.function is None:
        yield model.Problem.of_device(
            where,
            f"its function is not known: afu_id {port_region.port.reason}",
        )
    elif not port_regions.can_read_function(card, port_region):
        yield model.Problem.of_device(
            where,
            "its function is not known, and no bitstream can be"
            " loaded for a server: the kernel does not show what is in it"
            " (no afu_id), so that could not be checked",
        )
    elif port_regions.has_unknown_interface(card, port_region.number):
        yield model.Problem.of_device(
            where,
            "no bitstream can be loaded for a server: the kernel does"
            " not show which ones fit (its interface id)",
        )


def _plan_program(claim: model.Claim) -> tuple[actions.Action, ...]:
    """Return the actions that load a claim's bitstream.

    A VF is bound to the host's driver first, which shows the loaded
    function.
    """
    region, bitstream = claim.region, claim.bitstream
    if region is None or bitstream is None:
        return ()
    is_whole = claim.slot == region.card
    program = actions.ProgramRegion(
        card=region.card,
        number=region.number,
        slot=claim.slot,
        bitstream=bitstream,
        tool=region.tool,
        is_forced=is_whole or claim.is_forced,
        dependents=region.dependents,
    )
    if is_whole or not region.driver:
        return (program,)
    bind = actions.BindDriver(function=claim.slot, driver=region.driver)
    return bind, program


def _check_vf_change(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> str:
    """Return why the number of a card's VFs can't be changed, or ""."""
    manager = card.manager
    if manager.driver != dfl.IN_KERNEL or not card.layout.node:
        return (
            f"it is bound to {manager.driver or 'no driver'}, and only"
            f" {dfl.IN_KERNEL} can do it; bind it to that"
        )
    if _has_unknown_ports(card):
        return "its ports are unknown"
    if requested > manager.total_vfs:
        return f"it has {manager.total_vfs}; lower num_vfs"
    card_ports = port_regions.read_ports(card, host)
    if not _has_portless_vfs(card, card_ports) and requested > len(
        card_ports.numbers
    ):
        return f"it has {len(card_ports.numbers)} ports; lower num_vfs"
    return _check_vf_use(manager, host)


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
    card: fpga_card.DflCard, card_ports: port_regions.CardPorts
) -> bool:
    """Return whether VFs need no released port, as on N6000 cards."""
    return not card_ports.pf_ports and bool(card.layout.ports)


def _plan_vf_count(
    card: fpga_card.DflCard, requested: int, host: host_reader.HostReader
) -> tuple[actions.Action, ...]:
    """Return the actions that release ports and enable as many VFs.

    The kernel accepts only the number of released ports, and only while
    the number is 0 (drivers/fpga/dfl.c, dfl_fpga_cdev_config_ports_vf).
    """
    count = card.manager.num_vfs
    card_ports = port_regions.read_ports(card, host)
    ports = _plan_ports(card, requested, card_ports)
    if requested == count and (
        requested or not ports or _has_unknown_ports(card)
    ):
        return ()
    enable = actions.SetVfCount(function=card.address, count=requested)
    disable = actions.SetVfCount(function=card.address, count=0, before=count)
    return (
        *([disable] if count else []),
        *ports,
        *([enable] if requested else ()),
        *(_plan_rebind(card) if ports and not requested else ()),
    )


def _plan_rebind(card: fpga_card.DflCard) -> Iterator[actions.BindDriver]:
    """Yield the actions that make host drivers bind to returned ports.

    They do not by themselves (observed with Linux 6.1).
    """
    driver = card.driver
    yield actions.BindDriver(function=card.address, driver="", before=driver)
    yield actions.BindDriver(function=card.address, driver=driver)


def _plan_ports(
    card: fpga_card.DflCard, requested: int, card_ports: port_regions.CardPorts
) -> tuple[actions.SetPort, ...]:
    """Return the actions that release ports, or take them back.

    As many ports as requested VFs are released, in the order of numbers.
    """
    if _has_portless_vfs(card, card_ports):
        return ()
    released = tuple(card_ports.region_vfs)
    to_release = tuple(card_ports.pf_ports)[
        : max(requested - len(released), 0)
    ]
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
