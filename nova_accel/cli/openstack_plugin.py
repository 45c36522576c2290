# SPDX-License-Identifier: Apache-2.0
"""Plug-in of python-openstackclient: ``openstack accel``.

``openstackclient.common.clientmanager`` reads these names. The commands are
the entry points of the group ``openstack.accel.v1``. There is no service of
its own: the commands use the connection to Placement and Nova.
"""

import argparse
from typing import Any

#: Equal to the name of the entry point.
API_NAME = "accel"
API_VERSION_OPTION = "os_accel_api_version"
#: Version of the commands' columns and values; see fleet_output.
DEFAULT_API_VERSION = "1"
API_VERSIONS = (DEFAULT_API_VERSION,)


def make_client(instance: Any) -> Any:
    """Return the connection of openstacksdk that the commands use."""
    return instance.sdk_connection


def build_option_parser(
    parser: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Add the option that chooses the version of the commands."""
    parser.add_argument(
        "--os-accel-api-version",
        metavar="<accel-api-version>",
        help=f"Version of `openstack accel`, default {DEFAULT_API_VERSION}",
    )
    return parser
