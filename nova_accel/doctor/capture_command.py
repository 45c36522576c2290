# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel capture``."""

import argparse

from nova_accel.cli import application, host_source
from nova_accel.config import conf, policy
from nova_accel.discovery import capture, scan, unoffered_devices
from nova_accel.doctor import checked_host, registry
from nova_accel.host.sysfs import error_counters
from nova_accel.inventory import wording


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    host_source.add_root(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write this file (default: nova-accel-HOST-DATE.tar.gz)",
    )


def _capture(arguments: argparse.Namespace) -> str:
    host, meta = host_source.open_host(
        host_source.select_root(arguments.root, "/")
    )
    settings = conf.Settings(drivers=(), rules=policy.DeviceRules(), root="/")
    state = scan.read(host, host_source.load_drivers(settings), settings.rules)
    # Read the files of all checks, too, to capture them.
    error_counters.find_faults(host, state.devices)
    registry.run(registry.list_checks(), checked_host.CheckedHost(host))
    name = meta.get("hostname") or "host"
    day = str(meta.get("date", ""))[:10]
    path = arguments.output or f"nova-accel-{name}-{day}.tar.gz"
    models = unoffered_devices.list_models(
        host, unoffered_devices.list_functions(host), meta.get("models", {})
    )
    count = capture.save(host, path, {**meta, "models": models})
    return (
        f"{path}: {wording.count_of(count, 'path')},"
        f" {wording.count_of(len(state.devices), 'device')},"
        f" {wording.count_of(len(state.problems), 'problem')}.\n"
        f"Read it with: nova-accel inspect --root {path}\n"
    )


ACTION = application.Action(_add_arguments, _capture)
