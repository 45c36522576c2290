# SPDX-License-Identifier: Apache-2.0
"""Two hosts of which the second has another Nova than the lab's."""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.e2e.support.second_host import TwoHosts, record_release
from tests.e2e.support.site import Site
from tests.functional.contrib.packages import debian_package, package_root
from tests.lab.cloud.installations import Installation, install_release
from tests.lab.cloud.layout import MARK_VARIABLE, Layout

#: Nova of the lab's requirements on both hosts.
OWN = "own"
#: The same, and the second host has an older one.
NOVA_33 = "nova33"
#: The same, and the second host has that of Debian's packages (Nova 34),
#: and this project's own package beside it.
DEBIAN_SID = "debian-sid"
#: The second host has that of Debian 13's packages (Nova 31), all else has
#: Nova 33: Nova 34 refuses services that are older than that.
DEBIAN_13 = "debian-13"
OTHERS = (NOVA_33, DEBIAN_SID, DEBIAN_13)
#: Runs a test on two hosts of each release; of the lab's on each push.
on_all_releases = pytest.mark.parametrize(
    "two",
    [OWN, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)],
    indirect=True,
)

_NOVA_33 = "33.0.2"
_PACKAGES = ("nova-compute",)


@contextlib.contextmanager
def start_hosts(lab: Site, release: str) -> Iterator[TwoHosts]:
    """Start both hosts, with releases of Nova as OWN or one of OTHERS says.

    At the end all has the lab's Nova again.
    """
    cloud, own = lab.cloud, lab.cloud.nova
    with contextlib.ExitStack() as undo:
        nova: Installation | None = None
        if release == NOVA_33:
            nova = install_release(lab.layout, _NOVA_33)
        elif release != OWN:
            suite = {DEBIAN_SID: "sid", DEBIAN_13: "trixie"}[release]
            nova = undo.enter_context(_install_debian(lab.layout, suite))
        if release == DEBIAN_13:
            cloud.nova = install_release(lab.layout, _NOVA_33)
        two = TwoHosts(lab, nova)
        if nova is not None:
            undo.callback(_restore, lab, own)
            two.first.stop_compute()
            two.lower_versions()
            cloud.restart_control()
            cloud.restart_scheduler()
        two.start()
        undo.callback(two.stop)
        undo.callback(lab.clean)
        if nova is not None:
            two.first.start_compute()
        yield two


def _restore(lab: Site, nova: Installation) -> None:
    """Start the control plane and the lab's own host from one Nova.

    It refuses services that are recorded with a number that is too low.
    """
    lab.cloud.nova = nova
    record_release(lab.layout, nova.service_version())
    lab.cloud.restart_control()
    lab.cloud.restart_scheduler()
    lab.cloud.restart_compute()


@contextlib.contextmanager
def _install_debian(layout: Layout, suite: str) -> Iterator[Installation]:
    """Install Debian's nova-compute in a root, and our package beside it."""
    environment = {
        MARK_VARIABLE: str(layout.state),
        "PYTHONUNBUFFERED": "1",
        # /sys is a FUSE mount of the host's.
        "SYSTEMD_DEVICE_VERIFY_SYSFS": "0",
    }
    with package_root.PackageRoot(suite, environment) as root:
        root.run("apt-get", "install", *_PACKAGES)
        with debian_package.built() as package:
            debian_package.copy(package, root)
        debian_package.install(root)
        root.mount(layout.state, str(layout.state))
        yield Installation(
            programs=pathlib.Path("/usr/bin"),
            prefix=root.prefix(),
            activation="config-source",
        )
