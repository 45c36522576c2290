# SPDX-License-Identifier: Apache-2.0
"""An operator's reserved slices do not reject types that charge none."""

import dataclasses

import pytest

from filters.fit import candidate_fit
from nova_accel import model
from nova_accel.model import names, providers
from tests.support.scheduler import scheduled

TYPE = "RTX Pro 6000 Blackwell DC-4-32C"


@pytest.mark.parametrize("allocations", [(), None])
def test_a_type_that_charges_no_slices_fits_a_card_with_reserved_ones(
    allocations: tuple[dict[str, int], ...] | None,
) -> None:
    card = scheduled.card("a", gpu="RTXPRO6000", layout=model.Layout.MIG)
    assert names.MIG_SLICE_CLASS not in scheduled.charges(TYPE)
    capacities = dict(card.capacities)
    # An operator has reserved 1 of 4 slices.
    capacities[names.MIG_SLICE_CLASS] = providers.ClassCapacity(capacity=3)
    card = dataclasses.replace(
        card, capacities=capacities, allocations=allocations
    )
    accelerators = scheduled.asks(TYPE)
    candidate = scheduled.candidate(accelerators, "a")
    host_facts = candidate_fit.HostFacts(
        facts=scheduled.facts_of(card), geometry=scheduled.GEOMETRY
    )
    fitting, rejections = candidate_fit.select(
        accelerators, [candidate], host_facts
    )
    assert fitting, rejections
