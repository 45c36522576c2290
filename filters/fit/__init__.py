# SPDX-License-Identifier: Apache-2.0
"""Selection and order of allocation candidates.

- ``candidate_fit``: ``select`` and ``order_candidates`` of one host, with
  the reasons of rejections
- ``candidate_locality``, ``numa``, ``numa_cells``: affinity of devices to
  each other and to the guest's NUMA cells
- ``vgpu_geometry``, ``card_state``, ``vgpu_feasibility``: vGPU types that
  fit on a card beside its partitions
- ``no_candidates``: ``find_refusal``, for requests without any candidate
- ``fact_reader``: provider data of one request, cached between requests
"""
