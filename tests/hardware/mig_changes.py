# SPDX-License-Identifier: Apache-2.0
"""Changes of MIG mode and of GPU instances, each verified and undone."""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader, gpu_writer, nvml_library
from tests.hardware import smi
from tests.hardware.comparisons import Result, Row, compare


def read_kinds(address: str) -> Sequence[model.InstanceKind]:
    """Return NVML's MIG kinds of a GPU, MIG being on or off.

    The product reads them in MIG mode only.
    """
    with nvml_library.session():
        gpu = nvml_library.gpu(address)
        return gpu_reader._kinds(gpu, nvml_library.profiles(gpu))


def check_mig_changes(gpus: nvml_gpus.NvmlGpus) -> Iterator[Row]:
    """Yield whether MIG mode and instances can be changed and restored."""
    _, described = smi.read_smi()
    for address, gpu in gpus.items():
        reason = find_use(gpu, described[address])
        if reason:
            yield Row(address, "MIG changes", Result.SKIPPED, reason)
            continue
        was_mig = bool(gpu.is_mig)
        try:
            yield from _switch(address, True)
            if _is_mig(address):
                yield from _change_instances(address)
        finally:
            rows = list(_switch(address, was_mig))
        yield from rows


def find_use(gpu: nvml_gpus.NvmlGpu, described: smi.SmiGpu) -> str:
    """Return why the MIG mode of a GPU must stay, empty if it need not."""
    vfs = smi.SYSFS / gpu.address / "sriov_numvfs"
    if gpu.is_mig is None:
        return "the GPU has no MIG mode"
    if described.is_used or gpu.instances or gpu.vgpus:
        return "programs, instances or vGPUs use the GPU"
    if vfs.exists() and vfs.read_text().strip() != "0":
        return "the GPU has VFs"
    return ""


def _switch(address: str, is_mig: bool) -> Iterator[Row]:
    word = "on" if is_mig else "off"
    number = gpu_writer.set_mig(address, is_mig)
    yield compare(
        address,
        f"MIG switched {word}: errno, mode",
        (number, _is_mig(address)),
        (0, is_mig),
    )


def _is_mig(address: str) -> bool:
    modes = smi.read_smi()[1][address].mig
    return modes is not None and modes[0]


def _change_instances(address: str) -> Iterator[Row]:
    for kind in read_kinds(address):
        for start in kind.starts:
            number = gpu_writer.create_instance(address, kind.name, start)
            printed = _list_instances(address)
            removed = gpu_writer.destroy_instance(address, kind.name, start)
            yield compare(
                address,
                f"{kind.name} at {start}: errno, instance, errno, none",
                (number, printed, removed, _list_instances(address)),
                (0, {(kind.name, start, kind.size)}, 0, set()),
            )


def _list_instances(address: str) -> set[tuple[str, int, int]]:
    return smi.parse_instances(
        smi.run("nvidia-smi", "mig", "-i", address, "-lgi")
    )
