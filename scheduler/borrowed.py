"""Arrays inside compiled code that nobody counts references to.

Compiled code counts a reference whenever it hands an array on or takes a part of it, each time with an atomic
operation. A borrowed array is the same memory without a count: whoever calls the compiled function keeps it alive until
that returns.
"""

from __future__ import annotations

from typing import Any, TypeVar

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Arrays = TypeVar("Arrays")


def _borrow(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The value with no count in any array of it; tuples of tuples included."""
    if isinstance(kind, types.Array):
        array = cgutils.create_struct_proxy(kind)(context, builder, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for position, part in enumerate(kind):
            borrowed = _borrow(context, builder, part, builder.extract_value(value, position))
            value = builder.insert_value(value, borrowed, position)
    return value


@intrinsic  # type: ignore[untyped-decorator]
def _borrowed(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _borrow(context, builder, signature.args[0], arguments[0])

    return value(value), generate


borrowed: Any = _borrowed
