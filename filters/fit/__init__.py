# SPDX-License-Identifier: Apache-2.0
"""Selection and order of allocation candidates.

- ``candidate_fit``: selection and order for one host, with the reasons of
  rejections
- ``candidate_locality``, ``numa``, ``numa_cells``: affinity of devices to
  each other and to the guest's NUMA cells
- ``no_candidates``: ``find_refusal``, for requests without any candidate
- ``preferred_traits``: traits of devices to try first, registered
- ``refusal_cache``: these reasons, kept for some seconds
- ``request_mix``: requests got lately, and what they could use
- ``request_state``: providers of one request, after its servers' claims
"""
