# SPDX-License-Identifier: Apache-2.0
"""Privileged functions open files only below their directories."""

import errno
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.execute import privileged
from nova_accel.host.execute.technologies import (
    fpga_privileged,
    nvml_privileged,
)
from nova_accel.host.nvml import gpu_state
from tests.support import examples, strategies

pytestmark = pytest.mark.usefixtures("own_rights")
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples.examples(80),
)
UUID = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
PF = "0000:3d:00.0"
PCI = "sys/bus/pci"
FUNCTION = rf"{PCI}/devices/[0-9a-f:]+\.[0-7]"
MDEV = r"sys/bus/mdev/devices/[0-9a-f-]{36}"

anything = st.text() | st.text("./-:0aZ\n\0\\~", max_size=12)
addresses = anything | st.from_regex(
    r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\n?", fullmatch=True
)
targets = addresses | strategies.uuids
names = anything | st.sampled_from(["vfio-pci", "..", "nvidia", "i915/../x"])
# Parts of the paths of mdevs.
parts = anything | st.from_regex(
    r"[0-9a-f:.]{1,12}|mtty|nvidia-[0-9]+", fullmatch=True
)
numbers = st.integers() | anything
types = anything | st.from_regex(r"[0-9]{1,10}", fullmatch=True)
nodes = anything | st.sampled_from(["dfl-fme.0", "dfl-fme.0/..", "mem"])
# Bitstreams are separate files, none of which exists here.
BITSTREAM = "/nonexistent/bitstream"
files = st.sampled_from([BITSTREAM, "bitstream", "", f"{BITSTREAM}\0"])
digests = anything | st.just("0" * 128)
READS_BITSTREAM = rf"(\.\./)+{BITSTREAM[1:]}"

# Each function, its arguments, and the paths that it may open.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "create": (
        privileged.create_mdev,
        (parts, parts, targets),
        "sys/class/mdev_bus/[^/]+/mdev_supported_types/[^/]+/create",
    ),
    "remove": (privileged.remove_mdev, (targets,), f"{MDEV}/remove"),
    "type": (
        privileged.set_vgpu_type,
        (addresses, types),
        f"{FUNCTION}/nvidia/current_vgpu_type",
    ),
    "params": (
        privileged.set_vgpu_params,
        (targets, anything),
        f"({FUNCTION}|{MDEV})/nvidia/vgpu_params",
    ),
    "read": (
        privileged.read_vgpu,
        (targets, names | st.sampled_from(["vgpu_params", "placement_id"])),
        f"({FUNCTION}|{MDEV})/nvidia/(vgpu_params|placement_id)",
    ),
    "placement": (
        privileged.set_placement,
        (addresses, numbers),
        f"{FUNCTION}/nvidia/placement_id",
    ),
    "vfs": (
        privileged.set_vf_count,
        (addresses, numbers, st.booleans()),
        f"{FUNCTION}/(sriov_numvfs|sriov_drivers_autoprobe)",
    ),
    "driver": (
        privileged.bind_driver,
        (addresses, names),
        f"({FUNCTION}/driver_override|{FUNCTION}/driver/unbind"
        f"|{PCI}/drivers_probe)",
    ),
    "tool": (privileged.manage_vfs, (addresses, st.booleans()), "nothing"),
    "program": (
        fpga_privileged.program_port,
        (nodes, numbers, files, digests, numbers),
        READS_BITSTREAM,
    ),
    "port": (
        fpga_privileged.set_port,
        (nodes, numbers, st.booleans()),
        "dev/dfl-fme.0",
    ),
    "FPGA tool": (
        fpga_privileged.run_fpga_tool,
        (
            names | st.sampled_from(["fpgaconf", "xrt-smi", "../fpgaconf"]),
            addresses,
            files,
            digests,
            numbers,
        ),
        READS_BITSTREAM,
    ),
    "reset": (privileged.reset_function, (addresses,), f"{FUNCTION}/reset"),
    "scrub": (
        privileged.run_scrub,
        (files | st.sampled_from(["/bin/../x", "/a", "/a b"]), addresses),
        "nothing",
    ),
    "services": (
        privileged.set_services,
        (addresses, anything | st.just("sym;asym")),
        f"{FUNCTION}/qat/(state|cfg_services)",
    ),
}


class Watch:
    """Records each file and program that this process opens or starts."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self)  # an audit hook can't be removed

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in ("open", "subprocess.Popen", "os.system"):
            if isinstance(arguments[0], str | bytes | os.PathLike):
                self.seen.append(os.fsdecode(arguments[0]))


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.mark.parametrize("call", CALLS)
@given(data=st.data())
@SHARED
def test_only_allowed_paths_are_opened(
    tmp_path: Path, watch: Watch, call: str, data: st.DataObject
) -> None:
    function, strategies_of_call, allowed = CALLS[call]
    arguments = [data.draw(strategy) for strategy in strategies_of_call]
    watch.seen.clear()
    watch.on = True
    try:
        function(str(tmp_path), *arguments)
    except errors.MalformedError:
        assert watch.seen == []
    finally:
        watch.on = False
    for path in watch.seen:
        assert os.path.normpath(path) == path
        below = os.path.relpath(path, tmp_path)
        assert re.fullmatch(allowed, below), below


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_named", [False, True])
def test_the_daemon_refuses_any_root_but_its_own(
    tmp_path: Path,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    is_named: bool,
) -> None:
    function, strategies_of_call, _ = CALLS[call]
    monkeypatch.setattr(privileged, "_own_rights", threading.Event())
    names_of = list(inspect.signature(function).parameters)
    values = [str(tmp_path), *[0] * len(strategies_of_call)]
    named = dict(zip(names_of, values, strict=True)) if is_named else {}
    watch.seen.clear()
    watch.on = True
    try:
        with pytest.raises(errors.MalformedError, match="privileged daemon"):
            function(*(() if is_named else values), **named)
    finally:
        watch.on = False
    assert watch.seen == []


def function(root: Path, *files: str) -> Path:
    place = root / PCI / "devices" / PF
    place.mkdir(parents=True)
    for name in files:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).touch()
    return place


def test_a_driver_is_bound_by_its_override(tmp_path: Path) -> None:
    place = function(tmp_path, "driver_override")
    (tmp_path / PCI / "drivers/vfio-pci").mkdir(parents=True)
    (tmp_path / PCI / "drivers_probe").touch()
    assert privileged.bind_driver(str(tmp_path), PF, "vfio-pci") == 0
    assert (place / "driver_override").read_text() == "vfio-pci\n"
    assert (tmp_path / PCI / "drivers_probe").read_text() == PF


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (
            "nvidia/current_vgpu_type",
            lambda root: privileged.set_vgpu_type(root, PF, "1"),
        ),
        (
            "nvidia/vgpu_params",
            lambda root: privileged.set_vgpu_params(root, PF, "a=1"),
        ),
        (
            "nvidia/vgpu_params",
            lambda root: privileged.read_vgpu(root, PF, "vgpu_params")[0],
        ),
        (
            "nvidia/placement_id",
            lambda root: privileged.set_placement(root, PF, 1),
        ),
        (
            "sriov_numvfs",
            lambda root: privileged.set_vf_count(root, PF, 1, True),
        ),
        (
            "driver_override",
            lambda root: privileged.bind_driver(root, PF, ""),
        ),
    ],
)
def test_a_symlink_is_not_followed(
    tmp_path: Path, name: str, change: Callable[[str], int]
) -> None:
    place = function(tmp_path, name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (place / name).unlink()
    (place / name).symlink_to(elsewhere)
    assert change(str(tmp_path)) == errno.ELOOP
    assert elsewhere.read_text() == "precious"


def test_malformed_gpu_instances_are_refused() -> None:
    for gpu, kind, start in [
        ("..", "1g.5gb", 0),
        (PF, "../1g", 0),
        (PF, "1g.5gb;x", 0),
        (PF, "1g.5gb", -1),
    ]:
        with pytest.raises(errors.MalformedError):
            nvml_privileged.create_instance(gpu, kind, start)
        with pytest.raises(errors.MalformedError):
            nvml_privileged.destroy_instance(gpu, kind, start)
    with pytest.raises(errors.MalformedError):
        nvml_privileged.set_mixed("0000:3d:00", True)
    with pytest.raises(errors.MalformedError):
        nvml_privileged.set_mig("0000:3d:00", True)


def test_data_of_nvml_survive_the_round_trip() -> None:
    plain = nvml_privileged.read_plain_gpus()
    gpus = gpu_state.from_plain(plain)
    assert gpu_state.to_plain(gpus) == plain
    assert type(nvml_privileged.read_gpus()) is type(gpus)
