"""What a plan takes as the load of each class is what the classes say one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from core_like_model import MODEL

from superinfer.contracts.contract import Bound, SLOContract, best_effort_contract
from superinfer.scheduler.columns import SequenceTable
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.urgency import UrgencyClasses
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.sequence import SequenceState

CONTRACTS = [
    SLOContract(service_id="tight", latency=(Bound(0.99, 4000.0),)),
    SLOContract(service_id="also-tight", latency=(Bound(0.99, 5000.0),)),
    SLOContract(service_id="loose", latency=(Bound(0.99, 60_000.0),)),
    best_effort_contract(),
]


@pytest.mark.parametrize("seed", range(4))
def test_shares_and_caps_of_a_step_are_those_of_the_classes_at_any_time(seed):
    draw, table = random.Random(seed), SequenceTable()
    classes, now = UrgencyClasses(MODEL, 2.0), 0.0
    for number in range(120):
        # Long pauses empty the window of some contract, or of all.
        now += draw.choice([0.0, 0.1, 0.5, 7.0, 25.0])
        contract = draw.choice(CONTRACTS)
        request = Request(
            request_id=f"r{number}",
            contract_id=contract.service_id,
            prompt_token_ids=[1] * draw.randint(1, 90),
            sampling=SamplingParams(max_tokens=draw.randint(1, 40)),
            arrival_s=now,
        )
        classes.add_arrival(SequenceState(number, request, contract, table), now)
        if draw.random() < 0.05:
            classes.forget(draw.choice(CONTRACTS[:2]).service_id)
        now += draw.choice([0.0, 0.01, 3.0])
        levels = np.full((classes.count, at.LEVEL_FIGURES), np.nan)
        classes.settle(levels, now, 2, 1.2, 0.45)
        shares = [classes.load_share(now, level) / 2 for level in range(classes.count)]
        assert levels[:, at.RESERVE_SHARE].tolist() == [1.2 * share for share in shares]
        assert levels[:, at.SHARE_LEFT].tolist() == [1.0 - min(share, at.MOST_BUSY) for share in [0.0, *shares[:-1]]]
        caps_s = [0.45 * classes.initial_slack_s(now, level) for level in range(classes.count)]
        assert levels[:, at.IDLE_CAP_S].tolist() == caps_s
