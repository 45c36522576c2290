# SPDX-License-Identifier: Apache-2.0
"""Nova's API validates extra specs of accelerators."""

from nova.tests.functional.api import client

from nova_accel.model import extra_specs, flavors
from tests.functional.nova.support import harness


class ExtraSpecs(harness.AccelTestBase):
    # Where Nova begins to look at extra specs.
    microversion = "2.86"

    def setUp(self) -> None:
        super().setUp()
        self.flavor = self._create_flavor(memory_mb=256, vcpu=1)

    def refusal(self, name: str, value: str) -> str:
        """Return the text of the 400 to a pair, which writes nothing."""
        before = self.written()
        raised = self.assertRaises(
            client.OpenStackApiException,
            self.admin_api.post_extra_spec,
            self.flavor,
            {"extra_specs": {name: value}},
        )
        self.assertEqual(400, raised.response.status_code)
        self.assertEqual(before, self.written())
        return str(raised.response.json()["badRequest"]["message"])

    def written(self) -> dict[str, str]:
        found: dict[str, str] = self.admin_api.get_extra_specs(self.flavor)
        return found

    def test_every_example_is_taken(self) -> None:
        wanted = {
            f"{flavors.NAMESPACE}{spec.key}": spec.example
            for spec in extra_specs.TABLE
        }
        wanted |= harness.vgpu_group("_GPU1", "4Q")
        bitstream = f"{flavors.NAMESPACE}{flavors.BITSTREAM}_FPGA1"
        wanted[bitstream] = extra_specs.TABLE[-1].example
        self.admin_api.post_extra_spec(self.flavor, {"extra_specs": wanted})
        self.assertEqual(wanted, wanted | self.written())

    def test_a_wrong_value_is_answered_with_those_allowed(self) -> None:
        for spec in extra_specs.TABLE:
            said = self.refusal(f"{flavors.NAMESPACE}{spec.key}", "typo")
            self.assertIn(f"Allowed are: {spec.allowed}.", said)

    def test_a_wrong_key_is_answered_with_those_there_are(self) -> None:
        said = self.refusal("accelerator:numa-policy", "required")
        for spec in extra_specs.TABLE:
            self.assertIn(spec.name, said)

    def test_one_mistake_spoils_them_all(self) -> None:
        raised = self.assertRaises(
            client.OpenStackApiException,
            self.admin_api.post_extra_spec,
            self.flavor,
            {
                "extra_specs": {
                    "accelerator:rom": "off",
                    "accelerator:packing": "tight",
                }
            },
        )
        self.assertEqual(400, raised.response.status_code)
        self.assertEqual({}, self.written())

    def test_older_clients_are_not_looked_at(self) -> None:
        self.admin_api.microversion = "2.85"
        self.admin_api.post_extra_spec(
            self.flavor, {"extra_specs": {"accelerator:packing": "tight"}}
        )
        self.assertEqual({"accelerator:packing": "tight"}, self.written())
