# SPDX-License-Identifier: Apache-2.0
"""The host reader reads each file once and reports read errors."""

import errno
import pathlib

import pytest

from nova_accel import errors
from nova_accel.discovery.capture import (
    Record,
    RecordedDirectory,
    RecordedFiles,
    list_records,
)
from nova_accel.host.sysfs import fs, host_reader
from tests.hosts import build, look
from tests.support import examples

T4 = "0000:3b:00.0"
TYPES = f"/sys/class/mdev_bus/{T4}/mdev_supported_types"


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return look.make("t4-mdev", tmp_path)


def break_path(root: pathlib.Path, path: str, fault: str) -> None:
    build.break_path(
        root, path, {"fault": fault} if fault in build.FAULTS else fault
    )


class Counting:
    """A source that records each request."""

    def __init__(self, root: pathlib.Path) -> None:
        self._disk = fs.DiskSource(root)
        self.requests: list[tuple[str, str]] = []

    def link(self, path: str) -> str | None:
        self.requests.append(("link", path))
        return self._disk.link(path)

    def content(self, path: str) -> bytes:
        self.requests.append(("content", path))
        return self._disk.content(path)

    def names(self, path: str) -> list[str]:
        self.requests.append(("names", path))
        return self._disk.names(path)

    def mode(self, path: str) -> int:
        self.requests.append(("mode", path))
        return self._disk.mode(path)


def test_a_function_has_the_values_of_the_kernel(
    tmp_path: pathlib.Path,
) -> None:
    host = host_reader.HostReader(look.make("a40-vf-mdev", tmp_path))
    card = host.function("0000:41:00.0")
    assert card is not None
    assert (card.vendor, card.product) == ("10de", "2235")
    assert card.class_code == 0x030200
    assert card.driver == "nvidia"
    assert card.numa_node == 1
    assert card.iommu_group == 2
    assert [str(a) for a in card.group_members] == ["0000:41:00.0"]
    assert (card.total_vfs, card.num_vfs) == (32, 16)
    assert str(card.virtual_functions[0]) == "0000:41:00.4"
    assert str(card.virtual_functions[15]) == "0000:41:02.3"
    child = host.function("0000:41:02.3")
    assert child is not None
    assert child.physfn == card.address
    assert child.driver == "vfio-pci"
    assert host.problems() == ()
    assert host.function("0000:ff:00.0") is None


def test_functions_are_in_the_order_of_their_addresses(
    tmp_path: pathlib.Path,
) -> None:
    host = host_reader.HostReader(look.make("passthrough", tmp_path))
    addresses = [f.address for f in host.functions()]
    assert addresses == sorted(addresses)
    assert str(addresses[-1]) == "10000:01:00.0"


def test_a_parent_without_a_bus_has_no_function(
    tmp_path: pathlib.Path,
) -> None:
    host = host_reader.HostReader(look.make("mtty", tmp_path))
    (parent,) = host.mdev_parents()
    assert (parent.name, parent.function) == ("mtty", None)
    assert [(t.type_id, t.label, t.available) for t in parent.types] == [
        ("mtty-1", "Single port serial", 22),
        ("mtty-2", "Dual port serial", 11),
    ]
    (mdev,) = host.mdevs()
    assert (mdev.parent, mdev.type_id) == ("mtty", "mtty-2")


def test_without_the_mdev_class_there_are_no_parents(
    tmp_path: pathlib.Path,
) -> None:
    host = host_reader.HostReader(look.make("nothing", tmp_path))
    assert host.mdev_parents() == ()
    assert host.mdevs() == ()
    assert host.problems() == ()


def test_each_file_is_read_once_in_a_pass(root: pathlib.Path) -> None:
    source = Counting(root)
    host = host_reader.HostReader(source=source)
    for _ in range(2):
        host.functions()
        host.mdev_parents()
        host.mdevs()
        host.attribute(T4, "vendor")
    assert (
        "content",
        f"/sys/devices/pci0000:3b/{T4}/vendor",
    ) in source.requests
    assert len(source.requests) == len(set(source.requests))


def test_a_new_reader_reads_changed_files(root: pathlib.Path) -> None:
    before = host_reader.HostReader(root)
    assert before.attribute(T4, "numa_node") == "0"
    break_path(root, f"bus/pci/devices/{T4}/numa_node", "1\n")
    assert before.attribute(T4, "numa_node") == "0"
    assert host_reader.HostReader(root).attribute(T4, "numa_node") == "1"


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        ("EIO", errno.EIO),
        ("ENXIO", errno.ENXIO),
        ("EISDIR", errno.EISDIR),
        ("dangling", errno.ENOENT),
        ("missing", errno.ENOENT),
        ("circle", errno.ELOOP),
        ("pipe", errno.EINVAL),
        ("junk", errno.EILSEQ),
        ("huge", errno.EFBIG),
        ("escape", errno.ENOENT),
        ("climb", errno.ENOENT),
    ],
)
def test_an_attribute_fails_with_its_errno(
    root: pathlib.Path, fault: str, number: int
) -> None:
    break_path(root, f"bus/pci/devices/{T4}/revision", fault)
    host = host_reader.HostReader(root)
    for _ in range(2):
        with pytest.raises(errors.UnreadableError) as caught:
            host.attribute(T4, "revision")
        assert caught.value.number == number
        assert "revision" in caught.value.path


@pytest.mark.parametrize(
    "fault", ["EIO", "junk", "huge", "escape", "missing", "0x10d\n", "\n"]
)
@pytest.mark.parametrize("name", ["vendor", "device"])
def test_a_function_without_ids_is_unknown_and_affects_no_other(
    root: pathlib.Path, name: str, fault: str
) -> None:
    break_path(root, f"bus/pci/devices/{T4}/{name}", fault)
    host = host_reader.HostReader(root)
    assert host.function(T4) is None
    assert host.unknown() == {T4}
    assert len(host.functions()) == 3
    assert [p.where for p in host.problems()] == [T4]


def test_a_function_that_left_the_bus_is_unknown(root: pathlib.Path) -> None:
    break_path(root, f"bus/pci/devices/{T4}/vendor", "0xffff\n")
    host = host_reader.HostReader(root)
    assert host.function(T4) is None
    assert host.unknown() == {T4}
    assert "gone from the bus" in host.problems()[0].reason


@pytest.mark.parametrize("fault", ["EIO", "none\n", "-7\n", "junk"])
def test_an_unreadable_numa_node_is_a_problem_not_a_loss(
    root: pathlib.Path, fault: str
) -> None:
    break_path(root, f"bus/pci/devices/{T4}/numa_node", fault)
    host = host_reader.HostReader(root)
    card = host.function(T4)
    assert card is not None
    assert card.numa_node is None
    assert len(host.problems()) == 1


def test_an_unreadable_driver_counts_as_in_use(
    root: pathlib.Path,
) -> None:
    break_path(root, f"bus/pci/devices/{T4}/driver", "no link\n")
    break_path(root, f"bus/pci/devices/{T4}/boot_vga", "EIO")
    host = host_reader.HostReader(root)
    card = host.function(T4)
    assert card is not None
    assert card.driver == "unknown"
    assert card.boot_vga
    assert len(host.problems()) == 2


def test_incomplete_vfs_are_problems(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("a40-vf-mdev", tmp_path)
    devices = "bus/pci/devices"
    break_path(root, f"{devices}/0000:41:00.5/physfn", "missing")
    break_path(root, "devices/pci0000:41/0000:41:00.6", "missing")
    break_path(root, f"{devices}/0000:41:00.7", "missing")
    host = host_reader.HostReader(root)
    young = host.function("0000:41:00.5")
    assert young is not None
    assert str(young.physfn) == "0000:41:00.0"
    assert host.unknown() == {"0000:41:00.6"}
    assert host.function("0000:41:00.7") is None
    where = {p.where for p in host.problems()}
    assert where == {"0000:41:00.0", "0000:41:00.6"}


def test_a_type_that_vanishes_affects_no_other(
    root: pathlib.Path,
) -> None:
    place = root / f"sys/devices/pci0000:3b/{T4}/mdev_supported_types"

    class Vanishing(Counting):
        def content(self, path: str) -> bytes:
            if path.endswith("nvidia-230/description"):
                gone = place / "nvidia-230"
                for name in gone.iterdir():
                    name.rmdir() if name.is_dir() else name.unlink()
                gone.rmdir()
            return super().content(path)

    host = host_reader.HostReader(source=Vanishing(root))
    parent = host.mdev_parents()[0]
    assert "nvidia-230" not in {t.type_id for t in parent.types}
    assert len(parent.types) == 9
    (problem,) = host.problems()
    assert problem.where == f"{T4} nvidia-230"
    assert "vanished" in problem.reason


def test_a_parent_that_vanishes_is_unknown(root: pathlib.Path) -> None:
    break_path(root, f"class/mdev_bus/{T4}", "dangling")
    host = host_reader.HostReader(root)
    assert [p.name for p in host.mdev_parents()] == ["0000:af:00.0"]
    assert T4 in host.unknown()


@pytest.mark.parametrize("fault", ["EIO", "lots\n", "-1\n", "missing"])
def test_a_type_without_a_number_has_none(
    root: pathlib.Path, fault: str
) -> None:
    path = f"{TYPES}/nvidia-230/available_instances"
    break_path(root, path.removeprefix("/sys/"), fault)
    host = host_reader.HostReader(root)
    types = {t.type_id: t for t in host.mdev_parents()[0].types}
    assert types["nvidia-230"].available is None
    assert types["nvidia-231"].available == 8
    assert [p.where for p in host.problems()] == [f"{T4} nvidia-230"]


def test_an_mdev_without_a_type_is_listed(
    root: pathlib.Path,
) -> None:
    uuid = "0f0e6f0a-0000-4000-8000-000000000001"
    break_path(root, f"bus/mdev/devices/{uuid}/mdev_type", "missing")
    host = host_reader.HostReader(root)
    type_ids = {m.uuid: m.type_id for m in host.mdevs()}
    assert type_ids[uuid] == ""
    assert [p.where for p in host.problems()] == [uuid]


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (T4, "../../../../etc/passwd"),
        (T4, "/etc/passwd"),
        (T4, ".."),
        (T4, "nvidia/../vendor"),
        (T4, ""),
        ("../mdev", "vendor"),
    ],
)
def test_an_attribute_is_no_path(
    root: pathlib.Path, address: str, name: str
) -> None:
    with pytest.raises(errors.MalformedError):
        host_reader.HostReader(root).attribute(address, name)


@pytest.mark.parametrize(
    "target", ["/secret", "/etc/secret", "../" * 40 + "secret"]
)
def test_links_out_of_sysfs_are_not_followed(
    root: pathlib.Path, target: str
) -> None:
    (root / "secret").write_text("secret\n")
    (root / "etc").mkdir()
    (root / "etc/secret").write_text("secret\n")
    place = root / f"sys/devices/pci0000:3b/{T4}/revision"
    place.symlink_to(target)
    host = host_reader.HostReader(root)
    with pytest.raises(errors.UnreadableError) as caught:
        host.attribute(T4, "revision")
    assert caught.value.number == errno.ENOENT


def test_a_link_with_an_absolute_target_stays_below_the_root(
    root: pathlib.Path,
) -> None:
    place = root / f"sys/devices/pci0000:3b/{T4}/revision"
    place.symlink_to("/sys/chosen")
    (root / "sys/chosen").write_text("0xa1\n")
    assert host_reader.HostReader(root).attribute(T4, "revision") == "0xa1"


def test_an_unlistable_bus_is_an_error(
    root: pathlib.Path,
) -> None:
    break_path(root, "bus/pci/devices", "a file\n")
    with pytest.raises(errors.UnreadableError) as caught:
        host_reader.HostReader(root).functions()
    assert caught.value.number == errno.ENOTDIR


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_recorded_files_give_the_same_host(
    tmp_path: pathlib.Path, name: str
) -> None:
    first = host_reader.HostReader(look.make(name, tmp_path))
    again = host_reader.HostReader(source=RecordedFiles(_read_all(first)))
    _read_all(again)
    assert first.functions() == again.functions()
    assert first.mdev_parents() == again.mdev_parents()
    assert first.mdevs() == again.mdevs()
    assert first.problems() == again.problems()
    assert first.unknown() == again.unknown()


def _read_all(
    host: host_reader.HostReader,
) -> dict[str, Record]:
    host.functions(), host.mdev_parents(), host.mdevs()
    return dict(list_records(host.files))


def test_a_host_with_too_many_functions_is_refused() -> None:
    places = (
        f"{host_reader.FUNCTIONS}/{domain:04x}:{bus:02x}:{slot:02x}.0"
        for domain in range(9)
        for bus in range(256)
        for slot in range(32)
    )
    source = RecordedFiles({place: RecordedDirectory() for place in places})
    with pytest.raises(errors.UnreadableError, match="EOVERFLOW"):
        host_reader.HostReader(source=source).functions()
