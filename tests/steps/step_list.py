# SPDX-License-Identifier: Apache-2.0
"""Inputs of each step of ``tests/run``.

Each file of the tree is an input of a step, but for documentation and for the
``test_*.py`` of other steps. Helpers, data and fixtures of other steps are
inputs: tests share them, and a wrong skip is worse than a run.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePosixPath

# Folders and files without code that a test of a host runs.
DOCUMENTATION = ("doc", "releasenotes", "README.rst", "CONTRIBUTING.rst")
# Python below ``doc`` that unit tests run.
EXAMPLES = ("doc/source/examples", "doc/source/_ext")

# Tests from which those of other steps import.
IMPORTED_TESTS = (
    "tests/functional/nova/fpga/test_fpga.py",
    "tests/functional/nova/fpga/test_tools.py",
    "tests/functional/nova/spawn/test_typed_vfs.py",
    "tests/functional/sync/commands/test_explain.py",
    "tests/functional/test_activation.py",
    "tests/unit/nova_accel/cli/test_commands.py",
    "tests/unit/nova_accel/doctor/ansible/test_device_use.py",
    "tests/unit/nova_accel/doctor/ansible/test_driver_command.py",
    "tests/unit/nova_accel/doctor/test_doctor_command.py",
    "tests/unit/placement_sync/cli/test_progress.py",
    "tests/unit/placement_sync/client/test_stock_compute.py",
    "tests/unit/placement_sync/daemon/test_metrics.py",
    "tests/unit/virt_hooks/guest/test_hostdev.py",
    "tests/unit/virt_hooks/guest/topology/test_picture.py",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Step of ``tests/run``.

    ``tests`` are folders and files of its own tests, ``pages`` documentation
    that they read. A step that checks the tree itself (``checks_tree``) has
    all files as inputs. ``has_scopes``: the scope of a run decides what the
    step runs. ``tests_commit``: its tests use the commit that is checked out,
    in place of the files. ``is_recorded``: a pass says something about the
    next run.
    """

    tests: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    checks_tree: bool = False
    has_scopes: bool = True
    tests_commit: bool = False
    is_recorded: bool = True


_HARNESS = Step(tests=("tests/functional/nova",))
STEPS: Mapping[str, Step] = {
    "lint": Step(checks_tree=True, has_scopes=False),
    "types": Step(tests=("tests",), has_scopes=False),
    "docs": Step(checks_tree=True, has_scopes=False),
    "house": Step(
        tests=(
            "tests/unit/docs",
            "tests/unit/house",
            # These compare a page of the manual with the code.
            "tests/unit/nova_accel/catalog/test_features.py",
            "tests/unit/nova_accel/config/test_conf.py",
            "tests/unit/nova_accel/catalog/test_extra_specs.py",
            "tests/unit/placement_sync/cli/test_sync_command.py",
            "tests/unit/placement_sync/daemon/test_metrics.py",
            "tests/unit/placement_sync/daemon/test_status.py",
            "tests/unit/placement_sync/licenses/test_guest_script.py",
            "tests/unit/virt_hooks/report/test_notifications.py",
        ),
        checks_tree=True,
    ),
    "unit": Step(tests=("tests/unit",)),
    "conformance": Step(tests=("tests/conformance",)),
    "functional": Step(
        tests=(
            "tests/functional/contrib/ansible",
            "tests/functional/contrib/monitoring/test_prometheus.py",
            "tests/functional/contrib/packages",
            "tests/functional/images",
            "tests/functional/inventory",
            "tests/functional/scheduler",
            "tests/functional/sync",
            "tests/functional/test_activation.py",
            "tests/functional/test_privsep_nova.py",
            "tests/functional/guests/test_xml_libvirt.py",
        ),
        pages=(
            "doc/source/admin/fleet-report-host.png",
            "doc/source/admin/fleet-report.png",
            "doc/source/admin/scale.rst",
            "doc/source/install/index.rst",
        ),
        tests_commit=True,
    ),
    "metering": Step(tests=("tests/functional/contrib/monitoring/metering",)),
    "nova": _HARNESS,
    "nova-own": Step(tests=("tests/functional/nova_own",)),
    "watcher": Step(tests=("tests/functional/contrib/watcher",)),
    "ironic": Step(
        tests=("tests/functional/ironic",),
        pages=("doc/source/admin/ironic.rst",),
    ),
    "nova34-eventlet": _HARNESS,
    "nova33": _HARNESS,
    "nova32": _HARNESS,
    "nova31": _HARNESS,
    "fakehost": Step(
        tests=(
            "tests/e2e/inside_fakehost",
            "tests/e2e/test_fakehost.py",
            "tests/functional/agreement",
            "tests/functional/fakehost",
        ),
    ),
    "guests": Step(tests=("tests/functional/guests/booted",)),
    "lab": Step(
        tests=("tests/e2e", "tests/functional/images"),
        pages=(
            "doc/source/admin/adopt.rst",
            "doc/source/admin/fleet.rst",
            "doc/source/install/index.rst",
        ),
        tests_commit=True,
    ),
    # A run draws other lives each time.
    "campaign": Step(is_recorded=False),
}


def is_below(path: str, places: tuple[str, ...]) -> bool:
    """Return whether a path is one of some places or below it."""
    return any(path == p or path.startswith(f"{p}/") for p in places)


def is_input(path: str, step: Step) -> bool:
    """Return whether a step depends on a file of the tree."""
    if step.checks_tree or is_below(path, (*EXAMPLES, *step.pages)):
        return True
    if is_below(path, DOCUMENTATION):
        return False
    is_test = is_below(path, ("tests",)) and PurePosixPath(path).match(
        "test_*.py"
    )
    return not is_test or is_below(path, (*IMPORTED_TESTS, *step.tests))
