# SPDX-License-Identifier: Apache-2.0
"""Devices for a hot-attached profile are found, ranked and refused."""

import dataclasses
import pathlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.claims import attach_candidates
from nova_accel.config import policy
from nova_accel.geometry import device_capacity
from nova_accel.model import names
from tests.hosts import look
from tests.support import strategies
from tests.support.fpga import card

ROOT = strategies.ROOT


@given(strategies.claim_inputs(), st.data())
def test_only_devices_with_room_are_ranked_the_cheapest_first(
    claim_input: strategies.ClaimInput, data: st.DataObject
) -> None:
    host = claim_input.host
    profiles = sorted({p.name for d in host.devices for p in d.profiles})
    assume(profiles and not any(d.region for d in host.devices))
    offers = attach_candidates.find(
        data.draw(st.sampled_from(profiles)), ROOT, host
    )
    every = {offer.provider for offer in offers}
    ranked = attach_candidates.rank(offers, every)
    for offer in ranked:
        assert (
            device_capacity.choose_place(offer.device, offer.profile.name)
            is not None
        )
        assert not offer.device.fault
    refused = [o for o in offers if o not in ranked]
    reasons = list(attach_candidates.list_refusals(refused, every))
    assert len(reasons) == len(refused)
    assert attach_candidates.rank(tuple(reversed(offers)), every) == ranked
    assert attach_candidates.rank(offers, set()) == ()


def test_the_card_that_loses_least_of_large_profiles_is_first() -> None:
    """The other one would lose none of its small ones."""

    def counted(address: str, count: int, most_small: int) -> model.Device:
        card = strategies.card(address, most_small, 4, 4)
        profiles = tuple(
            dataclasses.replace(profile, charges={"VGPU": charge})
            for charge, profile in enumerate(card.profiles, 1)
        )
        return dataclasses.replace(
            card, counters={"VGPU": count}, profiles=profiles
        )

    cards = counted("0000:3b:00.0", 4, 1), counted("0000:5e:00.0", 5, 4)
    losses = [
        [
            device_capacity.remaining(card)[name]
            - device_capacity.remaining(card, ["P-2"])[name]
            for name in ("P-3", "P-1")
        ]
        for card in cards
    ]
    assert losses == [[1, 0], [0, 1]]
    offers = attach_candidates.find(
        "P-2", ROOT, model.HostState(devices=cards)
    )
    ranked = attach_candidates.rank(offers, {o.provider for o in offers})
    assert [offer.device for offer in ranked] == [cards[1], cards[0]]


@given(strategies.claim_inputs())
def test_drained_and_faulty_devices_are_refused(
    claim_input: strategies.ClaimInput,
) -> None:
    devices = [
        d for d in claim_input.host.devices if d.profiles and not d.region
    ]
    assume(devices)
    for device, word in (
        (dataclasses.replace(devices[0], drain="a loud fan"), "a loud fan"),
        (
            dataclasses.replace(devices[0], drain="", fault="it fell"),
            "it fell",
        ),
        (
            dataclasses.replace(devices[0], marks_unknown="no permission"),
            "no permission",
        ),
    ):
        offer = attach_candidates.AttachCandidate(
            device=device,
            profile=device.profiles[0],
            provider=names.provider_uuid(ROOT.uuid, device.address),
        )
        assert attach_candidates.rank([offer], {offer.provider}) == ()
        for room in ({offer.provider}, set()):
            (reason,) = attach_candidates.list_refusals([offer], room)
            assert word in reason


def test_a_profile_that_no_device_has_is_an_error() -> None:
    with pytest.raises(errors.MalformedError) as caught:
        attach_candidates.find("T4-4Q", ROOT, model.HostState(devices=()))
    assert "one of: (nothing)" in str(caught.value)


def test_a_region_is_selected_by_interface_and_needs_a_bitstream() -> None:
    host = card.host(card.region())
    loaded = card.bitstream()
    for word in (
        card.INTERFACE,
        card.INTERFACE.upper(),
        names.interface_trait(card.INTERFACE),
        "region",
        names.REGION_TRAIT,
    ):
        with pytest.raises(errors.MalformedError) as caught:
            attach_candidates.find(word, ROOT, host)
        assert "one with a bitstream" in str(caught.value)
        offers = attach_candidates.find(word, ROOT, host, has_bitstream=True)
        (offer,) = attach_candidates.with_bitstream(offers, loaded)
        assert offer.required == {
            names.REGION_TRAIT,
            names.PROGRAMMABLE_TRAIT,
            names.interface_trait(card.INTERFACE),
        }
        assert attach_candidates.rank([offer], {offer.provider}) == (offer,)
        assert offer.request_group().resources == {names.FPGA_CLASS: 1}


def test_a_region_of_another_interface_is_refused() -> None:
    offers = attach_candidates.find(
        "region", ROOT, card.host(card.region()), has_bitstream=True
    )
    other = card.bitstream(interface="ab" * 16)
    (offer,) = attach_candidates.with_bitstream(offers, other)
    assert attach_candidates.rank([offer], {offer.provider}) == ()
    (reason,) = attach_candidates.list_refusals([offer], {offer.provider})
    assert f"made for interface {other.interface}" in reason


def test_a_bitstream_is_for_regions_only() -> None:
    host = model.HostState(devices=(strategies.card("0000:3b:00.0", 4),))
    (profile, *_) = host.devices[0].profiles
    with pytest.raises(errors.MalformedError) as caught:
        attach_candidates.find(profile.name, ROOT, host, has_bitstream=True)
    assert "one of an FPGA region" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["T4-4Q", "t4-4q", "GRID T4-4Q", "CUSTOM_VGPU_NVIDIA_T4_4Q", "nvidia-232"],
)
def test_a_profile_of_the_host_has_many_spellings(
    text: str, tmp_path: pathlib.Path
) -> None:
    host = look.read(look.make("t4-mdev", tmp_path / "host"))
    offers = attach_candidates.find(text, ROOT, host)
    assert {offer.profile.name for offer in offers} == {"T4-4Q"}


def test_a_resource_class_selects_its_only_profile(
    tmp_path: pathlib.Path,
) -> None:
    host = look.read(look.make("qat", tmp_path / "host"))
    with pytest.raises(errors.MalformedError):
        attach_candidates.find("CUSTOM_QAT_VF", ROOT, host)
    host = look.read(look.make("nvme", tmp_path / "other"))
    (offer, *_) = attach_candidates.find("CUSTOM_NVME_VF", ROOT, host)
    assert offer.profile.name == "144d:a824-VF"


@given(strategies.claim_inputs())
def test_profiles_that_options_leave_out_are_refused(
    claim_input: strategies.ClaimInput,
) -> None:
    devices = [
        dataclasses.replace(
            device,
            profiles=(dataclasses.replace(device.profiles[0], name="T4-4Q"),),
        )
        for device in claim_input.host.devices
        if device.profiles and not device.region
    ]
    assume(devices)
    host = model.HostState(devices=(devices[0],))
    for rule, word in (
        (policy.Rule(series=frozenset("C")), "needs a licence of series Q"),
        (policy.Rule(profiles=("*C",)), "leave out T4-4Q"),
        (policy.Rule(series=frozenset("Q")), ""),
    ):
        rules = policy.DeviceRules(default=rule)
        (offer,) = attach_candidates.find("T4-4Q", ROOT, host, rules=rules)
        assert word in offer.unoffered
        assert bool(offer.unoffered) is bool(word)
        if word:
            assert word in attach_candidates.explain_refusal(
                dataclasses.replace(offer, device=unmarked(offer.device))
            )


def unmarked(device: model.Device) -> model.Device:
    return dataclasses.replace(device, drain="", fault="", marks_unknown="")
