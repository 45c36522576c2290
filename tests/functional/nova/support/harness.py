# SPDX-License-Identifier: Apache-2.0
"""Base class of the tests in Nova's functional harness."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import nova.conf
from lxml import etree
from nova import context, objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from nova.tests.functional.libvirt import base
from oslo_utils.fixture import uuidsentinel as uuids

# Before Nova's fixtures forbid the import of the real libvirt.
import virt_hooks.guest.connection
import virt_hooks.guest.host_domains  # noqa: F401
from nova_accel.config import conf, config_source
from nova_accel.host.execute import privileged
from nova_accel.model import names
from tests.functional.nova.support import libvirtd, releases, speed
from tests.lab import fakehost

CONF = nova.conf.CONF
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"

T4 = "0000:3b:00.0"
T4_B = "0000:3c:00.0"
GPU = "0000:71:00.0"
GPU_AUDIO = "0000:71:00.1"
GPU_PORT = "0000:70:01.0"
GPU_TRAIT = "CUSTOM_GPU_PCI_10DE_1E07"
GPU_CARDS = (
    fakehost.PciCard(
        address=GPU,
        vendor=0x10DE,
        device=0x1E07,
        class_code=0x030000,
        driver="",
        group=40,
        multifunction=True,
        port=GPU_PORT,
    ),
    fakehost.PciCard(
        address=GPU_AUDIO,
        vendor=0x10DE,
        device=0x10F7,
        class_code=0x040300,
        driver="snd_hda_intel",
        group=40,
        multifunction=True,
        port=GPU_PORT,
    ),
)
# The kernel found the bus reset before the second function (case of many
# workstation GPUs without FLR).
BUS_RESET_CARDS = tuple(
    dataclasses.replace(card, reset_methods=methods)
    for card, methods in zip(GPU_CARDS, (("bus",), ()), strict=True)
)
TWO_T4 = (
    fakehost.NvidiaGpu(address=T4, model="T4"),
    fakehost.NvidiaGpu(address=T4_B, model="T4", numa_node=1),
)

# Framebuffer of a T4 in MiB, as its vGPU types divide it.
T4_MEMORY = 16 * 1024


def vgpu_group(suffix: str, shape: str) -> dict[str, str]:
    """Return the extra specs of one T4 profile, as ``4Q``."""
    size = int(shape.rstrip("ABCQ")) * 1024
    return {
        f"resources{suffix}:VGPU": "1",
        f"resources{suffix}:CUSTOM_GPU_MEMORY_MB": str(size),
        f"trait{suffix}:{vgpu_trait(shape)}": "required",
    }


def vgpu_trait(shape: str) -> str:
    return f"CUSTOM_VGPU_NVIDIA_T4_{shape}"


def whole_gpu_group(suffix: str) -> dict[str, str]:
    return {
        f"resources{suffix}:PGPU": "1",
        f"trait{suffix}:{GPU_TRAIT}": "required",
    }


class AccelTestBase(base.ServersTestBase):
    """Computes under our driver, each on a simulated host of its own."""

    microversion = "latest"
    ADMIN_API = True
    COMPUTE_DRIVER = "accel.AccelLibvirtDriver"

    def setUp(self) -> None:
        if reason := fakehost.missing():
            self.skipTest(reason)
        self.hosts: dict[str, fakehost.Controller] = {}
        self._directories: dict[str, dict[str, str]] = {}
        # Before services start, and for their end.
        self.useFixture(speed.Speed())
        if releases.is_on_threads():
            self.useFixture(speed.Threads())
        super().setUp()
        if releases.is_on_threads():
            speed.let_threads_idle()
        # Hosts of several roots are in this process.
        privileged.run_here()
        for module in ("connection", "host_domains"):
            name = f"virt_hooks.guest.{module}.libvirt"
            self.useFixture(fixtures.MonkeyPatch(name, fakelibvirt))
        self.useFixture(nova_fixtures.PrivsepFixture())
        self.useFixture(
            fixtures.MockPatch(
                "nova.virt.libvirt.LibvirtDriver._get_instance_disk_info",
                return_value=[],
            )
        )
        self.useFixture(fixtures.MockPatch("os.rename"))
        self.context = context.get_admin_context()

    def _clear_attrs(self) -> None:
        # pytest sets the test method on the object and deletes it later;
        # Nova deletes every attribute to save memory.
        method = self.__dict__.get(self._testMethodName)
        super()._clear_attrs()
        if method is not None:
            self.__dict__[self._testMethodName] = method

    # -- the services -----------------------------------------------------

    def _setup_services(self) -> None:
        # Nova looks for it below its site-packages, wheels put it here.
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini",
            group="wsgi",
        )
        super()._setup_services()

    def _setup_compute_service(self) -> None:
        installed = set(map(id, sys.meta_path))
        config_source.install_finder()
        for finder in sys.meta_path:
            if id(finder) not in installed:
                self.addCleanup(sys.meta_path.remove, finder)
        conf.read_settings(CONF)
        self.flags(compute_driver=self.COMPUTE_DRIVER)

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        hostname = kwargs.pop("hostname", None) or args[-1]
        return libvirtd.Connection(
            "qemu:///system",
            version=fakelibvirt.FAKE_LIBVIRT_VERSION,
            hv_version=fakelibvirt.FAKE_QEMU_VERSION,
            host_info=fakelibvirt.HostInfo(
                cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=2
            ),
            hostname=hostname,
            root=self.hosts[hostname].root,
        )

    def start_host(
        self,
        *cards: Any,
        name: str = "host1",
        cell: str | None = None,
        **settings: Any,
    ) -> Any:
        """Return nova-compute, started on a host with these cards.

        Its own pass over Placement runs only where a test asks for it.

        :param cell: name of its cell; None for the first one.
        :param settings: options of ``[nova_accel]``.
        """
        root = Path(self.useFixture(fixtures.TempDir()).path)
        controller = self._enter(
            fakehost.simulated_sysfs(fakehost.HostSpec(cards=cards), root)
        )
        controller.write_sriov_manage(root / privileged.SRIOV_MANAGE)
        self.hosts[name] = controller
        state = self.useFixture(fixtures.TempDir()).path
        self._directories[name] = {
            "root": str(root),
            "state_dir": settings.pop("state_dir", state),
        }
        settings.setdefault("sync_interval", 0)
        self.flags(group="nova_accel", **self._directories[name], **settings)
        self.start_compute(hostname=name, cell_name=cell)
        self.addCleanup(self._end_guests, self.computes[name])
        return self.computes[name]

    def restart(self, name: str = "host1") -> Any:
        """Return nova-compute, restarted; the host goes on."""
        self.flags(group="nova_accel", **self._directories[name])
        self.restart_compute_service(name)
        return self.computes[name]

    def messages(self) -> str:
        """Return the logs of all services."""
        return str(self.stdlog.logger.output)

    def power_off_to_move(self) -> None:
        """Let servers be moved: Nova itself copies their disks by ssh."""
        self.useFixture(
            fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver"
                ".migrate_disk_and_power_off",
                self._power_off,
                create=False,
            )
        )

    def _power_off(
        self, _context: Any, instance: Any, *_: Any, **__: Any
    ) -> str:
        self.computes[instance.host].driver.power_off(instance)
        return "[]"

    def be_on(self, name: str) -> None:
        """Let Nova's one global configuration be that of a host."""
        self.flags(host=name)
        self.flags(group="nova_accel", **self._directories[name])

    def force_down(self, is_down: bool, name: str = "host1") -> None:
        """Have Nova take nova-compute for dead, or for alive again."""
        (service,) = self.api.get_services(binary="nova-compute", host=name)
        self.api.put_service(service["id"], {"forced_down": is_down})

    def _enter(self, manager: contextlib.AbstractContextManager[Any]) -> Any:
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(manager)

    def _end_guests(self, compute: Any) -> None:
        for domain in compute.driver._host.get_connection()._vms.values():
            domain._release_devices()

    def run_periodics(self) -> None:
        """Run the periodic pass of every nova-compute."""
        own = CONF.host
        for name, compute in self.computes.items():
            self.be_on(name)
            with mock.patch(
                "nova.virt.node.get_local_node_uuid",
                return_value=str(getattr(uuids, f"node_{name}")),
            ):
                compute.manager.update_available_resource(self.context)
        self.flags(host=own)

    # -- waiting: Nova's 5 s are short on a busy machine -------------------

    def _wait_for_server_parameter(
        self, server: Any, expected: Any, max_retries: int = 10, **kw: Any
    ) -> Any:
        for _ in range(5):
            try:
                return super()._wait_for_server_parameter(
                    server, expected, max(max_retries, 60), **kw
                )
            except client.OpenStackApiException as error:
                # Nova's API refuses its own answer while the states of a
                # server change one after the other.
                if "'status': 'UNKNOWN'" not in str(error):
                    raise
        self.fail(f"the status of server {server['id']} stays UNKNOWN")

    def _wait_for_migration_status(
        self, server: Any, expected_statuses: Any
    ) -> Any:
        for _ in range(7):
            with contextlib.suppress(AssertionError):
                return super()._wait_for_migration_status(
                    server, expected_statuses
                )
        return super()._wait_for_migration_status(server, expected_statuses)

    def until(self, check: Callable[[], None]) -> None:
        """Wait until an assertion holds."""
        self._wait_for_assert(check, max_retries=240, sleep=0.25)

    # -- servers ----------------------------------------------------------

    def boot(
        self,
        extra_specs: dict[str, str],
        host: str | None = None,
        is_checked: bool = True,
        **kw: Any,
    ) -> Any:
        """Return a server of a flavor with these extra specs.

        :param is_checked: whether Nova's API validates them, as from 2.86 on.
        """
        admin = self.api_fixture.admin_api
        newest = admin.microversion
        admin.microversion = newest if is_checked else "2.85"
        flavor = self._create_flavor(
            extra_spec=extra_specs, memory_mb=256, vcpu=1, disk=1, ephemeral=0
        )
        admin.microversion = newest
        return self._create_server(
            image_uuid=IMAGE,
            flavor_id=flavor,
            networks="none",
            host=host,
            **kw,
        )

    def slots(self, server: Any) -> list[tuple[str, str, str]]:
        """Return provider, class and identifier of what Nova claimed."""
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["resources"]
        )
        return sorted(
            (r.provider_uuid, r.resource_class, r.identifier)
            for r in instance.resources or ()
        )

    def domain(self, server: Any, host: str = "host1") -> Any:
        connection = self.computes[host].driver._host.get_connection()
        return connection.lookupByUUIDString(server["id"])

    def hostdevs(self, server: Any, host: str = "host1") -> list[Any]:
        """Return the hostdev elements of a server's domain."""
        xml = etree.fromstring(self.domain(server, host).XMLDesc(0))
        elements: list[Any] = xml.findall("./devices/hostdev")
        return elements

    def mdevs_of(self, server: Any, host: str = "host1") -> list[str]:
        """Return the uuids of the mdevs in a server's domain."""
        return [
            hostdev.find("./source/address").get("uuid")
            for hostdev in self.hostdevs(server, host)
            if hostdev.get("type") == "mdev"
        ]

    def functions_of(self, server: Any, host: str = "host1") -> list[str]:
        """Return the PCI functions in a server's domain."""
        return [
            "{:04x}:{:02x}:{:02x}.{:x}".format(
                *(
                    int(hostdev.find("./source/address").get(part), 16)
                    for part in ("domain", "bus", "slot", "function")
                )
            )
            for hostdev in self.hostdevs(server, host)
            if hostdev.get("type") == "pci"
        ]

    def card_of(self, server: Any, host: str = "host1") -> str:
        """Return the card of a server's one mdev."""
        (mdev,) = self.mdevs_of(server, host)
        return str(self.hosts[host].mdevs()[mdev]["parent"])

    def vgpu_types(self, host: str = "host1") -> dict[str, str]:
        """Return the vGPU types of a host's typed VFs, by address."""
        bus = Path(self.hosts[host].root) / "sys/bus/pci/devices"
        types = {
            path.parent.parent.name: path.read_text().strip()
            for path in bus.glob("*/nvidia/current_vgpu_type")
        }
        return {name: kind for name, kind in types.items() if kind != "0"}

    def state_dir(self, name: str = "host1") -> str:
        """Return the directory of a host's own files."""
        return self._directories[name]["state_dir"]

    # -- Placement --------------------------------------------------------

    def provider(self, address: str, host: str = "host1") -> str:
        """Return the uuid of a card's resource provider."""
        return names.provider_uuid(self.compute_rp_uuids[host], address)

    def providers(self, host: str = "host1") -> dict[str, dict[str, Any]]:
        """Return our providers below a host as Placement has them."""
        providers = {}
        root = self.compute_rp_uuids[host]
        for record in self._get_all_rps_in_a_tree(root):
            uuid = record["uuid"]
            if uuid == root:
                continue
            providers[uuid] = {
                "name": record["name"],
                "parent": record["parent_provider_uuid"],
                "generation": record["generation"],
                "inventories": self._get_provider_inventory(uuid),
                "traits": set(self._get_provider_traits(uuid)),
            }
        return providers

    def stable_providers(
        self, host: str = "host1"
    ) -> dict[str, dict[str, Any]]:
        """Return the providers without their generations."""
        return {
            uuid: {k: v for k, v in record.items() if k != "generation"}
            for uuid, record in self.providers(host).items()
        }

    def traits(self, address: str, host: str = "host1") -> set[str]:
        return set(self._get_provider_traits(self.provider(address, host)))

    def profiles(self, address: str, host: str = "host1") -> set[str]:
        """Return the profile traits of a card."""
        return {
            trait
            for trait in self.traits(address, host)
            if trait.startswith(names.PROFILE_PREFIXES)
        }

    def amounts(
        self, address: str, host: str = "host1"
    ) -> dict[str, tuple[int, int]]:
        """Return total and reserved by resource class."""
        records = self._get_provider_inventory(self.provider(address, host))
        return {
            name: (record["total"], record["reserved"])
            for name, record in records.items()
        }

    def allocations(self, server: Any) -> dict[str, dict[str, int]]:
        """Return a server's allocations outside the compute node itself."""
        roots = set(self.compute_rp_uuids.values())
        records = self._get_allocations_by_server_uuid(server["id"])
        return {
            uuid: record["resources"]
            for uuid, record in records.items()
            if uuid not in roots
        }

    def usages(self, address: str, host: str = "host1") -> dict[str, int]:
        usages: dict[str, int] = self._get_provider_usages(
            self.provider(address, host)
        )
        return {name: amount for name, amount in usages.items() if amount}

    def assert_nothing_left(self, host: str = "host1") -> None:
        """Check kernel, Placement and the claims for leftovers."""
        self.assertEqual({}, self.hosts[host].mdevs())
        for gpu in self.hosts[host].gpus().values():
            self.assertEqual({}, gpu["vgpus"])
        for uuid in self.providers(host):
            usages = self._get_provider_usages(uuid)
            self.assertEqual(0, sum(usages.values()), usages)
        driver = self.computes[host].driver
        self.assertEqual((), driver._accel.claims())
