# SPDX-License-Identifier: Apache-2.0
"""vgpuConfig.xml of the host driver is a source of vGPU types."""

import pathlib
import shutil

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.discovery import capture, scan
from nova_accel.discovery.capture import list_records
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import fs, host_reader
from tests.hosts import build, look, vgpu_config

FULL = "0000:3d:00.0"
T4 = "0000:3b:00.0"
BIG = "NVIDIA L40S-24Q"


def lone(root: pathlib.Path, *listed: tuple[int, str]) -> pathlib.Path:
    """Make a host whose only card is an L40S with one vGPU, 1155."""
    description = build.load("l40s-vendor-vfio")
    (card,) = (f for f in description["functions"] if f["address"] == FULL)
    card["vfs"]["vgpus"]["creatable"] = listed
    return build.build({"functions": [card]}, root)


def write(root: pathlib.Path, text: str | bytes) -> pathlib.Path:
    place = pathlib.Path(f"{root}{fs.VGPU_CONFIG}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def list_profiles(state: model.HostState) -> list[str]:
    return [p.profile for p in look.device(state, FULL).partitions]


def list_reasons(state: model.HostState) -> list[str]:
    return [p.reason for p in state.problems if p.where == fs.VGPU_CONFIG]


# -- typed VFs --------------------------------------------------------------


def test_the_table_names_unlisted_types(tmp_path: pathlib.Path) -> None:
    root = lone(tmp_path)
    assert list_profiles(look.read(root)) == ["type-1155"]
    assert look.device(look.read(root), FULL).partitions[0].is_nameless
    write(root, vgpu_config.text({"1155": BIG}))
    state = look.read(root)
    (partition,) = look.device(state, FULL).partitions
    assert (partition.profile, partition.is_nameless) == ("L40S-24Q", False)
    assert list_reasons(state) == []
    assert look.device(state, FULL).profile("type-1155") is None
    card = look.device(state, FULL)
    assert look.profile(card, "L40S-24Q").handles["0000:3d:00.4"] == "1155"


def nvml(
    address: str, name: str, type_id: str, megabytes: int, limit: int
) -> nvml_gpus.NvmlGpu:
    """Return a GPU with one vGPU type, as NVML describes it."""
    kind = nvml_gpus.NvmlVgpuType(
        name=name,
        type_id=type_id,
        framebuffer_mb=megabytes,
        max_instances=limit,
    )
    return nvml_gpus.NvmlGpu(address=address, types=(kind,))


def test_the_table_has_sizes_and_limits_of_new_types(
    tmp_path: pathlib.Path,
) -> None:
    """Neither the catalog nor the name has them."""
    root = lone(tmp_path, (2000, "NVIDIA L40S-Tiny"))
    write(
        root,
        vgpu_config.text(
            {"1155": BIG, "2000": "NVIDIA L40S-Tiny"},
            {"2000": 24576},
            [("26b9", "0", {"2000": 2})],
        ),
    )
    profile = look.profile(look.device(look.read(root), FULL), "L40S-Tiny")
    assert (profile.size, profile.limit) == (24576, 2)
    assert profile.charges["CUSTOM_GPU_MEMORY_MB"] == 24576
    # Values of NVML precede those of the table.
    gpu = nvml(FULL, "NVIDIA L40S-Tiny", "2000", 8192, 6)
    state = look.read(root, gpus=[gpu])
    profile = look.profile(look.device(state, FULL), "L40S-Tiny")
    assert (profile.size, profile.limit) == (8192, 6)


@pytest.mark.parametrize("source", ["list", "NVML"])
def test_the_table_of_another_release_is_ignored(
    tmp_path: pathlib.Path, source: str
) -> None:
    listed = ((1147, "NVIDIA L40S-1Q"),) if source == "list" else ()
    root = lone(tmp_path, *listed)
    gpu = nvml(FULL, "NVIDIA L40S-1Q", "1147", 1024, 32)
    write(root, vgpu_config.text({"1155": BIG, "1147": "NVIDIA L40S-2Q"}))
    state = look.read(root, gpus=[gpu] if source == "NVML" else [])
    assert list_profiles(state) == ["type-1155"]
    (reason,) = list_reasons(state)
    assert "'L40S-2Q'" in reason
    assert "another release" in reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<vgpuconfig>", "XML"),
        (b"\xff\xfe", "EILSEQ"),
        (b" " * (4 * 1024 * 1024 + 1), "EFBIG"),
        (b'<!DOCTYPE v [<!ENTITY a "b">]><v/>', "entities"),
    ],
)
def test_a_damaged_table_is_one_problem_and_changes_nothing(
    tmp_path: pathlib.Path, content: bytes, reason: str
) -> None:
    root = lone(tmp_path)
    before = look.read(root)
    write(root, content)
    state = look.read(root)
    assert state.devices == before.devices
    (message,) = list_reasons(state)
    assert reason in message


def test_a_large_table_is_read(tmp_path: pathlib.Path) -> None:
    """It has 700 kB in release 535, far above the limit of attributes."""
    root = lone(tmp_path)
    text = vgpu_config.text({"1155": BIG})
    write(root, text + " " * (2 * 1024 * 1024))
    assert list_profiles(look.read(root)) == ["L40S-24Q"]


def test_a_changed_table_is_read_again(tmp_path: pathlib.Path) -> None:
    root = lone(tmp_path)
    place = write(root, vgpu_config.text({"1155": BIG}))
    assert list_profiles(look.read(root)) == ["L40S-24Q"]
    write(root, vgpu_config.text({"1155": "NVIDIA L40S-24A"}))
    assert list_profiles(look.read(root)) == ["L40S-24A"]
    place.unlink()
    # Without the release of the module nothing is cached.
    assert list_profiles(look.read(root)) == ["type-1155"]


def test_names_are_cached_for_the_release(
    tmp_path: pathlib.Path,
) -> None:
    root = lone(tmp_path)
    version = root / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("570.1\n")
    place = write(root, vgpu_config.text({"1155": BIG}))
    assert list_profiles(look.read(root)) == ["L40S-24Q"]
    place.unlink()
    assert list_profiles(look.read(root)) == ["L40S-24Q"]
    version.write_text("580.2\n")
    assert list_profiles(look.read(root)) == ["type-1155"]


# -- mediated devices -------------------------------------------------------


def test_the_table_names_mdev_types_without_a_name_file(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    parents = root / "sys/class/mdev_bus"
    name_file = parents / T4 / "mdev_supported_types/nvidia-232/name"
    name_file.unlink()
    # Numbers are the release's: the host's other T4 names it, too.
    assert look.device(look.read(root), T4).profile("T4-4Q")
    for other in parents.glob("*/mdev_supported_types/nvidia-232/name"):
        other.unlink()
    state = look.read(root)
    assert look.device(state, T4).profile("T4-4Q") is None
    write(root, vgpu_config.text({"232": "GRID T4-4Q"}))
    state = look.read(root)
    profile = look.profile(look.device(state, T4), "T4-4Q")
    assert profile.handles == {T4: "nvidia-232"}
    assert not look.reasons(state, f"{T4} nvidia-232")
    # NVML belongs to the loaded driver and precedes the table.
    gpu = nvml(T4, "GRID T4-4C", "232", 4096, 4)
    state = look.read(root, gpus=[gpu])
    assert look.device(state, T4).profile("T4-4Q") is None
    assert look.profile(look.device(state, T4), "T4-4C").available
    assert "another release" in list_reasons(state)[0]


def test_a_name_file_precedes_the_table(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("t4-mdev", tmp_path)
    before = look.read(root)
    write(root, vgpu_config.text({"232": "GRID T4-16Q", "9": BIG}))
    state = look.read(root)
    assert state.devices == before.devices
    assert "calls type 232 'T4-16Q'" in list_reasons(state)[0]


# -- where it is read -------------------------------------------------------


def test_the_table_is_captured_and_replayed(tmp_path: pathlib.Path) -> None:
    root = lone(tmp_path / "host")
    write(root, vgpu_config.text({"1155": BIG}))
    host = host_reader.HostReader(root)
    first = scan.read(host, look.DRIVERS, policy.DeviceRules())
    path = str(tmp_path / "host.tar.gz")
    capture.save(host, path, {"format": capture.FORMAT})
    again = host_reader.HostReader(source=capture.load(path)[0])
    assert scan.read(again, look.DRIVERS, policy.DeviceRules()) == first
    assert list_profiles(first) == ["L40S-24Q"]
    shutil.unpack_archive(path, tmp_path / "plain")
    assert look.read(tmp_path / "plain") == first


def test_an_unreadable_table_is_replayed(tmp_path: pathlib.Path) -> None:
    root = lone(tmp_path / "host")
    write(root, b"\xff\xfe")
    host = host_reader.HostReader(root)
    first = scan.read(host, look.DRIVERS, policy.DeviceRules())
    path = str(tmp_path / "host.tar.gz")
    capture.save(host, path, {"format": capture.FORMAT})
    again = host_reader.HostReader(source=capture.load(path)[0])
    loaded = scan.read(again, look.DRIVERS, policy.DeviceRules())
    assert list_reasons(loaded) == list_reasons(first)
    assert len(list_reasons(first)) == 1


def test_the_table_is_not_read_without_nvidia_cards(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("intel-vf", tmp_path)
    write(root, "damaged")
    host = host_reader.HostReader(root)
    scan.read(host, look.DRIVERS, policy.DeviceRules())
    assert fs.VGPU_CONFIG not in list_records(host.files)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/share/nvidia/vgpu/vgpuConfig.xml.bak",
        "/usr/share/nvidia/vgpu/../../../../etc/shadow",
        "/usr/share/passwd",
        "/passwd",
    ],
)
def test_other_files_beside_the_table_are_not_read(
    tmp_path: pathlib.Path, path: str
) -> None:
    root = lone(tmp_path)
    write(root, "x")
    place = pathlib.Path(f"{root}{path}")
    place.parent.resolve().mkdir(parents=True, exist_ok=True)
    (place.parent.resolve() / place.name).write_text("secret")
    files = fs.Files(fs.DiskSource(root))
    with pytest.raises(errors.UnreadableError, match="ENOENT"):
        files.text(path)
    with pytest.raises(errors.UnreadableError, match="ENOENT"):
        files.names("/usr/share/nvidia/vgpu")
    assert files.text(fs.VGPU_CONFIG) == "x"


def test_a_symlink_instead_of_the_table_is_not_followed(
    tmp_path: pathlib.Path,
) -> None:
    root = lone(tmp_path)
    place = write(root, "")
    place.unlink()
    (place.parent / "secret").write_text("secret")
    for target in ("secret", "/etc/passwd", "../" * 30 + "etc/passwd"):
        place.symlink_to(target)
        with pytest.raises(errors.UnreadableError, match="ENOENT"):
            fs.Files(fs.DiskSource(root)).text(fs.VGPU_CONFIG)
        place.unlink()
