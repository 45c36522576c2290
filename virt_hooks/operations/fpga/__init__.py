# SPDX-License-Identifier: Apache-2.0
"""FPGA regions of servers; registered, so nothing imports them by name.

- ``region_programs``: ``RegionPrograms``: which bitstreams are loaded, and
  ``GlancePrograms``: both, as nova-compute uses them
- ``bitstream_images``: ``BitstreamImages``: fetched from Glance
"""
