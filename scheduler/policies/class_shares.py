"""What arrivals have been taking of the device, class by class, as a compiled loop over the contracts.

The arithmetic is that of `superinfer.scheduler.policies.urgency`, the same operations in the same order.
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.scheduler.columns import FloatArray
from superinfer.scheduler.kernels import compiled
from superinfer.scheduler.policies import step_state as at
from superinfer.scheduler.policies.load import ContractLoad

RATES = 8
"""Columns of the contracts' figures, a row each."""
(FIRST_S, OLDEST_S, ARRIVALS, WINDOW_S, WARM_S, DEVICE_S, INITIAL_SLACK_S, LEVEL) = range(RATES)
"""The first arrival of all, the oldest in the window, how many are in it, how long it is and how long it is taken to be
at least; device time and slack of a request; the contract's class."""

UP_TO_DATE = -1


def write_rates(rates: FloatArray, number: int, load: ContractLoad, level: int) -> None:
    """Put what a contract has been asking for into its row."""
    rate = load.rate
    row = (rate.first_s, rate.oldest_s, rate.count, rate.window_s, rate.warm_s)
    rates[number] = (*row, load.device_s, load.initial_slack_s, level)


@compiled
def settle_shares(
    rates: FloatArray, levels: FloatArray, now: float, domains_up: int, reserve_alpha: float, idle_share: float
) -> int:
    """Fill in each class's RESERVE_SHARE, SHARE_LEFT and IDLE_CAP_S (see `step_state`); UP_TO_DATE, or the first
    contract of which an arrival has left the window, before anything is filled in.
    """
    for number in range(len(rates)):
        if rates[number, OLDEST_S] <= now - rates[number, WINDOW_S]:
            return number
    for level in range(len(levels)):
        levels[level, at.RESERVE_SHARE], levels[level, at.IDLE_CAP_S] = 0.0, math.inf
    for number in range(len(rates)):
        if rates[number, ARRIVALS] <= 0.0:
            continue
        span_s = min(max(now - rates[number, FIRST_S], rates[number, WARM_S]), rates[number, WINDOW_S])
        per_second, level = rates[number, ARRIVALS] / span_s, int(rates[number, LEVEL])
        device_s, slack_s = rates[number, DEVICE_S], rates[number, INITIAL_SLACK_S]
        levels[level, at.RESERVE_SHARE] += per_second * device_s
        if device_s > 0.0 and slack_s > 0.0 and level + 1 < len(levels):
            levels[level + 1, at.IDLE_CAP_S] = min(levels[level + 1, at.IDLE_CAP_S], slack_s)
    asked, share, least_s = 0.0, 0.0, math.inf
    for level in range(len(levels)):
        levels[level, at.SHARE_LEFT] = 1.0 - min(share, at.MOST_BUSY)
        asked += levels[level, at.RESERVE_SHARE]
        share = asked / domains_up
        levels[level, at.RESERVE_SHARE] = reserve_alpha * share
        least_s = min(least_s, levels[level, at.IDLE_CAP_S])
        levels[level, at.IDLE_CAP_S] = idle_share * least_s
    return UP_TO_DATE


def no_rates(contracts: int) -> FloatArray:
    """Rows for so many contracts."""
    return np.zeros((contracts, RATES), np.float64)
