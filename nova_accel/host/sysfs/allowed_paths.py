# SPDX-License-Identifier: Apache-2.0
"""Paths of a host that may be read, and the lines that are retained.

Everything below ``TOP`` may be read. Of the rest of the host only some files
are: nova-compute reads those of ``NOVA``, commands and the doctor those of
``nova_accel.host.host_paths``. A file that may hold a secret is reduced to
some of its lines and words as soon as it is read, so that no secret gets into
a verdict, a log or a capture.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator

# Kernel attributes have at most one page (4 KiB; PAGE_SIZE in
# fs/sysfs/file.c, 64 KiB on some architectures).
LIMIT = 64 * 1024
LARGE = 4 * 1024 * 1024
# The kernel refuses a read of a sysctl that asks for 4 MiB or more, and
# allocates what a smaller one asks for (fs/proc/proc_sysctl.c). Names of
# releases have 64 characters at most (__NEW_UTS_LEN).
RELEASE = 64
TOP = "/sys"
# NVIDIA's table of vGPU types, where its host driver installs it: 700 kB
# in release 535, and it grows with each.
VGPU_CONFIG = "/usr/share/nvidia/vgpu/vgpuConfig.xml"
# Names of PCI devices: 1.6 MB in 2026, by package hwdata or pci.ids.
PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
# The release of the running kernel, at most 64 bytes (utsname(2)).
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
# The words of the running kernel's command line.
KERNEL_ARGUMENTS = "/proc/cmdline"
KERNEL_MODULES = "/lib/modules"

# Returns the lines that are retained.
Reduce = Callable[[list[str]], Iterator[str]]
# Words of the kernel's command line about accelerators.
_ARGUMENT = re.compile(
    r"(intel_iommu|amd_iommu|iommu(\.\w+)?|intremap|nointremap|pci|pcie_\w+"
    r"|vfio\S*|(modprobe\.|rd\.driver\.|module_)blacklist|rdblacklist"
    r"|(default_)?hugepages\w*|lockdown|nouveau\.\w+|nvidia[\w-]*\.\w+"
    r"|i915\.\w+|xe\.\w+|kvm\S*)(=\S*)?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllowedPaths:
    """Files outside of ``TOP`` that may be read.

    ``trees`` are directories with all below them, ``further`` other paths.
    ``above`` are directories that end in a slash: they and those above the
    files are followed, and not listed. Files that match ``large`` may have
    ``LARGE`` bytes, other ones ``LIMIT``. ``reducers`` are of the files that
    may hold secrets.
    """

    files: frozenset[str]
    trees: tuple[str, ...]
    large: re.Pattern[str]
    reducers: tuple[tuple[re.Pattern[str], Reduce], ...]
    further: re.Pattern[str] = re.compile(r"(?!)")
    above: tuple[str, ...] = ()

    @functools.cached_property
    def _parents(self) -> frozenset[str]:
        return frozenset(
            path[:end]
            for path in (*self.files, *self.trees, *self.above)
            for end in range(1, len(path))
            if path[end] == "/"
        )

    def limit(self, path: str) -> int:
        """Return the maximum size of the file at a path, in bytes."""
        if path == KERNEL_RELEASE:
            return RELEASE
        return LARGE if self.large.fullmatch(path) else LIMIT

    def is_allowed(self, path: str) -> bool:
        """Return whether a path without links may be read."""
        return (
            path == TOP
            or path.startswith(f"{TOP}/")
            or path in self.files
            or path in self._parents
            or any(
                path == top or path.startswith(f"{top}/") for top in self.trees
            )
            or self.further.fullmatch(path) is not None
        )

    def is_listed(self, path: str) -> bool:
        """Return whether the names in a directory may be read."""
        return path not in self._parents

    def reduce_text(self, path: str, text: str) -> str:
        """Return a file's text without the lines that may hold secrets."""
        for pattern, reduce in self.reducers:
            if pattern.fullmatch(path):
                lines = reduce(text.splitlines())
                return "".join(f"{line}\n" for line in lines)
        return text


def is_node(path: str) -> bool:
    """Return whether a path is a device node, which is never opened."""
    return path.startswith("/dev/")


def select_arguments(lines: list[str]) -> Iterator[str]:
    """Yield the words about accelerators of kernel command lines."""
    for line in lines:
        words = (word.strip("\"'") for word in line.split())
        yield " ".join(word for word in words if _ARGUMENT.fullmatch(word))


#: Those of nova-compute.
NOVA = AllowedPaths(
    files=frozenset((VGPU_CONFIG, *PCI_IDS, KERNEL_RELEASE, KERNEL_ARGUMENTS)),
    trees=(KERNEL_MODULES, "/usr/lib/modules"),
    large=re.compile("|".join(map(re.escape, (VGPU_CONFIG, *PCI_IDS)))),
    reducers=((re.compile(KERNEL_ARGUMENTS), select_arguments),),
)
