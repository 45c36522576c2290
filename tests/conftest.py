# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

import hypothesis

from tests.support import examples

# Shared machines are slow now and then: no deadline for one example. A
# failure prints the line that repeats it.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    database=None,
    max_examples=examples.examples(100),
)
hypothesis.settings.load_profile("house")
