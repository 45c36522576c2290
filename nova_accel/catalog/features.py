# SPDX-License-Identifier: Apache-2.0
"""Features, and the versions of kernel, QEMU, libvirt and Nova they need.

The only place of these versions: the checks of hosts, of guests and of live
migrations read them, and the support matrix of the manual is generated from
``TABLE``, which is ``data/features.json``.

A number is compared only where nothing shows the feature itself: distributions
add features to older versions. VFIO of the kernel is shown by its files
(``modules.read_vfio_version``) and by a loaded variant driver; QEMU's objects
that libvirt can use by libvirt's cache of capabilities (``Feature.flag``);
IOMMUFD also by libvirt's domain capabilities, which nova-compute asks for.
Nothing shows the rest, as libvirt 9.0, 11.3 and 12.8 were compared: what Nova
compares by number itself; the directory ``vfio-dev`` and the display of a VF
in libvirt; the migration of VFIO devices, which only QMP of QEMU shows (the
property ``enable-migration`` of ``vfio-pci``).
"""

import dataclasses
import enum
from collections.abc import Mapping

from nova_accel.catalog import loader
from nova_accel.model import json_codec

Version = tuple[int, ...]

LINUX, QEMU, LIBVIRT = "Linux", "QEMU", "libvirt"


class Trial(enum.Enum):
    """Manner in which a feature was tried."""

    REAL = "ran for real"
    HARNESS = "Nova's functional harness"
    TEXT = "XML only"
    NONE = "not tried"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Lowest version of a program that has a feature, with its source."""

    minimum: Version
    source: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature, and what it needs of a host.

    ``condition`` names the devices for which the feature is: ``card`` for
    any, or the name of a kernel driver. ``floors`` are by program; ``nova``
    is the first release of Nova. ``is_required`` is True if the devices
    can't be used without it. ``place`` is where it was tried. ``flag`` is the
    capability of QEMU that libvirt lists where both have the feature (libvirt,
    src/qemu/qemu_capabilities.c), empty without one.
    """

    name: str
    condition: str
    trial: Trial
    place: str
    floors: Mapping[str, Floor] = dataclasses.field(default_factory=dict)
    nova: int = 31
    is_required: bool = False
    flag: str = ""

    def minimum(self, program: str) -> Version:
        """Return the lowest version of a program, () for any."""
        floor = self.floors.get(program)
        return floor.minimum if floor else ()


def parse_number(number: int) -> Version:
    """Return a version from libvirt's encoding, () for an unknown one.

    8006000 is 8.6.0 (virGetVersion).
    """
    if number <= 0:
        return ()
    return (number // 1_000_000, number // 1000 % 1000, number % 1000)


def join(version: Version) -> str:
    """Return a version as text: ``8.6.0``."""
    return ".".join(map(str, version))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _FeaturesFile:
    """Content of the data file, in the order of the manual.

    The features of kernel drivers, which are live migrations, have the name
    of the driver as their key.
    """

    features: Mapping[str, Feature]


_FILE: _FeaturesFile = json_codec.decode(
    _FeaturesFile, json_codec.loads(loader.text("features.json"))
)
TABLE: tuple[Feature, ...] = tuple(_FILE.features.values())
#: Live migration, by the kernel driver that holds a device.
DRIVERS = {k: f for k, f in _FILE.features.items() if k == f.condition}
TYPED_VF = _FILE.features["TYPED_VF"]
DISPLAY = _FILE.features["DISPLAY"]
ADDRESS_SIZE = _FILE.features["ADDRESS_SIZE"]
MEMORY_NODES = _FILE.features["MEMORY_NODES"]
GUEST_TOPOLOGY = _FILE.features["GUEST_TOPOLOGY"]
IOMMUFD = _FILE.features["IOMMUFD"]
MDEV_MIGRATION = _FILE.features["MDEV_MIGRATION"]
TYPED_MIGRATION = _FILE.features["TYPED_MIGRATION"]
MDEV_TO_VF = _FILE.features["MDEV_TO_VF"]
