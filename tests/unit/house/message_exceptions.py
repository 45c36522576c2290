# SPDX-License-Identifier: Apache-2.0
"""Messages that no golden file has, with the reason, by file.

A reason is a sentence, or the file of a test whose causes the tests in
tests/functional/sync/messages do not have: Nova's own services, a
scheduler's request, a page.
"""

_CHECKS = "tests/unit/nova_accel/doctor/test_checks.py"
_DEVICE_USE = "tests/unit/nova_accel/doctor/ansible/test_device_use.py"
_DOCTOR_COMMAND = "tests/unit/nova_accel/doctor/test_doctor_command.py"
_DRIVERS = "tests/unit/nova_accel/doctor/ansible/test_driver_command.py"
_RESETS = "tests/unit/nova_accel/doctor/test_resets.py"
_ROLES = "tests/functional/contrib/ansible/test_roles.py"
_CODE = "an error of a programmer, not of an operator"
_NO_POINTS = "an installation without entry points"
_NO_MESSAGE = "a pattern or the begin of --help, no message"
_HELP = "tests/unit/nova_accel/cli/test_commands.py"
_DEVICES = "tests/functional/nova/attach/test_device_command.py"
_PAGE = "tests/unit/placement_sync/fleet/report/test_report.py"
_STATUS = "tests/unit/placement_sync/daemon/test_status.py"
_DRAIN_MARKS = "tests/unit/placement_sync/cli/test_drain_marks.py"
_OUTSIDE_HOST = "tests/unit/placement_sync/cli/test_outside_host.py"
_STOCK_COMPUTE = "tests/unit/placement_sync/client/test_stock_compute.py"
_SYNC_COMMAND = "tests/unit/placement_sync/cli/test_sync_command.py"
_STOCK = "tests/functional/sync/fleet/test_stock.py"

#: Files all of whose messages have such a test.
FILES = {
    "nova_accel/cli/registered_readers.py": _NO_POINTS,
    "placement_sync/fleet/stock/stock_page.py": _STOCK,
}

#: The begin of each other message.
TEXTS: dict[str, dict[str, str]] = {
    "nova_accel/doctor/checked_host.py": {
        "<flag name='([\\w.-]{1,80})'/>": _NO_MESSAGE,
    },
    "nova_accel/doctor/doctor_command.py": {
        "no accelerator on this host": _DOCTOR_COMMAND,
    },
    "nova_accel/doctor/registry.py": {
        "entry point {}": _DOCTOR_COMMAND,
        "fails to load ({}); repair or remove its": _DOCTOR_COMMAND,
        "is no nova_accel.doctor.host_checks.Area": _DOCTOR_COMMAND,
        "run the command as root": _DOCTOR_COMMAND,
        "look for errors of the card's driver in ": _DOCTOR_COMMAND,
        "the check failed: {}": _DOCTOR_COMMAND,
    },
    "nova_accel/doctor/ansible/device_use.py": {
        "after {} s {}: see whether nova-compute ": _DEVICE_USE,
        "file of claims": _DEVICE_USE,
        "a file that nova-compute has written ({}": _DEVICE_USE,
        "{} does not name the compute node": _DEVICE_USE,
    },
    "nova_accel/doctor/ansible/driver_command.py": {
        "needs {}; install nova-accel[drivers]": _DRIVERS,
        "reboot this host for {}": _DRIVERS,
        "drained until you run: nova-accel undrai": _DRIVERS,
    },
    "nova_accel/doctor/ansible/driver_plan.py": {
        "no driver for {}": _DRIVERS,
    },
    "nova_accel/doctor/ansible/playbook.py": {
        "localhost ansible_connection=local ansib": _ROLES,
        "install nova-accel from its wheel, or th": _ROLES,
        "could not be found": _ROLES,
        "{} is not installed; {}": _ROLES,
        "no output": _ROLES,
    },
    "nova_accel/doctor/ansible/roles.py": {
        "technology of a driver": _DRIVERS,
    },
    "nova_accel/doctor/areas/fpga_cards.py": {
        "power off": _CHECKS,
        "power up": _CHECKS,
    },
    "nova_accel/doctor/areas/host_versions.py": {
        "^Max locked memory\\s+(\\S+)": _NO_MESSAGE,
    },
    "nova_accel/doctor/areas/pci_cards.py": {
        "{} does not answer: a read of it hangs": _RESETS,
    },
    "nova_accel/doctor/areas/state_services.py": {
        "do what the text says, then systemctl re": _CHECKS,
    },
    "nova_accel/cli/application.py": {
        "{} prints a text or an object": _CODE,
        "{} prints cells": _CODE,
        "{} prints rows": _CODE,
        "{} prints fields": _CODE,
        "{} [options] COMMAND ...": _HELP,
        "Options of the command that may precede ": _HELP,
        "can't write:": "a full disk or a closed terminal",
    },
    "nova_accel/cli/command_manager.py": {
        "its {} fails to load ({}); {}": _HELP,
        "install what it needs": _HELP,
        "entry point {}": _HELP,
        "{} is no command: it must be a class der": _HELP,
    },
    "nova_accel/cli/commands.py": {
        "Print and change the accelerators of a c": _NO_MESSAGE,
    },
    "nova_accel/cli/console.py": {
        "\\s*Eventlet is deprecated": _NO_MESSAGE,
    },
    "nova_accel/cli/heal_command.py": {
        "{}: is set aside still: {}": _DEVICES,
    },
    "nova_accel/cli/host_source.py": {
        "no vendor driver is installed; install n": _NO_POINTS,
    },
    "nova_accel/cli/inspect_output.py": {
        "marks unknown: {}": _DRAIN_MARKS,
    },
    "placement_sync/cli/main.py": {
        "Correct the accelerators of this host in": _NO_MESSAGE,
    },
    "placement_sync/cli/outside_host.py": {
        "file of nova-compute's node": _OUTSIDE_HOST,
        "a uuid in it": _OUTSIDE_HOST,
    },
    "placement_sync/cli/status_command.py": {
        "usage sampled {} ago": _STATUS,
    },
    "placement_sync/cli/sync_command.py": {
        "nova-compute of %s runs without nova-acc": _STOCK_COMPUTE,
        "placement-sync: waiting for the pass of ": _SYNC_COMMAND,
        "placement-sync: %(message)s": _NO_MESSAGE,
        "placement-sync: this user may not read {": _SYNC_COMMAND,
    },
    "placement_sync/fleet/compute_rpc.py": {
        "no answer in {} s": "a nova-compute that hangs",
    },
    "placement_sync/fleet/removal/removal_plan.py": {
        "whole device": "a claim of a driver whose devices have no profile",
    },
    "placement_sync/fleet/stock/wsgi.py": {
        "No stock: %s": _NO_MESSAGE,
        "(not set)": _STOCK,
        "set the path of the file that": _STOCK,
    },
    "placement_sync/fleet/report/card_bars.py": {
        "free, fits {}": _PAGE,
    },
    "placement_sync/fleet/report/page_views.py": {
        "{} with more allocated than there is": _PAGE,
    },
    "placement_sync/fleet/report/report_text.py": {
        "; moving {} makes {} possible on {}": _PAGE,
    },
    "placement_sync/fleet/report/report_page.py": {
        "it needs Jinja2": "an installation without Jinja2",
    },
}
