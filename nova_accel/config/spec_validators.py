# SPDX-License-Identifier: Apache-2.0
"""Entry point of the validators of extra specs, as nova-api loads it.

Nova 34's handler of an entry point that can't be imported fails itself
(``ep.module_name`` in nova/api/validation/extra_specs/validators.py), so that
nova-api does not start. So this module imports the standard library only; the
validators, which import Nova, are entry points of ``GROUP``.
"""

import logging
from typing import Any

from nova_accel.config import extensions, logs, top_packages

LOG = logging.getLogger(__name__)

#: Functions that return validators.
GROUP = "nova_accel.extra_spec_validators"


def register() -> list[Any]:
    """Return the validators; without those that can't be imported."""
    validators: list[Any] = []
    for point in extensions.list_points(GROUP):
        try:
            validators += point.load()()
        except ImportError as error:
            logs.error(
                LOG,
                "Extra specs of accelerators are not checked: %s (%s)",
                "; ".join(map(str, top_packages.find_foreign()))
                or "repair it",
                error,
            )
    return validators
