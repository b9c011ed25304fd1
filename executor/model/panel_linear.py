"""Matrix product of a few to a few hundred tokens with a weight in panels, one core, float32 sums.

For each panel all tokens go by in tiles of up to six: a tile times a panel is twelve sums, which fill the registers of
AVX2 and hide the latency of its multiply-add, so the weight is read from memory once a call however many tokens there
are. One to three tokens take several panels at once for the same twelve or eight sums. Meanwhile what comes next is
prefetched: the next panel, or a little of each where several are read at once. Every output is summed over its inputs
in the same order whatever the tile: a token's result does not depend on what it is batched with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from superinfer.executor.model.kernels import kernel
from superinfer.executor.model.panels import GROUP_PANELS, INPUT_STEP, LANES, PANEL_COLUMNS
from superinfer.executor.model.vectors import ADDRESS, FLOAT, INT32, LINE_BYTES, Emitter, emit_prefetch, literals

TILE_TOKENS = 6
NEAR_BYTES = 512
"""How far ahead a small tile prefetches in each of its panels: it is bound by memory, and a short distance sets the
CPU's own prefetcher going, which reads faster than instructions can ask."""
HALVES = range(2)
"""A panel is two vectors wide."""


@cache
def cpu_features() -> frozenset[str]:
    """Names of the vector extensions that this CPU has, as LLVM spells them."""
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


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

    def __init__(self, builder: Any, wide: int) -> None:
        super().__init__(builder, LANES, wide)
        self.integers = ir.VectorType(INT32, LANES)
        self._fma = self._fence = None
        if cpu_features() & {"fma", "neon"}:
            name, module = f"llvm.fma.v{LANES}f32", builder.module
            kind = ir.FunctionType(self.vector, [self.vector] * 3)
            self._fma = module.globals.get(name) or ir.Function(module, kind, name)
        if "avx2" in cpu_features():
            pair = ir.FunctionType(ir.LiteralStructType([self.vector] * 2), [self.vector] * 2)
            self._fence = ir.InlineAsm(pair, "", "=x,=x,0,1", side_effect=True)

    def load_fixed(self, address: Any, offset: int, kind: Any) -> Any:
        """The `kind` at byte `offset`."""
        pointer = self.pointer(address, offset, kind)
        load = _VolatileLoad(self.builder.block, pointer, "", kind)
        load.align = 4
        self.builder._insert(load)
        return load

    def panel_vectors(self, address: Any, step: int) -> list[Any]:
        """The sixteen weights of input `step` as floats."""
        builder, offset = self.builder, step * PANEL_COLUMNS * self.element_bytes
        if self.wide:
            return [self.load_fixed(address, offset + 4 * LANES * half, self.vector) for half in HALVES]
        pairs = self.load_fixed(address, offset, self.integers)
        low = builder.shl(pairs, ir.Constant(self.integers, [16] * LANES))
        high = builder.and_(pairs, ir.Constant(self.integers, [0xFFFF0000] * LANES))
        return [builder.bitcast(part, self.vector) for part in (low, high)]

    def add_products(self, x: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
        """sums + x · weights, of both halves."""
        added = [self._multiply_add(x, weights[half], sums[half]) for half in HALVES]
        if self._fence is None:
            return added
        fixed = self.builder.call(self._fence, added)
        return [self.builder.extract_value(fixed, half) for half in HALVES]

    def _multiply_add(self, x: Any, weight: Any, total: Any) -> Any:
        if self._fma is None:
            # Where no instruction does it, `llvm.fma` would be a call for each float.
            return self.builder.fadd(self.builder.fmul(x, weight), total)
        return self.builder.call(self._fma, [x, weight, total])


@intrinsic  # type: ignore[misc, unused-ignore]
def tile_product(
    _context: Any, x: Any, inputs: Any, weight: Any, out: Any, columns: Any, ahead: Any, ahead_step: Any,
    tokens: Any, panels: Any, wide: Any,
) -> Any:  # fmt: skip
    """out[t, :16 · panels] = x[t] · `panels` panels at `weight`, for t < tokens.

    x (tokens, inputs) and out (tokens, columns) are float32 rows. Each step also prefetches as many bytes as it reads
    of the weight: of one panel from `ahead` onwards, which moves by `ahead_step` bytes a step; of several panels
    NEAR_BYTES further on in each.
    """
    count, group, is_wide = literals(tokens, panels, wide)
    signature = types.void(*[ADDRESS] * 7, tokens, panels, wide)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, inputs, weight, out, columns, ahead, ahead_step = arguments[:7]
        emit = _TileEmitter(builder, is_wide)
        number: Callable[[int], Any] = lambda n: ir.Constant(inputs.type, n)  # noqa: E731
        row_bytes = builder.mul(inputs, number(4))
        input_bytes = PANEL_COLUMNS * emit.element_bytes
        panel_bytes = builder.mul(inputs, number(input_bytes))
        starts = [builder.add(weight, builder.mul(panel_bytes, number(g))) for g in range(group)]

        entry = builder.block
        body, done = builder.append_basic_block("tile.body"), builder.append_basic_block("tile.done")
        builder.branch(body)
        builder.position_at_end(body)
        index, fetch = builder.phi(inputs.type), builder.phi(inputs.type)
        index.add_incoming(number(0), entry)
        fetch.add_incoming(ahead, entry)
        zero = ir.Constant(emit.vector, [0.0] * LANES)
        phis = [[[builder.phi(emit.vector) for _ in HALVES] for _ in range(count)] for _ in range(group)]
        sums = [list(of_group) for of_group in phis]

        offset = builder.mul(index, number(input_bytes))
        weights = [builder.add(start, offset) for start in starts]
        if group == 1:
            emit_prefetch(builder, fetch, max(INPUT_STEP * input_bytes, LINE_BYTES), keep=0)
        else:
            for address in weights:
                emit_prefetch(builder, builder.add(address, number(NEAR_BYTES)), INPUT_STEP * input_bytes, keep=3)
        rows = [builder.add(x, builder.mul(index, number(4)))]
        for _ in range(count - 1):
            rows.append(builder.add(rows[-1], row_bytes))
        for step in range(INPUT_STEP):
            for g in range(group):
                vectors = emit.panel_vectors(weights[g], step)
                for t in range(count):
                    value = emit.repeat(emit.load_fixed(rows[t], 4 * step, FLOAT))
                    sums[g][t] = emit.add_products(value, vectors, sums[g][t])

        following = builder.add(index, number(INPUT_STEP))
        index.add_incoming(following, body)
        fetch.add_incoming(builder.add(fetch, ahead_step), body)
        for g, t, half in ((g, t, half) for g in range(group) for t in range(count) for half in HALVES):
            phis[g][t][half].add_incoming(zero, entry)
            phis[g][t][half].add_incoming(sums[g][t][half], body)
        builder.cbranch(builder.icmp_signed("<", following, inputs), body, done)

        builder.position_at_end(done)
        target = out
        for t in range(count):
            for g in range(group):
                for half in HALVES:
                    emit.store_float(sums[g][t][half], target, g * PANEL_COLUMNS + half * LANES)
            target = builder.add(target, builder.mul(columns, number(4)))
        return context.get_dummy_value()

    return signature, generate


@cache
def panel_linear_kernel(wide: int) -> Callable[[Any, Any, Any], None]:
    """The kernel for float32 (`wide` 1) or bfloat16 (0) panels, called with x, panels, out; all contiguous.

    x (tokens, inputs) float32 with `supports(inputs)`; panels as `pack_panels` made them, bfloat16 as uint16; out
    (tokens, padded columns) float32.
    """
    element = 4 if wide else 2

    @kernel
    def panel_linear(x: Any, weight: Any, out: Any) -> None:
        tokens, inputs = x.shape
        columns = out.shape[1]
        # As many panels at once as give a small tile enough sums.
        group = 1
        if tokens == 1:
            group = GROUP_PANELS
        elif tokens <= 3:
            group = 2
        # Tiles as even as they can be: 7 tokens as 4 and 3, not as 6 and 1.
        tiles = (tokens + TILE_TOKENS - 1) // TILE_TOKENS
        smaller = tokens // max(tiles, 1)
        larger_tiles = tokens - smaller * tiles
        group_bytes = group * inputs * PANEL_COLUMNS * element
        # Each tile prefetches its share of the next panels.
        ahead_step = group * INPUT_STEP * PANEL_COLUMNS * element // max(tiles, 1)
        ahead_share = group_bytes // max(tiles, 1)
        panel = weight.ctypes.data
        column = out.ctypes.data
        for _ in range(columns // (group * PANEL_COLUMNS)):
            source, target, ahead = x.ctypes.data, column, panel + group_bytes
            for i in range(tiles):
                size = smaller + 1 if i < larger_tiles else smaller
                if size == 6:
                    tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 6, 1, wide)
                elif size == 5:
                    tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 5, 1, wide)
                elif size == 4:
                    tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 4, 1, wide)
                elif size == 3:
                    if group == 2:
                        tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 3, 2, wide)
                    else:
                        tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 3, 1, wide)
                elif size == 2:
                    tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 2, 2, wide)
                else:
                    tile_product(source, inputs, panel, target, columns, ahead, ahead_step, 1, 4, wide)
                source += size * inputs * 4
                target += size * columns * 4
                ahead += ahead_share
            panel += group_bytes
            column += group * PANEL_COLUMNS * 4

    return panel_linear
