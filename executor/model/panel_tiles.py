"""The inner loops of products with weights in panels: up to twelve rows times a panel, sums in registers.

A tile of six rows times a panel is twelve sums, which fill the registers of AVX2 and hide the latency of its
multiply-add; with AVX512 twelve rows are as many sums of twice the width. Every output is summed over its inputs in the
same order whatever the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from superinfer.executor.model.int8_panels import GROUP_SHIFT, SCALE_BYTES
from superinfer.executor.model.panels import BFLOAT16, ELEMENT_BYTES, INPUT_STEP, INT8, LANES, PANEL_COLUMNS
from superinfer.executor.model.vectors import ADDRESS, FLOAT, INT32, LINE_BYTES, Emitter, emit_prefetch, literals

TILE_TOKENS = 6
WIDE_TILE_TOKENS = 12
"""Rows of a tile in vectors of a whole panel; for float32 panels alone."""
NEAR_BYTES = 512
"""How far ahead a small tile prefetches in each of its panels on CPUs whose own prefetcher a short distance sets going,
which then reads faster than instructions can ask."""
HALVES = range(2)
"""A panel is two vectors wide, but in a wide tile one."""


@cache
def cpu_features() -> frozenset[str]:
    """Names of the vector extensions that this CPU has, as LLVM spells them."""
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def has_wide_tiles() -> bool:
    """True where a tile may have WIDE_TILE_TOKENS rows: AVX512 has registers for as many sums of a panel's width."""
    return "avx512f" in cpu_features()


def tiles_fill_vectors() -> bool:
    """True where a tile is a handful of vector multiply-adds: panels then serve any number of tokens best."""
    return {"avx2", "fma"} <= cpu_features()


def panels_are_prefetched_in_order() -> bool:
    """True where several panels read at once are best prefetched as one row, as found on CPUs with AVX512 (Zen 5: one
    token 12 % faster, two and three 32 %); those without (Zen 3) read four panels faster in streams of their own.
    """
    return "avx512f" in cpu_features()


class _VolatileLoad(ir.instructions.LoadInstr):  # type: ignore[misc, unused-ignore]
    """A load that the compiler leaves where it is."""

    def descr(self, buf: list[str]) -> None:
        (address,) = self.operands
        buf.append(f"load volatile {self.type}, {address.type} {address.get_reference()}, align {self.align}\n")


class _TileEmitter(Emitter):
    """Emits the inner loop of one tile size.

    Left to itself LLVM loads the inputs of many steps ahead and spills the sums. Loads are therefore volatile, and each
    pair of sums passes through an empty assembler statement, which no load crosses: one weight vector pair, one input
    and the sums are all that is ever alive.
    """

    def __init__(self, builder: Any, kind: int, lanes: int = LANES) -> None:
        super().__init__(builder, lanes, int(kind != BFLOAT16))
        self.parts = range(PANEL_COLUMNS // lanes)
        self.kind, self.element_bytes = kind, ELEMENT_BYTES[kind]
        self.integers, self.bytes = ir.VectorType(INT32, LANES), ir.VectorType(ir.IntType(8), LANES)
        self._fma = self._fence = None
        if cpu_features() & {"fma", "neon"}:
            name, module = f"llvm.fma.v{lanes}f32", builder.module
            kind = ir.FunctionType(self.vector, [self.vector] * 3)
            self._fma = module.globals.get(name) or ir.Function(module, kind, name)
        if "avx2" in cpu_features():
            if lanes == LANES:
                pair = ir.FunctionType(ir.LiteralStructType([self.vector] * 2), [self.vector] * 2)
                self._fence = ir.InlineAsm(pair, "", "=x,=x,0,1", side_effect=True)
            else:  # `v` are all thirty-two registers of AVX512
                one = ir.FunctionType(self.vector, [self.vector])
                self._fence = ir.InlineAsm(one, "", "=v,0", side_effect=True)

    def load_fixed(self, address: Any, offset: int, kind: Any) -> Any:
        """The `kind` at byte `offset`."""
        pointer = self.pointer(address, offset, kind)
        load = _VolatileLoad(self.builder.block, pointer, "", kind)
        load.align = 4
        self.builder._insert(load)
        return load

    def panel_vectors(self, address: Any, step: int, scales: Any) -> list[Any]:
        """The sixteen weights of input `step` as floats; `scales` is the address of those that int8 has here."""
        builder, offset = self.builder, step * PANEL_COLUMNS * self.element_bytes
        if self.kind == INT8:
            parts = [self.load_fixed(address, offset + LANES * half, self.bytes) for half in HALVES]
            numbers = [builder.sitofp(builder.sext(part, self.integers), self.vector) for part in parts]
            return [builder.fmul(number, self.load_float(scales, half * LANES)) for half, number in enumerate(numbers)]
        if self.wide:
            return [self.load_fixed(address, offset + 4 * self.lanes * part, self.vector) for part in self.parts]
        pairs = self.load_fixed(address, offset, self.integers)
        low = builder.shl(pairs, ir.Constant(self.integers, [16] * LANES))
        high = builder.and_(pairs, ir.Constant(self.integers, [0xFFFF0000] * LANES))
        return [builder.bitcast(part, self.vector) for part in (low, high)]

    def add_products(self, x: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
        """sums + x · weights, of every part of a panel."""
        added = [self._multiply_add(x, weights[part], sums[part]) for part in self.parts]
        if self._fence is None:
            return added
        fixed = self.builder.call(self._fence, added)
        return [fixed] if len(added) == 1 else [self.builder.extract_value(fixed, part) for part in self.parts]

    def _multiply_add(self, x: Any, weight: Any, total: Any) -> Any:
        if self._fma is None:
            # Where no instruction does it, `llvm.fma` would be a call for each float.
            return self.builder.fadd(self.builder.fmul(x, weight), total)
        return self.builder.call(self._fma, [x, weight, total])


@intrinsic  # type: ignore[misc, unused-ignore]
def tile_product(
    _context: Any, x: Any, inputs: Any, weight: Any, panel_bytes: Any, out: Any, columns: Any, ahead: Any,
    ahead_step: Any, tokens: Any, panels: Any, kind: Any,
) -> Any:  # fmt: skip
    """out[t, :16 · panels] = x[t] · `panels` panels of one `kind` at `weight`, `panel_bytes` apart, for t < tokens.

    x (tokens, inputs) and out (tokens, columns) are float32 rows. Each step also prefetches as many bytes as it reads
    of the weight (of a wide tile half as many) from `ahead` onwards, which moves by `ahead_step` bytes a step; or of
    several panels on some CPUs NEAR_BYTES further on in each.
    """
    count, group, of_kind = literals(tokens, panels, kind)
    signature = types.void(*[ADDRESS] * 8, tokens, panels, kind)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, inputs, weight, panel_bytes, out, columns, ahead, ahead_step = arguments[:8]
        is_wide = count > TILE_TOKENS or (count > 3 and group > 1)
        emit = _TileEmitter(builder, of_kind, PANEL_COLUMNS if is_wide else LANES)
        number: Callable[[int], Any] = lambda n: ir.Constant(inputs.type, n)  # noqa: E731
        row_bytes = builder.mul(inputs, number(4))
        input_bytes = PANEL_COLUMNS * emit.element_bytes
        starts = [builder.add(weight, builder.mul(panel_bytes, number(g))) for g in range(group)]

        entry = builder.block
        body, done = builder.append_basic_block("tile.body"), builder.append_basic_block("tile.done")
        builder.branch(body)
        builder.position_at_end(body)
        index, fetch = builder.phi(inputs.type), builder.phi(inputs.type)
        index.add_incoming(number(0), entry)
        fetch.add_incoming(ahead, entry)
        zero = ir.Constant(emit.vector, [0.0] * emit.lanes)
        phis = [[[builder.phi(emit.vector) for _ in emit.parts] for _ in range(count)] for _ in range(group)]
        sums = [list(of_group) for of_group in phis]

        offset = builder.mul(index, number(input_bytes))
        scales = [None] * group
        if of_kind == INT8:
            before = builder.lshr(index, number(GROUP_SHIFT))
            of_group = builder.mul(before, number((input_bytes << GROUP_SHIFT) + SCALE_BYTES))
            scales = [builder.add(start, of_group) for start in starts]
            offset = builder.add(offset, builder.mul(builder.add(before, number(1)), number(SCALE_BYTES)))
        weights = [builder.add(start, offset) for start in starts]
        if is_wide:
            emit_prefetch(builder, fetch, 2 * group * LINE_BYTES, keep=0)
        elif group == 1 or panels_are_prefetched_in_order():
            emit_prefetch(builder, fetch, max(group * INPUT_STEP * input_bytes, LINE_BYTES), keep=0)
        else:
            for address in weights:
                emit_prefetch(builder, builder.add(address, number(NEAR_BYTES)), INPUT_STEP * input_bytes, keep=3)
        rows = [builder.add(x, builder.mul(index, number(4)))]
        for _ in range(count - 1):
            rows.append(builder.add(rows[-1], row_bytes))
        for step in range(INPUT_STEP):
            for together in [range(group)] if is_wide else [range(g, g + 1) for g in range(group)]:
                vectors = {g: emit.panel_vectors(weights[g], step, scales[g]) for g in together}
                for t in range(count):
                    value = emit.repeat(emit.load_fixed(rows[t], 4 * step, FLOAT))
                    for g in together:
                        sums[g][t] = emit.add_products(value, vectors[g], sums[g][t])

        following = builder.add(index, number(INPUT_STEP))
        index.add_incoming(following, body)
        fetch.add_incoming(builder.add(fetch, ahead_step), body)
        for g, t, part in ((g, t, part) for g in range(group) for t in range(count) for part in emit.parts):
            phis[g][t][part].add_incoming(zero, entry)
            phis[g][t][part].add_incoming(sums[g][t][part], body)
        builder.cbranch(builder.icmp_signed("<", following, inputs), body, done)

        builder.position_at_end(done)
        target = out
        for t in range(count):
            for g in range(group):
                for part in emit.parts:
                    emit.store_float(sums[g][t][part], target, g * PANEL_COLUMNS + part * emit.lanes)
            target = builder.add(target, builder.mul(columns, number(4)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[misc, unused-ignore]
def widen_inputs(_context: Any, weights: Any, scales: Any, floats: Any, count: Any, kind: Any) -> Any:
    """floats[i] = the sixteen weights of input i as float32, for i < count, a multiple of INPUT_STEP; of one `kind`.

    All are addresses: of the first input's bytes, of its group's scales (int8 alone), and of where the floats go.
    """
    (of_kind,) = literals(kind)
    signature = types.void(ADDRESS, ADDRESS, ADDRESS, count, kind)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        weights, scales, floats, count = arguments[:4]
        emit = _TileEmitter(builder, of_kind)
        number: Callable[[int], Any] = lambda n: ir.Constant(count.type, n)  # noqa: E731
        entry = builder.block
        body, done = builder.append_basic_block("widen.body"), builder.append_basic_block("widen.done")
        builder.branch(body)
        builder.position_at_end(body)
        index = builder.phi(count.type)
        index.add_incoming(number(0), entry)
        source = builder.add(weights, builder.mul(index, number(PANEL_COLUMNS * emit.element_bytes)))
        target = builder.add(floats, builder.mul(index, number(4 * PANEL_COLUMNS)))
        for step in range(INPUT_STEP):
            for half, vector in enumerate(emit.panel_vectors(source, step, scales)):
                emit.store_float(vector, target, step * PANEL_COLUMNS + half * LANES)
        following = builder.add(index, number(INPUT_STEP))
        index.add_incoming(following, body)
        builder.cbranch(builder.icmp_signed("<", following, count), body, done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, generate
