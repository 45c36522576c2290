# SPDX-License-Identifier: Apache-2.0
"""First boot of a guest: cloud-init of Debian in a chroot.

mmdebstrap unpacks Debian from the mirror that apt uses on this computer.
cloud-init is Debian's; systemctl is fake, and so are the list of PCI devices
and the name of the product that a guest of Nova reads from its firmware.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

#: Lines of /proc/bus/pci/devices: a T4, and a network card of virtio.
GPU, OTHER = "0028\t10de1eb8\t2a\n", "0010\t1af41000\t2a\n"

_SYSTEMCTL = '#!/bin/sh\necho "$@" >> /var/log/systemctl\n'
# Mounts, processes and the hostname are those of namespaces of their own; the
# network is this computer's. Without /sys, cloud-init configures no interface.
_NAMESPACES = (
    *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
    *("env", "--unset=container"),
)
_RUN = """
set -e
mount -t proc proc "$1/proc"
mount --bind "$1/devices" "$1/proc/bus/pci/devices"
mount -t tmpfs tmpfs "$1/run"
exec chroot "$1" sh -c '
PATH=/usr/local/bin:$PATH
cloud-init init --local
cloud-init init
cloud-init modules --mode=config
cloud-init modules --mode=final
true'
"""


def find_obstacle() -> str:
    """Return why this computer can't boot a guest; empty if it can."""
    if os.getuid() != 0 or not shutil.which("apt-get"):
        return "needs root and apt"
    return ""


def build(place: pathlib.Path) -> pathlib.Path:
    """Unpack Debian and cloud-init below a directory; return their root."""
    place.chmod(0o755)
    fields = "$(REPO_URI) $(SUITE)"
    words = ("apt-get", "indextargets", "--format", fields)
    listed = _run(place, *words, "Created-By: Packages")
    sources = [line.split() for line in sorted(listed.splitlines())]
    # Neither updates nor other repositories.
    main = next(s for s in sources if s[1].isalpha() and "debian" in s[0])
    _run(place, "apt-get", "download", "mmdebstrap")
    (package,) = place.glob("mmdebstrap_*.deb")
    _run(place, "dpkg", "-x", str(package), "tool")
    _run(
        place,
        *("tool/usr/bin/mmdebstrap", "--mode=root", "--variant=apt"),
        *("--include=cloud-init", main[1], "root", main[0]),
    )
    return place / "root"


def _run(place: pathlib.Path, *words: str) -> str:
    return subprocess.run(  # noqa: S603 - fixed words
        words,
        cwd=place,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    ).stdout


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """Root directory of a guest, and what its first boot left there."""

    root: pathlib.Path

    @classmethod
    def copy(
        cls,
        debian: pathlib.Path,
        root: pathlib.Path,
        devices: str,
        **datasource: object,
    ) -> "Guest":
        """Return a guest that has not booted.

        :param debian: what :func:`build` returned.
        :param devices: its PCI devices: ``GPU``, ``OTHER``.
        :param datasource: the only datasource of cloud-init, and its options.
        """
        _run(debian, "cp", "-a", str(debian), str(root))
        (root / "devices").write_text(devices)
        (root / "usr/local/bin/systemctl").write_text(_SYSTEMCTL)
        (root / "usr/local/bin/systemctl").chmod(0o755)
        product = root / "sys/class/dmi/id/product_name"
        product.parent.mkdir(parents=True)
        product.write_text("OpenStack Nova\n")
        # JSON is YAML.
        config = {"datasource_list": [*datasource], "datasource": datasource}
        (root / "etc/cloud/cloud.cfg.d/99.cfg").write_text(json.dumps(config))
        return cls(root)

    def boot(self) -> None:
        """Run the four stages of cloud-init."""
        words = ("sh", "-c", _RUN, "run", str(self.root))
        _run(self.root, *_NAMESPACES, *words)

    def read_logs(self) -> str:
        """Return all logs of cloud-init."""
        logs = sorted((self.root / "var/log").glob("cloud-init*"))
        return "".join(log.read_text() for log in logs)

    def read_source(self, instance: str) -> str:
        """Return the datasource in which cloud-init found an instance."""
        place = self.root / "var/lib/cloud/instances" / instance
        return (place / "datasource").read_text()

    def list_tokens(self) -> list[pathlib.Path]:
        """Return the files of licence tokens, none without a directory."""
        return list(self.root.glob("etc/nvidia/ClientConfigToken/*"))

    def list_vendor_scripts(self) -> list[pathlib.Path]:
        """Return the scripts of vendordata that cloud-init has run."""
        return list(
            self.root.glob("var/lib/cloud/instances/*/scripts/vendor/*")
        )

    def read_systemctl_calls(self) -> list[str]:
        """Return the arguments of each call of systemctl."""
        log = self.root / "var/log/systemctl"
        return log.read_text().splitlines() if log.exists() else []
