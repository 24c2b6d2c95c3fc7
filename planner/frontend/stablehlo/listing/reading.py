"""StableHLO as text or bytes -> Listing.  The only module that speaks to jaxlib's MLIR bindings.

What cannot become a training step is refused here by name: dynamic shapes, control flow, calls of foreign code, types that no plan has.
Annotations of shardings change no number; they are left out, and that is said once.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from planner.frontend.stablehlo.listing.attributes import attributes_of
from planner.frontend.stablehlo.listing.values import Given, Listing, Operation
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.tensor import DType, TensorType

__all__ = ["ShardingsLeftOut", "listing_of_bytes", "listing_of_text"]

MOST_OPERATIONS = 200_000
_DEEPEST_CALL = 64
_DTYPES = {
    "f64": DType.FLOAT64,
    "f32": DType.FLOAT32,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "i64": DType.INT64,
    "i32": DType.INT32,
    "i16": DType.INT16,
    "i8": DType.INT8,
    "ui8": DType.UINT8,
    "i1": DType.BOOL,
}
_CONTROL = {
    "while": "a loop (lax.scan, lax.fori_loop, lax.while_loop): write it as a Python loop, or give lax.scan(unroll=True)",
    "case": "a branch (lax.cond, lax.switch): choose with jnp.where, or in Python",
    "if": "a branch (lax.cond): choose with jnp.where, or in Python",
}
_DRAWS = ("rng", "rng_bit_generator", "rng_uniform")


class ShardingsLeftOut(UserWarning):
    """A program says how its values are sharded, which a plan decides anew."""


def listing_of_text(text: str, name: str) -> Listing:
    """The module that a text holds.

    Args:
        name: of the file or function, for messages.

    Raises:
        InvalidFile: it is no StableHLO.   Unsupported: what it holds, with its line and the way out.
    """
    return _read(lambda ir: ir.Module.parse(text), name)


def listing_of_bytes(data: bytes, name: str) -> Listing:
    """The module that MLIR bytecode holds, portable (VHLO) or not.  Raises as ``listing_of_text``."""

    def parse(ir: Any) -> Any:
        from jaxlib.mlir.dialects import stablehlo

        try:
            return stablehlo.deserialize_portable_artifact(ir.Context.current, data)
        except Exception:  # bytecode of the dialect itself
            return ir.Module.parse(data)

    return _read(parse, name)


def _read(parse: Callable[[Any], Any], name: str) -> Listing:
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    except ImportError as error:
        raise Unsupported(f"{name} is StableHLO, which is read by jaxlib ({error}); install it: pip install 'regista[jax]'") from error
    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    with context:
        try:
            module = parse(ir)
        except Exception as error:
            first = next((line for line in str(error).splitlines() if "error:" in line), str(error).split("\n")[0])
            raise InvalidFile(
                f"{name} is no StableHLO module of this jaxlib: {first.strip()[:200]}; write it with jax.jit(step).lower(...).as_text() "
                "or jax.export"
            ) from error
        return _Reader(module, name).listing()


class _Reader:
    """Puts called functions in the places of their calls, and numbers the values."""

    def __init__(self, module: Any, name: str) -> None:
        self._name = name
        self._functions: dict[str, Any] = {}
        for function in module.body.operations:
            operation = function.operation
            if operation.name == "func.func":
                self._functions[_symbol(operation.attributes["sym_name"])] = operation
        self._operations: list[Operation] = []
        self._types: dict[int, TensorType] = {}
        self._shardings = 0
        self._called_at = ""  # the user's line of the call that is read

    def listing(self) -> Listing:
        main = self._functions.get("main") or (next(iter(self._functions.values())) if len(self._functions) == 1 else None)
        if main is None:
            raise InvalidFile(f"{self._name} has no function 'main' but {', '.join(self._functions) or 'none'}; lower one jitted function")
        block = main.regions[0].blocks[0]
        numbers: dict[Any, int] = {}
        inputs = []
        for argument in block.arguments:
            numbers[argument] = self._numbered(argument, "an input")
            inputs.append(Given(value=numbers[argument], path=_path(argument)))
        self._shardings += (
            sum(str(given).count(".sharding") for given in main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else 0
        )
        results = self._body(block, numbers, 0)
        if self._shardings:
            warnings.warn(
                f"{self._name} has {self._shardings} annotations of shardings, which are not kept: the layouts are searched; fix one with --pin",
                ShardingsLeftOut,
                stacklevel=2,
            )
        return Listing(inputs=tuple(inputs), operations=tuple(self._operations), results=tuple(results), types=self._types)

    def _numbered(self, value: Any, where: str) -> int:
        number = len(self._types)
        self._types[number] = self._type(value.type, where)
        return number

    def _type(self, type_: Any, where: str) -> TensorType:
        text = str(type_)
        if not text.startswith("tensor<"):
            raise Unsupported(f"{self._name}: {where} is a {text}, no tensor; return and take arrays alone")
        if not type_.has_static_shape:
            raise Unsupported(
                f"{self._name}: {where} has the dynamic shape {text}; export it at one batch size, or give the function itself to "
                "regista.from_jax, which lowers it at the sizes it needs"
            )
        element = str(type_.element_type)
        if element not in _DTYPES:
            why = "random keys and their bits are not planned; take dropout out, or draw outside" if element.startswith("ui") else ""
            raise Unsupported(f"{self._name}: {where} is {text}: {why or 'a plan has ' + ', '.join(_DTYPES)}")
        return TensorType(tuple(type_.shape), _DTYPES[element])

    def _body(self, block: Any, numbers: dict[Any, int], depth: int) -> list[int]:
        """Read a function's operations; returns the numbers of what it returns."""
        if depth > _DEEPEST_CALL:
            raise Unsupported(
                f"{self._name}: calls are nested deeper than {_DEEPEST_CALL}; a function that calls itself has no static graph"
            )
        for view in block.operations:
            operation = view.operation
            name = str(operation.name)
            if name.endswith(".return"):
                return [numbers[operand] for operand in operation.operands]
            operands = [numbers[operand] for operand in operation.operands]
            if name in ("func.call", "stablehlo.composite"):
                key = "callee" if name == "func.call" else "decomposition"
                before, self._called_at = self._called_at, _where(operation.location) or self._called_at
                made = self._called(_symbol(operation.attributes[key]), operands, depth)
                self._called_at = before
            else:
                made = self._operation(operation, name, operands)
            numbers.update(zip(operation.results, made, strict=True))
        raise InvalidFile(f"{self._name}: a function returns nothing")

    def _called(self, symbol: str, operands: Sequence[int], depth: int) -> list[int]:
        if symbol not in self._functions:
            raise InvalidFile(f"{self._name} calls @{symbol}, which it does not hold")
        block = self._functions[symbol].regions[0].blocks[0]
        return self._body(block, dict(zip(block.arguments, operands, strict=True)), depth + 1)

    def _operation(self, operation: Any, full_name: str, operands: list[int]) -> list[int]:
        dialect, _, name = full_name.partition(".")
        where = _where(operation.location) or self._called_at
        if len(self._operations) >= MOST_OPERATIONS:
            raise Unsupported(f"{self._name} has more than {MOST_OPERATIONS} operations; lower fewer unrolled layers")
        if name == "custom_call":
            target = _symbol(operation.attributes["call_target_name"])
            if target != "Sharding":
                raise Unsupported(
                    f"{self._name} calls {target!r}{where}, code that StableHLO does not hold (custom_call); write it in jax.numpy or jax.lax"
                )
        if name == "custom_call" or full_name == "sdy.sharding_constraint":
            self._shardings += 1
            return operands
        if name == "optimization_barrier":
            return operands
        if name in _CONTROL:
            raise Unsupported(f"{self._name} has stablehlo.{name}{where}, {_CONTROL[name]}")
        if name in _DRAWS:
            raise Unsupported(f"{self._name} draws random numbers{where} (stablehlo.{name}); take dropout out, or draw outside of the step")
        if dialect not in ("stablehlo", "chlo"):
            raise Unsupported(f"{self._name} has {full_name}{where}, an operation of another dialect; lower to StableHLO alone")
        results = [self._numbered(value, f"{full_name}{where}") for value in operation.results]
        attributes = attributes_of(operation)
        self._operations.append(Operation(name=name, operands=tuple(operands), results=tuple(results), attributes=attributes, where=where))
        return results


def _symbol(attribute: Any) -> str:
    return str(attribute).strip('"').removeprefix("@").strip('"')


def _path(argument: Any) -> str:
    name = getattr(argument.location, "name_str", None)
    return str(name) if name else ""


_LINE = re.compile(r'"([^"]+\.py)":(\d+)')


def _where(location: Any) -> str:
    """`` in file.py:12``: the first line that is no library's, else nothing."""
    frames = _LINE.findall(str(location)[:4000])
    own = [(path, line) for path, line in frames if "site-packages" not in path]
    if not own:
        return ""
    path, line = own[0]
    return f" in {path.rpartition('/')[2]}:{line}"
