# SPDX-License-Identifier: Apache-2.0
"""Topic, namespace and version of nova-compute's RPC endpoint."""

# A topic beside Nova's: one queue per host.
TOPIC = "nova-accel"
NAMESPACE = "nova_accel"
# 1.1 adds ``deadline`` to each method: the time in ISO 8601 with UTC offset
# after which nova-compute must not start the request. Callers of 1.0 send
# none.
VERSION = "1.1"
VERSION_WITHOUT_DEADLINE = "1.0"
# Methods about devices of the host: drain, undrain, heal.
DEVICE_VERSION = "1.2"
# Method list_drains, which reads the notes on drained devices.
DRAINS_VERSION = "1.3"
# Methods list_faults, list_unoffered and show_version.
FAULTS_VERSION = "1.4"
# Keys of a response: the result, or the reason of a refusal.
RESULT, REFUSED = "told", "refused"
