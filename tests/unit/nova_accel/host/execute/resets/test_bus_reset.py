# SPDX-License-Identifier: Apache-2.0
"""A bus is reset by VFIO, or through its bridge without VFIO's container."""

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import bus_reset, privileged

pytestmark = pytest.mark.usefixtures("own_rights")
GPU, SOUND, OTHER = "0000:71:00.0", "0000:71:00.1", "0000:71:01.0"
PORT = "0000:70:01.0"


class Vfio:
    """VFIO's ioctls, as drivers/vfio/ answers them.

    Python's ioctl(2) is replaced: the nodes are plain files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.error = 0
        self.reset: list[str] = []
        self.containers: dict[str, str] = {}
        self.is_attached = False
        self.devices: dict[int, str] = {}

    def ioctl(
        self, descriptor: int, request: int, argument: object, _: bool = True
    ) -> int:
        node = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        data = bytes(argument) if isinstance(argument, bytearray) else b""
        match request:
            case bus_reset.SET_CONTAINER:
                (container,) = struct.unpack("=i", data)
                path = os.readlink(f"/proc/self/fd/{container}")
                self.containers[node] = os.path.basename(path)
            case bus_reset.SET_IOMMU:
                assert (node, argument) == ("vfio", 3)
                assert {*self.containers.values()} == {"vfio"}
                self.is_attached = True
            case bus_reset.GET_DEVICE_FD:
                return self._open_device(node, data)
            case bus_reset.HOT_RESET:
                self._hot_reset(self.devices[descriptor], data)
            case _:
                raise OSError(errno.ENOTTY, "no such call")
        return 0

    def _open_device(self, group: str, data: bytes) -> int:
        function = data.rstrip(b"\0").decode()
        assert data.endswith(b"\0") and self.is_attached
        link = self._root / f"sys/bus/pci/devices/{function}/iommu_group"
        assert os.path.basename(os.readlink(link)) == group
        device = os.open(os.devnull, os.O_RDWR)
        self.devices[device] = function
        return device

    def _hot_reset(self, function: str, data: bytes) -> None:
        size, flags, count = struct.unpack_from("=III", data)
        groups = struct.unpack_from(f"={count}i", data, 12)
        assert (size, flags) == (len(data), 0)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        names = {
            os.path.basename(os.readlink(f"/proc/self/fd/{group}"))
            for group in groups
        }
        assert names == self.containers.keys()
        self.reset.append(function)


def build(root: Path, groups: Sequence[int] = (40, 40)) -> Path:
    """Return the bridge of a GPU and its audio function on VFIO."""
    bridge = root / f"sys/devices/pci0000:70/{PORT}"
    driver = root / "sys/bus/pci/drivers/vfio-pci"
    driver.mkdir(parents=True)
    nodes = root / "dev/vfio"
    nodes.mkdir(parents=True)
    functions = root / "sys/bus/pci/devices"
    functions.mkdir()
    for name, group in zip((GPU, SOUND), groups, strict=True):
        place = bridge / name
        place.mkdir(parents=True)
        (place / "driver").symlink_to(driver)
        (place / "iommu_group").symlink_to(f"/groups/{group}")
        (functions / name).symlink_to(place)
        (nodes / str(group)).touch()
    (functions / PORT).symlink_to(bridge)
    return bridge


@pytest.fixture
def vfio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vfio:
    kernel = Vfio(tmp_path)
    monkeypatch.setattr(fcntl, "ioctl", kernel.ioctl)
    return kernel


def reset(root: Path, *functions: str) -> int:
    return privileged.reset_together(str(root), [*functions])


def open_files() -> set[str]:
    return {*os.listdir("/proc/self/fd")}


@pytest.mark.parametrize("groups", [(40, 40), (40, 41)])
def test_vfio_resets_the_bus_of_all_groups(
    tmp_path: Path, vfio: Vfio, groups: tuple[int, int]
) -> None:
    bridge = build(tmp_path, groups)
    (bridge / "reset_subordinate").touch()
    (tmp_path / "dev/vfio/vfio").touch()
    before = open_files()
    assert reset(tmp_path, GPU, SOUND) == 0
    assert vfio.reset == [GPU]
    assert vfio.containers.keys() == {str(group) for group in groups}
    # The bridge is not written as well, and nothing stays open.
    assert (bridge / "reset_subordinate").read_text() == ""
    assert open_files() == before


@pytest.mark.parametrize("name", ["EINVAL", "EPERM", "EBUSY"])
def test_a_refusal_of_vfio_is_not_circumvented(
    tmp_path: Path, vfio: Vfio, name: str
) -> None:
    bridge = build(tmp_path)
    (bridge / "reset_subordinate").touch()
    (tmp_path / "dev/vfio/vfio").touch()
    vfio.error = getattr(errno, name)
    assert reset(tmp_path, GPU, SOUND) == vfio.error
    assert (bridge / "reset_subordinate").read_text() == ""


def test_without_a_container_the_bridge_resets_its_bus(
    tmp_path: Path, vfio: Vfio
) -> None:
    bridge = build(tmp_path)
    assert reset(tmp_path, GPU, SOUND) == errno.ENOENT
    (bridge / "reset_subordinate").touch()
    assert reset(tmp_path, GPU, SOUND) == 0
    assert (bridge / "reset_subordinate").read_text() == "1"
    assert vfio.reset == []


def test_a_node_that_is_not_vfios_has_no_container(tmp_path: Path) -> None:
    bridge = build(tmp_path)
    (tmp_path / "dev/vfio/vfio").touch()
    assert reset(tmp_path, GPU, SOUND) == errno.ENOTTY
    (bridge / "reset_subordinate").touch()
    assert reset(tmp_path, GPU, SOUND) == 0


@pytest.mark.parametrize("driver", ["snd_hda_intel", "pci-stub", ""])
def test_a_function_that_vfio_lacks_is_not_reset(
    tmp_path: Path, vfio: Vfio, driver: str
) -> None:
    bridge = build(tmp_path)
    (tmp_path / "dev/vfio/vfio").touch()
    (bridge / "reset_subordinate").touch()
    (bridge / SOUND / "driver").unlink()
    if driver:
        (bridge / SOUND / "driver").symlink_to(f"/drivers/{driver}")
    assert reset(tmp_path, GPU, SOUND) == errno.EINVAL
    assert vfio.reset == []
    assert (bridge / "reset_subordinate").read_text() == ""


@pytest.mark.parametrize("functions", [(GPU,), (GPU, SOUND)])
def test_a_bus_with_other_functions_is_not_reset(
    tmp_path: Path, vfio: Vfio, functions: tuple[str, ...]
) -> None:
    bridge = build(tmp_path)
    (bridge / "reset_subordinate").touch()
    if SOUND in functions:
        (tmp_path / "sys/bus/pci/devices" / OTHER).mkdir()
    assert reset(tmp_path, *functions) == errno.EINVAL
    assert vfio.reset == []
    assert (bridge / "reset_subordinate").read_text() == ""


def test_a_group_that_cant_be_opened_is_an_error(tmp_path: Path) -> None:
    bridge = build(tmp_path)
    (bridge / "reset_subordinate").touch()
    (tmp_path / "dev/vfio/40").unlink()
    assert reset(tmp_path, GPU, SOUND) == errno.ENOENT
    # A link in the place of the node is not followed.
    (tmp_path / "dev/vfio/40").symlink_to(tmp_path / "dev/vfio/vfio")
    assert reset(tmp_path, GPU, SOUND) == errno.ELOOP
    assert (bridge / "reset_subordinate").read_text() == ""


@pytest.mark.parametrize(
    "functions",
    [
        [],
        ["0000:71:00.0", "0000:72:00.0"],
        ["0000:71:00.0", "0000:71:00.0"],
        ["../0000:71:00.0"],
        [7],
        "0000:71:00.0",
        None,
    ],
)
def test_malformed_functions_are_refused(
    tmp_path: Path, functions: list[str]
) -> None:
    with pytest.raises(errors.MalformedError):
        privileged.reset_together(str(tmp_path), functions)
