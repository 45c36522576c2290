# SPDX-License-Identifier: Apache-2.0
"""Nova's API validates extra specs of accelerators."""

from nova.tests.functional.api import client

from nova_accel.catalog import extra_specs
from nova_accel.model import flavors
from tests.functional.nova.support import harness


class ExtraSpecs(harness.AccelTestBase):
    # The first microversion that validates extra specs.
    microversion = "2.86"

    def setUp(self) -> None:
        super().setUp()
        self.flavor = self._create_flavor(memory_mb=256, vcpu=1)

    def refusal(self, name: str, value: str) -> str:
        """Return the text of the 400 to a pair, which writes nothing."""
        before = self.read_specs()
        raised = self.assertRaises(
            client.OpenStackApiException,
            self.admin_api.post_extra_spec,
            self.flavor,
            {"extra_specs": {name: value}},
        )
        self.assertEqual(400, raised.response.status_code)
        self.assertEqual(before, self.read_specs())
        return str(raised.response.json()["badRequest"]["message"])

    def read_specs(self) -> dict[str, str]:
        specs: dict[str, str] = self.admin_api.get_extra_specs(self.flavor)
        return specs

    def test_every_example_is_accepted(self) -> None:
        specs = {
            f"{flavors.NAMESPACE}{spec.key}": spec.example
            for spec in extra_specs.TABLE
        }
        specs |= harness.vgpu_group("_GPU1", "4Q")
        bitstream = f"{flavors.NAMESPACE}{flavors.BITSTREAM}_FPGA1"
        specs[bitstream] = extra_specs.TABLE[-1].example
        self.admin_api.post_extra_spec(self.flavor, {"extra_specs": specs})
        self.assertEqual(specs, specs | self.read_specs())

    def test_a_refusal_lists_the_allowed_values(self) -> None:
        for spec in extra_specs.TABLE:
            message = self.refusal(f"{flavors.NAMESPACE}{spec.key}", "typo")
            self.assertIn(f"Allowed are: {spec.allowed}.", message)

    def test_a_refusal_lists_the_valid_keys(self) -> None:
        message = self.refusal("accelerator:numa-policy", "required")
        for spec in extra_specs.TABLE:
            self.assertIn(spec.name, message)

    def test_one_invalid_pair_refuses_all(self) -> None:
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
        self.assertEqual({}, self.read_specs())

    def test_older_microversions_are_not_validated(self) -> None:
        self.admin_api.microversion = "2.85"
        self.admin_api.post_extra_spec(
            self.flavor, {"extra_specs": {"accelerator:packing": "tight"}}
        )
        self.assertEqual({"accelerator:packing": "tight"}, self.read_specs())
