# SPDX-License-Identifier: Apache-2.0
"""Topic, namespace and version of nova-compute's RPC endpoint."""

# A topic of our own beside Nova's: a queue for each host, as Nova's has.
TOPIC = "nova-accel"
NAMESPACE = "nova_accel"
# 1.1 adds ``deadline`` to each method: the time, in ISO 8601 with its offset
# from UTC, until which nova-compute may begin with the request. Callers of
# 1.0 send none.
VERSION = "1.1"
VERSION_WITHOUT_DEADLINE = "1.0"
# What an answer has: what was asked for, or why it is refused.
TOLD, REFUSED = "told", "refused"
