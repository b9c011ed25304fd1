"""What best effort costs whoever holds bandwidth of the same device: measured on the holder's own steps.

A ledger counts GB/s, but what cores leave each other is more than a rate: bursts, caches, and neighbours of the machine
that no process sees change it from one second to the next. A promise in GB/s is therefore kept by a closed loop, as in
Heracles (Lo et al., ISCA 2015). A holder's steps beside best effort are compared with those while that rests, which it
does for a few steps now and then. What it may move follows from what it has cost: as much as the holder can bear.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

BEARABLE = 0.02
"""How much longer (log) a holder's steps may take beside best effort where it needs its whole rate."""
QUIET_STEPS, BESIDE_STEPS = 4, 30
"""Steps of each sort that are compared; best effort rests for as many as the former where it leaves none by itself."""
QUIET_SHARE = 0.01
"""A step counts as quiet where best effort moved at most this share of the device's bandwidth meanwhile."""
LEAST_SHARE = 0.02
"""The share of the device's bandwidth that best effort may move whatever it costs, so that it gets on."""
RISES = 1.25
"""The most by which one comparison raises the rate of best effort."""
KEPT = (0.5, 0.9)
"""What a comparison leaves of the weight of those before it, for a look at the last ones and for a longer one."""
LONGEST_SURPRISE = 0.3
"""A step that is further off (log) was interrupted, and counts as if it were so far off."""
MOST_KEPT = 256
"""Steps that are remembered to be laid beside others."""
LONGEST_PAUSE_S = 1.0
"""Nobody can break in on a step that rests."""


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step of a domain with a reservation, [start_s, end_s) on the clock of all steps.

    `surprise` is the logarithm of its time over what the fitted constants say, `bearable` how much of that may be best
    effort's doing.
    """

    domain_id: str
    start_s: float
    end_s: float
    surprise: float
    bearable: float


def _steps(most: int) -> deque[float]:
    return deque(maxlen=most)


@dataclass(slots=True)
class _Line:
    """Cost by rate: a line through the origin, to which older comparisons count less."""

    kept: float
    products: float = 0.0
    squares: float = 0.0

    def add(self, rate_gb_per_s: float, cost: float) -> None:
        """One more comparison."""
        self.products = self.kept * self.products + rate_gb_per_s * cost
        self.squares = self.kept * self.squares + rate_gb_per_s**2

    def slope(self, least_gb_per_s: float) -> float:
        """Cost of one GB/s; comparisons at less than so much say little."""
        return self.products / (self.squares + least_gb_per_s**2)


@dataclass(slots=True)
class _Holder:
    """One domain's steps since the last comparison, and what comparisons say together: what costs more of late, and
    what does in the long run.
    """

    quiet: deque[float] = field(default_factory=lambda: _steps(QUIET_STEPS))
    beside: deque[float] = field(default_factory=lambda: _steps(MOST_KEPT))
    rates_gb_per_s: deque[float] = field(default_factory=lambda: _steps(MOST_KEPT))
    """What was moved beside each of those."""
    usual: float = math.nan
    """The mean surprise of quiet steps at the last comparison."""
    recent: _Line = field(default_factory=lambda: _Line(KEPT[0]))
    lasting: _Line = field(default_factory=lambda: _Line(KEPT[1]))
    cap_gb_per_s: float = math.inf
    step_s: float = 0.0
    is_paused_for: bool = False

    def account(self, step: HeldStep, rate_gb_per_s: float, *, is_quiet: bool) -> None:
        """One more step, beside which best effort moved so much."""
        surprise = step.surprise
        if not math.isnan(self.usual):
            surprise = min(max(surprise, self.usual - LONGEST_SURPRISE), self.usual + LONGEST_SURPRISE)
        self.step_s = (step.end_s - step.start_s) * math.exp(surprise - step.surprise)
        if is_quiet:
            self.quiet.append(surprise)
        else:
            self.beside.append(surprise)
            self.rates_gb_per_s.append(rate_gb_per_s)

    def compare(self, bearable: float, bandwidth_gb_per_s: float) -> None:
        """Let the cap follow what best effort has cost, once enough steps of both sorts were seen."""
        if len(self.quiet) < QUIET_STEPS or len(self.beside) < BESIDE_STEPS:
            return
        quiet, rate = fmean(self.quiet), fmean(self.rates_gb_per_s)
        # Quiet steps from before and after, as the device's own speed drifts.
        around = quiet if math.isnan(self.usual) else (self.usual + quiet) / 2
        cost = fmean(self.beside) - around
        for line in (self.recent, self.lasting):
            line.add(rate, cost)
        self.usual = quiet
        for steps in (self.quiet, self.beside, self.rates_gb_per_s):
            steps.clear()
        least = LEAST_SHARE * bandwidth_gb_per_s
        slope = max(line.slope(least) for line in (self.recent, self.lasting))
        bearable_gb_per_s = max(bearable / slope, least) if slope > 0.0 else math.inf
        self.cap_gb_per_s = min(bearable_gb_per_s, RISES * self.cap_gb_per_s)
        if self.cap_gb_per_s > bandwidth_gb_per_s:
            self.cap_gb_per_s = math.inf


@dataclass(slots=True)
class _BestEffort:
    """Steps of best effort in one domain: how many are in flight, when the last of them should end, and when the last
    that is over did.
    """

    in_flight: int = 0
    expected_end_s: float = -math.inf
    ended_s: float = -math.inf


@dataclass(slots=True)
class Interference:
    """Of one device of `bandwidth_gb_per_s`: what best effort moved, and what it cost each holder."""

    bandwidth_gb_per_s: float
    _holders: dict[str, _Holder] = field(default_factory=dict)
    _best_effort: dict[str, _BestEffort] = field(default_factory=dict)
    _moved: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """Steps of best effort that are over: start, end, GB."""
    _unsettled: deque[HeldStep] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """Steps of holders that may have been beside a step of best effort that is not over."""
    _quiet_until_s: float = -math.inf

    def cap_gb_per_s(self, holding: Collection[str]) -> float:
        """The most that best effort may move, over all domains, for the sake of those that hold bandwidth now; infinite
        for no limit. What was found of others stays until they hold some again.
        """
        return min((each.cap_gb_per_s for each in self._of(holding)), default=math.inf)

    def is_moving(self, domain_id: str) -> bool:
        """Whether a domain has steps of best effort in flight."""
        its = self._best_effort.get(domain_id)
        return its is not None and its.in_flight > 0

    def usual(self, domain_id: str) -> float:
        """The surprise of a holder's quiet steps, 0 before there were any."""
        holder = self._holders.get(domain_id)
        return 0.0 if holder is None or math.isnan(holder.usual) else holder.usual

    def pause_s(self, holding: Collection[str], now: float) -> float:
        """How long best effort has to rest from now on, so that those that hold bandwidth are seen without it."""
        due = [each for each in self._of(holding) if len(each.beside) >= BESIDE_STEPS and not each.is_paused_for]
        if due and now >= self._quiet_until_s:
            # From when the last step that is under way is over: only then does every domain rest.
            ends_s = [each.expected_end_s for each in self._best_effort.values() if each.in_flight]
            rest_s = (QUIET_STEPS + 1) * max(each.step_s for each in due)
            self._quiet_until_s = min(max([now, *ends_s]) + rest_s, now + LONGEST_PAUSE_S)
            for each in due:
                each.is_paused_for = True
        return max(self._quiet_until_s - now, 0.0)

    def planned(self, domain_id: str, end_s: float) -> None:
        """A step of best effort is on its way, which should end then."""
        its = self._best_effort.setdefault(domain_id, _BestEffort())
        its.in_flight += 1
        its.expected_end_s = end_s

    def moved(self, domain_id: str, start_s: float, end_s: float, gigabytes: float) -> None:
        """A step of best effort is over."""
        its = self._best_effort[domain_id]
        its.in_flight -= 1
        its.ended_s = end_s
        self._moved.append((start_s, end_s, gigabytes))
        self._settle()

    def held(self, step: HeldStep) -> None:
        """A holder's step is over."""
        self._unsettled.append(step)
        self._settle()

    def failed(self, domain_id: str) -> None:
        """A domain died, with whatever it had in flight."""
        self._best_effort.pop(domain_id, None)
        self._holders.pop(domain_id, None)
        left = [each for each in self._unsettled if each.domain_id != domain_id]
        self._unsettled.clear()
        self._unsettled.extend(left)

    def _of(self, holding: Collection[str]) -> list[_Holder]:
        return [holder for domain_id, holder in self._holders.items() if domain_id in holding]

    def _settle(self) -> None:
        """Account for the steps of which it is known by now what was moved beside them."""
        known_s = min((each.ended_s for each in self._best_effort.values() if each.in_flight), default=math.inf)
        while self._unsettled and self._unsettled[0].end_s <= known_s:
            step = self._unsettled.popleft()
            if len(self._moved) == MOST_KEPT and step.start_s < self._moved[0][0]:
                continue  # what was moved beside it is forgotten
            rate_gb_per_s = self._rate_gb_per_s(step.start_s, step.end_s)
            holder = self._holders.setdefault(step.domain_id, _Holder())
            is_quiet = rate_gb_per_s <= QUIET_SHARE * self.bandwidth_gb_per_s
            holder.account(step, rate_gb_per_s, is_quiet=is_quiet)
            holder.compare(step.bearable, self.bandwidth_gb_per_s)
            if step.start_s > self._quiet_until_s:
                holder.is_paused_for = False

    def _rate_gb_per_s(self, start_s: float, end_s: float) -> float:
        """What best effort moved within this time."""
        gigabytes = 0.0
        for start, end, moved in reversed(self._moved):
            if end <= start_s:
                break
            shared_s = min(end, end_s) - max(start, start_s)
            if shared_s > 0.0:
                gigabytes += moved * shared_s / (end - start)
        return gigabytes / (end_s - start_s)
