# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel import attachable, errors, model, names, packing
from tests import strategies

ROOT = strategies.ROOT


@given(strategies.bookings(), st.data())
def test_only_devices_with_room_and_the_cheapest_first(
    booking: strategies.Booking, data: st.DataObject
) -> None:
    host = booking.host
    known = sorted({p.name for d in host.devices for p in d.profiles})
    assume(known and not any(d.region for d in host.devices))
    offers = attachable.find(data.draw(st.sampled_from(known)), ROOT, host)
    every = {offer.provider for offer in offers}
    found = attachable.rank(offers, every)
    for offer in found:
        assert packing.choose(offer.device, offer.profile.name) is not None
        assert not offer.device.fault
    left = [o for o in offers if o not in found]
    reasons = list(attachable.explain(left, every))
    assert len(reasons) == len(left)
    assert attachable.rank(tuple(reversed(offers)), every) == found
    assert attachable.rank(offers, set()) == ()


@given(strategies.bookings())
def test_what_is_drained_or_at_fault_is_left_out(
    booking: strategies.Booking,
) -> None:
    devices = [d for d in booking.host.devices if d.profiles and not d.region]
    assume(devices)
    for device, word in (
        (dataclasses.replace(devices[0], drain="a loud fan"), "a loud fan"),
        (
            dataclasses.replace(devices[0], drain="", fault="it fell"),
            "it fell",
        ),
    ):
        offer = attachable.Offer(
            device=device,
            profile=device.profiles[0],
            provider=names.provider_uuid(ROOT.uuid, device.address),
        )
        assert attachable.rank([offer], {offer.provider}) == ()
        (reason,) = attachable.explain([offer], {offer.provider})
        assert word in reason


def test_a_profile_that_no_device_has() -> None:
    with pytest.raises(errors.MalformedError) as caught:
        attachable.find("T4-4Q", ROOT, model.HostState(devices=()))
    assert "one of: (nothing)" in str(caught.value)


def test_a_profile_is_meant_by_name_or_trait() -> None:
    profile = model.Profile(
        name="T4-4Q",
        trait="CUSTOM_VGPU_NVIDIA_T4_4Q",
        charges={"VGPU": 1},
        available=1,
    )
    for word in ("T4-4Q", "t4-4q", "CUSTOM_VGPU_NVIDIA_T4_4Q", "nvidia t4 4q"):
        assert attachable.is_named(word, profile), word
    for word in ("", "4Q8", "T4-8Q", "CUSTOM_VGPU_NVIDIA_T4_4"):
        assert not attachable.is_named(word, profile), word
