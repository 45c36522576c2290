# SPDX-License-Identifier: Apache-2.0
"""libvirt of newer releases of Debian defines the guests that we build.

Its QEMU driver is embedded in virsh, in a root directory of the release. No
guest is started: the kernel is that of this computer.
"""

import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from nova_accel import model
from nova_accel.catalog import features
from nova_accel.doctor import checked_host
from nova_accel.host import host_paths
from nova_accel.host.sysfs import host_reader
from nova_accel.model import flavors
from tests.functional.contrib.packages import package_root
from tests.functional.guests import test_xml_libvirt
from tests.functional.guests.test_xml_libvirt import VNC
from tests.unit.virt_hooks.guest.test_hostdev import (
    CARD,
    FIRMWARE,
    MDEV,
    PLAIN,
    SECOND,
    TYPED,
    VF,
    WHOLE,
)
from virt_hooks.guest import connection, guest_pci, hostdev, hypervisor

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

# It remains between calls, with what libvirt wrote about QEMU.
_PLACE = "/mnt/embedded"
_VIRSH = ("virsh", "-q", "-c", f"qemu:///embed?root={_PLACE}")
_GPU = dataclasses.replace(WHOLE, handle="0000:66:00.0")
_NODES = flavors.Options(memory_nodes=2)


class Release:
    """libvirt and QEMU of a release."""

    def __init__(self, root: package_root.PackageRoot) -> None:
        self._root = root
        root.run("mkdir", _PLACE)
        text = self._run("version")
        libvirt, qemu = (
            tuple(map(int, version.split(".")))
            for version in re.findall(
                r"^(?:Using library: libvirt|Running hypervisor: QEMU) (\S+)$",
                text,
                re.MULTILINE,
            )
        )
        self.host = hypervisor.Hypervisor(
            libvirt=libvirt, qemu=qemu, has_iommufd=True
        )

    def _run(self, *command: str) -> str:
        return self._root.run(*_VIRSH, *command)

    @property
    def cache(self) -> pathlib.Path:
        """Return the directory of QEMU's capabilities that libvirt wrote."""
        return self._root.files / "embedded/cache/qemu/capabilities"

    def define(self, text: str) -> str:
        """Define a guest with validation; return libvirt's XML of it."""
        (self._root.files / "guest.xml").write_text(text)
        return self._run(
            "define --validate /mnt/guest.xml; dumpxml guest; undefine guest"
        )

    def read_capabilities(self) -> str:
        """Return the capabilities of domains of its default machine."""
        return self._run("domcapabilities")


@pytest.fixture(scope="module", params=["trixie", "sid"])
def release(request: pytest.FixtureRequest) -> Iterator[Release]:
    with package_root.PackageRoot(request.param) as root:
        root.run(
            *("apt-get", "install", "libvirt-daemon-driver-qemu"),
            *("libvirt-clients", "qemu-system-x86"),
        )
        yield Release(root)


def releases(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "release", names, indirect=True, scope="module"
    )


def build_guest(
    host: hypervisor.Hypervisor,
    *claims: model.Claim,
    options: flavors.Options = PLAIN,
    cells: int = 0,
) -> str:
    """Return a q35 guest with the devices of claims, and NUMA nodes."""
    bare = test_xml_libvirt.domain("q35", VNC)
    added = hostdev.plan_elements(
        claims, guest_pci.parse_guest(bare), options, host
    )
    text = test_xml_libvirt.domain("q35", VNC, *added)
    if not cells:
        return text
    memory = '<cell id="0" cpus="0" memory="1048576"/>'
    empty = "".join(
        f'<cell id="{number}" memory="0"/>' for number in range(1, cells)
    )
    numa = f"<cpu><numa>{memory}{empty}</numa></cpu><devices>"
    return text.replace("<devices>", numa)


def list_hostdevs(text: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text[text.index("<domain") :])
    return root.findall("./devices/hostdev")


@pytest.mark.parametrize(
    ("claims", "options"),
    [
        ((MDEV, SECOND, WHOLE), FIRMWARE),
        ((TYPED,), FIRMWARE),
        ((TYPED, VF), flavors.Options(has_display=False, has_rom=True)),
        ((CARD, VF, MDEV), flavors.Options(has_rom=False)),
    ],
)
def test_guests_are_defined(
    release: Release,
    claims: tuple[model.Claim, ...],
    options: flavors.Options,
) -> None:
    text = build_guest(release.host, *claims, options=options)
    defined = release.define(text)
    use = connection.parse_hostdevs(defined[defined.index("<domain") :])
    handles = {h for claim in claims for h in (claim.handle, *claim.members)}
    assert use.mdevs | use.functions == handles
    # libvirt adds the default of some attributes
    for written, stored in zip(
        list_hostdevs(text), list_hostdevs(defined), strict=True
    ):
        assert dict(written.attrib).items() <= dict(stored.attrib).items()


@releases("sid")
def test_functions_by_iommufd_are_defined(release: Release) -> None:
    host = dataclasses.replace(release.host, uses_iommufd=True)
    defined = release.define(build_guest(host, CARD, TYPED, MDEV))
    drivers = [e.find("./driver") for e in list_hostdevs(defined)]
    assert [d is not None and d.get("iommufd") for d in drivers] == (
        ["yes"] * 5 + [False]
    )


@releases("sid")
def test_memory_nodes_are_defined(release: Release) -> None:
    text = build_guest(release.host, WHOLE, _GPU, options=_NODES, cells=5)
    nodes = [e.find("./acpi") for e in list_hostdevs(release.define(text))]
    assert [node.get("nodeset") for node in nodes if node is not None] == [
        "1-2",
        "3-4",
    ]


def test_libvirt_says_whether_a_host_has_iommufd(release: Release) -> None:
    """The kernel of this computer may have it; an older libvirt says no."""
    has_iommufd = hypervisor.parse_iommufd(release.read_capabilities())
    is_old = bool(release.host.explain_old("", features.IOMMUFD))
    assert has_iommufd is (os.path.exists("/dev/iommu") and not is_old)


@pytest.mark.parametrize(
    ("release", "flags"),
    [
        ("trixie", set()),
        ("sid", {f.flag for f in features.TABLE if f.flag}),
    ],
    indirect=["release"],
    scope="module",
)
def test_libvirt_lists_the_capabilities_of_features(
    release: Release, flags: set[str], tmp_path: pathlib.Path
) -> None:
    """QEMU of trixie has both objects, which its libvirt can't use."""
    release.read_capabilities()
    place = tmp_path / host_paths.QEMU_CAPABILITIES.lstrip("/")
    shutil.copytree(release.cache, place)
    host = checked_host.CheckedHost(host_reader.HostReader(tmp_path))
    assert host.qemu_flags == flags
    assert host.qemu == release.host.qemu


@releases("trixie")
def test_an_older_libvirt_does_not_know_the_features(release: Release) -> None:
    """The versions of the table are not lower than necessary."""
    newer = hypervisor.Hypervisor(
        libvirt=(99,), qemu=(99,), has_iommufd=True, uses_iommufd=True
    )
    for options in (PLAIN, _NODES):
        text = build_guest(newer, WHOLE, options=options, cells=3)
        with pytest.raises(AssertionError, match=r"iommufd|hostdev|schema"):
            release.define(text)
