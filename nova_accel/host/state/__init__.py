# SPDX-License-Identifier: Apache-2.0
"""Files below ``[nova_accel] state_dir``.

- ``faults``: ``FaultNotes``, devices at fault, scrubs in progress and
  functions not released cleanly (``faulted/``, ``scrubbing/``,
  ``unreleased/``).
- ``drains``: ``DrainNotes``, devices that the operator drains
  (``drained/``).
- ``error_baseline``: ``ErrorBaseline``, error counts that the operator
  acknowledged (``acknowledged/``).
- ``rebuild_allocations``: ``RebuildAllocations``, allocations of servers
  under rebuild.
- ``claims_file``: ``ClaimsFile``, the claims published to other processes
  (``book.json``).
- ``service_lock``: ``ServiceLock``, one nova-compute per host
  (``nova-compute.lock``); ``ended_service``: whether the last one has ended.
- ``state_dir``: checks of the directory itself.

``notes`` (``NoteStore``, one JSON file per device, and the kinds of notes)
and ``directories`` (access to files that is safe for
root) serve the others.
"""
