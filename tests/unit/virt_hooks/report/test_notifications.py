# SPDX-License-Identifier: Apache-2.0
"""Changes of devices are events once; samples in the manual are complete."""

import dataclasses
import json
import re
import types
from pathlib import Path

import pytest

from nova_accel import model
from nova_accel.model import attachment
from tests.lab import fakehost
from tests.support.hosts import simulated, states
from virt_hooks.attach import attach_actions
from virt_hooks.report import notifications
from virt_hooks.spawn import lifecycle

ROOT = Path(__file__).resolve().parents[4]
INSTANCE = types.SimpleNamespace(
    uuid="server", project_id="project", user_id="user", host="host"
)
CARD = "0000:01:00.0"


def read_sample(event: str) -> dict[str, object]:
    page = (ROOT / "doc/source/reference/notifications.rst").read_text()
    blocks = re.findall(r"code-block:: json\n\n((?:   .*\n|\n)+)", page)
    samples = {(s := json.loads(text))["event_type"]: s for text in blocks}
    payload: dict[str, object] = samples[event]["payload"]
    return payload


def test_the_sample_of_an_attachment_has_each_field() -> None:
    claim = states.claim(CARD)
    attached = attachment.Attachment(
        number=1,
        profile="P-2",
        resources={"VGPU": 1},
        required=frozenset(),
        provider=claim.provider,
        slot=claim.slot,
    )
    payload = attach_actions.build_attachment(INSTANCE, "P-2")
    payload |= attach_actions.describe(attached, (claim,))
    assert payload.keys() == read_sample("accelerator.attach.end").keys()
    assert (payload["device"], payload["partition"]) == (CARD, claim.handle)


def test_the_sample_of_a_device_has_each_field() -> None:
    claims = (states.claim(CARD), states.claim("0000:06:00.0"))
    payload = notifications.build_device("h", states.card(1), "why", claims)
    assert payload.keys() == read_sample("accelerator.device.drained").keys()
    assert payload["instance_uuids"] == ["server"]


class Reading:
    """Events of a host whose devices change between two readings."""

    def __init__(
        self, life: lifecycle.Lifecycle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._snapshot = life.host
        self._monkeypatch = monkeypatch
        self._events = notifications.DeviceEvents(life)

    def read(self, *devices: model.Device) -> list[tuple[str, object]]:
        """Return the events of a reading, with their reasons."""
        self._monkeypatch.setattr(
            type(self._snapshot), "state", model.HostState(devices=devices)
        )
        return [
            (event.removeprefix("accelerator.device."), payload["reason"])
            for event, payload in self._events.list_changes()
        ]


@pytest.fixture
def reading(
    kernel: fakehost.Controller, monkeypatch: pytest.MonkeyPatch
) -> Reading:
    return Reading(simulated.started(kernel), monkeypatch)


def test_a_mark_is_an_event_when_it_begins_and_ends(reading: Reading) -> None:
    healthy = states.card(1)
    both = states.card(1, fault="it burns", drain="a fan is loud")
    assert reading.read(healthy) == []
    assert reading.read(both) == [
        ("faulted", "it burns"), ("drained", "a fan is loud"),
    ]  # fmt: skip
    assert reading.read(both) == []
    assert reading.read(dataclasses.replace(both, fault="")) == [
        ("healed", "it burns")
    ]
    assert reading.read(healthy) == [("undrained", "a fan is loud")]


def test_the_first_reading_has_no_event(reading: Reading) -> None:
    faulted = states.card(1, fault="it burns")
    assert reading.read(faulted) == []
    assert reading.read(states.card(1)) == [("healed", "it burns")]


def test_unknown_marks_and_absent_devices_are_no_change(
    reading: Reading,
) -> None:
    faulted = states.card(1, fault="it burns")
    reading.read(faulted)
    assert reading.read(states.card(1, marks_unknown="EIO")) == []
    assert reading.read() == []
    assert reading.read(faulted) == []


def test_a_new_device_with_a_fault_is_an_event(reading: Reading) -> None:
    reading.read()
    assert reading.read(states.card(1, fault="it burns")) == [
        ("faulted", "it burns")
    ]


class BrokenNotifier:
    """Notifier of a message bus that is down."""

    def prepare(self, publisher_id: str) -> "BrokenNotifier":
        return self

    def info(self, *_: object) -> None:
        raise ConnectionError("the bus is down")


def test_a_notification_that_can_not_be_sent_is_logged_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nova.rpc.LEGACY_NOTIFIER", BrokenNotifier())
    with attach_actions.attachment_sent(None, "attach", {}):
        pass
    assert len(caplog.records) == 2
    assert "accelerator.attach.start" in caplog.messages[0]
