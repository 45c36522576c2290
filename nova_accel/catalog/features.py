# SPDX-License-Identifier: Apache-2.0
"""Features, and the versions of kernel, QEMU, libvirt and Nova they need.

The only place of these versions: the checks of hosts, of guests and of live
migrations read them, and the support matrix of the manual is generated from
``TABLE``.

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
    floors: dict[str, Floor]
    trial: Trial
    place: str
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


def _floor(minimum: Version, source: str) -> Floor:
    return Floor(minimum=minimum, source=source)


def _nova(minimum: Version, name: str) -> Floor:
    source = f"nova 34.0.0, nova/virt/libvirt/driver.py, {name}"
    return _floor(minimum, source)


def _kernel(minimum: Version, path: str) -> Floor:
    return _floor(minimum, f"Linux {join(minimum)}, {path}")


def _news(*minimum: int) -> Floor:
    return _floor(minimum, f"libvirt {join(minimum)}, NEWS.rst")


_DEBIAN_12 = "Debian 12: Linux 6.1, libvirt 9.0, QEMU 7.2"
_DEBIAN_13 = "Debian 13: Linux 6.12, libvirt 11.3, QEMU 10.0"
# Debian's kernels have no IOMMUFD (live-migration.rst).
_MIGRATED = (
    f"{_DEBIAN_13}, whose QEMU gets enable-migration=on and"
    " x-device-dirty-page-tracking=off"
)
_SID = "libvirt 12.8 and QEMU 11.1 of sid"
_NO_DRIVER = "libvirt is Nova's fake, and the driver emulated"
_NO_DEVICE = "no such device"
_VARIANT_FLOORS = {
    LIBVIRT: _nova((10, 0, 0), "MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION"),
    QEMU: _nova((8, 2, 2), "MIN_VFIO_PCI_VARIANT_QEMU_VERSION"),
}
_MDEV_FLOORS = {
    LIBVIRT: _nova((8, 6, 0), "MIN_MDEV_LIVEMIG_LIBVIRT_VERSION"),
    QEMU: _nova((8, 1, 0), "MIN_MDEV_LIVEMIG_QEMU_VERSION"),
}
# iommufd and acpi-generic-initiator.
_NEW_OBJECTS = _floor((9, 0, 0), "QEMU 9.0, qapi/qom.json")
# The interface by which QEMU moves the state of devices.
_MIGRATION_V2 = _kernel(
    (5, 18), "include/uapi/linux/vfio.h (VFIO_DEVICE_FEATURE_MIGRATION)"
)

NOVA = Feature(
    name="Nova 31 to 34",
    condition="card",
    floors={
        LIBVIRT: _nova((8, 0, 0), "MIN_LIBVIRT_VERSION"),
        QEMU: _nova((6, 2, 0), "MIN_QEMU_VERSION"),
    },
    is_required=True,
    trial=Trial.REAL,
    place=f"{_DEBIAN_12}; {_DEBIAN_13}",
)
TYPED_VF = Feature(
    name="typed VFs, which keep the driver of their vendor",
    condition="typed-vf",
    floors={
        LINUX: _kernel((6, 1), "drivers/vfio/vfio_main.c (class vfio-dev)"),
        LIBVIRT: _floor(
            (10, 0, 0), "libvirt 10.0.0, src/util/virpci.c (vfio-dev)"
        ),
    },
    is_required=True,
    trial=Trial.REAL,
    place=f"{_DEBIAN_13}, with an emulated driver",
)
DISPLAY = Feature(
    name="the console of a typed VF (display, ramfb)",
    condition="typed-vf",
    floors={LIBVIRT: _news(10, 3, 0)},
    trial=Trial.TEXT,
    place=f"Debian 13's libvirt 11.3; {_SID}",
)
ADDRESS_SIZE = Feature(
    name="the address size of guests (hw:maxphysaddr_mode)",
    condition="passthrough",
    floors={LIBVIRT: _nova((8, 7, 0), "MIN_LIBVIRT_MAXPHYSADDR")},
    trial=Trial.REAL,
    place=f"{_DEBIAN_12}; QEMU 10.0, with emulated devices",
)
VARIANT_DRIVER = Feature(
    name="VFIO variant drivers, bound by libvirt",
    condition="variant-driver",
    floors={LIBVIRT: _VARIANT_FLOORS[LIBVIRT]},
    trial=Trial.NONE,
    place=_NO_DEVICE,
)
MEMORY_NODES = Feature(
    name="NUMA nodes for the memory of a GPU (accelerator:memory_nodes)",
    condition="coherent-gpu",
    is_required=True,
    floors={
        LIBVIRT: _news(11, 8, 0),
        QEMU: _NEW_OBJECTS,
    },
    flag="acpi-generic-initiator",
    trial=Trial.TEXT,
    place=_SID,
)
GUEST_TOPOLOGY = Feature(
    name="PCIe topology of the host in guests (accelerator:guest_topology)",
    condition="passthrough",
    floors={
        LIBVIRT: _floor((9, 0, 0), "the oldest libvirt that was tried"),
        QEMU: _floor((7, 2, 0), "the oldest QEMU that was tried"),
    },
    trial=Trial.REAL,
    place=f"{_DEBIAN_12}; QEMU 10.0, with emulated devices",
)
IOMMUFD = Feature(
    name="PCI functions by IOMMUFD (use_iommufd)",
    condition="passthrough",
    floors={
        LINUX: _kernel((6, 6), "drivers/vfio/Kconfig (VFIO_DEVICE_CDEV)"),
        LIBVIRT: _news(12, 1, 0),
        QEMU: _NEW_OBJECTS,
    },
    flag="iommufd",
    trial=Trial.TEXT,
    place=_SID,
)
# It needs IOMMUFD, whose floors are not repeated in the checks of hosts.
ENCRYPTED = Feature(
    name="PCI functions in guests with SEV-SNP or TDX, by IOMMUFD",
    condition="passthrough",
    floors={},
    trial=Trial.TEXT,
    place=f"{_SID}, in guests without encryption",
    nova=34,
)
MDEV_MIGRATION = Feature(
    name="live migration of mdevs",
    condition="mdev",
    floors=_MDEV_FLOORS | {LINUX: _MIGRATION_V2},
    trial=Trial.REAL,
    place=f"{_MIGRATED}, with the kernel's sample mtty",
)
TYPED_MIGRATION = Feature(
    name="live migration of typed VFs",
    condition="typed-vf",
    floors=_VARIANT_FLOORS | {LINUX: _MIGRATION_V2},
    trial=Trial.REAL,
    place=f"{_MIGRATED}, with an emulated driver",
)
MDEV_TO_VF = Feature(
    name="live migration from an mdev to a typed VF",
    condition="typed-vf",
    floors=_VARIANT_FLOORS | {LINUX: _MIGRATION_V2, LIBVIRT: _news(11, 0, 0)},
    trial=Trial.HARNESS,
    place=_NO_DRIVER,
)


def _driver(name: str, kernel: Version, is_mdev: bool = False) -> Feature:
    """Return the live migration of the devices of a kernel driver."""
    path = "samples/vfio-mdev/mtty.c" if is_mdev else "drivers/vfio/pci"
    floors = _MDEV_FLOORS if is_mdev else _VARIANT_FLOORS
    return Feature(
        name=f"live migration with {name}",
        condition=name,
        floors=floors | {LINUX: _kernel(kernel, path)},
        trial=Trial.REAL if is_mdev else Trial.NONE,
        place=_MIGRATED if is_mdev else _NO_DEVICE,
    )


#: Live migration, by the kernel driver that holds a device.
DRIVERS = {
    name: _driver(name, kernel)
    for name, kernel in (
        ("hisi_acc_vfio_pci", (5, 18)),
        ("mlx5_vfio_pci", (5, 18)),
        ("pds_vfio_pci", (6, 6)),
        ("qat_vfio_pci", (6, 10)),
        ("virtio_vfio_pci", (6, 13)),
        ("xe_vfio_pci", (6, 19)),
    )
} | {"mtty": _driver("mtty", (6, 7), is_mdev=True)}

#: In the order of the manual.
TABLE: tuple[Feature, ...] = (
    NOVA,
    TYPED_VF,
    DISPLAY,
    ADDRESS_SIZE,
    VARIANT_DRIVER,
    MEMORY_NODES,
    GUEST_TOPOLOGY,
    IOMMUFD,
    ENCRYPTED,
    MDEV_MIGRATION,
    TYPED_MIGRATION,
    MDEV_TO_VF,
    *DRIVERS.values(),
)
