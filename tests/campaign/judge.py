# SPDX-License-Identifier: Apache-2.0
"""Invariants of a cloud after the faults: nothing leaked, nothing lost."""

import collections
import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from nova import objects
from nova.compute import vm_states
from nova.tests.functional.api import client

from nova_accel.discovery import change_detection
from nova_accel.host import bounded_calls
from nova_accel.host.state import device_notes
from tests.campaign import endings, guests, uses
from tests.campaign import life as lives
from tests.campaign import world as worlds
from virt_hooks.guest import connection

LOG = logging.getLogger(__name__)

_STEADY = (
    vm_states.ACTIVE,
    vm_states.STOPPED,
    vm_states.PAUSED,
    vm_states.SUSPENDED,
    vm_states.RESCUED,
)
#: Seconds of a pass and a boot while a card hangs, on a busy machine. A
#: removal that hangs takes some seconds of each pass.
_SOON_S = 45.0
_PAUSE_S = 0.05


class Judge:
    """Ends a life and says what is wrong with what it left."""

    def __init__(self, life: lives.Life) -> None:
        """Judge this life."""
        self._life, self._world = life, life.world
        self.findings: list[str] = []
        #: What Nova leaves by itself, accelerators or not.
        self.of_nova: list[str] = []
        self.set_aside = 0

    def judge(self) -> list[str]:
        """Let the passes run, compare, delete all, and compare again."""
        for text in self._life.leftovers:
            self._note("not undone", text)
        self._check_guests(has_passed=False)
        for host in sorted(self._life.hanging - self._world.down):
            self._check_goes_on(host)
        self._recover()
        self._check_servers()
        for text in uses.list_failures(self._life, self._act, self._is_usable):
            self._note("unusable", text)
        self._check_servers()
        self._delete_all()
        self.of_nova += endings.tidy(self._world)
        self._life.host_restore(None)  # what guests had hindered
        for _ in range(2):
            self._pass()
        self._check_empty()
        if self.findings:
            self._mark_unrepaired()
        self._world.note_programmings()
        self.findings += self._world.scrubs.violations
        self._world.scrubs.violations = []
        return self.findings

    def _mark_unrepaired(self) -> None:
        """Restart the services, and mark what is as bad as before."""
        before, self.findings = self.findings, []
        for host in worlds.HOSTS:
            self._world.revive(host)
        self._pass()
        self._check_empty()
        still = set(self.findings)
        self.findings = [
            f"{finding} (also after a restart)"
            if finding in still
            else finding
            for finding in before
        ]

    def _note(self, kind: str, text: str) -> None:
        finding = f"{kind}: {text}"
        if finding not in self.findings:
            self.findings.append(finding)

    def _check_goes_on(self, host: str) -> None:
        """Check passes and a stock server of a host whose card hangs."""
        began = time.monotonic()
        self._world.bus.run(functools.partial(self._world.periodics, host))
        boot = lives.Step("boot", host, "none")
        self._world.bus.run(functools.partial(self._life.do_boot, boot))
        seconds = time.monotonic() - began
        if seconds > _SOON_S:
            self._note(
                "stuck",
                f"pass and stock server on {host} took {seconds:.0f} s",
            )
        server = self._life.instance(self._life.servers[-1])
        if server is None or server.vm_state != vm_states.ACTIVE:
            state = server and server.vm_state
            self._note("stuck", f"a stock server on {host} is {state}")

    # -- the passes --------------------------------------------------------

    def _recover(self) -> None:
        """End what is amiss with the hosts, and let the passes run."""
        for host in worlds.HOSTS:
            self._world.hosts[host].heal()
        while bounded_calls.count_late():
            time.sleep(_PAUSE_S)  # what hung returns now
        for host in worlds.HOSTS:
            if host in self._life.unplugged:
                self._world.hosts[host].plug()
            self._life.host_restore(lives.Step("restore", host))
            if host in self._world.down:
                self._world.revive(host)
                self._world.force_down(False, host)
        self._life.unplugged.clear()
        for host in worlds.HOSTS:
            self._undrain(host)
        for _ in range(2):
            self._pass()
        self._reboot_half_moved()
        self._pass()

    def _undrain(self, host: str) -> None:
        driver = self._world.computes[host].driver
        marks = driver._hooks.operations.by_name["hot_attach"].marks
        marks.undrain(marks.list_addresses(driver._accel.host.state))

    def _reboot_half_moved(self) -> None:
        """Do what Nova says of a server whose move failed at its new host.

        Until then it may be active there with its old slots, for which Nova
        has deleted the allocations (nova/compute/manager.py, finish_resize).
        """
        for uuid in self._life.servers:
            instance = self._life.instance(uuid)
            if (
                instance is None
                or instance.vm_state not in _STEADY
                or instance.task_state
                or instance.migration_context is None
            ):
                continue
            migration = objects.Migration.get_by_id(
                self._world.context, instance.migration_context.migration_id
            )
            if migration.uuid in self._world.given_up:
                self._act(uuid, {"reboot": {"type": "HARD"}})

    def _pass(self) -> None:
        # A file that could not be read once is read again some time later,
        # and so does Nova's client with providers of which an answer was lost
        # (resource_provider_association_refresh).
        with mock.patch.object(change_detection, "FULL_READ_INTERVAL_S", 0):
            for host in worlds.HOSTS:
                tracker = self._world.computes[host].manager.rt
                tracker.reportclient._association_refresh_time.clear()
                self._world.bus.run(
                    functools.partial(self._world.periodics, host)
                )

    # -- while there are servers -------------------------------------------

    def _check_guests(self, *, has_passed: bool) -> None:
        for host in worlds.HOSTS:
            if host not in self._world.down:
                for text in guests.list_exposed(
                    self._world, host, has_passed=has_passed
                ):
                    self._note("exposed", text)

    def _check_servers(self) -> None:
        self._check_guests(has_passed=True)
        owners: dict[Any, list[str]] = collections.defaultdict(list)
        for host in worlds.HOSTS:
            here, away = self._world._read_nova(host)
            both = here | away
            placement = self._world._read_placement(host)
            claimed = self._slots_of_consumers(host)
            for who, places in both.items():
                # Nova may not have written down that a spawn failed, nor
                # that a server is gone whose delete failed in the end.
                for place in places & claimed.get(who, set()):
                    if place[0] in placement.get(who, {}):
                        owners[place].append(who)
            self._check_backed(host, claimed, both, placement)
            self._check_claims(host)
            staying = {w: p for w, p in placement.items() if w not in away}
            for who in here:
                self._check_server(host, who, here[who], claimed, staying)
            for move, slots in away.items():
                self._check_source(host, move, slots, claimed, placement)
        for place, consumers in owners.items():
            if len(consumers) > 1:
                self._note("double", f"{place} is allocated to {consumers}")

    def _check_backed(
        self, host: str, claimed: Any, both: Any, placement: Any
    ) -> None:
        """Check that Nova or Placement knows of each claim."""
        expected = {place for places in both.values() for place in places}
        domains = self._domains(host)
        for who, places in claimed.items():
            if not places - expected or self._consumers_of(who) & set(
                placement
            ):
                continue
            if who in domains:
                self._check_taken(host, who, places, claimed)
            else:
                self._note("leaked", f"claim of {who} on {host}")

    def _consumers_of(self, who: str) -> set[str]:
        """Return who may hold a server's allocations, by uuid."""
        migrations = objects.MigrationList.get_by_filters(
            self._world.context, {"instance_uuid": who}
        )
        return {who, *(migration.uuid for migration in migrations)}

    def _domains(self, host: str) -> set[str]:
        """Return the servers that have a domain on a host."""
        domains = self._world.connection(host)._vms.values()
        return {domain.UUIDString() for domain in domains}

    def _check_taken(
        self, host: str, who: str, places: set[tuple[str, str]], claimed: Any
    ) -> None:
        """Check that Placement does not offer a device that a guest has.

        Each claimed slot is reserved or allocated. Before nova-compute
        reserves a slot, Nova may allocate it to another server, which gets
        no device.
        """
        for provider in {place[0] for place in places}:
            taken = guests.count_taken(self._world, provider)
            count = sum(
                place[0] == provider
                for slots in claimed.values()
                for place in slots
            )
            if taken < count:
                self._note(
                    "oversold",
                    f"{count} of {provider} on {host} are claimed, also by the"
                    f" guest of {who} without an allocation; {taken} are"
                    " allocated or reserved",
                )

    def _slots_of_consumers(
        self, host: str
    ) -> dict[str, set[tuple[str, str]]]:
        claimed: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
        for claim in self._accel(host).claims():
            claimed[claim.consumer].add((claim.provider, claim.slot))
        return claimed

    def _check_claims(self, host: str) -> None:
        for text in guests.list_double(self._accel(host)):
            self._note("double", text)
        state = self._world._directories[host]["state_dir"]
        for text in guests.list_unpublished(self._accel(host), state):
            self._note("lost", f"{text} on {host}")

    def _check_server(
        self, host: str, who: str, slots: Any, claimed: Any, placement: Any
    ) -> None:
        """Compare all that is known of a server that Nova does not change."""
        instance = objects.Instance.get_by_uuid(self._world.context, who)
        if instance.task_state or not (
            instance.vm_state in (*_STEADY, vm_states.RESIZED)
            or self._is_kept(instance, slots, placement)
        ):
            return
        domain = self._world.connection(host)._vms.get(instance.name)
        is_running = domain is not None and domain.isActive()
        has_failed = instance.vm_state == vm_states.ERROR
        if (
            (has_failed or endings.was_ended_as_evacuated(host, who))
            and not is_running
            and not claimed.get(who)
        ):
            return  # Nova failed once it had released all on the host
        subject = f"{instance.vm_state} server {who} on {host}"
        if instance.vm_state == vm_states.RESIZED:
            # It has the slots of both sides if it was resized on one host.
            claimed = {**claimed, who: claimed.get(who, set()) & slots}
        if claimed.get(who) or self._has_requested(instance):
            self._check_slots(host, subject, who, slots, claimed, placement)
        if not is_running:
            return
        handles = guests.list_handles(
            claim
            for claim in self._accel(host).claims_of(who)
            if (claim.provider, claim.slot) in claimed.get(who, ())
        )
        use = connection.parse_hostdevs(domain.XMLDesc(0))
        if {*use.mdevs, *use.functions} != handles:
            self._note("lost", f"{subject} runs with {use}, claimed {handles}")

    def _is_kept(self, instance: Any, slots: Any, placement: Any) -> bool:
        """Return whether a server that failed still has all that is its own.

        Nova has deleted the allocations of others, or moves them.
        """
        counted = dict(collections.Counter(p for p, _ in slots))
        return (
            instance.vm_state == vm_states.ERROR
            and instance.migration_context is None
            and placement.get(instance.uuid, {}) == counted
        )

    def _check_source(
        self, host: str, move: str, slots: Any, claimed: Any, placement: Any
    ) -> None:
        """Compare what a resized server still has on its former host."""
        who = self._world.moving[move]
        subject = f"resized server {who}, formerly on {host},"
        # After a resize on one host the migration has these claims.
        claims = claimed.get(move, set()) | claimed.get(who, set())
        if slots - claims:
            self._note(
                "lost", f"{subject} has {slots}, its claims are {claims}"
            )
        counted = dict(collections.Counter(p for p, _ in slots))
        if move not in placement and move in self._world.given_up:
            # A delete that meets the resize confirms it, and then fails.
            self._check_taken(host, who, slots, claimed)
        # A revert gives the allocations back before the server is active.
        elif counted not in (
            placement.get(move, {}),
            endings.given_back(who, placement),
        ):
            self._note(
                "lost",
                f"{subject} has {slots}, allocated is {placement.get(move)}",
            )

    def _has_requested(self, instance: Any) -> bool:
        """Return whether a server's flavor or an attachment asks for a device.

        Nova assigns slot and allocations of a resize that failed to a server
        without any that it migrates live to the same host later.
        """
        number = self._life.servers.index(instance.uuid)
        return bool(instance.flavor.extra_specs) or any(
            step.name == "attach" and step.target == number
            for step in self._life.steps
        )

    def _check_slots(
        self,
        host: str,
        subject: str,
        who: str,
        slots: Any,
        claimed: Any,
        placement: Any,
    ) -> None:
        """Compare the slots, the claims and the allocations of a server."""
        if claimed.get(who, set()) != slots:
            self._note(
                "lost",
                f"{subject} has {slots}, its claims are {claimed.get(who)}",
            )
        counted = dict(collections.Counter(p for p, _ in slots))
        consumers = self._consumers_of(who) & placement.keys()
        if not consumers and self._is_given_up(host, who):
            # Nova deletes the allocations, and fails before it says so.
            self._check_taken(host, who, slots, claimed)
        # It may also fail to give back what it lent to a migration.
        elif consumers <= {who} and placement.get(who, {}) != counted:
            self._note(
                "lost",
                f"{subject} has {slots}, allocated is {placement.get(who)}",
            )

    def _is_given_up(self, host: str, who: str) -> bool:
        """Return whether Nova has deleted allocations that aren't rebuilt."""
        allocated = self._world.computes[
            host
        ].driver._hooks.rebuilt_servers._allocations.read()
        given_up = self._consumers_of(who) & self._world.given_up
        return bool(given_up) and who not in allocated

    def _is_usable(self, instance: Any) -> bool:
        """Return whether neither Nova nor a fault has given a server up."""
        host = instance.host
        if (
            instance.task_state
            or host not in worlds.HOSTS
            or self._is_given_up(host, instance.uuid)
        ):
            return False
        if instance.vm_state == vm_states.ERROR:
            here, _ = self._world._read_nova(host)
            slots = here.get(instance.uuid, set())
            placement = self._world._read_placement(host)
            # Nova accepts only a delete of servers that have never run.
            if not instance.launched_at or not self._is_kept(
                instance, slots, placement
            ):
                return False
        faulted = self._faulted(host)
        device_of = {
            self._world.provider(device.address, host): device
            for device in self._accel(host).host.state.devices
        }
        return not any(
            claim.provider not in device_of
            or device_of[claim.provider].address in faulted
            for claim in self._accel(host).claims_of(instance.uuid)
        )

    # -- once its user has deleted all -------------------------------------

    def _delete_all(self) -> None:
        for number in range(4):
            alive = [u for u in self._life.servers if self._life.instance(u)]
            if not alive:
                return
            if number:
                for host in worlds.HOSTS:
                    self._world.revive(host)
                self._pass()
            for uuid in alive:
                self._delete(uuid, is_stuck=bool(number))
        for uuid in self._life.servers:
            if self._life.instance(uuid) is not None:
                self._note("stuck", f"server {uuid} can't be deleted")

    def _delete(self, uuid: str, is_stuck: bool) -> None:
        if is_stuck:
            self._act(uuid, {"os-resetState": {"state": "error"}})
        self._ask(uuid, lambda: self._world.api.delete_server(uuid))

    def _act(self, uuid: str, body: Any) -> str:
        return self._ask(
            uuid, lambda: self._world.api.post_server_action(uuid, body)
        )

    def _ask(self, uuid: str, request: Callable[[], Any]) -> str:
        """Return why the API refuses, empty if it does not."""
        try:
            self._world.bus.run(request)
        except client.OpenStackApiException as error:
            LOG.warning("%s: %s", uuid, error)
            return str(error)[:200]
        return ""

    def _check_empty(self) -> None:
        for host in worlds.HOSTS:
            where = f"on {host}"
            accel = self._accel(host)
            for claim in accel.claims():
                self._note(
                    "leaked",
                    f"claim of {claim.consumer}, {claim.handle} {where}",
                )
            self._check_kernel(host, where)
            for who, allocation in self._world._read_placement(host).items():
                self._note("leaked", f"allocation {who}, {allocation} {where}")
            for place in self._assigned(host):
                self._note("leaked", f"slot of the tracker {place} {where}")
            self._check_clean(host, where)
            self._check_inventory(host, where)

    def _check_kernel(self, host: str, where: str) -> None:
        simulated = self._world.hosts[host]
        for uuid in simulated.mdevs():
            self._note("leaked", f"mdev {uuid} {where}")
        bus = Path(simulated.root) / "sys/bus/pci/devices"
        for path in bus.glob("*/nvidia/current_vgpu_type"):
            if path.read_text().strip() != "0":
                self._note("leaked", f"type of {path.parts[-3]} {where}")

    def _assigned(self, host: str) -> list[tuple[str, str]]:
        cards = set(self._world._list_cards(host))
        tracker = self._world.computes[host].manager.rt
        return [
            (provider, slot.identifier)
            for provider, classes in tracker.assigned_resources.items()
            if provider in cards
            for slots in classes.values()
            for slot in slots
        ]

    def _check_clean(self, host: str, where: str) -> None:
        """Check that what is not clean is set aside."""
        root = str(self._world.hosts[host].root)
        self._world.note_programmings()
        if self._world.scrubs.is_kept:
            return
        faulted = self._faulted(host)
        devices = self._accel(host).host.state.devices
        for place, name in list(self._world.scrubs.dirty):
            if place != root:
                continue
            owners = {
                device.address
                for device in devices
                if name in (device.address, *device.slots, *device.members)
            }
            if not owners & faulted:
                self._note("unscrubbed", f"{name} is offered {where}")

    def _faulted(self, host: str) -> set[str]:
        return {
            device.address
            for device in self._accel(host).host.state.devices
            if device.fault
        }

    def _check_inventory(self, host: str, where: str) -> None:
        faulted = {
            self._world.provider(address, host)
            for address in self._faulted(host)
        }
        self.set_aside += len(faulted)
        before = self._world.pristine[host]
        now = self._world.providers_of(host)
        for uuid, record in before.items():
            if uuid in faulted:
                continue
            if now.get(uuid) != record:
                change = _difference(record, now.get(uuid))
                self._note("lost", f"{record['name']} {where}: {change}")

    # -- the next life -----------------------------------------------------

    def clean(self) -> bool:
        """Heal what was set aside; return whether all is as at first."""
        world = self._world
        world.scrubs.dirty.clear()
        for host in worlds.HOSTS:
            state = world._directories[host]["state_dir"]
            faulted = self._faulted(host)
            if faulted:
                device_notes.FaultNotes(state).heal(faulted)
                with world.at(host):
                    driver = world.computes[host].driver
                    driver._accel.host.refresh()
        world.notifier.reset()
        if not self.findings and not self.set_aside:
            return True
        for host in worlds.HOSTS:
            world.revive(host)
        self._pass()
        self.findings = []
        self._check_empty()
        world.scrubs.violations = []
        return not self.findings and not any(map(self._faulted, worlds.HOSTS))

    def _accel(self, host: str) -> Any:
        return self._world.computes[host].driver._accel


def _difference(before: Any, now: Any) -> str:
    """Return what became of a provider, in words."""
    if now is None:
        return "the provider is gone"
    words = []
    for name in before["inventories"] | now["inventories"]:
        old, new = (
            side["inventories"].get(name, {}) for side in (before, now)
        )
        words += [
            f"{name} {key} {old.get(key)} became {new.get(key)}"
            for key in ("total", "reserved", "max_unit")
            if old.get(key) != new.get(key)
        ]
    for word, traits in (
        ("without", before["traits"] - now["traits"]),
        ("with", now["traits"] - before["traits"]),
    ):
        if traits:
            words.append(f"{word} {len(traits)} traits as {min(traits)}")
    return "; ".join(words) or f"{before} became {now}"
