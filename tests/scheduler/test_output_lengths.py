"""How long an answer is expected to be: a quantile of what the same contract's answers have been of late."""

from __future__ import annotations

from superinfer.contracts.contract import Bound, SLOContract
from superinfer.profiler.latency_model import LatencyModel
from superinfer.scheduler.config import DomainSpec, SchedulerConfig
from superinfer.scheduler.request import Request, SamplingParams
from superinfer.scheduler.scheduler import Scheduler
from superinfer.scheduler.steps import SampledToken, StepResult

MODEL = LatencyModel(
    launch_s=0.001,
    linear_points=[(1, 0.01), (256, 0.1)],
    decode_context_s=0.0,
    decode_s=0.0,
    prefill_pair_s=0.0,
    chunk_s=0.0,
    row_s=0.0,
)
MOST = 200


def contract(service_id: str) -> SLOContract:
    return SLOContract(service_id=service_id, latency=(Bound(0.99, 60_000.0),))


class Talk:
    """A scheduler whose only request at a time stops by itself after as many tokens as told."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            domains=[DomainSpec("0", 64)],
            contracts=[contract("brief"), contract("long")],
            latency_model=MODEL,
            config=SchedulerConfig(),
        )
        self.now = 0.0
        self.count = 0

    def expected(self, contract_id: str, *, stops_after: int, ignore_eos: bool = False) -> int:
        """What was expected of a request's output when it came; it has ended when this returns."""
        self.count += 1
        request = Request(
            request_id=str(self.count),
            contract_id=contract_id,
            prompt_token_ids=[1, 2, 3],
            sampling=SamplingParams(max_tokens=MOST, ignore_eos=ignore_eos),
            arrival_s=self.now,
        )
        assert self.scheduler.add(request, self.now) is None
        (sequence,) = self.scheduler._by_sequence.values()
        expected = int(sequence.expected_outputs)
        for index in range(stops_after):
            plan = self.scheduler.plan("0", self.now)
            assert plan is not None
            result = StepResult(domain_id="0", step_id=plan.step_id, started_s=self.now, finished_s=self.now + 0.01)
            finish = "stop" if index == stops_after - 1 else None
            result.add(SampledToken(sequence.sequence_id, index, 7, finish))
            self.now += 0.01
            self.scheduler.observe(result, self.now)
        assert not self.scheduler._by_sequence
        return expected


def test_a_contract_learns_the_upper_quantile_of_its_own_answers() -> None:
    talk = Talk()
    assert talk.expected("brief", stops_after=4) == MOST
    for length in (3, 5, 4, 6, 5, 4, 3, 5, 12):
        talk.expected("brief", stops_after=length)
    assert 5 <= talk.expected("brief", stops_after=4) <= 12
    assert talk.expected("long", stops_after=30) == MOST
    assert talk.expected("long", stops_after=30) == 30
    assert talk.expected("brief", stops_after=4) <= 12


def test_a_request_that_ignores_the_end_of_text_is_expected_to_take_all_it_may() -> None:
    talk = Talk()
    for _ in range(5):
        talk.expected("brief", stops_after=4)
    assert talk.expected("brief", stops_after=MOST, ignore_eos=True) == MOST
    assert talk.expected("brief", stops_after=4) == 4


def test_a_retired_contract_leaves_nothing_behind() -> None:
    talk = Talk()
    talk.expected("brief", stops_after=4)
    talk.scheduler.remove_contract("brief")
    talk.scheduler.add_contract(contract("brief"))
    assert talk.expected("brief", stops_after=4) == MOST


def test_what_was_long_ago_is_forgotten() -> None:
    talk = Talk()
    for _ in range(200):
        talk.expected("brief", stops_after=9)
    for _ in range(200):
        talk.expected("brief", stops_after=2)
    assert talk.expected("brief", stops_after=2) == 2
