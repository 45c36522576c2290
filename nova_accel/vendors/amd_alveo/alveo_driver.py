# SPDX-License-Identifier: Apache-2.0
"""Driver of AMD Alveo cards: one region and one user function each.

The management function stays with the host, because it controls the whole
card. The kernel refuses bitstreams for another shell and, if it requires
signatures, unsigned ones.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from nova_accel import errors, model
from nova_accel.catalog.fpga import regions
from nova_accel.config import policy, remedy
from nova_accel.host.fpga import xrt
from nova_accel.host.sysfs import host_reader, modules
from nova_accel.model import actions, names, pci
from nova_accel.vendors.amd_alveo import alveo_card
from nova_accel.vendors.common import driver_base, iommu_group, reset_policy

_REGION_NUMBER = 0
_USES = (policy.DeviceUse.AUTO, policy.DeviceUse.FPGA)


class AlveoDriver(driver_base.DriverBase):
    """Describes Alveo cards and loads xclbins into them."""

    name = "alveo"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield each board of the card, its region, and their problems.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        groups: dict[int, str] = {}
        for board in alveo_card.find_cards(card):
            if board.manager is None:
                continue  # devices that can't be read are retained
            if taken.intersection((board.address, *board.members)):
                continue
            board_rules = tuple(_list_rules(board, rules))
            if all(rule.use in _USES for rule in board_rules):
                blank = next((r.blank for r in board_rules if r.blank), "")
                yield from _CardReading(board, card, blank, groups).describe()
        for function in alveo_card.find_users_without_manager(card):
            rule = rules.rule(
                str(function.address), function.vendor, function.product
            )
            if str(function.address) not in taken and rule.use in _USES:
                yield model.Problem.of_device(
                    function.address,
                    "is not offered: the management function of its"
                    " card is not on the bus; rescan the bus, or reseat the"
                    " card",
                )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that load the claim's bitstream, if any.

        The host's user driver (xocl) loads it and reads it back.
        """
        region, bitstream = claim.region, claim.bitstream
        if region is None or bitstream is None:
            return ()
        return (
            actions.BindDriver(function=claim.slot, driver=region.driver),
            actions.ProgramRegion(
                card=region.card,
                number=region.number,
                slot=claim.slot,
                bitstream=bitstream,
                tool=region.tool,
                is_forced=claim.is_forced,
                dependents=region.dependents,
            ),
        )

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return the actions that load the blank bitstream, if any."""
        return self.plan_prepare(claim)


def _list_rules(
    card: alveo_card.AlveoCard, rules: policy.DeviceRules
) -> Iterator[policy.Rule]:
    """Yield the rules of a card's management and user functions."""
    yield rules.rule(card.address, card.vendor, card.product)
    if card.user is not None:
        yield rules.rule(card.slot, card.user.vendor, card.user.product)


def _bind(function: str, driver: str) -> str:
    return str(remedy.BindFunction(function=function, driver=driver))


class _CardReading:
    """One card with the state of its shell, read on construction."""

    def __init__(
        self,
        card: alveo_card.AlveoCard,
        host: host_reader.HostReader,
        blank: str,
        groups: dict[int, str],
    ) -> None:
        self._card = card
        self._groups = groups
        self._host = host
        self._blank = blank
        self._shell = xrt.read_shell(
            host.files,
            card.address if card.is_managed else "",
            card.slot if card.is_shown else "",
        )

    def describe(self) -> Iterator[model.Device | model.Problem]:
        """Yield the card, its region, and their problems."""
        unread, function = self._read_loaded_function()
        refusal = self._check_user_function()
        obstacle = self._check_programmable()
        card = self._build_card_device()
        yield card
        yield self._build_region(card, function, not refusal, not obstacle)
        for reason in (*self._shell.unread, *unread):
            yield self._build_problem(reason)
        if refusal:
            yield self._build_problem(f"is not offered: {refusal}")
        elif obstacle and not self._shell.fault:
            yield self._build_problem(f"can't be programmed: {obstacle}")

    def _build_problem(self, reason: str) -> model.Problem:
        return model.Problem.of_device(self._card.address, reason)

    def _read_loaded_function(self) -> tuple[tuple[str, ...], str | None]:
        """Return read problems, and the id of the loaded function.

        The id is None while a guest may have the user function.
        """
        if not self._card.is_shown:
            return (), None
        try:
            return (), xrt.read_function(self._host.files, self._card.slot)
        except errors.AcceleratorError as error:
            return (f"its loaded function can't be read: {error}",), None

    def _check_user_function(self) -> str:
        """Return why the user function can't go to a guest, or ""."""
        card, user = self._card, self._card.user
        if self._golden_image:
            return self._golden_image
        if not card.slot:
            return (
                "it has no user function; load its platform's shell"
                " (`xbmgmt program --shell`)"
            )
        if card.manager is None or user is None:
            unread = card.slot if card.manager else card.address
            return f"its function {unread} can't be read"
        if card.manager.is_vfio_bound:
            return (
                f"its management function is bound to {card.driver}, so a"
                " guest may have the whole card;"
                f" {_bind(card.address, xrt.MANAGEMENT_DRIVER)}"
            )
        return self._check_assignable(user)

    def _check_assignable(self, user: pci.PciFunction) -> str:
        """Return why the host prevents an assignment, or ""."""
        card = self._card
        if not self._card.is_shown and not iommu_group.is_free(user):
            return (
                f"the host's driver {user.driver} holds {user.address};"
                f" {_bind(card.slot, xrt.USER_DRIVER)} or to vfio-pci"
            )
        return (
            iommu_group.check_group(user, (user.address,), self._host)
            or reset_policy.check_region(user, self._host)
            or self._check_shared_group(user)
        )

    def _check_shared_group(self, user: pci.PciFunction) -> str:
        """Return that another card is in the same IOMMU group, or ""."""
        if user.iommu_group is None:
            return ""
        address = str(user.address)
        first = self._groups.setdefault(user.iommu_group, address)
        if first == address:
            return ""
        return f"{address} {iommu_group.explain_shared(address, first)}"

    def _explain_management(self) -> str:
        """Return how the management function gets XRT's driver."""
        files, driver = self._host.files, xrt.MANAGEMENT_DRIVER
        if modules.has_driver(files, driver):
            return _bind(self._card.address, driver)
        if modules.is_installed(files, driver):
            return str(remedy.LoadModule(module=driver))
        return str(remedy.InstallModule(package="AMD's XRT", module=driver))

    @property
    def _golden_image(self) -> str:
        if self._shell.golden or self._card.product not in alveo_card.GOLDEN:
            return self._shell.golden
        return xrt.FACTORY

    def _check_programmable(self) -> str:
        """Return why no bitstream can be loaded, or ""."""
        card = self._card
        if not card.is_managed:
            return (
                f"its management function is bound to"
                f" {card.driver or 'no driver'};"
                f" {self._explain_management()}"
            )
        if not card.is_shown and not modules.has_driver(
            self._host.files, xrt.USER_DRIVER
        ):
            return (
                f"the host has no driver {xrt.USER_DRIVER}, through which"
                " functions are loaded; load that module of XRT"
            )
        if not self._shell.interfaces:
            return (
                "neither its interfaces nor its shell's name is known, so"
                " no bitstream can be matched to it"
            )
        return self._shell.fault or self._shell.blocker

    def _build_card_device(self) -> model.Device:
        card, shell = self._card, self._shell
        board = card.get_board(shell.board)
        traits = {*card.identity()}
        if board:
            traits.add(names.model_trait(card.vendor, board))
        if shell.name:
            traits.add(names.custom_name("FPGA_SHELL", shell.name))
        return model.Device(
            address=card.address,
            plugin=AlveoDriver.name,
            technology="fpga",
            vendor=names.vendor_name(card.vendor),
            model=board or f"{card.vendor}:{card.product}",
            resource_class=names.FPGA_CLASS,
            counters={},
            slots=(),
            vendor_id=card.vendor,
            product_id=card.product,
            driver=card.driver,
            numa_node=card.numa_node,
            traits=frozenset(traits),
            members=card.members,
            fault=shell.fault,
        )

    def _build_region(
        self,
        card: model.Device,
        function: str | None,
        is_offered: bool,
        is_loadable: bool,
    ) -> model.Device:
        """Return the region: the card's device with the region's data."""
        region = model.Region(
            card=card.address,
            number=_REGION_NUMBER,
            function=function,
            interfaces=self._shell.interfaces,
            is_programmable=is_offered and is_loadable,
            tool=xrt.TOOL,
            driver=xrt.USER_DRIVER,
            blank=self._blank,
        )
        return dataclasses.replace(
            card,
            address=names.region_address(card.address, _REGION_NUMBER),
            parent=card.address,
            counters={names.FPGA_CLASS: 1} if is_offered else {},
            slots=tuple(filter(None, (self._card.slot,))),
            members=(),
            profiles=(
                model.Profile(
                    name="region",
                    trait=names.REGION_TRAIT,
                    charges={names.FPGA_CLASS: 1},
                    available=int(is_offered),
                ),
            ),
            traits=card.traits | regions.traits(region),
            region=region,
        )
