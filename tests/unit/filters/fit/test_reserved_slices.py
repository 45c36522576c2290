# SPDX-License-Identifier: Apache-2.0
"""An operator's reserved slices do not refuse types that charge none."""

import dataclasses

import pytest

from filters import provider_facts
from filters.fit import candidate_fit
from nova_accel import model
from nova_accel.model import names
from tests.support.scheduler import scheduled

TYPE = "RTX Pro 6000 Blackwell DC-4-32C"


@pytest.mark.parametrize("held", [(), None])
def test_a_type_that_charges_no_slices_fits_a_card_with_reserved_ones(
    held: tuple[dict[str, int], ...] | None,
) -> None:
    one = scheduled.card(
        "a", gpu="RTXPRO6000", layout=model.Layout.MIG, exact=True
    )
    assert names.MIG_SLICE_CLASS not in scheduled.charges(TYPE)
    stock = dict(one.stock)
    # An operator has reserved 1 of 4 slices.
    stock[names.MIG_SLICE_CLASS] = provider_facts.ClassCapacity(capacity=3)
    one = dataclasses.replace(one, stock=stock, held=held)
    wanted = scheduled.asks(TYPE)
    chosen = scheduled.candidate(wanted, "a")
    view = candidate_fit.HostFacts(
        facts=scheduled.facts_of(one), cards=scheduled.CARDS
    )
    fits, lacks = candidate_fit.fitting(wanted, [chosen], view)
    assert fits, lacks
