# SPDX-License-Identifier: Apache-2.0
"""Base class of the tests of the pass over Placement."""

from typing import Any

from keystoneauth1 import loading

from nova_accel.config import conf
from nova_accel.host.state import device_notes
from nova_accel.model import providers
from placement_sync.sync import sync_pass
from tests.functional.nova.service import writers
from tests.functional.nova.support import harness

AUTH = "admin_token"


class SyncTestBase(harness.AccelTestBase):
    """Computes whose passes reach the Placement of Nova's harness."""

    def setUp(self) -> None:
        super().setUp()
        harness.CONF.register_opts(
            loading.get_auth_plugin_conf_options(AUTH), group="placement"
        )
        endpoint = self.placement.fixture.endpoint
        self.flags(
            group="placement",
            auth_type=AUTH,
            endpoint=endpoint,
            endpoint_override=endpoint,
            token=AUTH.partition("_")[0],
        )

    def reconciler(self, name: str = "host1") -> Any:
        """Return the reconciler of a nova-compute."""
        return self.computes[name].driver._hooks.reconciler

    def run_pass(self, name: str = "host1") -> sync_pass.PassResult:
        """Run one pass, as the thread of nova-compute does."""
        result: sync_pass.PassResult = self.reconciler(name).run()
        return result

    def outside(self, name: str = "host1") -> writers.Outside:
        """Return a placement-sync beside a nova-compute."""
        return writers.Outside(
            conf.read_settings(harness.CONF),
            providers.ProviderRoot(
                name=name, uuid=self.compute_rp_uuids[name]
            ),
            self.placement.fixture.endpoint,
        )

    def assert_in_step(self) -> None:
        """Check that neither writer has anything left to write."""
        before = self.providers()
        self.run_periodics()
        for _ in range(2):
            result = self.run_pass()
            self.assertEqual((0, ()), (result.writes, result.problems))
        self.assertEqual(before, self.providers())

    def drains(self, name: str = "host1") -> device_notes.DrainNotes:
        """Return the drain notes that the operator's commands write."""
        return device_notes.DrainNotes(self.state_dir(name))

    # -- changes by an operator-------------------------------------------

    def put(self, address: str, what: str, content: Any) -> None:
        """Replace records of a card's provider, as an operator may."""
        path = f"/resource_providers/{self.provider(address)}"
        current = self.placement.get(path, version="1.39").body
        answer = self.placement.put(
            f"{path}/{what}",
            {
                "resource_provider_generation": current["generation"],
                what: content,
            },
            version="1.39",
        )
        self.assertEqual(200, answer.status, answer.body)

    def records(self, address: str) -> dict[str, dict[str, Any]]:
        """Return a card's inventory records."""
        inventory: dict[str, dict[str, Any]] = self._get_provider_inventory(
            self.provider(address)
        )
        return inventory
