# SPDX-License-Identifier: Apache-2.0
"""Commands about the stock of flavors; see ``application.Command``."""

from nova_accel.cli import application


class StockPublish(application.Command):
    """Publish what of each flavor can start now, for users.

    Two files are written: one that the stock's service serves to each project,
    and a page with the levels of public flavors. A level of many survives
    --starts starts of any flavors within --max-age. Example: openstack accel
    stock publish --directory /var/lib/nova-accel-stock --interval 60
    """

    action = "placement_sync.fleet.stock.stock_command:PUBLISH"


class StockList(application.ListCommand):
    """List what of each flavor you can start now: none, few or many.

    Flavors that your project may use and that request accelerators are
    listed. Quotas and limits of your project are not considered. The exit
    status is 1 if no server of a listed flavor can start. Example: openstack
    accel stock list --flavor gpu.small --wait 3600
    """

    action = "placement_sync.fleet.stock.stock_command:LIST"
