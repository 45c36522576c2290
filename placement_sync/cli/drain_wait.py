# SPDX-License-Identifier: Apache-2.0
"""Waits for drained devices, on their host and from elsewhere."""

import argparse
import functools
from collections.abc import Callable, Collection

from nova_accel.model import names
from placement_sync.cli import common_options, progress
from placement_sync.client import drained_providers

# Seconds. A pass starts within seconds of a drain, unless Placement is slow;
# an operator may have to migrate servers.
MARK_TIMEOUT_S, EMPTY_TIMEOUT_S = 120.0, 3600.0
_OPTIONS = (
    (
        "--wait",
        MARK_TIMEOUT_S,
        "wait until Placement has the trait of drained devices",
    ),
    (
        "--wait-empty",
        EMPTY_TIMEOUT_S,
        "wait until Placement does not offer the devices and no server uses"
        " them",
    ),
)


def add_arguments(
    parser: argparse.ArgumentParser, mark_condition: str = ""
) -> None:
    """Add the options ``--wait`` and ``--wait-empty``.

    :param mark_condition: what else ``--wait`` waits for, behind a comma.
    """
    for flag, default_s, text in _OPTIONS:
        parser.add_argument(
            flag,
            nargs="?",
            const=default_s,
            type=common_options.parse_option_seconds,
            metavar="SECONDS",
            help=f"{text}{mark_condition * (flag == '--wait')}, for at most"
            f" this time (default {default_s:g})",
        )


def add_undrain_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--wait`` of a command that ends drains."""
    parser.add_argument(
        "--wait",
        nargs="?",
        const=MARK_TIMEOUT_S,
        type=common_options.parse_option_seconds,
        metavar="SECONDS",
        help="wait until Placement has no trait of drained devices on them,"
        f" for at most this time (default {MARK_TIMEOUT_S:g})",
    )


def run_undrain(
    arguments: argparse.Namespace,
    drained: drained_providers.DrainedProviders,
    devices: str,
) -> bool:
    """Wait for the end of a drain as the arguments request, as ``run``."""
    return arguments.wait is None or progress.wait_until(
        f"Placement to drop the trait of drained devices on {devices}",
        drained.find_drained,
        arguments.wait,
    )


def run(
    arguments: argparse.Namespace,
    drained: drained_providers.DrainedProviders,
    devices: str,
    migrate: Callable[[Collection[str]], None] | None = None,
) -> bool:
    """Wait as the arguments request; print the reason, and return False.

    :param devices: their addresses, for messages.
    :param migrate: is called with the consumers that use the devices, again
        and again, once Placement does not offer these: Nova could choose them
        again. It raises NeverMetError if it migrates none of them.
    """
    is_done = arguments.wait is None or progress.wait_until(
        f"Placement to have the trait of drained devices on {devices}",
        functools.partial(
            drained.find_offered, frozenset({names.DRAINED_TRAIT})
        ),
        arguments.wait,
    )
    if not is_done or arguments.wait_empty is None:
        return is_done
    return progress.wait_until(
        f"all servers to release {devices}",
        functools.partial(drained.find_use, migrate),
        arguments.wait_empty,
    )
