# SPDX-License-Identifier: Apache-2.0
"""Random servers with FPGA regions, and their host.

Small models of Nova, Placement and libvirt around the library's Lifecycle.
Their records are compared with the library and the simulated hardware.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.config import policy
from nova_accel.discovery import (
    change_detection,
    note_stores,
    plugin,
    snapshot,
)
from nova_accel.host.execute import action_executor
from nova_accel.host.state import device_notes
from nova_accel.host.sysfs import fs
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names
from tests.support.fpga import guests, judge, kernel, simulated
from tests.support.hosts import domains
from tests.support.hosts.simulated import ROOT
from virt_hooks.operations.fpga import region_programs
from virt_hooks.spawn import host_access, lifecycle

FUNCTIONS = (simulated.A, simulated.B, simulated.C)
BLANK = "eeeeeeee111111112222222233333333"
#: Defects of images: a directive to the card, a file that was changed, an
#: image for other cards, an image that contains another function.
WRONGS = (
    *("REFUSE", "ERROR", "SAME", "HANG", "VANISH"),
    *("damaged", "foreign", "liar"),
)
Key = judge.Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A server in Nova; ``image`` None requests a loaded function."""

    name: str
    key: Key
    function: str
    image: model.Bitstream | None
    slots: tuple[model.Slot, ...]

    @property
    def group(self) -> flavors.RequestGroup:
        """Return the request group of its flavor."""
        if self.image is None:
            return simulated.asks(function=self.function)
        return simulated.asks(self.image.name)


class Images:
    """Bitstreams in files, each written once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._images_by_key: dict[tuple[str, str, bool], model.Bitstream] = {}

    def get(
        self, function: str, wrong: str, is_xclbin: bool
    ) -> model.Bitstream:
        """Return an image with a function and, unless empty, a defect."""
        key = function, wrong, is_xclbin
        if key not in self._images_by_key:
            self._images_by_key[key] = self._make(*key)
        return self._images_by_key[key]

    def _make(
        self, function: str, wrong: str, is_xclbin: bool
    ) -> model.Bitstream:
        directive = wrong if wrong.isupper() else ""
        content_function = simulated.NLB0 if wrong == "liar" else function
        image = simulated.bitstream(
            self._place, content_function, directive, is_xclbin=is_xclbin
        )
        name = f"image-{function[0]}-{wrong}-{is_xclbin}"
        image = dataclasses.replace(image, name=name, function=function)
        if wrong == "damaged":
            return dataclasses.replace(image, sha512="0" * 128)
        if wrong == "foreign":
            return dataclasses.replace(image, interface=simulated.OTHER)
        return image


class Cloud:
    """One compute node, its servers, and the services around them."""

    def __init__(
        self,
        host: kernel.DirectKernel,
        place: Path,
        chance: random.Random,
        is_blanked: bool = False,
    ) -> None:
        self.host = host
        self.chance = chance
        self.images = Images(place)
        self.libvirt = guests.Libvirt(host)
        self.judge = judge.Judge(host, self.libvirt)
        self.is_blanked = is_blanked
        self._rules = self._policy() if is_blanked else simulated.DEFAULT
        self._drivers: Mapping[str, plugin.Driver] = plugin.load(
            ("dfl", "alveo")
        )
        self.faulted = device_notes.FaultNotes(str(place / "state"))
        self.servers: dict[str, Server] = {}
        self._born = 0
        #: Whether the host is unchanged since it was last read.
        self.is_fresh = False
        #: Why the last server was refused.
        self.last_refusal = ""
        self.restart()

    @property
    def keys(self) -> list[Key]:
        """Return the regions of all cards, also of unplugged ones."""
        return [
            (card, part.number)
            for card, hardware in self.host.kernel.fpga.cards.items()
            for part in hardware.parts
        ]

    # -- the service -----------------------------------------------------

    def restart(self) -> None:
        """Restart the service, which restores the claims of servers."""
        libvirt = domains.SimulatedDomains(
            self.libvirt.use, lambda: self.libvirt.use(is_running=True)
        )
        self.life = lifecycle.Lifecycle(
            self._drivers,
            self._rules,
            action_executor.Executor(str(self.host.root), read_gpus=dict),
            snapshot.Snapshot(
                change_detection.ChangeDetector(
                    fs.DiskSource(self.host.root),
                    self._drivers,
                    self._rules,
                    stores=note_stores.NoteStores(faulted=self.faulted),
                )
            ),
            host_access.HostAccess(
                domains=libvirt,
                faults=self.faulted,
                programs=region_programs.RegionPrograms(
                    libvirt, self.faulted, _read_file
                ),
            ),
        )
        self.life.adopt(ROOT)
        self.life.host.refresh()
        self._unrecalled = list(self.servers.values())
        self.pass_by()

    def pass_by(self) -> None:
        """Run the periodic task of the service."""
        self.life.host.refresh_changed()
        for server in self._unrecalled:
            if not self.life.claims_of(server.name):
                self.life.restore(server.name, server.slots)
        if self.life.host.state.complete and not self.life.host.state.unknown:
            self._unrecalled.clear()
        self.life.clean_up()
        self.judge.check_log()
        self.is_fresh = True

    def _policy(self) -> policy.DeviceRules:
        lines = []
        for is_xclbin in (False, True):
            blank = self.images.get(BLANK, "", is_xclbin)
            vendor = "10ee" if is_xclbin else "8086"
            lines.append(
                f'{{"vendor_id": "{vendor}", "use": "fpga",'
                f' "blank": "{blank.path}"}}'
            )
        return policy.parse_rules(tuple(lines))

    # -- the scheduler ---------------------------------------------------

    def offered(self) -> dict[Key, frozenset[str]]:
        """Return free regions and their traits in Placement."""
        tree = self.life.tree(tree_builder.OWNER_TRAITS)
        assert tree is not None
        used = {server.key for server in self.servers.values()}
        offers = {}
        for key in self.keys:
            address = names.region_address(*key)
            node = tree.node(names.provider_uuid(ROOT.uuid, address))
            inventory = (
                node.inventories.get(names.FPGA_CLASS) if node else None
            )
            if node is None or inventory is None or key in used:
                continue
            if inventory.total - inventory.reserved > 0:
                offers[key] = node.traits
        return offers

    def fits(self, server: Server, traits: frozenset[str]) -> bool:
        """Return whether a region has the traits that a server requires."""
        required = set(server.group.required)
        if server.image is not None:
            required.add(names.PROGRAMMABLE_TRAIT)
            required.add(names.interface_trait(server.image.interface))
        return required <= traits

    def draw(self, key: Key, wrong: str = "") -> Server:
        """Return a server that might get a region."""
        is_xclbin = key[0] == simulated.ALVEO
        function = self.chance.choice(FUNCTIONS)
        image: model.Bitstream | None = None
        if self.chance.random() < 0.75:
            image = self.images.get(function, wrong, is_xclbin)
        else:
            function = self.host.part(*key).function or function
        self._born += 1
        address = names.region_address(*key)
        slot = model.Slot(
            provider=names.provider_uuid(ROOT.uuid, address),
            resource_class=names.FPGA_CLASS,
            identifier=self.host.part(*key).slot,
        )
        return Server(
            name=f"server-{self._born}",
            key=key,
            function=function,
            image=image,
            slots=(slot,),
        )

    # -- Nova ------------------------------------------------------------

    def spawn(self, server: Server) -> bool:
        """Create a server; on failure clean up as Nova does."""
        self.servers[server.name] = server
        if self.transfer(server) and self.transfer(server, is_again=True):
            self.judge.counts["spawned"] += 1
            self.boot(server)
            return True
        self.clean_up(server)
        return False

    def transfer(self, server: Server, is_again: bool = False) -> bool:
        """Prepare a server's region; return whether that succeeded.

        :param is_again: the call must find nothing to do.
        """
        images = {server.image.name: server.image} if server.image else {}
        if not is_again and server.name in self.life_had():
            # the image may have been dropped from the cache
            images = {} if self.chance.random() < 0.1 else images
        attempt = self.judge.begin(server.key, server.name)
        # A region that another server left unclean is blanked first.
        most = int(bool(server.image) and not is_again)
        most += int(self.is_blanked and self._is_unclean(server))
        try:
            self.life.ensure(
                server.name, (server.group,), server.slots, {}, images
            )
        except errors.ProgrammingError:
            self.judge.failed(attempt)
            self._check_faulted(server.key)
            self.judge.counts["failed"] += 1
            return False
        except (errors.ClaimError, errors.ActionError) as error:
            self.judge.refused(attempt, str(error))
            self.judge.counts["refused"] += 1
            self.last_refusal = str(error)
            return False
        self.judge.handed_over(attempt, server.function, most)
        return True

    def _is_unclean(self, server: Server) -> bool:
        """Return whether another server left a server's region unclean."""
        notes = self.faulted.read_unreleased()
        return any(
            slot.identifier in notes
            and notes[slot.identifier].consumer != server.name
            for slot in server.slots
        )

    def life_had(self) -> set[str]:
        """Return the servers with claims."""
        return {claim.consumer for claim in self.life.claims()}

    def boot(self, server: Server) -> None:
        """Start a server's guest with the functions of its claims."""
        functions = [
            name
            for claim in self.life.claims_of(server.name)
            for name in (claim.handle, *claim.members)
        ]
        if functions != [server.slots[0].identifier]:
            self.judge.note(f"{server} got {functions}")
        self.libvirt.start(server.name, functions)

    def shut_down(self, server: Server) -> None:
        """End a server's guest, if it has one."""
        domain = self.libvirt.domains.get(server.name)
        if domain is not None and domain.is_running:
            self.libvirt.stop(server.name)

    def start_again(self, server: Server) -> bool:
        """Start a stopped server with a new domain."""
        if server.name in self.libvirt.domains:
            self.libvirt.undefine(server.name)
        if self.transfer(server):
            self.boot(server)
            return True
        return False

    def clean_up(self, server: Server) -> None:
        """Delete a server, its domain and its claims."""
        self.shut_down(server)
        had = simulated.using()
        if server.name in self.libvirt.domains:
            had = self.libvirt.undefine(server.name)
        before, noted = len(self.judge.log), set(self.faulted.read())
        self.life.release(server.name, server.slots, lambda _: False, had)
        del self.servers[server.name]
        self._unrecalled = [s for s in self._unrecalled if s != server]
        self._judge_release(server, before, noted)
        self.judge.check_log()

    def _judge_release(
        self, server: Server, before: int, noted: set[str]
    ) -> None:
        """Check the content of a region after a server was deleted.

        :param noted: the faults before the deletion.
        """
        address = names.region_address(*server.key)
        tried = len(self.judge.log) - before
        if tried > int(self.is_blanked):
            self.judge.note(f"{tried} programmings to release {server}")
        function = self.judge.read_function(server.key)
        is_wrong = tried and function != BLANK
        # or it could not even be tried
        if is_wrong or address in self.faulted.read().keys() - noted:
            self.judge.ever_failed.add(address)
            self.judge.faulted.setdefault(server.key, function)
            self._check_faulted(server.key)

    def _check_faulted(self, key: Key) -> None:
        address = names.region_address(*key)
        if address not in self.faulted.read():
            self.judge.note(f"{address} failed, and no fault was recorded")
        device = self.life.host.state.device(address)
        if device is not None and not device.fault:
            self.life.host.refresh_changed()
            device = self.life.host.state.device(address)
            if device is not None and not device.fault:
                self.judge.note(f"{address} failed, and is offered")


def _read_file(path: str) -> model.Bitstream:
    return bitstreams.describe_file(path, Path(path).read_bytes())
