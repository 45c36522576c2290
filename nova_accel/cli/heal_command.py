# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel heal``."""

import argparse
from collections.abc import Set

from nova_accel.cli import (
    application,
    command_manager,
    host_source,
    state_dir_option,
)
from nova_accel.discovery import device_marks, scan
from nova_accel.inventory import conditions


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        nargs="*",
        metavar="ADDRESS",
        help="address of the device, for example 0000:41:00.0, or of an FPGA"
        " region, for example 0000:5e:00.0/region-0",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="set the directory of notes (default: [nova_accel] state_dir)",
    )
    host_source.add_config(parser)


def _heal(arguments: argparse.Namespace) -> str:
    if arguments.state_dir is not None:
        state_dir_option.check_named(arguments.state_dir)
    settings = host_source.read_settings(arguments)
    state_dir = arguments.state_dir or settings.state_dir
    if hint := state_dir_option.describe_missing(state_dir):
        raise settings.refusal("state_dir", state_dir, hint)
    host, _ = host_source.open_host(settings.root, settings)
    drivers = host_source.load_drivers(settings)
    marks = device_marks.DeviceMarks(
        state_dir,
        lambda: host,
        lambda: scan.read(host, drivers, settings.rules),
    )
    state = scan.read(host, drivers, marks.add_assigned(settings.rules))
    current, noted = marks.read_faults(state)
    if not arguments.address:
        lines = _fault_lines(current, noted)
        return lines or f"Nothing is set aside in {state_dir}.\n"
    addresses = {
        text if text in noted else conditions.resolve_address(state, text)
        for text in arguments.address
    }
    _check_faulted(addresses, noted.keys() | current.keys(), state_dir)
    return "".join(
        f"{address}: is set aside still:"
        f" {reason.removeprefix(f'{address} ')}\n"
        if reason
        else f"{address}: offered again from nova-compute's next pass on\n"
        for address, reason in marks.heal(state, addresses).items()
    )


def _check_faulted(addresses: Set[str], faulted: Set[str], path: str) -> None:
    """Check that all devices are set aside.

    :param path: directory of the notes.
    :raises UsageError: a device is not set aside.
    """
    listed = ", ".join(sorted(faulted))
    choice = f"these are: {listed}" if faulted else "no device is"
    for address in sorted(addresses - faulted):
        raise command_manager.UsageError(
            f"{address!r} is not set aside in {path}; {choice}"
        )


def _fault_lines(*sources: conditions.Faults) -> str:
    """Return a line for each fault, in the order of the sources."""
    return "".join(
        f"{fault.address}"
        + (f"  since {fault.when}" if fault.when else "")
        + f": {fault.reason.removeprefix(f'{fault.address} ')}\n"
        for by_address in sources
        for _, fault in sorted(by_address.items())
    )


ACTION = application.Action(_add_arguments, _heal)
