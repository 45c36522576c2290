# SPDX-License-Identifier: Apache-2.0
"""FPGA regions programmed by their vendors' tools, through Nova."""

import uuid
from typing import Any

import pytest

from nova_accel.model import names
from tests.functional.nova.fpga import test_fpga
from tests.functional.nova.fpga.test_fpga import BLUE, CARD, RED
from tests.functional.nova.support import harness
from tests.lab import fakehost
from tests.lab.fakehost import fpga
from tests.lab.fakehost.technologies.fpga import alveo_card

USER = "0000:5e:00.1"
INTEL = fakehost.IntelFpgaCard(address=CARD)
ALVEO = fakehost.AlveoCard(address=CARD)


class _Tools(harness.AccelTestBase):
    """One card whose regions a tool programs."""

    region_specs = test_fpga.Fpga.region_specs
    loaded_function = test_fpga.Fpga.loaded_function
    functions = test_fpga.Fpga.functions

    def start(self, card: Any, tool: str, name: str = "host1") -> None:
        self.states: dict[str, str] = {}
        test_fpga.Fpga.start_fpga(self, card, name=name)
        self.hosts[name].write_fpga_tool(tool)

    def last(self) -> str:
        """Return the function that was loaded last."""
        return str(self.hosts["host1"].programmings()[-1]["function"])


class Fpgaconf(_Tools):
    """The older driver's cards."""

    image = test_fpga.Fpga.image
    ANY = test_fpga.ANY

    def gbs(self, function: str, directive: str = "") -> str:
        content = fpga.gbs(function, test_fpga.INTERFACE, directive)
        return self.image(function, content=content)

    @pytest.mark.long
    def test_a_bitstream_is_loaded(self) -> None:
        self.start(INTEL, "fpgaconf")
        server = self.boot(self.region_specs(self.ANY, self.gbs(RED)))
        self.assertEqual(RED, self.loaded_function())
        self.assertEqual([CARD], self.functions_of(server))
        self.assertEqual({names.fpga_function_trait(RED)}, self.functions())
        self._delete_server(server)
        self.assert_nothing_left()


class XrtSmi(_Tools):
    """Alveo cards, of which the user function goes to the guest."""

    ANY = names.interface_trait(alveo_card.INTERFACE)

    def xclbin(self, function: str, directive: str = "") -> str:
        content = fpga.xclbin(function, alveo_card.INTERFACE, directive)
        return test_fpga.Fpga.image(
            self,
            function,
            content=content,
            accelerator_vendor="xilinx",
            accelerator_interface_id=str(uuid.UUID(alveo_card.INTERFACE)),
        )

    @pytest.mark.long
    def test_an_xclbin_is_loaded(self) -> None:
        self.start(ALVEO, "xrt-smi")
        server = self.boot(self.region_specs(self.ANY, self.xclbin(RED)))
        # The driver forgets it when the guest takes the function.
        self.assertEqual(RED, self.last())
        self.assertEqual([USER], self.functions_of(server))
        self.assertEqual({names.fpga_function_trait(RED)}, self.functions())
        self._reboot_server(server, hard=True)
        self.assertEqual([USER], self.functions_of(server))
        self._delete_server(server)
        again = self.boot(self.region_specs(self.ANY, self.xclbin(BLUE)))
        self.assertEqual(BLUE, self.last())
        self._delete_server(again)
        self.assert_nothing_left()
