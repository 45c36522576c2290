# SPDX-License-Identifier: Apache-2.0
"""Messages that no golden file has, with the reason, by file.

A reason is a sentence, or the file of a test of a text that no command
prints to the tests in tests/functional/sync/messages.
"""

_DRIVERS = "`driver install` would change the drivers of the tests' machine"
_LOG = "a line in the log of the web server that runs the service"

#: The begin of each message.
TEXTS: dict[str, dict[str, str]] = {
    "nova_accel/doctor/ansible/device_use.py": {
        "after {} s {}: see whether nova-compute ": _DRIVERS,
        "{} does not name the compute node": _DRIVERS,
    },
    "nova_accel/doctor/ansible/driver_command.py": {
        "reboot this host for {}": _DRIVERS,
        "drained until you run: nova-accel undrai": _DRIVERS,
    },
    "nova_accel/doctor/ansible/playbook.py": {
        "localhost ansible_connection=local ansib": "an inventory of Ansible",
        "install nova-accel from its wheel, or th": _DRIVERS,
        "could not be found": "a text of Ansible that is searched for",
        "{} is not installed; {}": _DRIVERS,
        "no output": _DRIVERS,
    },
    "nova_accel/doctor/areas/pci_cards.py": {
        "{} does not answer: a read of it hangs": "a read that hangs for ever",
    },
    "placement_sync/cli/sync_command.py": {
        "placement-sync: this user may not read {": "tests may run as root",
    },
    "placement_sync/fleet/removal/host_removal.py": {
        "{} still offers {}": "a Placement that refuses one write of a pass",
    },
    "placement_sync/fleet/stock/wsgi.py": {
        "No stock: %s": _LOG,
        "(not set)": _LOG,
        "set the path of the file that": _LOG,
    },
    "placement_sync/fleet/report/card_bars.py": {
        "free, fits {}": (
            "tests/unit/placement_sync/fleet/report/test_report.py"
        ),
    },
}
