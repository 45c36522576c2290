# SPDX-License-Identifier: Apache-2.0
"""Compare what nova-accel reads of real NVIDIA GPUs with nvidia-smi.

Run it as root in a clone, with a Python in which the wheel and its extra
``nvml`` are installed; the machine needs NVIDIA's driver, nothing else::

    python3 -m tests.hardware --output report
    python3 -m tests.hardware --output report --load "python3 matmul.py"
    python3 -m tests.hardware --output report --change-mig

Nothing is changed without ``--change-mig``. With it, each GPU that no program,
VF or GPU instance uses is switched to MIG mode, an instance of each kind is
created and removed at each of its places, and the mode is restored.
``--load`` is a program that keeps the GPUs busy while their usage is compared.

The directory gets ``report.md``, ``smi.xml`` (nvidia-smi -q -x, without
serial numbers), ``host.tar.gz`` (nova-accel capture) and the output of
``inspect`` and ``doctor``. The exit status is 0 if all values agree, 1 if one
differs, 2 if NVML has no GPU. It takes a minute, or five with changes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from nova_accel.catalog import loader
from nova_accel.config import library_version
from nova_accel.host import nvml_gpus
from nova_accel.host.nvml import gpu_reader, nvml_library, usage_reader
from tests.hardware import mig_changes, smi
from tests.hardware.comparisons import (
    Result,
    Row,
    compare,
    compare_kinds,
    compare_state,
    compare_usage,
)

# Seconds from the start of the load until usage is compared.
LOAD_S = 10.0
REPEATS = 20
EVENTS_MS = 500


def check_state(gpus: nvml_gpus.NvmlGpus) -> Iterator[Row]:
    """Yield the state of all GPUs, beside nvidia-smi's."""
    version, described = smi.read_smi()
    yield compare("host", "GPUs", sorted(gpus), sorted(described))
    problems = [f"{p.where}: {p.reason}" for p in gpus.problems]
    yield compare("host", "problems of NVML", problems, [])
    for address, gpu in gpus.items():
        if address not in described:
            continue
        links = smi.count_links(
            smi.run("nvidia-smi", "nvlink", "-s", "-i", address)
        )
        yield from compare_state(gpu, version, described[address], links)
        types = smi.parse_types(
            smi.run("nvidia-smi", "vgpu", "-s", "-v", "-i", address)
        )
        yield compare(
            address,
            "vGPU types",
            {each.type_id: each.name for each in gpu.types} or None,
            types or None,
        )


def check_kinds(gpus: nvml_gpus.NvmlGpus) -> Iterator[Row]:
    """Yield NVML's MIG kinds, beside nvidia-smi's and the catalog's."""
    catalog = {
        each: gpu for gpu in loader.load().gpus() for each in gpu.pci_ids
    }
    for address, gpu in gpus.items():
        if gpu.is_mig is None:
            yield Row(address, "MIG kinds", Result.UNSUPPORTED)
            continue
        kinds = mig_changes.read_kinds(address)
        yield from compare_kinds(
            address, kinds, smi.list_printed_kinds(address), "nvidia-smi"
        )
        function = smi.SYSFS / address
        ids = [
            (function / name).read_text().strip().removeprefix("0x")
            for name in ("vendor", "device")
        ]
        modelled = catalog.get(":".join(ids))
        if modelled is None or not modelled.is_complete:
            yield Row(address, "MIG kinds, as catalog", Result.SKIPPED)
        else:
            yield from compare_kinds(address, kinds, modelled.kinds, "catalog")


def check_usage(load: str | None) -> Iterator[Row]:
    """Yield the usage of all GPUs, under a load if there is one."""
    with running(load):
        _, before = smi.read_smi()
        sample = usage_reader.read_usage()
        _, after = smi.read_smi()
    problems = [f"{p.where}: {p.reason}" for p in sample.problems]
    yield compare("host", "problems of the usage", problems, [])
    measured = {device.address: device for device in sample.devices}
    yield compare("host", "GPUs with usage", sorted(measured), sorted(before))
    for address, device in measured.items():
        yield from compare_usage(device, before[address], after[address])


@contextlib.contextmanager
def running(load: str | None) -> Iterator[None]:
    """Run a program beside a with block."""
    if not load:
        yield
        return
    with subprocess.Popen(shlex.split(load)) as process:  # noqa: S603
        time.sleep(LOAD_S)
        try:
            yield
        finally:
            process.terminate()


def check_repeats() -> Iterator[Row]:
    """Yield whether readings leave threads or open files behind."""
    gpu_reader.read_gpus()
    usage_reader.read_usage()
    before = _count_resources()
    began = time.monotonic()
    for _ in range(REPEATS):
        gpu_reader.read_gpus()
        usage_reader.read_usage()
    each = (time.monotonic() - began) / REPEATS
    yield compare(
        "host",
        f"threads and open files after {REPEATS} readings"
        f" of {each * 1000:.0f} ms",
        _count_resources(),
        before,
    )


def check_xid_events(gpus: nvml_gpus.NvmlGpus) -> Iterator[Row]:
    """Yield whether Xid errors can be listened for, and none arrives."""
    with nvml_library.session():
        for address in gpus:
            events = nvml_library.listen(nvml_library.gpu(address))
            number = nvml_library.wait(events, EVENTS_MS)
            yield compare(address, "Xid errors", number or [], [])


def _count_resources() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def check_commands(output: pathlib.Path) -> Iterator[Row]:
    """Yield whether inspect, doctor and capture agree with each other."""
    archive = output / "host.tar.gz"
    run_command("capture", "-o", str(archive))
    inspected = run_command("inspect", "-f", "json")
    (output / "inspect.json").write_text(inspected)
    (output / "inspect.txt").write_text(run_command("inspect"))
    (output / "doctor.txt").write_text(run_command("doctor"))
    checks = json.loads(run_command("doctor", "-f", "json") or "{}")
    unread = [
        f"{check['id']}: {finding['text']}"
        for check in checks.get("checks", [])
        for finding in check["findings"]
        if check["verdict"] == "unknown"
    ]
    yield compare("host", "doctor has results", bool(checks), True)
    yield compare("host", "checks without a result", unread, [])
    replayed = run_command("inspect", "-f", "json", "--root", str(archive))
    yield compare(
        "host",
        "inspect of the archive is that of the host",
        replayed == inspected,
        True,
    )
    for address in list_functions():
        yield compare(
            address, "is in inspect's output", address in inspected, True
        )


def run_command(*words: str) -> str:
    """Return the output of a ``nova-accel`` command."""
    return smi.run(sys.executable, "-m", "nova_accel.cli.commands", *words)


def list_functions() -> list[str]:
    """Return the addresses of NVIDIA's display functions in sysfs."""
    return sorted(
        function.name
        for function in smi.SYSFS.iterdir()
        if (function / "vendor").read_text().strip() == "0x10de"
        and (function / "class").read_text().startswith("0x03")
    )


def write_report(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Write the rows as a table of Markdown."""
    version, gpus = smi.read_smi()
    products = [gpu.text("product_name") or "?" for gpu in gpus.values()]
    lines = [
        f"# NVIDIA GPUs, nova-accel {library_version.read()}",
        "",
        f"Kernel {platform.release()}, driver {version}, Python"
        f" {platform.python_version()}: {', '.join(sorted(products))}.",
        "",
        "| subject | value | result | nova-accel | expected |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.subject} | {row.value} | {row.result} | {row.read} |"
        f" {row.expected} |"
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n")


def list_checks(
    arguments: argparse.Namespace, gpus: nvml_gpus.NvmlGpus
) -> list[tuple[str, Callable[[], Iterator[Row]]]]:
    """Return the steps, in their order."""
    output = pathlib.Path(arguments.output)
    steps: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        ("state", lambda: check_state(gpus)),
        ("MIG kinds", lambda: check_kinds(gpus)),
        ("usage", lambda: check_usage(arguments.load)),
        ("Xid errors", lambda: check_xid_events(gpus)),
        ("repeated readings", check_repeats),
        ("inspect, doctor, capture", lambda: check_commands(output)),
    ]
    if arguments.change_mig:
        steps.append(
            ("MIG changes", lambda: mig_changes.check_mig_changes(gpus))
        )
    return steps


def main() -> int:
    """Compare, write the report, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, metavar="DIRECTORY")
    parser.add_argument("--load", metavar="COMMAND")
    parser.add_argument("--change-mig", action="store_true")
    arguments = parser.parse_args()
    output = pathlib.Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    gpus = gpu_reader.read_gpus()
    if not gpus:
        reason = gpus.reason or [p.reason for p in gpus.problems]
        print(f"NVML has no GPU: {reason}", file=sys.stderr)
        return 2
    (output / "smi.xml").write_text(
        smi.remove_identity(smi.run("nvidia-smi", "-q", "-x"))
    )
    rows: list[Row] = []
    for name, step in list_checks(arguments, gpus):
        began = time.monotonic()
        added = list(step())
        rows += added
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        for row in added:
            if row.result is Result.DIFFERS:
                print(f"  {row}", flush=True)
    write_report(output / "report.md", rows)
    differing = sum(row.result is Result.DIFFERS for row in rows)
    print(f"{len(rows)} values, {differing} differ: {output / 'report.md'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
