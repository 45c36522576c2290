# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel FPGA cards: Arria 10 PAC, D5005, N3000, N6000.

Each region of a card has a port, behind a PCI function that can go to a
guest. The port shows which function is loaded; the management (FME) on the
PF loads another one.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names
from nova_accel.vendors.intel_dfl import card_ports, fpga_card, port_regions


class DflDriver:
    """Describes Intel FPGA cards and plans programming of their regions."""

    name = "dfl"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield each board of the card, its regions, and their problems.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        groups: dict[int, str] = {}
        for board, rule in _find_cards(card, rules):
            if board.address in taken:
                continue
            yield _build_device(board)
            yield from _list_card_problems(board, rule, card)
            for port_region in port_regions.list_regions(
                board, card, rules, groups
            ):
                yield port_regions.describe(board, port_region, rule)
                yield from _list_region_problems(board, port_region)
        for stray in fpga_card.find_stray_vfs(card):
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
            and not card_ports.check_change(card, rule.num_vfs, host)
            for action in card_ports.plan_change(card, rule.num_vfs, host)
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
    if not card_ports.read_ports(card, host).numbers:
        line = rule.amend(card.address, use=policy.DeviceUse.PASSTHROUGH.value)
        yield model.Problem.of_device(
            card.address,
            "its function is fixed: it has no region that could be given to a"
            f" guest by itself; to give it to guests whole, write {line}",
        )
        return
    requested = rule.num_vfs
    if requested is None or not card_ports.plan_change(card, requested, host):
        return
    obstacle = card_ports.check_change(card, requested, host)
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
