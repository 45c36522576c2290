# SPDX-License-Identifier: Apache-2.0
"""Request groups, slots and images of a ``nova.objects.Instance``.

- ``instance_request``: ``groups_of``, ``attachments_of``, ``images_of``
- ``slots``: ``of_resources``, ``below_root``, ``released_by_move``
- ``bitstream_images``: ``BitstreamImages``, read from Glance and cached
"""
