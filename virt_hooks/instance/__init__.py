# SPDX-License-Identifier: Apache-2.0
"""Request groups, slots and images of a ``nova.objects.Instance``.

- ``instance_request``: ``InstanceRequest``, parsed once per operation;
  ``attachments_of``, ``slots_of``
- ``bitstream_images``: ``BitstreamImages``, read from Glance and cached
"""
