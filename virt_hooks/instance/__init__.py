# SPDX-License-Identifier: Apache-2.0
"""Request groups, slots and images of servers, from Nova's objects.

- ``instance_request``: ``InstanceRequest``, parsed once per operation;
  ``attachments_of``, ``slots_of``
- ``ledger``: which slots of a host Nova gives to which consumer, and why
- ``nova_records``: the servers and migrations that the ledger is built from
- ``bitstream_images``: ``BitstreamImages``, read from Glance and cached
"""
