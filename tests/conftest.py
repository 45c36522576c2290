# SPDX-License-Identifier: Apache-2.0
"""What every test of ours may count on."""

import os

import hypothesis

# Shared machines are slow now and then: no deadline for one example. A
# failure prints the line that repeats it. NOVA_ACCEL_EXAMPLES is how many
# examples a law is tried with that names no number of its own.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    database=None,
    max_examples=int(os.environ.get("NOVA_ACCEL_EXAMPLES", "") or 100),
)
hypothesis.settings.load_profile("house")
