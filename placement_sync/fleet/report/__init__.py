# SPDX-License-Identifier: Apache-2.0
"""Report of a fleet: devices with their holders, flavors, projects, problems.

- ``card_bars``: ``build_bar``, the parts of a device in their places
- ``fleet_report``: ``FleetReport``, built from a ``Fleet`` and flavors
- ``report_text``: the report as text
- ``report_page``: the report as one HTML file
"""
