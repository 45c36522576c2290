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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--wait`` and ``--wait-empty``."""
    for flag, default_s, text in _OPTIONS:
        parser.add_argument(
            flag,
            nargs="?",
            const=default_s,
            type=common_options.parse_option_seconds,
            metavar="SECONDS",
            help=f"{text}, for at most this time (default {default_s:g})",
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
