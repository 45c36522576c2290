# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools run with fixed arguments, and are killed in time."""

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from nova_accel import errors
from nova_accel.host.execute import privileged, root_io
from nova_accel.host.execute.technologies import fpga_privileged
from nova_accel.host.fpga import bitstream_payload

pytestmark = pytest.mark.usefixtures("own_rights")
CARD, USER = "0000:5e:00.0", "0000:5e:00.1"
CONTENT = b"what the FPGA takes"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "images/one.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def run(
    root: Path, file: Path, tool: str = "fpgaconf", seconds: float = 10
) -> int:
    address = CARD if tool == "fpgaconf" else USER
    digest = hashlib.sha512(CONTENT).hexdigest()
    return fpga_privileged.run_fpga_tool(
        str(root), tool, address, str(file), digest, seconds
    )


def script(root: Path, text: str, place: str = "usr/bin/fpgaconf") -> Path:
    path = root / place
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("tool", "place", "arguments"),
    [
        (
            "fpgaconf",
            "usr/bin/fpgaconf",
            "--segment 0x0000 --bus 0x5e --device 0x00 --function 0x0",
        ),
        (
            "xrt-smi",
            "opt/xilinx/xrt/bin/xrt-smi",
            f"program --device {USER} --user",
        ),
        (
            "xrt-smi",
            "opt/xilinx/xrt/bin/xbutil",
            f"program --device {USER} --user",
        ),
        ("xrt-smi", "usr/bin/xbutil", f"program --device {USER} --user"),
    ],
)
def test_a_tool_gets_fixed_arguments_and_a_private_copy(
    tmp_path: Path, file: Path, tool: str, place: str, arguments: str
) -> None:
    script(
        tmp_path,
        f"cd {tmp_path}; echo $* > words; for f; do :; done; cp $f got\n"
        "stat -c %a $(dirname $f) $f > modes; cat > input\n"
        "umask > umask; env | cut -d= -f1 | sort > env; ps -o sid= $$ > sid\n"
        "echo $$ >> sid",
        place,
    )
    os.environ["NOVA_SECRET"] = "x"  # noqa: S105
    old = os.umask(0)
    try:
        assert run(tmp_path, file, tool) == 0
    finally:
        os.umask(old)
        del os.environ["NOVA_SECRET"]
    words, _, copy = (tmp_path / "words").read_text().strip().rpartition(" ")
    assert words == arguments
    assert (tmp_path / "got").read_bytes() == CONTENT
    # The copy is readable by root only, and is removed afterwards.
    assert Path(copy) != file
    assert Path(copy).parents[1] == tmp_path / "run"
    assert (tmp_path / "modes").read_text().split() == ["700", "400"]
    assert list((tmp_path / "run").iterdir()) == []
    assert (tmp_path / "input").read_text() == ""
    assert int((tmp_path / "umask").read_text(), 8) == 0o022
    assert "NOVA_SECRET" not in (tmp_path / "env").read_text()
    session, pid = (tmp_path / "sid").read_text().split()
    assert session == pid


def test_the_newer_name_of_a_tool_is_preferred(
    tmp_path: Path, file: Path
) -> None:
    script(tmp_path, "exit 1", "usr/bin/xbutil")
    script(tmp_path, "exit 0", "opt/xilinx/xrt/bin/xrt-smi")
    assert run(tmp_path, file, "xrt-smi") == 0


def test_a_failing_tool_is_reported_with_its_output(
    tmp_path: Path, file: Path
) -> None:
    script(tmp_path, "echo No suitable slots found. >&2; exit 4")
    with pytest.raises(errors.ToolError) as caught:
        run(tmp_path, file)
    assert caught.value.status == 4
    assert caught.value.output == "No suitable slots found."
    assert list((tmp_path / "run").iterdir()) == []


def test_the_output_of_a_tool_is_truncated(tmp_path: Path, file: Path) -> None:
    script(tmp_path, "yes all work and no play | head -c 100000; exit 1")
    with pytest.raises(errors.ToolError) as caught:
        run(tmp_path, file)
    assert len(caught.value.output) <= 4096


def test_a_hanging_tool_is_killed_with_its_children(
    tmp_path: Path, file: Path
) -> None:
    script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    start = time.monotonic()
    assert run(tmp_path, file, seconds=0.5) == errno.ETIMEDOUT
    assert time.monotonic() - start < 10
    assert is_dead(int((tmp_path / "pid").read_text()))
    assert list((tmp_path / "run").iterdir()) == []


def is_dead(pid: int) -> bool:
    """Return whether a process has ended, or is a zombie."""
    for _ in range(100):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        if status.rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_tool_writable_by_others_is_not_run(
    tmp_path: Path, file: Path, mode: int
) -> None:
    script(tmp_path, f"touch {tmp_path}/ran").chmod(mode)
    assert run(tmp_path, file) == errno.EACCES
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tool", ["fpgaconf", "sriov-manage"])
@pytest.mark.parametrize("place", ["", "usr", "usr/bin"])
def test_a_tool_in_a_directory_writable_by_others_is_not_run(
    tmp_path: Path, file: Path, tool: str, place: str
) -> None:
    """Others could replace it between the check and the start."""
    path = privileged.SRIOV_MANAGE if tool == "sriov-manage" else None
    place = place.replace("bin", "lib" if path else "bin")
    script(tmp_path, f"touch {tmp_path}/ran", path or "usr/bin/fpgaconf")
    (tmp_path / place).chmod(0o777)
    if path:
        assert privileged.manage_vfs(str(tmp_path), CARD, True) == errno.EACCES
    else:
        assert run(tmp_path, file) == errno.EACCES
    assert not (tmp_path / "ran").exists()


def test_a_tool_replaced_during_the_check_is_not_run(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = script(tmp_path, "exit 0")
    read = bitstream_payload.read

    def exchange(path: str, sha512: str) -> bytes:
        tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        tool.chmod(0o777)
        return read(path, sha512)

    monkeypatch.setattr(bitstream_payload, "read", exchange)
    assert run(tmp_path, file) == errno.EACCES
    assert not (tmp_path / "ran").exists()


def test_a_symlink_is_not_run(tmp_path: Path, file: Path) -> None:
    """Below another root it could lead to any program of this host."""
    path = tmp_path / "usr/bin/fpgaconf"
    path.parent.mkdir(parents=True)
    path.symlink_to("/bin/sh")
    assert run(tmp_path, file) == errno.EACCES


def test_a_tool_of_another_owner_is_not_run(
    tmp_path: Path, file: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(script(tmp_path, "exit 0"), 65534, 65534)
    assert run(tmp_path, file) == errno.EACCES


def test_a_tool_that_cant_be_started_is_an_error(
    tmp_path: Path, file: Path
) -> None:
    assert run(tmp_path, file) == errno.ENOENT
    path = script(tmp_path, "")
    path.write_text("no program")
    assert run(tmp_path, file) == errno.ENOEXEC
    path.chmod(0o644)
    assert run(tmp_path, file) == errno.EACCES


@pytest.mark.parametrize("tool", ["sh", "../bin/sh", "", "xbmgmt"])
def test_other_tools_are_refused(
    tmp_path: Path, file: Path, tool: str
) -> None:
    with pytest.raises(errors.MalformedError, match="fpgaconf or xrt-smi"):
        run(tmp_path, file, tool)


def test_a_failed_copy_is_an_error(tmp_path: Path, file: Path) -> None:
    script(tmp_path, f"touch {tmp_path}/ran")
    (tmp_path / "run").write_text("in the way")
    assert run(tmp_path, file) == errno.EEXIST
    assert not (tmp_path / "ran").exists()


def test_a_copy_is_always_removed(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        bitstream_payload.private_copy(str(tmp_path), CONTENT) as copy,
    ):
        assert Path(copy).read_bytes() == CONTENT
        raise ZeroDivisionError
    assert not Path(copy).exists()


def test_each_tool_has_relative_paths() -> None:
    for places, arguments in root_io.PROGRAMMERS.values():
        assert places
        assert not any(os.path.isabs(place) for place in places)
        assert CARD in " ".join(arguments(CARD)) or len(arguments(CARD)) > 4
