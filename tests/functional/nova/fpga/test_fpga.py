# SPDX-License-Identifier: Apache-2.0
"""FPGA regions through Nova: reported, programmed, assigned, set aside."""

import hashlib
import io
import uuid
from typing import Any

import fixtures
import pytest
from lxml import etree

from nova_accel.cli import commands
from nova_accel.model import names
from tests.functional.nova.support import harness, releases
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.lab.fakehost.technologies.fpga import dfl_card
from tests.support import examples

CARD = "0000:5e:00.0"
REGION = names.region_address(CARD, 0)
PAC = fakehost.DflCard(address=CARD)
NLB0, INTERFACE = dfl_card.NLB0, dfl_card.A10
RED, BLUE = "c0ffee00123456789abcdef012345678", "b1" * 16
ANY = names.interface_trait(INTERFACE)
#: A hang of the kernel needs a thread of its own. The privileged daemon has
#: that; here its functions run in Nova's process, under eventlet before 34.
WAYS_TO_FAIL = ("ERROR", "SAME") + (
    () if not releases.is_on_threads() else ("HANG",)
)


class Fpga(harness.AccelTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.states: dict[str, str] = {}

    def start_fpga(
        self, *cards: Any, name: str = "host1", **settings: Any
    ) -> None:
        """Start nova-compute on a host with FPGA cards."""
        place = self.useFixture(fixtures.TempDir()).path
        self.states[name] = place
        self.start_host(
            *(cards or (PAC,)),
            name=name,
            state_dir=place,
            bitstream_owners=["trusted"],
            program_timeout=3,
            **settings,
        )

    def image(
        self,
        function: str,
        directive: str = "",
        *,
        content: bytes | None = None,
        owner: str = "trusted",
        **properties: str,
    ) -> str:
        """Return the id of an image whose properties describe its content."""
        if content is None:
            content = fpga.payload(function, directive)
        described = {
            "accelerator_function_id": function,
            "accelerator_interface_id": INTERFACE,
            "accelerator_vendor": "intel",
            "accelerator_sha512": hashlib.sha512(content).hexdigest(),
        }
        record = self.glance.create(
            None,
            {
                "id": str(uuid.uuid4()),
                "name": "bitstream",
                "owner": owner,
                "size": len(content),
                "container_format": "bare",
                "disk_format": "raw",
                "tags": [],
                "visibility": "public",
                "properties": {**described, **properties},
            },
            io.BytesIO(content),
        )
        return str(record["id"])

    def region_specs(self, trait: str, image: str = "") -> dict[str, str]:
        """Return the extra specs of one region."""
        specs = {
            "group_policy": "none",
            "resources_FPGA:FPGA": "1",
            "trait_FPGA:" + trait: "required",
        }
        if image:
            specs["accelerator:fpga_bitstream"] = image
        return specs

    def loaded_function(self, host: str = "host1") -> str:
        """Return the function that is loaded on the card."""
        (part,) = self.hosts[host].fpgas()[CARD]["parts"]
        return str(part["function"])

    def functions(self, host: str = "host1") -> set[str]:
        """Return the function traits of the region in Placement."""
        return {
            trait
            for trait in self.traits(REGION, host)
            if trait.startswith(names.FUNCTION_PREFIX)
        }

    def reason(self, server: Any) -> str:
        record = self.api.get_server(server["id"])
        return str(record.get("fault", {}).get("message", ""))

    def refused(self, extra_specs: dict[str, str]) -> str:
        """Return why a server was refused, and delete it."""
        server = self.boot(
            extra_specs, is_checked=False, expected_state="ERROR"
        )
        reason = self.reason(server)
        self._delete_server(server)
        return reason

    # -- inventory ----------------------------------------------------------

    @pytest.mark.long
    def test_card_and_region(self) -> None:
        self.start_fpga()
        providers = self.providers()
        card, region = self.provider(CARD), self.provider(REGION)
        self.assertEqual({card, region}, set(providers))
        self.assertEqual(
            self.compute_rp_uuids["host1"], providers[card]["parent"]
        )
        self.assertEqual(card, providers[region]["parent"])
        self.assertEqual({}, providers[card]["inventories"])
        self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION))
        self.assertLessEqual(
            {ANY, names.PROGRAMMABLE_TRAIT, names.fpga_function_trait(NLB0)},
            providers[region]["traits"],
        )

    @pytest.mark.long
    def test_a_function_that_is_there(self) -> None:
        self.start_fpga()
        server = self.boot(self.region_specs(names.fpga_function_trait(NLB0)))
        self.assertEqual([CARD], self.functions_of(server))
        (element,) = self.hostdevs(server)
        self.assertEqual("yes", element.get("managed"))
        self.assertEqual([], self.hosts["host1"].programmings())
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual({names.fpga_function_trait(NLB0)}, self.functions())
        self.assert_nothing_left()

    # -- programmed --------------------------------------------------------

    @pytest.mark.oldest
    def test_a_bitstream_is_loaded_at_spawn(self) -> None:
        self.start_fpga()
        server = self.boot(self.region_specs(ANY, self.image(RED)))
        self.assertEqual(RED, self.loaded_function())
        self.assertEqual([CARD], self.functions_of(server))
        # At once, and while the guest has the card.
        self.assertEqual({names.fpga_function_trait(RED)}, self.functions())
        self.run_periodics()
        self.assertEqual({names.fpga_function_trait(RED)}, self.functions())
        self.assertEqual({"FPGA": 1}, self.usages(REGION))
        self.assertEqual(1, len(self.hosts["host1"].programmings()))
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual({names.fpga_function_trait(RED)}, self.functions())
        self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION))
        self.assert_nothing_left()

    def test_a_blank_is_loaded_when_the_server_is_gone(self) -> None:
        self._start_blanking()
        server = self.boot(self.region_specs(ANY, self.image(RED)))
        self._delete_server(server)
        self.run_periodics()
        self.assertEqual(BLUE, self.loaded_function())
        self.assertEqual({names.fpga_function_trait(BLUE)}, self.functions())

    @pytest.mark.long
    def test_a_rebuild_keeps_the_region(self) -> None:
        self._start_blanking()
        server = self.boot(self.region_specs(names.fpga_function_trait(NLB0)))
        self._rebuild_server(server, harness.IMAGE)
        self.assertEqual(NLB0, self.loaded_function())
        self.assertEqual([CARD], self.functions_of(server))
        self.assertEqual({"FPGA": 1}, self.usages(REGION))
        self._delete_server(server)
        self.assertEqual(BLUE, self.loaded_function())
        self.assert_nothing_left()

    def _start_blanking(self, name: str = "host1") -> None:
        place = self.useFixture(fixtures.TempDir()).join("blank.gbs")
        with open(place, "wb") as blank:
            blank.write(fpga.gbs(BLUE, INTERFACE))
        self.start_fpga(name=name, device_spec=[f'{{"blank": "{place}"}}'])

    # -- races -------------------------------------------------------------

    @pytest.mark.long
    def test_two_servers_for_one_region(self) -> None:
        """One gets it; the other goes to the next host."""
        for name in ("host1", "host2"):
            self.start_fpga(name=name)
        images = {RED: self.image(RED), BLUE: self.image(BLUE)}
        requested = {
            function: self.request(self.region_specs(ANY, image))
            for function, image in images.items()
        }
        servers = {
            function: self._wait_for_state_change(server, "ACTIVE")
            for function, server in requested.items()
        }
        hosts = {
            function: server["OS-EXT-SRV-ATTR:host"]
            for function, server in servers.items()
        }
        self.assertEqual({"host1", "host2"}, set(hosts.values()))
        for function, host in hosts.items():
            self.assertEqual(function, self.loaded_function(host))
            self.assertEqual(1, len(self.hosts[host].programmings()))
        third = self.boot(
            self.region_specs(ANY, images[RED]), expected_state="ERROR"
        )
        self.assertIn("No valid host", self.reason(third))

    def request(self, extra_specs: dict[str, str]) -> Any:
        """Ask for a server, without waiting for it."""
        flavor = self._create_flavor(
            extra_spec=extra_specs, memory_mb=256, vcpu=1, disk=1, ephemeral=0
        )
        body = self._build_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )
        return self.api.post_server({"server": body})

    def test_a_region_in_use_is_never_programmed(self) -> None:
        self.start_fpga()
        self.boot(self.region_specs(names.fpga_function_trait(NLB0)))
        self.refused(self.region_specs(ANY, self.image(RED)))
        self.assertEqual([], self.hosts["host1"].programmings())
        self.assertEqual(NLB0, self.loaded_function())

    # -- refused before anything is touched --------------------------------

    def test_bitstreams_that_may_not_be_loaded(self) -> None:
        self.start_fpga()
        short = fpga.gbs(RED, INTERFACE)[:-4000]
        images = (
            (self.image(RED, accelerator_sha512="0" * 128), "sha512"),
            # A host can check these only against its own region.
            (self.image(RED, accelerator_interface_id="12" * 16), "xhausted"),
            (self.image(RED, accelerator_vendor="xilinx"), "xhausted"),
            (self.image(RED, accelerator_function_id=""), "function_id"),
            (self.image(RED, accelerator_interface_id="0" * 32), "UUID"),
            (
                self.image(BLUE, content=fpga.gbs(RED, INTERFACE)),
                "function",
            ),
            (self.image(RED, content=short[:20]), "damaged"),
            (str(uuid.uuid4()), "Glance"),
            ("bitstream", "UUID"),
            (self.image(RED, owner="stranger"), "bitstream_owners"),
        )
        for image, word in examples.share(images, least=3):
            with self.subTest(word):
                reason = self.refused(self.region_specs(ANY, image))
                self.assertTrue(reason)
                self.assertIn(word, reason)
                self.assertEqual(NLB0, self.loaded_function())
                self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION))
        self.assertEqual([], self.hosts["host1"].programmings())

    # -- failed ------------------------------------------------------------

    def assert_faulted(self, host: str = "host1") -> None:
        self.assertEqual({"FPGA": (1, 1)}, self.amounts(REGION, host))
        self.assertIn(names.FAULTED_TRAIT, self.traits(REGION, host))

    @pytest.mark.long
    def test_a_region_that_failed_is_set_aside_and_healed(self) -> None:
        for directive in WAYS_TO_FAIL:
            with self.subTest(directive):
                self._fails_and_heals(directive)

    def _fails_and_heals(self, directive: str) -> None:
        name = directive.lower()
        self.start_fpga(name=name)
        image = self.image(RED, directive)
        server = self.boot(
            self.region_specs(ANY, image), host=name, expected_state="ERROR"
        )
        self.assertIn("xhausted", self.reason(server))
        self.assert_faulted(name)
        self._delete_server(server)
        self.run_periodics()
        self.assert_faulted(name)
        self.hosts[name].heal()
        arguments = ["heal", REGION, "--state-dir", self.states[name]]
        self.assertEqual(0, commands.main(arguments))
        self.run_periodics()
        self.assertEqual({"FPGA": (1, 0)}, self.amounts(REGION, name))
        self.assertNotIn(names.FAULTED_TRAIT, self.traits(REGION, name))
        again = self.boot(self.region_specs(ANY, self.image(BLUE)), host=name)
        self.assertEqual(BLUE, self.loaded_function(name))
        self._delete_server(again)

    @pytest.mark.long
    def test_after_a_failure_the_next_host_is_tried(self) -> None:
        """The cause is the bitstream, so the next host fails as well."""
        for name in ("host1", "host2"):
            self.start_fpga(name=name)
        self.refused(self.region_specs(ANY, self.image(RED, "ERROR")))
        self.assert_faulted("host1")
        self.assert_faulted("host2")

    @pytest.mark.long
    def test_a_card_that_vanishes_halfway(self) -> None:
        self.start_fpga()
        self.refused(self.region_specs(ANY, self.image(RED, "VANISH")))
        self.run_periodics()
        region = self.providers().get(self.provider(REGION))
        for record in region["inventories"].values() if region else ():
            self.assertEqual(record["total"], record["reserved"])

    # -- together ----------------------------------------------------------

    @pytest.mark.long
    def test_a_region_and_a_vgpu_in_one_flavor(self) -> None:
        self.start_fpga(PAC, harness.TWO_T4[0])
        server = self.boot(
            self.region_specs(ANY, self.image(RED))
            | harness.vgpu_group("_GPU", "4Q")
        )
        self.assertEqual([CARD], self.functions_of(server))
        self.assertEqual(1, len(self.mdevs_of(server)))
        self._delete_server(server)
        self.assert_nothing_left()

    @pytest.mark.long
    def test_domain_xml_of_a_region(self) -> None:
        self.start_fpga()
        server = self.boot(self.region_specs(names.fpga_function_trait(NLB0)))
        xml = etree.fromstring(self.domain(server).definition_xml)
        (source,) = xml.findall("./devices/hostdev/source/address")
        self.assertEqual("0x5e", source.get("bus"))
