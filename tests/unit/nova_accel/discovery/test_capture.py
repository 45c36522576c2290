# SPDX-License-Identifier: Apache-2.0
"""A captured host is described as the original one."""

import errno
import gzip
import io
import json
import pathlib
import shutil
import tarfile
import tempfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.cli import host_source
from nova_accel.config import policy
from nova_accel.discovery import capture, scan
from nova_accel.discovery.capture import list_records
from nova_accel.host import nvml_gpus
from nova_accel.host.sysfs import host_reader
from tests.hosts import look
from tests.support import examples

NO_RULES = policy.DeviceRules()
GOOD_META = json.dumps({"format": capture.FORMAT, "errors": {}})


def pack(root: pathlib.Path, path: pathlib.Path) -> None:
    host = host_reader.HostReader(root)
    scan.read(host, look.DRIVERS, NO_RULES)
    assert capture.save(host, str(path), capture.describe_host(str(root)))


def replay(path: pathlib.Path) -> host_reader.HostReader:
    return host_reader.HostReader(source=capture.load(str(path))[0])


@pytest.mark.parametrize("name", look.NAMES)
def test_an_archive_gives_the_same_devices_and_problems(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path / "host")
    pack(root, tmp_path / "host.tar.gz")
    again = scan.read(replay(tmp_path / "host.tar.gz"), look.DRIVERS, NO_RULES)
    assert again == look.read(root)


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_an_archive_of_an_archive_gives_the_same_devices(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path / "host")
    pack(root, tmp_path / "1.tar.gz")
    host = replay(tmp_path / "1.tar.gz")
    first = scan.read(host, look.DRIVERS, NO_RULES)
    capture.save(host, str(tmp_path / "2.tar.gz"), {"format": 1})
    again = replay(tmp_path / "2.tar.gz")
    assert scan.read(again, look.DRIVERS, NO_RULES) == first


@pytest.mark.parametrize(
    "name",
    examples.share(
        [n for n in look.NAMES if "broken" not in n and n != "mtty"]
    ),
)
def test_an_unpacked_archive_is_a_plain_tree(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path / "host")
    pack(root, tmp_path / "host.tar.gz")
    # As an operator does; Debian 12's Python has no extraction filters.
    shutil.unpack_archive(tmp_path / "host.tar.gz", tmp_path / "plain")
    assert look.read(tmp_path / "plain") == look.read(root)


GPUS = nvml_gpus.NvmlGpus(
    {
        "0000:3b:00.0": nvml_gpus.NvmlGpu(
            address="0000:3b:00.0",
            driver_version="570.133.10",
            is_mig=False,
            types=(
                nvml_gpus.NvmlVgpuType(
                    name="T4-4Q",
                    type_id="232",
                    framebuffer_mb=4096,
                    max_instances=4,
                ),
            ),
        )
    },
    (model.Problem(where="NVML GPU 1", reason="GPU is lost"),),
)


def test_data_of_nvml_are_replayed(tmp_path: pathlib.Path) -> None:
    host = host_reader.HostReader(look.make("t4-mdev", tmp_path), gpus=GPUS)
    first = scan.read(host, look.DRIVERS, NO_RULES)
    assert GPUS.problems[0] in first.problems
    path = str(tmp_path / "host.tar.gz")
    capture.save(host, path, {"format": capture.FORMAT})
    image, meta = capture.load(path)
    gpus = capture.load_gpus(path, meta)
    assert gpus == GPUS
    again = host_reader.HostReader(source=image, gpus=gpus)
    assert scan.read(again, look.DRIVERS, NO_RULES) == first
    opened, _ = host_source.open_host(path)
    assert opened.gpus == GPUS


def test_an_archive_without_nvml_has_no_gpus() -> None:
    gpus = capture.load_gpus("old.tar.gz", {"format": capture.FORMAT})
    assert gpus == {}
    assert gpus.problems == ()
    with pytest.raises(errors.ArchiveError, match="record of NVML"):
        capture.load_gpus("odd.tar.gz", {"nvml": {"gpus": [7]}})


def test_a_failed_read_is_replayed_with_its_errno(
    tmp_path: pathlib.Path,
) -> None:
    root = look.make("broken", tmp_path / "host")
    pack(root, tmp_path / "host.tar.gz")
    host = replay(tmp_path / "host.tar.gz")
    for address, name, number in [
        ("0000:12:00.0", "vendor", errno.EIO),
        ("0000:11:00.0", "subsystem_vendor", errno.EILSEQ),
        ("0000:14:00.0", "class", errno.ENXIO),
        ("0000:15:00.0", "boot_vga", errno.ELOOP),
    ]:
        with pytest.raises(errors.UnreadableError) as caught:
            host.attribute(address, name)
        assert caught.value.number == number


def test_only_what_discovery_reads_is_packed(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path / "host")
    card = root / "sys/bus/pci/devices/0000:3b:00.0"
    (card / "vpd").write_text("SERIAL-4711")
    (card / "serial").write_text("SERIAL-4711")
    (root / "etc").mkdir()
    (root / "etc/shadow").write_text("SERIAL-4711")
    (card / "subsystem_device").unlink()
    (card / "subsystem_device").symlink_to("/etc/shadow")
    (card / "serial_link").symlink_to("/etc/shadow")
    host = host_reader.HostReader(root)
    scan.read(host, look.DRIVERS, NO_RULES)
    # A link was followed to /etc, and no further.
    paths = {p for p in list_records(host.files) if not p.startswith("/sys")}
    assert paths <= {"/etc"}
    path = tmp_path / "host.tar.gz"
    capture.save(host, str(path), {"format": 1})
    with tarfile.open(path) as archive:
        for member in archive:
            allowed = member.name in ("meta.json", "etc")
            assert allowed or member.name.startswith("sys")
            if member.isreg():
                opened = archive.extractfile(member)
                assert opened is not None
                assert b"SERIAL" not in opened.read()


def test_metadata_names_the_host_of_the_capture(
    tmp_path: pathlib.Path,
) -> None:
    meta = capture.describe_host("/")
    assert meta["hostname"]
    assert meta["kernel"]
    assert meta["library"]
    assert str(meta["date"]).endswith("+00:00")
    # A tree below another root is not of this machine.
    assert capture.describe_host(str(tmp_path))["hostname"] is None


def test_an_existing_file_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(errors.ArchiveError, match="exists"):
        capture.save(host_reader.HostReader(tmp_path), str(path), {})
    assert path.read_text() == "precious"


def test_a_path_that_cant_be_written_is_an_error(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(errors.ArchiveError, match="can't be written"):
        capture.save(
            host_reader.HostReader(tmp_path), str(tmp_path / "no/such/dir"), {}
        )


def archive_of(path: pathlib.Path, *members: tuple[str, str]) -> str:
    """Write an archive; a member's text may be a link's target."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members:
            info = tarfile.TarInfo(name.partition(" ")[0])
            info.size = len(text)
            if name.endswith(" link"):
                info.type, info.linkname, info.size = tarfile.SYMTYPE, text, 0
            if name.endswith(" hard"):
                info.type, info.linkname, info.size = tarfile.LNKTYPE, text, 0
            if name.endswith(" device"):
                info.type, info.size = tarfile.CHRTYPE, 0
            archive.addfile(info, io.BytesIO(text.encode()))
    return str(path)


@pytest.mark.parametrize(
    "members",
    [
        (),
        (("meta.json", "{"),),
        (("meta.json", "[]"),),
        (("meta.json", '{"format": 99}'),),
        (("meta.json", '{"format": 1, "errors": []}'),),
        (("meta.json", '{"format": 1, "errors": {"/sys/a": "EVIL"}}'),),
        (("meta.json", '{"format": 1, "errors": {"/sys/a": []}}'),),
        (("meta.json", '{"format": 1, "errors": {"/etc/a": "EIO"}}'),),
        (("meta.json", '{"format": 1, "models": []}'),),
        (("meta.json", '{"format": 1, "models": {"1002:74a1": 7}}'),),
        (("meta.json", '{"format": 1, "models": {"1002:74a1": "\\n"}}'),),
        (("meta.json", GOOD_META), ("../escape", "x")),
        (("meta.json", GOOD_META), ("sys/../../escape", "x")),
        (("meta.json", GOOD_META), ("/etc/passwd", "x")),
        (("meta.json", GOOD_META), ("etc/passwd", "x")),
        (("meta.json", GOOD_META), ("sys/a hard", "/etc/passwd")),
        (("meta.json", GOOD_META), ("sys/a device", "")),
    ],
)
def test_an_archive_of_another_kind_is_refused(
    tmp_path: pathlib.Path, members: tuple[tuple[str, str], ...]
) -> None:
    path = archive_of(tmp_path / "odd.tar.gz", *members)
    with pytest.raises(errors.ArchiveError) as caught:
        capture.load(path)
    assert caught.value.path == path
    assert [p.name for p in tmp_path.iterdir()] == ["odd.tar.gz"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00"])
def test_a_file_that_is_no_archive_is_refused(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(errors.ArchiveError, match="no archive"):
        capture.load(str(path))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_archive_is_refused(
    tmp_path: pathlib.Path, share: float
) -> None:
    pack(look.make("t4-mdev", tmp_path / "host"), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(errors.ArchiveError):
        capture.load(str(torn))


def test_links_in_an_archive_are_not_followed_outside(
    tmp_path: pathlib.Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    path = archive_of(
        tmp_path / "host.tar.gz",
        ("meta.json", GOOD_META),
        ("sys/bus/pci/devices/0000:01:00.0/revision link", str(secret)),
        ("sys/bus/pci/devices/0000:01:00.0/vendor link", "../" * 30 + "x"),
    )
    host = host_reader.HostReader(source=capture.load(path)[0])
    for name in ("revision", "vendor"):
        with pytest.raises(errors.UnreadableError) as caught:
            host.attribute("0000:01:00.0", name)
        assert caught.value.number == errno.ENOENT


MIB = 1 << 20
PLACE = "sys/bus/pci/devices"


def member(name: str, **records: str) -> bytes:
    """Return the headers of an empty file, with these records of pax."""
    info = tarfile.TarInfo(name)
    info.pax_headers = records
    return info.tobuf(tarfile.PAX_FORMAT)


def global_headers(count: int) -> bytes:
    return b"".join(
        tarfile.TarInfo.create_pax_global_header({f"k{n}": "v" * 20_000})
        + member(f"{PLACE}/{n}")
        for n in range(count)
    )


def old_sparse(size: int) -> bytes:
    """Return a file of GNU's old sparse format that claims this size."""
    info = tarfile.TarInfo(f"{PLACE}/a")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0" % 0 + b"%011o\0" % 0
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


HOSTILE = {
    "long name": tarfile.TarInfo("sys/" + "a" * 32 * MIB).tobuf(
        tarfile.GNU_FORMAT
    ),
    "pax record": member("sys/a", comment="a" * 32 * MIB),
    "global headers": global_headers(800),
    "sparse of pax": member(
        f"{PLACE}/a", **{"GNU.sparse.size": str(64 * MIB)}
    ),
    "sparse of GNU": old_sparse(64 * MIB),
    "no header ends": member("sys/a", comment="a")[:1024] * 20_000,
    "a large file": member(f"{PLACE}/a", size=str(64 * MIB)) + bytes(64 * MIB),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_in_little_memory(
    tmp_path: pathlib.Path, name: str
) -> None:
    path = tmp_path / "odd.tar.gz"
    meta = tarfile.TarInfo("meta.json")
    meta.size = len(GOOD_META)
    with gzip.open(path, "wb", 1) as file:
        file.write(meta.tobuf() + GOOD_META.encode().ljust(512, b"\0"))
        file.write(HOSTILE[name] + bytes(1024))
    tracemalloc.start()
    try:
        with pytest.raises(errors.ArchiveError, match="too large"):
            capture.load(str(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_a_pax_record_longer_than_any_file_is_malformed(
    tmp_path: pathlib.Path,
) -> None:
    path, record = tmp_path / "odd.tar.gz", b"9" * 20 + b" path=x\n"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    with gzip.open(path, "wb") as file:
        file.write(header.tobuf() + record.ljust(512, b"\0") + bytes(1024))
    with pytest.raises(errors.ArchiveError, match="is no archive"):
        capture.load(str(path))


def test_headers_count_in_the_size_of_an_archive(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(
        tmp_path / "odd.tar.gz",
        ("meta.json", GOOD_META),
        *((f"{PLACE}/{n}", "") for n in range(40)),
    )
    assert capture.load(path)
    monkeypatch.setattr(capture, "_MAX_BYTES", 40 * 512)
    with pytest.raises(errors.ArchiveError, match="too large"):
        capture.load(path)


@given(st.binary(max_size=3000))
@settings(max_examples=examples.examples(200))
def test_any_content_is_refused_as_an_archive_error(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.compress(content, 1))
        file.flush()
        with pytest.raises(errors.ArchiveError):
            capture.load(file.name)


@given(
    st.lists(
        st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=12)),
        max_size=3,
    ),
)
@settings(max_examples=examples.examples(200))
def test_damaged_headers_are_refused(
    damage: list[tuple[int, bytes]],
) -> None:
    content = bytearray(member("sys/a", path="sys/b", size="0")[:1536])
    for place, data in damage:
        content[place : place + len(data)] = data
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.compress(bytes(content) + bytes(1024), 1))
        file.flush()
        with pytest.raises(errors.ArchiveError):
            capture.load(file.name)
