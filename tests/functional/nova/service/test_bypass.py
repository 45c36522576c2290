# SPDX-License-Identifier: Apache-2.0
"""Failures of this library do not affect servers without accelerators.

Functions of the library are made to raise an error that no code expects.
"""

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fixtures
import pytest
from nova import objects

from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from tests.functional.nova.operations import moving
from tests.functional.nova.support import harness, operations, striking
from tests.hosts import look
from tests.support import examples
from tests.support.fpga import simulated
from virt_hooks import bypass, nova_driver

SMALL = harness.vgpu_group("_A", "4Q")
# Of several hundred functions; Nova's harness ends a test after 10 minutes.
_PARTS = 8
_STRUCK = "StruckError: "
_INIT = f"{nova_driver.__name__}.AccelLibvirtDriver.init_host"
_NAMED = f"{bypass.__name__}._is_named"


@pytest.mark.parametrize(
    ("key", "is_named"),
    [
        ("resources:VGPU", True),
        ("resources_A:PGPU", True),
        ("resources1:CUSTOM_QAT_VF", True),
        ("accelerator:display", True),
        ("resources:VCPU", False),
        ("resources_A:MEMORY_MB", False),
        ("resources:CUSTOM_PMEM_NAMESPACE_SMALL", False),
        ("resources_A:CUSTOM_PCI_144D_A824", True),
        ("resources:CUSTOM_LICENSE", False),
        ("resources_A:CUSTOM_LICENSE", False),
        ("resources:MEM_ENCRYPTION_CONTEXT", False),
        ("resources:NET_BW_EGR_KILOBIT_PER_SEC", False),
        ("resources:SRIOV_NET_VF", False),
        ("trait:CUSTOM_VGPU_NVIDIA_T4_4Q", False),
        ("hw:cpu_policy", False),
    ],
)
@pytest.mark.parametrize("field", ["flavor", "old_flavor", "new_flavor"])
def test_flavors_that_name_accelerators(
    key: str, field: str, is_named: bool
) -> None:
    instance = objects.Instance(flavor=objects.Flavor(extra_specs={}))
    setattr(instance, field, objects.Flavor(extra_specs={key: "1"}))
    assert bypass._is_named(None, instance) is is_named


def test_a_class_of_another_package_s_driver(tmp_path: Path) -> None:
    """It is known from the devices of the host."""
    root = look.make("passthrough", tmp_path / "host")
    life = simulated.started(root, policy.DeviceRules())
    (device, *_) = life.host.state.devices
    acme = dataclasses.replace(
        device,
        resource_class="CUSTOM_ACME_CORE",
        counters={"CUSTOM_ACME_CORE": 2},
    )
    detector = life.host._detector
    detector._newest = dataclasses.replace(
        detector._newest,
        state=dataclasses.replace(life.host.state, devices=(acme,)),
    )
    started = types.SimpleNamespace(is_started=True, _accel=life)
    for key, is_offered in (
        ("resources_A:CUSTOM_ACME_CORE", True),
        ("resources:CUSTOM_LICENSE", False),
    ):
        instance = objects.Instance(
            flavor=objects.Flavor(extra_specs={key: "1"})
        )
        assert bypass._is_offered(started, instance) is is_offered
        assert not bypass._is_named(started, instance)


class Lives(moving.LiveBase, operations.OperationsTestBase):
    """Servers without accelerators, on hosts with some."""

    CARDS = harness.TWO_T4

    def setUp(self) -> None:
        super().setUp()
        #: Extra specs of their flavors.
        self.specs: dict[str, str] = {}
        self.power_off_to_move()
        self.functions = striking.all_functions()

    def life(self) -> None:
        """Run all operations of users and operators on a server."""
        server = self.boot(self.specs, host="host1")
        self.be_on("host1")
        self._live_migrate(server)
        self.be_on("host2")
        self.reboot_hard(server)
        self.reboot_soft(server)
        self.stop(server)
        self.start(server)
        self.suspend(server)
        self.resume(server)
        self.rescue(server)
        self.unrescue(server)
        self.rebuild(server)
        self.shelve(server)
        self.unshelve(server)
        self.run_periodics()
        self.resize(server, self.specs)
        self.confirm(server)
        self.migrate(server)
        self.revert(server)
        self.run_periodics()
        self._delete_server(server)

    def short_life(self) -> None:
        self.be_on("host1")
        server = self.boot(self.specs, host="host1")
        self.reboot_hard(server)
        self.run_periodics()
        self._delete_server(server)


class StockServers(Lives):
    """Servers of plain flavors."""

    def test_all_functions_fail(self) -> None:
        with striking.struck(self.functions.items()):
            self.life()
        self.assertIn(_STRUCK, self.stdlog.logger.output)

    def check_each(self, part: int) -> None:
        """Fail each function of one part alone; a life calls them all."""
        with striking.traced(self.functions) as called:
            self.life()
        self.assertIn(_NAMED, called)
        failed: dict[str, str] = {}
        for name in sorted(called)[part::_PARTS]:
            try:
                with striking.struck([(name, self.functions[name])]):
                    self.short_life()
            except Exception as error:
                failed[name] = repr(error)
        self.assertEqual({}, failed)

    def test_a_server_with_accelerators_is_refused(self) -> None:
        """It is not started without them, though all other functions fail."""
        others = {n: f for n, f in self.functions.items() if n != _NAMED}
        with striking.struck(others.items()):
            server = self.boot(SMALL, expected_state="ERROR")
        self._delete_server(server)

    @pytest.mark.long
    def test_slots_and_claims_show_that_a_server_has_accelerators(
        self,
    ) -> None:
        """Its flavor can't be read: it gets and keeps its devices."""
        with striking.struck([(_NAMED, self.functions[_NAMED])]):
            server = self.boot(SMALL, host="host1")
            mdevs = self.mdevs_of(server)
            self.assertEqual(set(mdevs), set(self.hosts["host1"].mdevs()))
            self.assertEqual(1, len(mdevs))
            self.reboot_hard(server)
            self.assertEqual(mdevs, self.mdevs_of(server))
            self._delete_server(server)
        self.assert_nothing_left()


def _each(part: int) -> Callable[[StockServers], None]:
    @pytest.mark.long
    def test(self: StockServers) -> None:
        self.check_each(part)

    return test


for number in range(_PARTS):
    setattr(StockServers, f"test_each_function_fails_{number}", _each(number))


# Inventory of an operator in Nova's provider.yaml.
_LICENSES = """
meta:
  schema_version: '1.0'
providers:
  - identification:
      uuid: $COMPUTE_NODE
    inventories:
      additional:
        - CUSTOM_LICENSE:
            total: 10
"""
_OWN_CLASSES = f"{pci_ids.__name__}.is_accelerator"


class OtherClasses(Lives):
    """Servers with a class of an operator's own."""

    def setUp(self) -> None:
        super().setUp()
        self.specs = {"resources:CUSTOM_LICENSE": "1"}

    def settings(self, _name: str) -> dict[str, Any]:
        place = self.useFixture(fixtures.TempDir()).path
        Path(place, "licenses.yaml").write_text(_LICENSES)
        self.flags(provider_config_location=place, group="compute")
        return {}

    @pytest.mark.long
    def test_all_other_functions_fail(self) -> None:
        """All but those that find out whether a flavor names accelerators."""
        others = {
            name: function
            for name, function in self.functions.items()
            if name != _OWN_CLASSES and not name.startswith(bypass.__name__)
        }
        life = self.life if examples.IS_WHOLE else self.short_life
        with striking.struck(others.items()):
            life()


class Starts(harness.AccelTestBase):
    """The start of nova-compute, below ``init_host``."""

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Make all functions raise once the service begins to start."""
        stock = nova_driver.AccelLibvirtDriver.init_host
        functions = striking.all_functions().items()
        with contextlib.ExitStack() as stack:

            def init_host(driver: Any, host: str) -> None:
                stack.enter_context(striking.struck(functions))
                stock(driver, host)

            self.stub_out(_INIT, init_host)
            yield

    def test_all_functions_fail(self) -> None:
        with self.failing():
            self.start_host(harness.TWO_T4[0])
            server = self.boot({})
            self._delete_server(server)
        log = self.stdlog.logger.output
        for words in (
            "can't check the configuration",
            "can't recover this host's accelerators",
            "can't serve RPC requests for accelerators",
        ):
            self.assertIn(words, log)
