# SPDX-License-Identifier: Apache-2.0
"""Command about licences; see ``application.Command``."""

from nova_accel.cli import application


class LicenseVendordata(application.Command):
    """Write vendordata that gives a licence token to guests.

    The file is for Nova's static vendordata: cloud-init in a guest with an
    NVIDIA GPU installs the token and restarts NVIDIA's licence service. Every
    server of the cloud gets it; to give tokens to servers with a vGPU only,
    see the vendordata service in the manual. Example: nova-accel license
    vendordata --token client_configuration_token.tok -o vendor_data.json
    """

    action = "placement_sync.licenses.license_command:ACTION"
