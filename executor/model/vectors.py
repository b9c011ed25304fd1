"""Explicit vector code for the inner loops that the compiler does not vectorise well by itself.

Each function is a numba intrinsic that emits LLVM vectors of up to 16 lanes, which the back end splits to what the CPU
has. Pointers are integers; sizes that shape the code (`dim`, `group`, `tokens`) are literals, known at compile time.
Elements are float32 or bfloat16 (`wide` 1 or 0); sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

FLOAT, INT16, INT32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
FAST = ("reassoc", "contract", "arcp", "nsz")
ADDRESS = types.intp
MAX_LANES = 16
LINE_BYTES = 64


def lanes_for(dim: int) -> int:
    """Vector length for `dim` elements: the largest power of two up to 16 that divides it."""
    return min(MAX_LANES, dim & -dim)


def literals(*arguments: Any) -> list[int]:
    """The values of arguments that must be known at compile time; asks numba for literal types where they are not."""
    for argument in arguments:
        if not isinstance(argument, types.IntegerLiteral):
            raise RequireLiteralValue(f"not a literal: {argument}")
    return [argument.literal_value for argument in arguments]


class Emitter:
    """Loads, stores and arithmetic on vectors of one length."""

    def __init__(self, builder: Any, lanes: int, wide: int) -> None:
        self.builder, self.lanes, self.wide = builder, lanes, wide
        self.vector = ir.VectorType(FLOAT, lanes)
        self.element_bytes = 4 if wide else 2

    def pointer(self, address: Any, offset: int, kind: Any) -> Any:
        moved = self.builder.add(address, ir.Constant(address.type, offset)) if offset else address
        return self.builder.inttoptr(moved, kind.as_pointer())

    def load(self, address: Any, element: int) -> Any:
        """Elements [element, element + lanes) of the array at `address`, as floats."""
        if self.wide:
            return self.load_float(address, element)
        builder, wide = self.builder, ir.VectorType(INT32, self.lanes)
        pointer = self.pointer(address, 2 * element, ir.VectorType(INT16, self.lanes))
        bits = builder.zext(builder.load(pointer, align=2), wide)
        shifted = builder.shl(bits, ir.Constant(wide, [16] * self.lanes))
        return builder.bitcast(shifted, self.vector)

    def load_float(self, address: Any, element: int) -> Any:
        return self.builder.load(self.pointer(address, 4 * element, self.vector), align=4)

    def store_float(self, value: Any, address: Any, element: int) -> None:
        self.builder.store(value, self.pointer(address, 4 * element, self.vector), align=4)

    def multiply_add(self, a: Any, b: Any, total: Any | None) -> Any:
        product = self.builder.fmul(a, b, flags=FAST)
        return product if total is None else self.builder.fadd(product, total, flags=FAST)

    def broadcast(self, address: Any, offset: int) -> Any:
        """The float at byte `offset` in all lanes."""
        return self.repeat(self.builder.load(self.pointer(address, offset, FLOAT)))

    def repeat(self, number: Any) -> Any:
        """One float in all lanes."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.Constant(INT32, 0))
        order = ir.Constant(ir.VectorType(INT32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, order)

    def sum(self, value: Any) -> Any:
        """Sum of all lanes, by halves."""
        builder, lanes = self.builder, self.lanes
        while lanes > 1:
            half = lanes // 2
            kind = ir.VectorType(INT32, half)
            undefined = ir.Constant(ir.VectorType(FLOAT, lanes), ir.Undefined)
            low = builder.shuffle_vector(value, undefined, ir.Constant(kind, list(range(half))))
            high = builder.shuffle_vector(value, undefined, ir.Constant(kind, list(range(half, lanes))))
            value = builder.fadd(low, high, flags=FAST)
            lanes = half
        return builder.extract_element(value, ir.Constant(INT32, 0))


def emit_prefetch(builder: Any, address: Any, size: int, *, keep: int) -> None:
    """Prefetch the lines of `size` bytes from `address`: `keep` 3 into all caches, 0 to be used once."""
    byte = ir.IntType(8).as_pointer()
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32]), name
    )
    read, locality, data = (ir.Constant(INT32, n) for n in (0, keep, 1))
    for offset in range(0, size, LINE_BYTES):
        moved = builder.add(address, ir.Constant(address.type, offset))
        builder.call(function, [builder.inttoptr(moved, byte), read, locality, data])


@intrinsic  # type: ignore[misc, unused-ignore]
def dots(_context: Any, key: Any, queries: Any, out: Any, out_stride: Any, dim: Any, group: Any, wide: Any) -> Any:
    """out[g · out_stride bytes] = key · queries[g] for g < group; queries (group, dim) float32 in a row."""
    size, count, is_wide = literals(dim, group, wide)
    signature = types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, dim, group, wide)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        key, queries, out, stride = arguments[:4]
        emit = Emitter(builder, lanes_for(size), is_wide)
        totals: list[Any] = [None] * count
        for element in range(0, size, emit.lanes):
            part = emit.load(key, element)
            for g in range(count):
                totals[g] = emit.multiply_add(emit.load_float(queries, g * size + element), part, totals[g])
        for g in range(count):
            target = builder.add(out, builder.mul(stride, ir.Constant(stride.type, g)))
            builder.store(emit.sum(totals[g]), builder.inttoptr(target, FLOAT.as_pointer()))
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[misc, unused-ignore]
def accumulate(
    _context: Any, values: Any, value_stride: Any, weights: Any, weight_stride: Any, sums: Any,
    tokens: Any, dim: Any, group: Any, wide: Any,
) -> Any:  # fmt: skip
    """sums[g] += Σ over t < tokens of weights[g, t] · values[t] for g < group; sums (group, dim) float32 in a row.

    Strides are bytes between values of successive tokens, and between weight rows of successive g.
    """
    count_tokens, size, count, is_wide = literals(tokens, dim, group, wide)
    signature = types.void(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, tokens, dim, group, wide)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        values, value_stride, weights, weight_stride, sums = arguments[:5]
        emit = Emitter(builder, lanes_for(size), is_wide)
        offset: Callable[[Any, int], Any] = lambda stride, n: builder.mul(stride, ir.Constant(stride.type, n))  # noqa: E731
        rows = [builder.add(values, offset(value_stride, t)) for t in range(count_tokens)]
        weight_rows = [builder.add(weights, offset(weight_stride, g)) for g in range(count)]
        for element in range(0, size, emit.lanes):
            totals = [emit.load_float(sums, g * size + element) for g in range(count)]
            for t in range(count_tokens):
                part = emit.load(rows[t], element)
                for g in range(count):
                    totals[g] = emit.multiply_add(emit.broadcast(weight_rows[g], 4 * t), part, totals[g])
            for g in range(count):
                emit.store_float(totals[g], sums, g * size + element)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[misc, unused-ignore]
def prefetch(_context: Any, address: Any, count: Any) -> Any:
    """Ask for the cache lines of `count` bytes from `address`; a wrong address does no harm."""
    (size,) = literals(count)
    signature = types.void(ADDRESS, count)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0], size, keep=3)
        return context.get_dummy_value()

    return signature, generate
