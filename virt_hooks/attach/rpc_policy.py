# SPDX-License-Identifier: Apache-2.0
"""Policy and deadlines of requests to nova-compute's RPC endpoints."""

import datetime
import threading
from collections.abc import Mapping
from typing import Any

from nova import policy
from oslo_policy import policy as oslo_policy

from nova_accel import errors
from virt_hooks import nova_private

# The default is that of operators' actions in Nova's API; policy.yaml of
# nova-compute can change it. A context that a service made for itself has
# no roles (nova/context.py, get_admin_context).
_DEFAULT = "is_admin:True or role:admin"
_OWN = f"({_DEFAULT}) or project_id:%(project_id)s"
_RULE = "nova_accel:{}:{}"
#: Kinds of objects that requests are about.
SERVER, DEVICE = "server", "device"
#: Rule for reading hosts, devices and reasons that name them.
DETAILS = "details"
_ACTIONS = {
    SERVER: ("show", "attach", "detach", DETAILS),
    DEVICE: ("show", "drain", "undrain", "heal"),
}
# Users see what their own servers have, without its host.
_DEFAULTS = {_RULE.format(SERVER, "show"): _OWN}
# A rule can be registered once; the first requests may be concurrent.
_register_lock = threading.Lock()


def authorize(
    context: Any, kind: str, action: str, target: Mapping[str, str]
) -> None:
    """Check that the policy allows an action.

    :param kind: SERVER or DEVICE.
    :param target: project and user of a server; empty for a device.
    :raises nova.exception.PolicyNotAuthorized: it does not.
    """
    _register_rules()
    policy.authorize(context, _RULE.format(kind, action), dict(target))


def is_allowed(
    context: Any, kind: str, action: str, target: Mapping[str, str]
) -> bool:
    """Return whether the policy allows an action; see ``authorize``."""
    _register_rules()
    rule = _RULE.format(kind, action)
    return bool(policy.authorize(context, rule, dict(target), do_raise=False))


def describe_allowed(
    context: Any, kind: str, target: Mapping[str, str]
) -> str:
    """Return what the policy allows a user instead, as a sentence."""
    allowed = [
        action
        for action in _ACTIONS[kind]
        if action != DETAILS and is_allowed(context, kind, action, target)
    ]
    return f"You may {' and '.join(allowed) or 'do nothing'} here."


def _register_rules() -> None:
    with _register_lock:
        enforcer = nova_private.policy_enforcer()
        for kind, actions in _ACTIONS.items():
            for action in actions:
                name = _RULE.format(kind, action)
                if name not in enforcer.registered_rules:
                    enforcer.register_default(
                        oslo_policy.RuleDefault(
                            name, _DEFAULTS.get(name, _DEFAULT)
                        )
                    )


def check_deadline(text: str | None) -> None:
    """Check that a request may still be started.

    :param text: None for no deadline.
    :raises MalformedError: the deadline is over, or no time.
    """
    if text is None:
        return
    try:
        deadline = datetime.datetime.fromisoformat(text)
        delay = datetime.datetime.now(datetime.UTC) - deadline
    except (TypeError, ValueError) as error:
        raise errors.MalformedError(
            "deadline", text, "a time in ISO 8601 with its offset from UTC"
        ) from error
    if delay > datetime.timedelta():
        raise errors.MalformedError(
            "request in time",
            f"until {text}",
            f"one that nova-compute gets earlier, it is {delay} late: send it"
            " again, and see whether the clocks of both hosts agree",
        )
