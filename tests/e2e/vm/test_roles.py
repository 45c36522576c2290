# SPDX-License-Identifier: Apache-2.0
"""A Debian 13 host, booted before and after the roles for its kernel.

The roles run in the root directory of the host, in a chroot; the lab VM boots
that root with the words of its grub.cfg. QEMU replaces the boot loader, which
is not run, and the kernel is the lab's. The programs that systemd starts,
systemd-modules-load and udevd, load the modules.
"""

import json
import os
import pathlib
import shlex
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.e2e.support import vm_site
from tests.e2e.vm import MARKS
from tests.functional.contrib.ansible import debian_host
from tests.lab import vm
from tests.lab.vm import job, machine, topology

pytestmark = MARKS

ROLES = {
    "iommu": ("enabled", "off", "pending", "remapping"),
    "vfio": ("module", "control", "iommu-module", "persistent"),
    "drv": ("blacklist", "blacklisted", "wrong", "vfio-ids"),
}
CHECKS = [f"{area}.{name}" for area, names in ROLES.items() for name in names]
# A busy machine leaves an emulated processor a tenth of a core.
TIMEOUT_S = 1200
# Nouveau needs some of the modules that the lab blacklists.
BLACKLIST = ",".join(
    {*machine.BLACKLIST.split(",")} - {"nouveau", "drm", "button"}
)
JOB = """\
set -e
. "$LAB_GUEST/lib.sh"
lab_load_modules
ls /sys/module > {share}/modules
export PYTHONPATH={repository}:{share}/metadata PYTHONDONTWRITEBYTECODE=1
python3 -m nova_accel.cli.commands doctor -f json --only {checks} \
    > {share}/report || [ $? -le 2 ]
"""


class Boot(NamedTuple):
    """A start of the host: loaded modules, and verdicts of the doctor."""

    modules: set[str]
    verdicts: dict[str, str]


class BootedHost(debian_host.DebianHost):
    """Debian host whose root directory the lab VM boots."""

    def __init__(self, lab: pathlib.Path, share: pathlib.Path) -> None:
        super().__init__()
        self._lab, self._share = lab, share
        shutil.copytree(self.files / "metadata", share / "metadata")

    def read_words(self) -> tuple[str, ...]:
        """Return the kernel's words in grub.cfg."""
        text = self.read("/boot/grub/grub.cfg")
        lines = (line.split() for line in text.splitlines())
        words = next(words for words in lines if words[:1] == ["linux"])
        return tuple(words[2:])

    def run_roles(self, action: str) -> None:
        """Run an action of the roles."""
        variables = {
            "iommu_arguments": ["intel_iommu=on", "iommu=pt"],
            "nova_accel_action": action,
            "nova_accel_roles": ["iommu", "vfio", "blacklist"],
        }
        self.run(
            *("ansible-playbook", "nova_accel.host.driver"),
            *("-i", "localhost,", "-c", "local", "-e", json.dumps(variables)),
        )

    def boot(self) -> Boot:
        """Start the host, run the doctor and switch the host off."""
        script = self._share / "job.sh"
        script.write_text(
            JOB.format(
                repository=shlex.quote(str(vm_site.REPOSITORY)),
                share=shlex.quote(str(self._share)),
                checks=" ".join(CHECKS),
            )
        )
        with self.mounted() as root:
            status = job.run_job(
                self._lab,
                script,
                timeout_s=TIMEOUT_S,
                share=self._share,
                root=root,
                files=(vm_site.REPOSITORY,),
                devices=topology.SINGLE_GPU,
                words=self.read_words(),
                blacklist=BLACKLIST,
            )
        assert status == 0
        report = json.loads((self._share / "report").read_text())
        return Boot(
            modules=set((self._share / "modules").read_text().split()),
            verdicts={c["id"]: c["verdict"] for c in report["checks"]},
        )


@pytest.fixture
def host(tmp_path: pathlib.Path) -> Iterator[BootedHost]:
    home = os.environ.get("NOVA_ACCEL_LAB", str(vm_site.REPOSITORY / ".lab"))
    lab = pathlib.Path(home).resolve()
    vm.prepare(lab)
    with BootedHost(lab, tmp_path) as host:
        yield host


def test_the_roles_take_effect_at_the_next_start(host: BootedHost) -> None:
    line = 'GRUB_CMDLINE_LINUX="intel_iommu=off console=ttyS0"\n'
    host.write("/etc/default/grub", line)
    host.write("/boot/vmlinuz-6.12.0-test", "")
    host.run("update-grub")
    words = host.read_words()
    before = host.boot()
    host.run_roles("install")
    after = host.boot()
    host.run_roles("remove")

    assert {c for c, v in before.verdicts.items() if v != "ok"} >= {
        *("iommu.enabled", "iommu.off", "vfio.module", "drv.blacklist")
    }
    assert "nouveau" in before.modules
    assert "vfio_pci" not in before.modules
    bad = {c: v for c, v in after.verdicts.items() if v in ("warn", "fail")}
    assert not bad
    assert "nouveau" not in after.modules
    assert {"vfio_pci", "vfio_iommu_type1"} <= after.modules
    assert host.read_words() == words
