"""Requests without objects: the compiled event loop takes them in from arrays, and writes down what became of them.

A request costs the scheduler more in Python objects than all its steps cost compiled. While nothing but tables is
needed, arrivals and ends are the loop's, too; as soon as somebody needs the scheduler's objects, they are made: whoever
waits or runs, what each contract has been asking for. What nobody here decides by is left out: counts and error budgets
of requests that have ended.
"""

from __future__ import annotations

import math

import numpy as np

from superinfer.executor.simulation import fleet_state as of
from superinfer.executor.simulation import light_state as li
from superinfer.executor.simulation.events import PROGRESS_EVERY, EventLoop
from superinfer.executor.simulation.fleet_ground import FleetGround
from superinfer.profiler.latency_model import FEW_DECODES, FEW_PROMPT_TOKENS, MANY_DECODES, MANY_PROMPT_TOKENS
from superinfer.scheduler.columns import BLOCKS, FIRST_TOKEN_S, IS_DECODING, NOBODY, SEQUENCE_ID, IntArray
from superinfer.scheduler.policies.slack import SlackPolicy
from superinfer.scheduler.request import Request
from superinfer.scheduler.request_checks import unfit
from superinfer.scheduler.sequence import SequenceState
from superinfer.scheduler.waiting_line import Entry

LEAST_REST = 16
"""Arrivals that are the scheduler's after it had to plan a step with objects."""
MET = {li.MISSED: False, li.MET: True, li.UNPROMISED: None}


class LightRequests:
    """Hands requests to the loop, and takes them back; `is_on` while the loop has any."""

    def __init__(self, loop: EventLoop, ground: FleetGround, domain_ids: list[str]) -> None:
        self._loop, self._ground, self._ids = loop, ground, domain_ids
        self._scheduler = loop.scheduler
        config, policy = self._scheduler.config, self._scheduler.policy
        takes_all = config.admission == "accept" and config.max_waiting is None
        is_possible = takes_all and not self._scheduler.assignment.has_map and type(policy) is SlackPolicy
        self._policy = policy if is_possible and isinstance(policy, SlackPolicy) else None
        blocks = {domain.device_blocks.total for domain in self._scheduler.domains.values()}
        self._blocks = blocks.pop() if len(blocks) == 1 else 0
        self._rest = 0
        self._taken: list[Request] = []
        self._noted = 0
        self._requests: dict[int, Request] = {}
        self._told: list[int] = []
        self.is_on = False

    def arrived(self) -> None:
        """A request has come that was the scheduler's to take in."""
        self._rest -= 1

    def begin(self) -> None:
        """Let the loop take in those that come next, where it can."""
        if self._policy is None or self._rest > 0 or not self._is_quiet():
            return
        self._take_in()
        if not self._taken:
            return
        ground, scheduler = self._ground, self._scheduler
        self._told = ground.fleet.spans[:, 1].tolist()
        self._show_terms(self._policy)
        self._show_lines(self._policy)
        self._have_rows(len(scheduler.table.owners) // 2)
        self._cells[li.NEXT_ID], self._cells[li.IS_LIGHT] = scheduler.next_sequence_id, 1
        self._cells[li.SPEEDS] = scheduler.speeds.count
        self.is_on = True
        ground.shared[of.IS_STALE] = 1

    def refill(self) -> None:
        """All that were handed over have come."""
        self.catch_up()
        self._take_in()

    def make_room(self) -> None:
        """Some list is full: read what is in it, and have longer ones."""
        self.catch_up()
        cells, ground, policy = self._cells, self._ground, self._policy
        assert policy is not None
        if not cells[li.FREE_ROWS]:
            self._have_rows(len(ground.fleet.light.rows))
        waiting, room = int(ground.shared[of.WAITING]), ground.fleet.light.lines.shape[2]
        if 2 * (waiting + 1) >= room:
            self._have_lines(4 * (waiting + 1))
        if max(ground.fleet.spans[:, 1], default=0) == ground.fleet.arrivals.shape[1]:
            self._tell_loads(policy)
            ground.show_classes(policy, self._loop.now)
            self._told = ground.fleet.spans[:, 1].tolist()

    def catch_up(self) -> None:
        """Note who has arrived, and who has ended."""
        arrived = int(self._cells[li.ARRIVED])
        new = self._taken[self._noted : arrived]
        if new:
            fates = self._loop.fates
            self._requests.update(zip(range(len(fates), len(fates) + len(new)), new, strict=True))
            fates.arrived_together(new)
            self._noted = arrived
            self._loop.have_arrived(len(new))
        if logged := int(self._cells[li.LOGGED]):
            self._cells[li.LOGGED] = 0
            self._read_log(logged)

    def end(self, *, has_planned: bool) -> None:
        """Whatever the loop has is the scheduler's from now on, since objects are needed. Where a step had to be
        planned with them, others will have to be, so for some time.
        """
        policy = self._policy
        assert policy is not None
        self.catch_up()
        cells, scheduler = self._cells, self._scheduler
        self._loop.feed.put_back(self._taken[self._noted :])
        self._taken, self._noted = [], 0
        cells[li.PENDING] = cells[li.ARRIVED] = 0
        self._rest = int(cells[li.OPEN]) // 8 + (LEAST_REST if has_planned else 0)
        scheduler.next_sequence_id = int(cells[li.NEXT_ID])
        self._tell_loads(policy)
        self._make_waiting(policy)
        for number in range(len(self._ids)):
            self._make_running(number)
        for row in self._ground.fleet.light.free[: cells[li.FREE_ROWS]].tolist():
            scheduler.table.release(row)
        cells[li.IS_LIGHT] = cells[li.FREE_ROWS] = cells[li.OPEN] = 0
        self._requests.clear()
        self.is_on = False
        self._ground.shared[of.IS_STALE] = 1

    @property
    def _cells(self) -> IntArray:
        return self._ground.fleet.light.cells

    def _is_quiet(self) -> bool:
        """Whether no domain's next step needs the scheduler's objects, as far as one can see."""
        domains = self._ground.fleet.domains
        has_speed = self._scheduler.speeds.count > 0
        is_compiled = bool((domains[:, of.MODE] != of.ASKS).all() and not domains[:, of.HAS_ROTATED].any())
        return has_speed and is_compiled and not self._scheduler.has_suspects

    def _take_in(self) -> None:
        """Hand over those that come next, up to the first that the scheduler has to look at."""
        feed, ground, light = self._loop.feed, self._ground, self._ground.fleet.light
        most = min(li.MOST_PENDING, PROGRESS_EVERY - self._loop.arrived % PROGRESS_EVERY)
        taken: list[Request] = []
        ids: set[str] = set()
        last_s, number = self._loop.now, len(self._loop.fates)
        columns = []
        while len(taken) < most and (request := feed.peek()) is not None:
            row = ground.rows.get(request.contract_id, -1)
            if row < 0 or request.arrival_s < last_s or request.request_id in ids or not self._is_plain(request):
                break
            last_s = request.arrival_s
            ids.add(request.request_id)
            columns.append((row, len(request.prompt_token_ids), request.sampling.max_tokens, number + len(taken)))
            taken.append(feed.pop())
        self._taken, self._noted = taken, 0
        if taken:
            light.pending[: len(taken)] = columns
            light.pending_s[: len(taken)] = [request.arrival_s for request in taken]
        light.cells[li.PENDING], light.cells[li.ARRIVED] = len(taken), 0

    def _is_plain(self, request: Request) -> bool:
        """Whether it is certain to be admitted, and to have all its tokens."""
        if not request.sampling.ignore_eos or self._loop.fates.is_open(request.request_id):
            return False
        return unfit(request, self._scheduler.config, self._blocks) is None

    def _show_terms(self, policy: SlackPolicy) -> None:
        model, classes = self._scheduler.model, policy.classes
        terms = np.zeros((len(self._ground.rows), li.TERMS), np.float64)
        for contract_id, row in self._ground.rows.items():
            contract = self._scheduler.contracts[contract_id]
            bounds = (contract.deadline_ms, contract.ttft_deadline_ms, contract.tpot_deadline_ms)
            terms[row, li.DEADLINE_S : li.TPOT_S + 1] = [math.inf if each is None else each / 1e3 for each in bounds]
            terms[row, li.LOG_PRIORITY] = math.log(contract.priority)
            terms[row, li.CONTRACT_NUMBER] = classes.numbers[contract_id]
            terms[row, li.GAIN] = classes.loads[contract_id].gain
        order = np.array([self._ground.rows[contract_id] for contract_id in classes.levels], np.int64)
        self._ground.replace_light(terms=terms, order=order)
        figures = self._ground.fleet.light.figures
        figures[li.CHUNK_RISE_S] = model.linear_s(MANY_PROMPT_TOKENS) - model.linear_s(FEW_PROMPT_TOKENS)
        slope = (model.linear_s(MANY_DECODES) - model.linear_s(FEW_DECODES)) / (MANY_DECODES - FEW_DECODES)
        figures[li.DECODE_RISE_S] = slope + model.decode_s + model.row_s

    def _show_lines(self, policy: SlackPolicy) -> None:
        """Those that the scheduler has waiting."""
        ground, queues = self._ground, self._scheduler.queues
        contracts = len(ground.rows)
        ground.have_shown(5 * contracts * policy.planner.loose_limit(self._scheduler.config.max_running))
        room = 64 + 4 * queues.count
        ground.replace_light(
            lines=np.zeros((contracts, 2, room, 2), np.int64),
            keys=np.zeros((contracts, 2, room), np.float64),
            spans=np.zeros((contracts, 2, 2), np.int64),
        )
        light = ground.fleet.light
        for contract_id, row in ground.rows.items():
            for which, entries in enumerate(queues.entries(contract_id)):
                self._fill_line(light, row, which, entries)

    @staticmethod
    def _fill_line(light: li.Light, row: int, which: int, entries: list[Entry]) -> None:
        light.spans[row, which, 1] = len(entries)
        if entries:
            light.keys[row, which, : len(entries)] = [key for key, _, _ in entries]
            light.lines[row, which, : len(entries)] = [(number, each.row) for _, number, each in entries]

    def _have_lines(self, room: int) -> None:
        """Longer lines, with those in them who are."""
        light = self._ground.fleet.light
        contracts, lines, old, columns = light.lines.shape
        longer, keys = np.zeros((contracts, lines, room, columns), np.int64), np.zeros((contracts, lines, room))
        longer[:, :, :old], keys[:, :, :old] = light.lines, light.keys
        self._ground.replace_light(lines=longer, keys=keys)

    def _have_rows(self, more: int) -> None:
        """So many more rows for requests to come."""
        ground, table = self._ground, self._scheduler.table
        light, free = ground.fleet.light, int(self._cells[li.FREE_ROWS])
        lent = table.lend(more)
        rows, size = np.full((len(table.owners), 2), li.KNOWN, np.int64), len(light.rows)
        entered_s, pile = np.zeros(len(rows), np.float64), np.zeros(len(rows), np.int64)
        if self.is_on:
            rows[:size], entered_s[:size], pile[:free] = light.rows, light.entered_s, light.free[:free]
        pile[free : free + more] = lent
        ground.replace_light(rows=rows, entered_s=entered_s, free=pile)
        self._cells[li.FREE_ROWS] = free + more
        ground.refresh()

    def _read_log(self, logged: int) -> None:
        light, loop = self._ground.fleet.light, self._loop
        log, log_s = light.log[:logged], light.log_s[:logged]
        numbers, domains, tokens, met = log.T.tolist()
        arrival_s = np.array([self._requests.pop(number).arrival_s for number in numbers])
        entered_s, first_s, finished_s = log_s[:, li.ENTERED_S], log_s[:, li.FIRST_S], log_s[:, li.FINISHED_S]
        loop.fates.completed(
            numbers,
            [self._ids[domain] for domain in domains],
            [MET[each] for each in met],
            tokens,
            {
                "first_token_s": first_s.tolist(),
                "last_token_s": log_s[:, li.LAST_S].tolist(),
                "longest_gap_s": log_s[:, li.GAP_S].tolist(),
                "finished_s": finished_s.tolist(),
                "queue_s": (entered_s - arrival_s).tolist(),
                "prefill_s": (first_s - entered_s).tolist(),
                "decode_s": (finished_s - first_s).tolist(),
            },
        )
        loop.last_end_s = max(loop.last_end_s, float(light.figures[li.LAST_END_S]))

    def _tell_loads(self, policy: SlackPolicy) -> None:
        """What each contract has been asking for."""
        fleet = self._ground.fleet
        for contract_id, row in self._ground.rows.items():
            came_s = fleet.arrivals[row, self._told[row] : fleet.spans[row, 1]].tolist()
            load = fleet.loads[row]
            policy.classes.resume(contract_id, came_s, float(load[of.DEVICE_S]), float(load[of.INITIAL_SLACK_S]))
        self._told = fleet.spans[:, 1].tolist()

    def _make_waiting(self, policy: SlackPolicy) -> None:
        """The objects of those that wait. Who has lapsed has a key that is past, and lapses again."""
        light, scheduler = self._ground.fleet.light, self._scheduler
        for contract_id, contract in self._ground.rows.items():
            for which in (li.LAPSED, li.LIVE):
                begin, end = light.spans[contract, which]
                rows = light.lines[contract, which, begin:end, li.ROW].tolist()
                for row, key in zip(rows, light.keys[contract, which, begin:end].tolist(), strict=True):
                    if light.rows[row, li.ITS_NUMBER] != li.KNOWN:
                        scheduler.adopt(self._make(row), -math.inf if which == li.LAPSED else key)
            scheduler.queues.lapse(contract_id, self._loop.now)

    def _make_running(self, number: int) -> None:
        """The objects of those that run on a domain, and the blocks they hold, in order of entry."""
        ground, scheduler = self._ground, self._scheduler
        light, its = ground.fleet.light, ground.fleet.domains[number]
        domain, owners = scheduler.domains[self._ids[number]], scheduler.table.owners
        running = []
        for row in ground.fleet.members[number, : its[of.RUNS]].tolist():
            if light.rows[row, li.ITS_NUMBER] != li.KNOWN:
                sequence = self._make(row)
                sequence.domain, sequence.known_to_worker = domain, True
                sequence.domain_ids.append(domain.domain_id)
                blocks = domain.device_blocks.take(int(scheduler.table.counts[row, BLOCKS]))
                assert blocks is not None, "who runs has its blocks"
                sequence.blocks = blocks
                is_decoding = scheduler.table.counts[row, IS_DECODING]
                sequence.enter_stage("prefill", float(light.entered_s[row]))
                if is_decoding:
                    sequence.enter_stage("decode", float(scheduler.table.times[row, FIRST_TOKEN_S]))
                scheduler.adopt(sequence, math.inf)
            owner = owners[row]
            assert owner is not None
            running.append(owner)
        domain.running.clear()
        for sequence in running:
            domain.running[sequence.sequence_id] = sequence
        if its[of.HAS_FINISHED] and not domain.finished:
            # The worker is told of somebody who has ended; here that costs a step, whoever it is.
            domain.finished.append(NOBODY)

    def _make(self, row: int) -> SequenceState:
        """The object of the request in a row, which keeps its row and its figures."""
        table = self._scheduler.table
        counts, times = table.counts[row].copy(), table.times[row].copy()
        request = self._requests.pop(int(self._ground.fleet.light.rows[row, li.ITS_NUMBER]))
        contract = self._scheduler.contracts[request.contract_id]
        table.release(row)
        sequence = SequenceState(int(counts[SEQUENCE_ID]), request, contract, table)
        assert sequence.row == row, "the row that was released last is the first to be used again"
        table.counts[row], table.times[row] = counts, times
        return sequence
