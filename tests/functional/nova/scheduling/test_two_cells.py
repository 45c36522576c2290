# SPDX-License-Identifier: Apache-2.0
"""Two cells, a conductor without this library, an API without validators."""

import subprocess
import sys
from typing import Any

import fixtures
import pytest
from nova import context, objects
from nova.api.validation.extra_specs import validators

from nova_accel.config import top_packages
from nova_accel.model import flavors
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness

SMALL = harness.vgpu_group("_A", "4Q")
WHOLE_CARD = harness.vgpu_group("_A", "16Q")
_API = "nova.api.validation.extra_specs.validators"
# A conductor's process that can't import this library.
_CONDUCTOR = """
import sys
for name in ("nova_accel", *{names!r}):
    sys.modules[name] = None
from nova import objects
from nova.cmd import conductor
from nova.conductor import manager
objects.register_all()
print(manager.ConductorManager.__name__, conductor.main.__name__)
"""


class TwoCells(scheduled.ScheduledTestBase):
    NUMBER_OF_CELLS = 2

    def setUp(self) -> None:
        super().setUp()
        self.start_host(harness.TWO_T4[0])
        self.start_host(harness.TWO_T4[0], name="host2", cell="cell2")

    def slots_in(self, cell: str, server: Any) -> int:
        """Return the number of slots that a cell's database has."""
        mapping = self.cell_mappings[cell]
        with context.target_cell(self.context, mapping) as cell_context:
            instance = objects.Instance.get_by_uuid(
                cell_context, server["id"], expected_attrs=["resources"]
            )
            return len(instance.resources or ())

    def test_servers_of_both_cells(self) -> None:
        """A whole card for each: the second one is in the other cell."""
        servers = [self.boot(WHOLE_CARD) for _ in range(2)]
        hosts = {s["OS-EXT-SRV-ATTR:host"]: s for s in servers}
        self.assertEqual({"host1", "host2"}, {*hosts})
        refused = self.boot(WHOLE_CARD, expected_state="ERROR")
        self._delete_server(refused)
        for cell, host in (("cell1", "host1"), ("cell2", "host2")):
            server = hosts[host]
            self.assertEqual(1, self.slots_in(cell, server))
            mdevs = self.mdevs_of(server, host)
            self.assertEqual([*self.hosts[host].mdevs()], mdevs)
            self._reboot_server(server, hard=True)
            self.assertEqual(mdevs, self.mdevs_of(server, host))
            self._delete_server(server)
            self.assert_nothing_left(host)


class OtherServices(scheduled.ScheduledTestBase):
    @pytest.mark.long
    def test_a_conductor_needs_nothing_of_this_library(self) -> None:
        script = _CONDUCTOR.format(names=top_packages.NAMES)
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual("ConductorManager main\n", done.stdout)

    def remove_validators(self) -> None:
        """Let nova-api validate as without the package."""
        namespace = flavors.NAMESPACE.removesuffix(":")
        own = {
            name: validator
            for name, validator in validators.VALIDATORS.items()
            if name.startswith(flavors.NAMESPACE)
        }
        self.assertNotEqual({}, own)
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{_API}.VALIDATORS",
                {
                    name: validator
                    for name, validator in validators.VALIDATORS.items()
                    if name not in own
                },
            )
        )
        self.useFixture(
            fixtures.MonkeyPatch(
                f"{_API}.NAMESPACES", validators.NAMESPACES - {namespace}
            )
        )

    @pytest.mark.long
    def test_an_api_without_validators_serves_flavors(self) -> None:
        self.remove_validators()
        self.start_host(harness.TWO_T4[0])
        server = self.boot({**SMALL, f"{flavors.NAMESPACE}packing": "pack"})
        self.assertEqual(1, len(self.mdevs_of(server)))

    @pytest.mark.long
    def test_without_validators_the_scheduler_names_the_value(self) -> None:
        """The typo is found when a server is built, and not before."""
        self.remove_validators()
        self.start_host(harness.TWO_T4[0])
        key = f"{flavors.NAMESPACE}packing"
        server = self.boot({**SMALL, key: "tight"}, expected_state="ERROR")
        self.assertIn(
            f"'tight' is not a flavor extra spec {key}; expected one of: pack",
            server["fault"]["message"],
        )
        self.assertEqual({}, self.hosts["host1"].mdevs())
