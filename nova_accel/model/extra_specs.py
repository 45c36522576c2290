# SPDX-License-Identifier: Apache-2.0
"""Table of all ``accelerator:`` extra specs.

Nova's validators (filters.extra_specs) and the reference page are generated
from it. The keys and values are those that ``flavors`` parses.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import TypeVar

from nova_accel.model import flavors

_Value = TypeVar("_Value", bound=flavors.SpecValue)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraSpec:
    """One extra spec of the namespace, with its values and their effect.

    ``choices`` has each allowed value and its meaning; where it is empty,
    ``form`` is the regular expression of the whole value, and
    ``form_in_words`` describes it. ``default`` is the value of a flavor
    without the key, empty for none; ``default_in_words`` is its effect. A
    key with ``has_suffix`` can be followed by the suffix of a request
    group, and is of that group then.
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
        """Return the key with its namespace: ``accelerator:rom``.

        ``[SUFFIX]`` is the suffix of a request group.
        """
        suffix = "[SUFFIX]" if self.has_suffix else ""
        return f"{flavors.NAMESPACE}{self.key}{suffix}"

    @property
    def allowed(self) -> str:
        """Return the allowed values as text: ``on, off``."""
        return ", ".join(self.choices) or self.form_in_words

    def is_named(self, name: str) -> bool:
        """Return whether a flavor's key is of this extra spec."""
        suffix = f"({flavors.SUFFIX})?" if self.has_suffix else ""
        pattern = re.escape(f"{flavors.NAMESPACE}{self.key}") + suffix
        return re.fullmatch(pattern, name) is not None

    def accepts(self, value: str) -> bool:
        """Return whether Nova's API stores a value; case matters.

        Flavors that were written before microversion 2.86 were not
        checked: ``flavors`` reads their values in any case.
        """
        if self.choices:
            return value in self.choices
        return re.fullmatch(self.form, value) is not None


def find(name: str) -> ExtraSpec | None:
    """Return the extra spec of a flavor's key, or None."""
    return next((spec for spec in TABLE if spec.is_named(name)), None)


def _choices(meanings: Mapping[_Value, str]) -> dict[str, str]:
    return {value.value: text for value, text in meanings.items()}


# A vGPU type is MODEL-SIZE.
_MODEL, _SIZE = r"\w[\w ]{0,47}", r"[\w-]{1,32}"
_NUMA = _choices(
    {
        flavors.NumaPolicy.REQUIRED: (
            "Only such devices are used, and none whose node is unknown."
            " A host without a free one is refused."
        ),
        flavors.NumaPolicy.PREFERRED: (
            "Such devices are preferred; without a free one, others are used."
        ),
        flavors.NumaPolicy.NONE: "NUMA nodes are ignored.",
    }
)
_LOCALITY = _choices(
    {
        flavors.Locality.NVLINK: (
            "Each card has an NVLink to each other card."
        ),
        flavors.Locality.PCIE: "Their cards are below one PCIe root port.",
        flavors.Locality.NUMA: "All are on one NUMA node, no matter which.",
        flavors.Locality.DIFFERENT_CARD: "Each is on another card.",
        flavors.Locality.ANY: "Any devices with room.",
    }
)
_PACKING = _choices(
    {
        flavors.Packing.PACK: (
            "The fullest device with room, so that others remain empty."
        ),
        flavors.Packing.SPREAD: (
            "The emptiest device, so that few servers share a device."
        ),
        flavors.Packing.BEST_REMAINING: (
            "The device that loses least of what the usual requests could"
            " still use."
        ),
        flavors.Packing.EXCLUSIVE: (
            "A device that no other server uses while this one exists. The"
            " request groups take all of it; a host whose devices are in use,"
            " or not taken as a whole, is refused."
        ),
    }
)

_TOPOLOGY = _choices(
    {
        flavors.GuestTopology.NONE: "The guest sees all devices on one bus.",
        flavors.GuestTopology.NUMA: "It sees their NUMA nodes.",
        flavors.GuestTopology.PCIE: (
            "It sees their root complexes, each on its NUMA node, and the"
            " switches."
        ),
    }
)


def _switch(on: str, off: str) -> dict[str, str]:
    return _choices({flavors.Switch.ON: on, flavors.Switch.OFF: off})


#: In the order of the reference page.
TABLE: tuple[ExtraSpec, ...] = (
    ExtraSpec(
        key="numa_policy",
        meaning=(
            "Whether devices must be on the NUMA nodes of the guest: each on"
            " one of the host's nodes that a guest with a NUMA topology gets;"
            " without one, all on one node that has room for the whole guest."
            " On a host with one node they always are."
        ),
        choices=_NUMA,
        default=flavors.DEFAULT_POLICY.numa.value,
        example="required",
        since="0.1.0",
    ),
    ExtraSpec(
        key="locality",
        meaning=(
            "Required locality of the devices of one server. A host without"
            " such devices is refused. It has no effect on a server with one"
            " device. Devices of one card satisfy every value but"
            " ``different_card``."
        ),
        choices=_LOCALITY,
        default=flavors.DEFAULT_POLICY.locality.value,
        example="nvlink",
        since="0.1.0",
    ),
    ExtraSpec(
        key="packing",
        meaning=(
            "Which of a host's devices is used where several are equally"
            " suitable. Only ``exclusive`` refuses hosts."
        ),
        choices=_PACKING,
        default=flavors.DEFAULT_POLICY.packing.value,
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
            "Whether the first vGPU shows the guest's firmware, before the"
            " guest loads a driver. ``on`` needs ``accelerator:display=on``;"
            " without it the spawn of the server fails."
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
        key=flavors.GUEST_TOPOLOGY,
        meaning=(
            "What the guest sees of the host's PCIe. The machine type must be"
            " ``q35``; a host that can't give it refuses the server."
        ),
        choices=_TOPOLOGY,
        default_in_words=(
            "``guest_topology`` in ``[nova_accel]`` of the host decides"
        ),
        example="pcie",
        since="1.0.0",
    ),
    ExtraSpec(
        key=flavors.MEMORY_NODES,
        meaning=(
            "Number of NUMA nodes that the guest gets for the memory of each"
            " whole GPU. The nodes are empty when the guest starts, and the"
            " driver in the guest adds the memory of the GPU to them: for"
            " GPUs whose memory is coherent with the CPU's, as those of"
            " NVIDIA Grace Hopper and Grace Blackwell, which need 8. It needs"
            " libvirt 11.8 and QEMU 9.0."
        ),
        form="([0-9]|1[0-5])",
        form_in_words=(f"a whole number from 0 to {flavors.MAX_MEMORY_NODES}"),
        default_in_words="none",
        example="8",
        since="0.1.0",
    ),
    ExtraSpec(
        key=flavors.PROFILES,
        meaning=(
            "vGPU types in order of preference: the server gets the first that"
            " fits anywhere. The request groups of the flavor are those of the"
            " first one, and each type replaces it in all of them. ``*-SIZE``"
            " is this size of all models. A server that moves keeps its type;"
            " a resize chooses anew."
        ),
        form=rf"{_MODEL}-{_SIZE}(,(\*|{_MODEL})-{_SIZE}){{0,15}}",
        form_in_words="up to 16 vGPU types, separated by commas",
        default_in_words="the type of the groups only",
        example="H100-80C,A100D-80C,*-80C",
        since="1.0.0",
    ),
    ExtraSpec(
        key=flavors.BITSTREAM,
        meaning=(
            "Id of the Glance image with the bitstream to load into the FPGA"
            " regions of the server. With the suffix of a request group it"
            " is for that group; without one it is for every group of FPGA"
            " that has no bitstream of its own and requires no function."
        ),
        # Glance writes ids in lower case and accepts both.
        form=(
            "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}"
            "-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        ),
        form_in_words="the id of an image, a UUID with its hyphens",
        default_in_words="the regions keep their function",
        has_suffix=True,
        example="6f4d2a52-8a4e-4f0c-9d53-b3c4e5a1f001",
        since="0.1.0",
    ),
)
