# SPDX-License-Identifier: Apache-2.0
"""Privileged writes through Nova's own privsep daemon."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"

# The client drops its rights once the daemon runs. It prints errno of its own
# write, of the same write by the daemon, and the daemon's answers to bad
# arguments.
CLIENT = """
import os, sys
from oslo_config import cfg
from oslo_privsep import priv_context
from nova import privsep
from nova_accel.host.execute import privileged, root_io

root, helper = sys.argv[1:]
cfg.CONF([], project="nova")
cfg.CONF.set_override("helper_command", helper, group="nova_sys_admin")
privsep.sys_admin_pctxt.start(priv_context.Method.ROOTWRAP)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
own = root_io.write(root + "/sys/class/mdev_bus/mtty"
    "/mdev_supported_types/mtty-1/create", "by itself")
uuid = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
through = privileged.create_mdev(root, "mtty", "mtty-1", uuid)
gone = privileged.remove_mdev(root, uuid)
refused = []
for arguments in ((root, "..", ".."), (root + "/sys", "mtty", "mtty-1")):
    try:
        privileged.create_mdev(*arguments, uuid)
    except Exception as error:
        refused.append(str(error))
print(own, through, gone, *refused, sep="|")
"""


# As nova-compute: the unprivileged process plans, reads back and verifies;
# the daemon writes. Prints errno of its own write, then whether each action
# changed something, and the error of a tool that fails.
EXECUTOR = """
import os, sys
from oslo_config import cfg
from oslo_privsep import priv_context
from nova import privsep
from nova_accel.model import actions
from nova_accel import errors
from nova_accel.host.execute import action_executor, privileged, root_io
from nova_accel.host.execute.technologies import nvml_privileged

root, helper = sys.argv[1:]
cfg.CONF([], project="nova")
cfg.CONF.set_override("helper_command", helper, group="nova_sys_admin")
privsep.sys_admin_pctxt.start(priv_context.Method.ROOTWRAP)
action_executor.load_handlers()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
on_host = action_executor.Executor(
    root, read_gpus=nvml_privileged.read_gpus)
pf, vf = "0000:3d:00.0", "0000:3d:00.4"
place = root + "/sys/bus/pci/devices/" + vf
print(root_io.write(place + "/nvidia/current_vgpu_type", "1"))
print(root_io.read(place + "/nvidia/vgpu_params")[0])
for action in (
    actions.BindDriver(function=vf, driver="nvidia"),
    actions.SetVfCount(function=pf, count=1, tool="sriov-manage"),
    actions.SetVgpuType(function=vf, type_id="1147"),
    actions.SetVgpuParams(target=vf, params="a=1"),
):
    print(on_host.apply(action))
print(nvml_privileged.read_gpus().problems)
try:
    on_host.apply(actions.SetVfCount(
        function="0000:99:00.0", count=1, tool="it"))
except errors.ActionError as error:
    print(error.number, error.detail)
"""

# An unprivileged process loads an FPGA with the daemon's tool; the bitstream
# selects the tool's result. Prints the results of its own attempts, then of
# each load.
FPGA = """
import hashlib, os, sys
from oslo_config import cfg
from oslo_privsep import priv_context
from nova import privsep
from nova_accel.model import actions
from nova_accel import errors, model
from nova_accel.host.execute import action_executor, privileged, root_io
from nova_accel.host.execute.technologies import fpga_privileged

root, helper = sys.argv[1:]
cfg.CONF([], project="nova")
cfg.CONF.set_override("helper_command", helper, group="nova_sys_admin")
privsep.sys_admin_pctxt.start(priv_context.Method.ROOTWRAP)
action_executor.load_handlers()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
card = "0000:5e:00.0"

def bitstream(words, function):
    path = root + "/" + words.replace(" ", "-")
    content = open(path, "rb").read()
    return model.Bitstream(
        name=words, vendor="intel", path=path, function=function,
        interface="0" * 32, sha512=hashlib.sha512(content).hexdigest(),
        size=len(content))

def load(words, function, tool="fpgaconf", seconds=20):
    action = actions.ProgramRegion(
        card=card, number=0, slot=card, tool=tool,
        bitstream=bitstream(words, function))
    try:
        print(action_executor.Executor(root, program_s=seconds).apply(action))
    except errors.ActionError as error:
        print(type(error).__name__, error.number, vars(error).get("region"),
            error.detail)
    except OSError as error:
        print("no daemon:", error.errno)

one = bitstream("good", "1" * 32)
arguments = (one.path, one.sha512, 20)
print(fpga_privileged.set_port(root, "dfl-fme.0", 0, True))
print(privileged.set_services(root, card, "dc"))
print(fpga_privileged.program_port(root, "dfl-fme.0", 0, *arguments))
for wrong in (
    lambda: fpga_privileged.run_fpga_tool(root, "sh", card, *arguments),
    lambda: fpga_privileged.program_port(root, "mem", 0, *arguments),
):
    try:
        wrong()
    except errors.MalformedError as error:
        print(error.kind, repr(error.text))
load("good", "1" * 32)
load("bad", "2" * 32)
load("slow", "2" * 32, seconds=1)
load("good", "2" * 32, tool="")
load("kill", "2" * 32)
cfg.CONF.set_override("helper_command", root, group="nova_sys_admin")
load("good", "2" * 32)
"""

# Scrubs a function between two servers. Prints whether its reset and the
# command changed something, then the errors for another function.
SCRUB = """
import os, sys
from oslo_config import cfg
from oslo_privsep import priv_context
from nova import privsep
from nova_accel.model import actions
from nova_accel import errors
from nova_accel.host.execute import action_executor, privileged, root_io

root, helper = sys.argv[1:]
cfg.CONF([], project="nova")
cfg.CONF.set_override("helper_command", helper, group="nova_sys_admin")
privsep.sys_admin_pctxt.start(priv_context.Method.ROOTWRAP)
action_executor.load_handlers()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
on_host = action_executor.Executor(root)
for function in ("0000:3d:00.0", "0000:3d:00.1"):
    for action in (
        actions.ResetFunction(function=function),
        actions.RunScrub(command="/opt/wipe", function=function),
    ):
        try:
            print(on_host.apply(action))
        except errors.ActionError as error:
            print(error.number, error.detail)
for command in ("/opt/../wipe", "/opt/other"):
    try:
        privileged.run_scrub(root, command, "0000:3d:00.0")
    except errors.MalformedError as error:
        print(error.kind, repr(error.text))
"""

# A host without the daemon. Prints the GPUs and the problem of reading them.
WITHOUT = """
import sys
from oslo_config import cfg
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.execute.technologies import nvml_privileged

cfg.CONF([], project="nova")
from nova import privsep
cfg.CONF.set_override("helper_command", "/bin/false", group="nova_sys_admin")
assert gpu_reader.is_installed()
gpus = nvml_privileged.read_gpus()
print(dict(gpus), [problem.where for problem in gpus.problems])
print(gpus.problems[0].reason)
"""


def helper() -> str:
    """Return the path of privsep's helper, empty if there is none."""
    sibling = Path(sys.executable).parent / "privsep-helper"
    installed = shutil.which("privsep-helper")
    return str(sibling) if sibling.exists() else installed or ""


def allow_access(root: Path) -> None:
    """Let every user reach a directory."""
    for directory in [root, *root.parents]:
        if directory.owner() == "root" and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)


def run(client: str, root: Path) -> list[str]:
    """Run a client that drops its rights; return its output's lines."""
    allow_access(root)
    # The daemon works below the root of its own configuration only.
    conf = root / "nova.conf"
    conf.write_text(
        f"[nova_accel]\nroot = {root}\n"
        'device_spec = {"address": "*", "scrub_command": "/opt/wipe"}\n'
    )
    done = subprocess.run(  # noqa: S603
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            client,
            root,
            f"{helper()} --config-file {conf}",
        ],
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


needs_daemon = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemon needs root"),
    pytest.mark.skipif(not helper(), reason="there is no privsep-helper"),
]


def test_a_daemon_that_does_not_start_is_a_problem(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    gpus, reason = run(WITHOUT, tmp_path)
    assert gpus == "{} ['NVML']"
    assert "privileged daemon can't ask it" in reason


class TestDaemon:
    pytestmark = needs_daemon

    def test_it_writes_for_a_process_without_rights(
        self, tmp_path: Path
    ) -> None:
        create = (
            tmp_path
            / "sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create"
        )
        create.parent.mkdir(parents=True)
        create.touch(0o600)
        (line,) = run(CLIENT, tmp_path)
        own, through, gone, bad, elsewhere = line.split("|")
        assert int(own) == errno.EACCES
        assert int(through) == 0
        assert create.read_text() == UUID
        assert int(gone) == errno.ENOENT
        assert "'..' is not a mdev parent" in bad
        assert f"{tmp_path}/sys' is not a root of Nova's privil" in elsewhere

    def test_actions_are_carried_out_and_verified(
        self, tmp_path: Path
    ) -> None:
        vf = card(tmp_path)
        probe = tmp_path / "sys/bus/pci/drivers_probe"
        os.mkfifo(probe, 0o600)
        kernel = threading.Thread(
            target=bind_probed, args=(probe, vf), daemon=True
        )
        kernel.start()
        lines = run(EXECUTOR, tmp_path)
        kernel.join(5)
        refused = str(errno.EACCES)
        assert lines[:6] == [refused, refused, *["True"] * 4]
        assert lines[6] == "()"
        assert lines[7].startswith(f"{errno.EIO} ")
        assert "-e 0000:99:00.0 ended with 1: no such card" in lines[7]
        assert (vf / "nvidia/current_vgpu_type").read_text() == "1147"
        assert (vf / "nvidia/vgpu_params").read_text() == "a=1"
        # nvidia matches the ids: no scan binds the function to another driver.
        assert (vf / "driver_override").read_text().endswith("\n")

    def test_an_fpga_is_loaded(self, tmp_path: Path) -> None:
        fpga(tmp_path)
        lines = run(FPGA, tmp_path)
        assert lines[:3] == [
            str(number)
            for number in (errno.ENOTTY, errno.ENOENT, errno.ENOTTY)
        ]
        assert lines[3:5] == ["FPGA tool 'sh'", "FPGA's device node 'mem'"]
        region = "0000:5e:00.0/region-0"
        assert lines[5] == "True"
        assert lines[6].startswith(f"ProgrammingError {errno.EIO} {region} ")
        assert lines[6].endswith("ended with 3: bad")
        assert lines[7].startswith(
            f"ProgrammingError {errno.ETIMEDOUT} {region}"
        )
        assert lines[8].startswith(f"ActionError {errno.ENOTTY} None ")
        # The daemon ended while the tool ran: the progress is unknown. The
        # next load does not start.
        assert lines[9].startswith(f"ProgrammingError {errno.EIO} {region} ")
        assert "privileged daemon ended" in lines[9]
        assert lines[10] == f"no daemon: {errno.EACCES}"
        # Earlier copies of bitstreams are deleted.
        assert len(list((tmp_path / "run").iterdir())) == 1

    def test_a_function_is_scrubbed(self, tmp_path: Path) -> None:
        place = tmp_path / "sys/bus/pci/devices" / PF
        place.mkdir(parents=True)
        for name, mode, content in (
            ("reset", 0o200, b""),
            ("vendor", 0o444, b"0x10de\n"),
            ("device", 0o444, b"0x26b9\n"),
            ("config", 0o644, b"\xde\x10\xb9\x26" + bytes(60)),
        ):
            (place / name).write_bytes(content)
            (place / name).chmod(mode)
        command = tmp_path / "opt/wipe"
        command.parent.mkdir()
        command.write_text(
            f'#!/bin/sh\n[ "$(id -u) $1" = "0 {PF}" ] && exit\necho no; exit 4'
        )
        command.chmod(0o700)
        assert run(SCRUB, tmp_path) == [
            "True",
            "True",
            f"{errno.ENOENT} ",
            f"{errno.EIO} {command} 0000:3d:00.1 ended with 4: no",
            "command '/opt/../wipe'",
            "scrub_command of Nova's privileged daemon '/opt/other'",
        ]
        assert (place / "reset").read_text() == "1"


PF, VF = "0000:3d:00.0", "0000:3d:00.4"
# Creates the kernel's links, and requires root.
SCRIPT = """#!/bin/sh
[ "$2" = 0000:3d:00.0 ] || { echo no such card; exit 1; }
[ "$(id -u)" = 0 ] || exit 2
cd "${0%/usr/*}/sys/bus/pci/devices" || exit 3
ln -s ../0000:3d:00.4 "$2/virtfn0"
ln -s "../$2" 0000:3d:00.4/physfn
echo 1 > "$2/sriov_numvfs"
"""


def card(root: Path) -> Path:
    """Create a PF that has one VF after the tool ran; return the VF."""
    devices = root / "sys/bus/pci/devices"
    for name, mode in {
        f"{PF}/sriov_numvfs": 0o644,
        f"{VF}/driver_override": 0o644,
        f"{VF}/nvidia/current_vgpu_type": 0o644,
        f"{VF}/nvidia/vgpu_params": 0o600,
    }.items():
        path = devices / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode)
    (devices / PF / "sriov_numvfs").write_text("0\n")
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    tool = root / "usr/lib/nvidia/sriov-manage"
    tool.parent.mkdir(parents=True)
    tool.write_text(SCRIPT)
    tool.chmod(0o755)
    return devices / VF


# Follows its bitstream's word, if it is root and only root can read the file.
PROGRAMMER = """#!/bin/sh
for file; do :; done
[ "$(id -u) $(stat -c '%u %a' "$file")" = "0 0 400" ] || exit 9
cd "${0%/usr/*}/sys/bus/pci/devices/0000:5e:00.0/fpga_region/region0" || exit
case "$(cat "$file")" in
good) printf %032d 0 | tr 0 1 > dfl-port.0/afu_id;;
slow) sleep 60;;
kill) kill -9 $PPID;;
*) cat "$file"; exit 3;;
esac
"""


def fpga(root: Path) -> None:
    """Create a card with a region, a tool for it, and bitstreams."""
    region = root / "sys/bus/pci/devices/0000:5e:00.0/fpga_region/region0"
    port = region / "dfl-port.0"
    port.mkdir(parents=True)
    (region / "dfl-fme.0").mkdir()
    (port / "id").write_text("0\n")
    (port / "afu_id").write_text("0" * 32)
    (port / "afu_id").chmod(0o644)
    (root / "dev").mkdir()
    (root / "dev/dfl-fme.0").touch(0o600)
    for words in ("good", "bad", "slow", "kill"):
        (root / words).write_text(words)
    tool = root / "usr/bin/fpgaconf"
    tool.parent.mkdir(parents=True)
    tool.write_text(PROGRAMMER)
    tool.chmod(0o755)


def bind_probed(probe: Path, function: Path) -> None:
    """Bind a function once it is probed, as the kernel does."""
    if probe.read_text() == function.name:
        (function / "driver").symlink_to("../../drivers/nvidia")
