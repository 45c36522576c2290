# SPDX-License-Identifier: Apache-2.0
"""Table of all ``accelerator:`` extra specs.

Nova's validators (filters.extra_specs) and the page of reference are made
of it, and it is made of what flavors reads.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import TypeVar

from nova_accel.model import flavors

_Word = TypeVar("_Word", bound=flavors.SpecValue)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraSpec:
    """One key that a flavor may have, and what its values do.

    ``choices`` has each allowed value and its meaning; where it is empty,
    ``form`` is the regular expression that the whole value must match, and
    ``form_in_words`` its name. ``default`` is the value that a flavor
    without the key has, empty where there is none; ``default_in_words``
    says what it comes to. A key that ``has_suffix`` is about one request
    group when that group's suffix follows it.
    """

    key: str
    meaning: str
    example: str
    since: str
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    form: str = ""
    form_in_words: str = ""
    default: str = ""
    default_in_words: str = ""
    has_suffix: bool = False

    @property
    def name(self) -> str:
        """Return the key as it is written: ``accelerator:rom``.

        The place of a group's suffix is shown as ``[SUFFIX]``.
        """
        suffix = "[SUFFIX]" if self.has_suffix else ""
        return f"{flavors.NAMESPACE}{self.key}{suffix}"

    @property
    def allowed(self) -> str:
        """Return the allowed values in words: ``on, off``."""
        return ", ".join(self.choices) or self.form_in_words

    def is_named(self, name: str) -> bool:
        """Return whether a flavor's key is this one."""
        suffix = f"({flavors.SUFFIX})?" if self.has_suffix else ""
        pattern = re.escape(f"{flavors.NAMESPACE}{self.key}") + suffix
        return re.fullmatch(pattern, name) is not None

    def accepts(self, value: str) -> bool:
        """Return whether a value is one of the allowed ones, as written."""
        if self.choices:
            return value in self.choices
        return re.fullmatch(self.form, value) is not None


def find(name: str) -> ExtraSpec | None:
    """Return the extra spec of a flavor's key, None for no such."""
    return next((spec for spec in TABLE if spec.is_named(name)), None)


def _choices(meanings: Mapping[_Word, str]) -> dict[str, str]:
    return {word.value: said for word, said in meanings.items()}


_NUMA = _choices(
    {
        flavors.NumaPolicy.REQUIRED: (
            "Only such devices are taken, and none whose node is not known."
            " A host that has none of them left is refused."
        ),
        flavors.NumaPolicy.PREFERRED: (
            "Such devices come first; where none are left, others are taken."
        ),
        flavors.NumaPolicy.NONE: "NUMA nodes play no part.",
    }
)
_LOCALITY = _choices(
    {
        flavors.Locality.NVLINK: (
            "Their cards have an NVLink each to each other."
        ),
        flavors.Locality.PCIE: "Their cards are below one PCIe root port.",
        flavors.Locality.NUMA: "All are on one NUMA node, whichever it is.",
        flavors.Locality.DIFFERENT_CARD: "No two of them are of one card.",
        flavors.Locality.ANY: "Nothing: any that have room will do.",
    }
)
_PACKING = _choices(
    {
        flavors.Packing.PACK: (
            "The fullest device that has room, so that others stay empty."
        ),
        flavors.Packing.SPREAD: (
            "The emptiest device, so that servers share as little as possible."
        ),
        flavors.Packing.BEST_REMAINING: (
            "The device on which the choice costs the fewest of the larger"
            " profiles that could still be made."
        ),
    }
)


def _switch(on: str, off: str) -> dict[str, str]:
    return _choices({flavors.Switch.ON: on, flavors.Switch.OFF: off})


#: In the order of the page.
TABLE: tuple[ExtraSpec, ...] = (
    ExtraSpec(
        key="numa_policy",
        meaning=(
            "How much it matters that devices are where the guest is: each"
            " on one of the host's NUMA nodes that a guest with a NUMA"
            " topology gets, and all on one node that has room for the whole"
            " guest if it has none. On a host with one node they always are."
        ),
        choices=_NUMA,
        default=flavors.USUAL_PLACING.numa.value,
        example="required",
        since="0.1.0",
    ),
    ExtraSpec(
        key="locality",
        meaning=(
            "What the devices of one server must have in common. A host"
            " without such devices is refused; a server with one device"
            " has nothing to compare. Devices of one card are as near as can"
            " be: only ``different_card`` forbids them."
        ),
        choices=_LOCALITY,
        default=flavors.USUAL_PLACING.locality.value,
        example="nvlink",
        since="0.1.0",
    ),
    ExtraSpec(
        key="packing",
        meaning=(
            "Which of a host's devices is taken when several are as good."
            " It never refuses a host."
        ),
        choices=_PACKING,
        default=flavors.USUAL_PLACING.packing.value,
        example="pack",
        since="0.1.0",
    ),
    ExtraSpec(
        key="display",
        meaning=(
            "Whether vGPUs are consoles of the guest. The guest must have a"
            " graphics device (``[vnc]`` or ``[spice]`` in nova.conf), and"
            " a typed virtual function needs libvirt 10.3."
        ),
        choices=_switch("They are.", "They are not."),
        default_in_words="libvirt decides",
        example="on",
        since="0.1.0",
    ),
    ExtraSpec(
        key="ramfb",
        meaning=(
            "Whether the first vGPU shows the guest from its firmware on,"
            " before a driver is loaded there. ``on`` needs"
            " ``accelerator:display=on`` beside it; the server's spawn fails"
            " without."
        ),
        choices=_switch("It does.", "It does not."),
        default_in_words="libvirt decides",
        example="on",
        since="0.1.0",
    ),
    ExtraSpec(
        key="rom",
        meaning=(
            "Whether the guest sees the expansion ROMs of its PCI"
            " functions. Some cards start only with it off, others only"
            " with it on."
        ),
        choices=_switch("It sees them.", "It does not see them."),
        default_in_words="libvirt decides",
        example="off",
        since="0.1.0",
    ),
    ExtraSpec(
        key=flavors.BITSTREAM,
        meaning=(
            "The Glance image with the bitstream that is to be loaded into"
            " the FPGA regions of the server. With the suffix of a request"
            " group it is for that group; without one it is for every group"
            " of FPGA that has none of its own and asks for no function."
        ),
        # As Glance writes an image's id, and as it takes one.
        form=(
            "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}"
            "-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        ),
        form_in_words="the id of an image, a UUID with its hyphens",
        default_in_words="what the regions have stays in them",
        has_suffix=True,
        example="6f4d2a52-8a4e-4f0c-9d53-b3c4e5a1f001",
        since="0.1.0",
    ),
)
