# SPDX-License-Identifier: Apache-2.0
"""The doctor sees faults of a real kernel, and none where there is none.

Three machines are booted: one whose devices have faults or get them
(``tests/e2e/support/doctor_faults.py``), one with a kernel that is locked
down, and one whose IOMMU is switched off. Words of the kernel's command line
are given by QEMU, in place of a boot loader.
"""

import functools
import json
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.support import dkms_module, doctor_faults, vm_site
from tests.e2e.vm import SHORT_MARKS
from tests.lab import vm
from tests.lab.vm import job, layout, topology

pytestmark = SHORT_MARKS

# A busy machine leaves an emulated processor a tenth of a core.
TIMEOUT_S = 1200
JOB = """\
export PYTHONPATH={repository} PYTHONDONTWRITEBYTECODE=1
cd {repository}
exec {python} -m tests.e2e.support.doctor_faults {machine} {path}
"""
Reports = dict[str, dict[str, Any]]
MACHINES: dict[str, job.Hardware] = {
    "faulty": {"devices": topology.FAULTY},
    "lockdown": {
        "devices": topology.NO_DEVICES,
        "words": ("lockdown=integrity",),
    },
    "iommu-off": {"words": ("intel_iommu=off",)},
}
# The machine of these faults has no devices, and boots in the shortest time.
SHORT_MACHINE = "lockdown"
FAULTS = [
    pytest.param(
        machine,
        name,
        marks=[pytest.mark.long] * (machine != SHORT_MACHINE),
    )
    for machine, (_, faults) in doctor_faults.MACHINES.items()
    for name in faults
]


@pytest.fixture(scope="module")
def machine_reports(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Reports]:
    """Return a function that boots a machine and runs the doctor in it."""
    home = os.environ.get("NOVA_ACCEL_LAB", str(vm_site.REPOSITORY / ".lab"))
    lab = pathlib.Path(home).resolve()
    vm.prepare(lab)
    place = layout.layout_of(lab)
    if place.debian != layout.STOCK:
        pytest.skip(f"{place.debian} has no Python of this computer")
    built = dkms_module.build(place, tmp_path_factory.mktemp("dkms"))

    @functools.cache
    def read(machine: str) -> Reports:
        share = tmp_path_factory.mktemp(machine)
        shutil.copy(built, share)
        script, path = share / "job.sh", share / "reports"
        script.write_text(
            JOB.format(
                repository=shlex.quote(str(vm_site.REPOSITORY)),
                python=shlex.quote(sys.executable),
                machine=machine,
                path=shlex.quote(str(path)),
            )
        )
        status = job.run_job(
            lab, script, timeout_s=TIMEOUT_S, share=share, **MACHINES[machine]
        )
        assert status == 0
        return dict(json.loads(path.read_text()))

    return read


def find_check(report: dict[str, Any], name: str) -> dict[str, Any]:
    (check,) = [c for c in report["checks"] if c["id"] == name]
    return dict(check)


def list_texts(report: dict[str, Any], name: str, verdict: str) -> list[str]:
    """Return the texts of a check's findings that have a verdict."""
    findings = find_check(report, name)["findings"]
    return [f["text"] for f in findings if f["verdict"] == verdict]


@pytest.mark.parametrize(("machine", "name"), FAULTS)
def test_a_fault_is_seen_by_its_check(
    machine_reports: Callable[[str], Reports], machine: str, name: str
) -> None:
    report = machine_reports(machine)[name]
    _, faults = doctor_faults.MACHINES[machine]
    for check, finding in faults[name].findings.items():
        (text,) = list_texts(report, check, finding.verdict)
        assert finding.text in text


@pytest.mark.parametrize(("machine", "name"), FAULTS)
def test_the_check_is_ok_without_the_fault(
    machine_reports: Callable[[str], Reports], machine: str, name: str
) -> None:
    # The faulty machine has no room for VFs from its start on.
    is_built_in = name == "no-room-for-vfs"
    reports = machine_reports("iommu-off" if is_built_in else machine)
    _, faults = doctor_faults.MACHINES[machine]
    for check in faults[name].findings:
        report = reports[doctor_faults.HEALTHY]
        assert find_check(report, check)["verdict"] in ("ok", "n/a")


@pytest.mark.long
def test_an_iommu_that_is_switched_off_is_seen(
    machine_reports: Callable[[str], Reports],
) -> None:
    report = machine_reports("iommu-off")[doctor_faults.HEALTHY]
    assert list_texts(report, "iommu.off", "fail") == [
        "the kernel was started with intel_iommu=off"
    ]
    cards = (topology.A40_ADDRESS, topology.T4_ADDRESS, topology.PAC_ADDRESS)
    texts = list_texts(report, "iommu.enabled", "fail")
    assert {f"{card} is in no IOMMU group" for card in cards} <= set(texts)
    good = machine_reports("faulty")[doctor_faults.HEALTHY]
    for name in ("iommu.off", "iommu.enabled", "iommu.firmware"):
        assert find_check(good, name)["verdict"] == "ok"


@pytest.mark.long
def test_lockdown_is_seen(
    machine_reports: Callable[[str], Reports],
) -> None:
    report = machine_reports("lockdown")[doctor_faults.HEALTHY]
    assert list_texts(report, "drv.lockdown", "note") == [
        "the kernel is locked down: integrity"
    ]
    good = machine_reports("faulty")[doctor_faults.HEALTHY]
    assert find_check(good, "drv.lockdown")["verdict"] == "ok"
