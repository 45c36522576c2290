# SPDX-License-Identifier: Apache-2.0
"""Traits that count the accelerators of a bare-metal node."""

import dataclasses
import re

from nova_accel.model import names

GPU, FPGA, QAT = "GPU", "FPGA", "QAT"
# Kind of an accelerator that is known only by its PCI class.
OTHER = "ACCELERATOR"
# Kinds whose counts have a prefix of their own; others count as accelerators.
COUNTED_KINDS = (GPU, FPGA, QAT)
_KINDS = "|".join((*COUNTED_KINDS, OTHER))
_COUNT = re.compile(
    rf"{names.CUSTOM}(?P<kind>{_KINDS})_(?P<model>[A-Z0-9_]+)"
    r"_X(?P<count>[1-9][0-9]{0,3})"
)
# Traits that may end like a count.
_OTHER_TRAITS = (names.MODEL_PREFIX, names.DEVICE_PREFIX)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeCount:
    """Number of accelerators of one model that a node has.

    ``kind`` is one of the kinds above, ``model`` has the vendor, in the
    spelling of traits.
    """

    kind: str
    model: str
    count: int

    @property
    def trait(self) -> str:
        """Return the trait, as CUSTOM_GPU_NVIDIA_H100XM_X8."""
        return names.custom_name(self.kind, self.model, f"X{self.count}")


def parse_count(trait: str) -> NodeCount | None:
    """Return the count in a trait, None for any other trait."""
    match = _COUNT.fullmatch(trait)
    if match is None or trait.startswith(_OTHER_TRAITS):
        return None
    return NodeCount(
        kind=match["kind"], model=match["model"], count=int(match["count"])
    )
