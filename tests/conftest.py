# SPDX-License-Identifier: Apache-2.0
"""What every test of ours may count on."""

import hypothesis

# Shared machines are slow now and then: no deadline for one example. A
# failure prints the line that repeats it.
hypothesis.settings.register_profile(
    "house", deadline=None, print_blob=True, database=None
)
hypothesis.settings.load_profile("house")
