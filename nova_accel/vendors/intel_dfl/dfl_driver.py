# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel's FPGA cards: Arria 10 PAC, D5005, N3000, N6000.

Each of a card's regions has a port of its own, behind a PCI function that
a guest can have. What is in a region is told by that port, and changed
through the static part's management (FME) on the PF.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy
from nova_accel.host.fpga import dfl
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.intel_dfl import fpga_card, port_regions


class DflDriver:
    """Describes Intel's FPGA cards, and plans what is in their regions."""

    name = "dfl"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield each card, its regions, and what is wrong with them.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        groups: dict[int, str] = {}
        for card, rule in _wanted(host, rules):
            if card.address in taken:
                continue
            yield _describe_card(card)
            yield from _card_problems(card, rule, host)
            for place in port_regions.places(card, host, rules, groups):
                yield port_regions.describe(card, place, rule)
                yield from _place_problems(card, place)
        for stray in fpga_card.strays(host):
            yield model.Problem(
                where=str(stray.address),
                reason="is not offered: it is a virtual function without its"
                " physical one, half made or half removed; enable them"
                " again, or rescan the bus",
            )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return what loads the claim's bitstream, nothing without one."""
        return _plan_program(claim)

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return what loads the blank bitstream, nothing without one."""
        return _plan_program(claim)

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return what gives cards as many VFs as policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for card, rule in _wanted(host, rules)
            if rule.num_vfs is not None
            and not _hindrance(card, rule.num_vfs, host)
            for action in _plan_count(card, rule.num_vfs, host)
        )


def _wanted(
    host: host_reader.HostReader, rules: policy.Policy
) -> Iterator[tuple[fpga_card.DflCard, policy.Rule]]:
    """Yield the cards whose regions policy allows to offer."""
    for card in fpga_card.find(host):
        manager = card.manager
        rule = rules.rule(card.address, manager.vendor, manager.product)
        if rule.use in (policy.DeviceUse.AUTO, policy.DeviceUse.FPGA):
            yield card, rule


def _describe_card(card: fpga_card.DflCard) -> model.Device:
    """Return the card itself, of which nothing is given."""
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


def _card_problems(
    card: fpga_card.DflCard, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    """Yield what is wrong with a card as a whole."""
    for reason in card.layout.reasons:
        yield model.Problem(where=card.address, reason=reason)
    if not port_regions.ports(card, host).numbers:
        yield model.Problem(
            where=card.address,
            reason="its function is fixed: it has no region that could be"
            " given to a guest by itself; to give its functions whole, say use"
            " passthrough in device_spec lines for them",
        )
        return
    asked = rule.num_vfs
    if asked is None or not _plan_count(card, asked, host):
        return
    hindrance = _hindrance(card, asked, host)
    yield model.Problem(
        where=card.address,
        reason=f"device_spec asks for {asked} virtual functions,"
        f" {card.manager.num_vfs} are enabled"
        + (
            f", and that can't be changed: {hindrance}"
            if hindrance
            else "; that is changed when nova-compute starts"
        ),
    )


def _place_problems(
    card: fpga_card.DflCard, place: port_regions.PortRegion
) -> Iterator[model.Problem]:
    """Yield what is wrong with a region."""
    where = names.region_address(card.address, place.number)
    if place.refusal:
        yield model.Problem(
            where=where, reason=f"is not offered: {place.refusal}"
        )
    if place.port is not None and place.port.function is None:
        yield model.Problem(
            where=where,
            reason=f"its function is not known: afu_id {place.port.reason}",
        )
    elif not port_regions.is_told(card, place):
        yield model.Problem(
            where=where,
            reason="its function is not known, and no bitstream can be"
            " loaded for a server: the kernel does not tell what is in it"
            " (no afu_id), so that could not be checked",
        )
    elif port_regions.is_mute(card, place.number):
        yield model.Problem(
            where=where,
            reason="no bitstream can be loaded for a server: the kernel does"
            " not tell which ones fit (its interface id)",
        )


def _plan_program(claim: model.Claim) -> tuple[actions.Action, ...]:
    """Return what loads a claim's bitstream.

    Behind a VF, only the host's own driver shows what has been loaded.
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


def _hindrance(
    card: fpga_card.DflCard, asked: int, host: host_reader.HostReader
) -> str:
    """Return why the number of a card's VFs can't be changed."""
    manager = card.manager
    if manager.driver != dfl.IN_KERNEL or not card.layout.node:
        return (
            f"it is bound to {manager.driver or 'no driver'}, and only"
            f" {dfl.IN_KERNEL} can do it; bind it to that"
        )
    if _is_unclear(card):
        return "its ports can't be told"
    if asked > manager.total_vfs:
        return f"it has {manager.total_vfs}; lower num_vfs"
    where = port_regions.ports(card, host)
    if not _is_untied(card, where) and asked > len(where.numbers):
        return f"it has {len(where.numbers)} ports; lower num_vfs"
    return _use(manager, host)


def _use(manager: pci.PciFunction, host: host_reader.HostReader) -> str:
    """Return which VF somebody may use, empty for none."""
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


def _is_unclear(card: fpga_card.DflCard) -> bool:
    """Return whether nothing tells which ports the PF has."""
    layout = card.layout
    return (
        layout.node is None
        or layout.interfaces is None
        or any(port.number is None for port in layout.ports)
    )


def _is_untied(card: fpga_card.DflCard, where: port_regions.CardPorts) -> bool:
    """Return whether VFs need no port: those of N6000 cards."""
    return not where.in_pf and bool(card.layout.ports)


def _plan_count(
    card: fpga_card.DflCard, asked: int, host: host_reader.HostReader
) -> tuple[actions.Action, ...]:
    """Return what makes so many VFs, with a released port for each.

    The kernel refuses another number than that of released ports, and to
    change a number that is not 0 (drivers/fpga/dfl.c,
    dfl_fpga_cdev_config_ports_vf).
    """
    count = card.manager.num_vfs
    where = port_regions.ports(card, host)
    ports = _plan_ports(card, asked, where)
    if asked == count and (asked or not ports or _is_unclear(card)):
        return ()
    enable = actions.SetVfCount(function=card.address, count=asked)
    disable = actions.SetVfCount(function=card.address, count=0, before=count)
    return (
        *([disable] if count else []),
        *ports,
        *([enable] if asked else ()),
        *(_plan_rebind(card) if ports and not asked else ()),
    )


def _plan_rebind(card: fpga_card.DflCard) -> Iterator[actions.BindDriver]:
    """Yield what makes the host's drivers take ports that came back.

    By itself none takes them again (seen with Linux 6.1).
    """
    driver = card.driver
    yield actions.BindDriver(function=card.address, driver="", before=driver)
    yield actions.BindDriver(function=card.address, driver=driver)


def _plan_ports(
    card: fpga_card.DflCard, asked: int, where: port_regions.CardPorts
) -> tuple[actions.SetPort, ...]:
    """Return what releases ports, or takes them back.

    As many as VFs are asked for are to be released, the first ones first.
    """
    if _is_untied(card, where):
        return ()
    released = tuple(where.behind)
    more = tuple(where.in_pf)[: max(asked - len(released), 0)]
    return (
        *(
            actions.SetPort(card=card.address, number=n, is_released=True)
            for n in more
        ),
        *(
            actions.SetPort(card=card.address, number=n, is_released=False)
            for n in released[asked:]
        ),
    )
