# SPDX-License-Identifier: Apache-2.0
"""Command ``nova-accel license vendordata``."""

import argparse
import os

from nova_accel import errors
from nova_accel.cli import application
from placement_sync.licenses import guest_script, tokens

# Nova's services read it as their own user; the operator sets the group.
_MODE = 0o600


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token",
        metavar="FILE",
        required=True,
        help="client configuration token of the licence server",
    )
    parser.add_argument(
        "--feature-type",
        type=int,
        choices=guest_script.FEATURE_TYPES,
        default=guest_script.VGPU_FEATURE,
        help="FeatureType of gridd.conf: 1 for vGPUs (default); for whole"
        " cards 2 (workstation) or 4 (compute); 0 for no licence",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="file to create; it contains the token, and is never printed",
    )


def _write_vendordata(arguments: argparse.Namespace) -> str:
    """Write static vendordata.

    :raises ArchiveError: the file exists, or can't be written.
    :raises TokenError: the token can't be used.
    """
    token = tokens.read(arguments.token)
    script = guest_script.build_script(token, arguments.feature_type)
    path = os.path.abspath(arguments.output)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        with open(descriptor, "w") as file:
            file.write(guest_script.build_vendordata(script))
    except FileExistsError as error:
        raise errors.ArchiveError(
            path, "exists; remove it, or choose another name with -o"
        ) from error
    except OSError as error:
        raise errors.ArchiveError(
            path, f"can't be written: {error.strerror}"
        ) from error
    return (
        f"Wrote {path}. Make it readable for the user of Nova's services, and"
        " set in nova.conf of nova-api-metadata and nova-compute:\n"
        f"[api]\nvendordata_providers = StaticJSON\n"
        f"vendordata_jsonfile_path = {path}\n"
        "Every server gets it; users of each guest can read the token.\n"
    )


ACTION = application.Action(_add_arguments, _write_vendordata)
