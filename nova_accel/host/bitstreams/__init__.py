# SPDX-License-Identifier: Apache-2.0
"""Cache of Glance's bitstream images on the host's disk.

- ``bitstream_cache``: ``BitstreamCache``, images with their metadata.
- ``blob_store``: ``BlobStore``, a bounded directory of files named by
  their SHA-512, and ``PartialFile``, a file during its download.
"""
