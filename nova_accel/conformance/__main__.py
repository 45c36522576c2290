# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_accel.conformance``: check a vendor driver."""

import argparse
import logging
import sys
from collections.abc import Sequence

from nova_accel import conformance, errors
from nova_accel.cli import host_source
from nova_accel.discovery import plugin
from nova_accel.inventory import wording

_FINDINGS, _BAD_INPUT = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 if there are no findings, 1 if there are, 2 for unusable input.
    """
    logging.getLogger("nova_accel").addHandler(logging.NullHandler())
    arguments = _parser().parse_args(argv)
    try:
        driver = plugin.load([arguments.name])[arguments.name]
        count = sum(
            _check(driver, arguments.name, root, arguments.every)
            for root in arguments.root
        )
    except errors.AcceleratorError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return _BAD_INPUT
    hosts = wording.count_of(len(arguments.root), "host")
    findings = wording.count_of(count, "finding")
    print(f"{arguments.name}: {hosts}, {findings}")
    return _FINDINGS if count else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nova_accel.conformance",
        description="Check that a vendor driver keeps the rules that the"
        " library relies on. Nothing is changed. Example: python -m"
        " nova_accel.conformance nvidia_mdev --root /",
    )
    parser.add_argument(
        "name",
        metavar="DRIVER",
        help="name of the driver's entry point in the group"
        " nova_accel.drivers",
    )
    parser.add_argument(
        "--root",
        action="append",
        required=True,
        metavar="DIR|ARCHIVE",
        help="read the host in this directory, which has sys/ (/ for this"
        " machine), or in this archive of `nova-accel capture`; may be"
        " repeated",
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help="let the read of each file fail in turn, instead of two of"
        " each kind (slow)",
    )
    return parser


def _check(driver: plugin.Driver, name: str, root: str, every: bool) -> int:
    """Print the findings of one host; return their number."""
    host, _ = host_source.open_host(root)
    findings = conformance.check_driver(
        driver,
        host.files.source,
        name=name,
        gpus=host.gpus,
        every=every,
    )
    for finding in findings:
        print(f"{root}: {finding}")
    return len(findings)


if __name__ == "__main__":
    sys.exit(main())
