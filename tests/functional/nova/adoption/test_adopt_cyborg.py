# SPDX-License-Identifier: Apache-2.0
"""Running servers with devices of Cyborg, and `nova-accel adopt`.

Substitutes: Nova's client of Cyborg (Nova's own fixture), and Cyborg's API.
"""

import json
from pathlib import Path
from typing import Any

import fixtures
import pytest

from tests.functional.nova.adoption import adopting, cyborgs, test_adopt_pci
from tests.functional.sync.fleet import wsgi_server

FLAVOR = {"accel:device_profile": cyborgs.PROFILE}
CARDS = test_adopt_pci.TWO_GPUS
FIRST, SECOND = (card.address for card in CARDS)


class AdoptCyborg(adopting.AdoptionTestBase):
    """A host of Nova's own driver, with whole GPUs from Cyborg."""

    source = "cyborg"

    def start(self) -> None:
        """Start the host, whose cards Cyborg reports."""
        self.cyborg = self.useFixture(cyborgs.Cyborg(self))
        server = wsgi_server.serving(self.cyborg.answer)
        self.program_options = (
            "--accelerator-endpoint",
            f"{server.__enter__()}/v2",
        )
        self.addCleanup(server.__exit__, None, None, None)
        self.start_stock(CARDS, "")
        self.run_periodics()
        for card in CARDS:
            self.cyborg.report(card.address)

    def _describe(self, server: Any) -> dict[str, Any]:
        functions = {"functions": self.functions_of(server)}
        return super()._describe(server) | functions

    @pytest.mark.each_release
    def test_a_running_and_a_stopped_server_there_and_back(self) -> None:
        self.start()
        servers = [self.boot(FLAVOR) for _ in range(2)]
        self.stop(servers[1])
        self.run_periodics()
        before = self.snapshot(*servers)
        self.adopt()
        for server, old in zip(servers, before["servers"], strict=True):
            self.assert_whole_card(server, old)
        self.assertEqual(2, len(self.providers()))
        self.assert_no_findings()
        self._reboot_server(servers[0], hard=True)
        self.undo()
        self.assertEqual(
            before["providers"], self.snapshot(*servers)["providers"]
        )
        self.assertEqual(before["servers"][1], self._describe(servers[1]))
        # A function is no mdev, which an undo defines.
        self.assertEqual([], self.errors_about("use mdevctl"))
        self.start_again(servers[1])
        for server in servers:
            self._delete_server(server)
        self.assertEqual([], self.cyborg.arqs)

    @pytest.mark.long
    def test_a_server_with_two_devices_is_unshelved_on_its_host(self) -> None:
        """nova-conductor still asks Cyborg for the device profile."""
        self.start()
        self.cyborg.count = 2
        server = self.boot(FLAVOR)
        self.adopt()
        functions = self.functions_of(server)
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self.assertEqual({}, self.allocations(server))
        self._unshelve_server(server)
        self.assertEqual({*functions}, {*self.functions_of(server)})
        self.assertEqual(2, len(self.slots(server)))

    @pytest.mark.long
    def test_a_new_server_with_a_profile_keeps_the_host(self) -> None:
        """Cyborg has no request for it: only its end leads back."""
        self.start()
        self.boot(FLAVOR)
        self.adopt()
        new = self.boot(test_adopt_pci.GPU_GROUP)
        text = self.run_command("undo", status=1)
        self.assertIn(f"no-native-form: {new['id']}", text)
        self._delete_server(new)
        self.undo()

    @pytest.mark.long
    def test_a_card_that_is_off_stays_with_cyborg(self) -> None:
        self.start()
        server = self.boot(FLAVOR)
        (address,) = self.functions_of(server)
        other = SECOND if address == FIRST else FIRST
        line = json.dumps({"address": other, "use": "off"})
        self.flags(group="nova_accel", device_spec=[line])
        path = Path(self.useFixture(fixtures.TempDir()).path) / "nova.conf"
        path.write_text(f"[nova_accel]\ndevice_spec = {line}\n")
        self.program_options += ("--config-file", str(path))
        self.adopt()
        self.assertEqual(
            [f"host1_{other}"],
            [
                record["name"]
                for record in self.providers().values()
                if "_accel_" not in record["name"]
            ],
        )
