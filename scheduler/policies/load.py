"""What one contract asks of the device: its arrival rate, and the device time of one of its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.arrivals import ArrivalRate
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.slack import slack_s


@dataclass(slots=True)
class ContractLoad:
    """Smoothed over arrivals. `device_s` is the time that one request adds to steps which run anyway: its prompt
    through the linear layers, and the marginal cost of its decodes.
    """

    rate: ArrivalRate
    allowed_s: float
    device_s: float = 0.0
    initial_slack_s: float = math.inf
    gain: float = 0.1

    def add_arrival(self, sequence: SequenceState, model: LatencyModel, now: float) -> float:
        """One more request of this contract; returns its slack when it arrived."""
        self.rate.add(now)
        device = sequence.prefill_target * model.prefill_token_s + sequence.outputs_left * model.decode_marginal_s
        slack = slack_s(sequence, model, sequence.arrival_s)
        if self.device_s == 0.0:
            self.device_s, self.initial_slack_s = device, slack
        else:
            self.device_s += self.gain * (device - self.device_s)
            if math.isfinite(slack):
                self.initial_slack_s += self.gain * (slack - self.initial_slack_s)
        return slack
