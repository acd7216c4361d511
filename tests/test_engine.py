"""The engine on functions of its own: outputs, mutation, and values that a schema cannot hold."""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

TOY = """
import enum
from dataclasses import dataclass
from typing import Literal, NamedTuple, Optional, Tuple, Union

import torch

CALLS = []


class Mode(enum.Enum):
    PLAIN = 1
    NEGATED = 2


@dataclass(frozen=True)
class Recipe:
    shift: int = 1
    mode: Mode = Mode.PLAIN


def scale(x: torch.Tensor, factor: Union[torch.Tensor, float], *,
          out: Optional[torch.Tensor] = None, sign: Mode = Mode.PLAIN,
          recipe: Optional[Recipe] = Recipe()) -> torch.Tensor:
    CALLS.append((sign, recipe))
    if out is None:
        out = torch.empty_like(x)
    out.copy_(x * factor * (-1 if sign is Mode.NEGATED else 1))
    if recipe is not None:
        out.add_(recipe.shift)
    return out


def append(x: torch.Tensor, cache: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]],
           rows: int = 1) -> None:
    for tensor in cache if isinstance(cache, tuple) else (cache,):
        tensor[:rows].add_(x[:rows])


def powers(x: torch.Tensor, *, up_to: int = 2, one: Optional[torch.Tensor] = None,
           two: Optional[torch.Tensor] = None, three: Optional[torch.Tensor] = None):
    results = []
    for power, out in enumerate((one, two, three)[:up_to], 1):
        results.append(torch.empty_like(x) if out is None else out)
        results[-1].copy_(x**power)
    return results[0] if up_to == 1 else tuple(results)


def callback(x: torch.Tensor, hook: object = print) -> torch.Tensor:
    return x + 1


def read(x: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    launched_with = amount.item()
    return torch.full_like(x, 1.0) * amount


KEPT = torch.zeros(4, 3)


def keeps(x: torch.Tensor, plan: "Optional[Elsewhere]" = None, *,
          out: "Optional[torch.Tensor]" = None) -> torch.Tensor:
    result = KEPT if out is None else out
    result.copy_(x)
    return result


def bare(x: torch.Tensor, anything) -> torch.Tensor:
    return x + anything


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Packed(NamedTuple):
    values: torch.Tensor
    rows: int


def untold(x, factor, level=Level.LOW, rounded=False, fast=None,
           dtype: torch.dtype = torch.bfloat16, pair: Optional[Tuple[torch.Tensor, ...]] = None):
    CALLS.append((level, type(level), rounded, fast, dtype, pair))
    x = x * factor * int(level)
    return (x.round() if rounded else x + 0.5).to(dtype)


def typed(x: torch.Tensor, rows: int, factor: float = 2.0, *, name: str = "a",
          negate: bool = False, level: Level = Level.LOW, limit: Optional[int] = None):
    CALLS.append((rows, factor, negate, level, limit))
    x = x[:rows] * factor * int(level)
    return -x if negate else x


class Slots(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def slots(x: torch.Tensor) -> Slots:
    return Slots(x + 1, x * 2)


def advance(x: torch.Tensor, state: Optional[torch.Tensor] = None, *, keep: bool = True,
            choice: Union[Literal["auto"], bool] = "auto", at: Optional[Slots] = None):
    CALLS.append((choice, at))
    state = torch.zeros_like(x) if state is None else state
    state.add_(x)
    return x + 1, state if keep else None, x * 2


def same(x: torch.Tensor):
    return x, x + 1


def unpack(packed: Packed, out: torch.Tensor) -> torch.Tensor:
    out[:packed.rows].copy_(packed.values[:packed.rows])
    return out
"""

ENGINE = f"""
    import json, sys, types
    sys.path.append({str(TESTS)!r})
    from child_side import Counting, error_of
    import torch
    from shim.opaque.op import Op, build
    from shim.opaque.schema import Inexpressible

    toy = types.ModuleType("flashinfer.toy")
    sys.modules["flashinfer.toy"] = toy
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    Mode, Recipe = toy.Mode, toy.Recipe

    def op(name, **declared):
        declaration = Op(name, lambda make, m: {{}}, **declared)
        return build(declaration, getattr(toy, name), release="1.0", preload=False)

    scale = op("scale", out=("out",))
    append = op("append", returns="()", mutates=("cache",))
    callback = op("callback")
    powers = op("powers", returns="(Tensor, Tensor, Tensor)", out=("one", "two", "three"),
                results=lambda given: given.get("up_to", 2))
    x = torch.arange(12.0).reshape(4, 3)
    answers = {{}}

    def compiled(function, *args, backend="aot_eager"):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend=backend)(*args)

    def agrees(function, *args):
        eager = function(*(a.clone() for a in args))
        return all(
            torch.equal(eager, compiled(function, *(a.clone() for a in args), backend=backend))
            for backend in ("eager", "aot_eager", "inductor")
        )

    two = torch.tensor(2.0)
    answers["number or tensor"] = [
        agrees(lambda x: scale(x, 3.0) + 1, x), agrees(lambda x, t: scale(x, t) + 1, x, two)]
    answers["enum and dataclass"] = [
        agrees(lambda x: scale(x, 2.0, sign=Mode.NEGATED), x),
        agrees(lambda x: scale(x, 2.0, recipe=None), x),
        agrees(lambda x: scale(x, 2.0, recipe=Recipe(5, Mode.NEGATED)), x)]
    read = op("read")
    answers["a number read from a tensor"] = agrees(lambda x, t: read(x, t) + 1, x, two)
    torch._dynamo.reset()
    given = torch.compile(
        lambda x, r: scale(x, 2.0, recipe=r), fullgraph=True, backend="eager", dynamic=True)
    answers["a dataclass given"] = [
        torch.equal(given(x, r), scale(x, 2.0, recipe=r)) for r in (Recipe(5), Recipe(7))]
    toy.CALLS.clear()
    compiled(lambda x: scale(x, 2.0, sign=Mode.NEGATED, recipe=Recipe(5)) + scale(x, 2.0), x)
    answers["what arrives"] = [
        sign is Mode.NEGATED and recipe == Recipe(5) for sign, recipe in toy.CALLS[-2:]]

    def into(x, out):
        returned = scale(x, 2.0, out=out)
        return out + returned
    answers["an output given"] = [
        agrees(into, x, torch.zeros(4, 3)),
        agrees(lambda x, wide: into(x, wide[:, :3]) + wide[:, 1:], x, torch.zeros(4, 4))]
    out = torch.zeros(4, 3)
    answers["it is returned"] = compiled(lambda x, o: scale(x, 2.0, out=o), x, out) is out

    def several(x, one, three):
        a = powers(x, up_to=1)
        b, c = powers(x, two=one)
        d, e, f = powers(x, up_to=3, one=one, three=three)
        g = powers(x, up_to=1, one=three)
        return torch.stack([a, b, c, d, e, f, g, one, three])
    answers["as many results as the call has"] = agrees(
        several, x, torch.zeros(4, 3), torch.zeros(4, 3))
    two = torch.zeros(4, 3)
    answers["some of the outputs given"] = [
        r is two for r in compiled(lambda x, o: powers(x, up_to=3, two=o), x, two)]

    def appended(x, k, v):
        append(x, (k, v), 2)
        append(x, k)
        return k + v
    k = torch.ones(4, 3)
    answers["mutation seen by later nodes"] = agrees(appended, x, k, k.clone())
    compiled(lambda x, k: append(x, k), x, k)
    answers["mutation seen by the caller"] = not torch.equal(k, torch.ones(4, 3))

    answers["at its default"] = agrees(lambda x: callback(x), x)
    answers["not at its default"] = error_of(
        lambda: compiled(lambda x: callback(x, hook="other"), x))
    answers["inexpressible"] = error_of(lambda: op("bare"))
    told = op("bare", annotations=dict(anything="Tensor"))
    answers["a tensor by declaration"] = agrees(lambda x: told(x, x), x)
    untold = op("untold", annotations=dict(
        x="Tensor", factor="Tensor | float", fast="bool | None", pair="None"))
    Level = toy.Level

    def arriving(*args, **kwargs):
        toy.CALLS.clear()
        compiled(lambda x: untold(x, *args, **kwargs), x)
        level, kind, *rest, pair = toy.CALLS[-1]
        return [repr(level), kind.__name__, *map(repr, rest), repr(pair)]
    answers["defaults tell what annotations do not"] = [
        arriving(2.0), arriving(two, Level.HIGH, True), arriving(2.0, 2, fast=False),
        arriving(2.0, dtype=torch.float16)]
    answers["declared to stay at its default"] = error_of(
        lambda: compiled(lambda x: untold(x, 2.0, pair=(x, x)), x))
    unpack = op("unpack", out=("out",))
    packed, out = toy.Packed(x, 2), torch.zeros(4, 3)
    returned = compiled(unpack, packed, out)
    answers["a named tuple"] = [returned is out, out.sum().item()]
    answers["not that named tuple"] = error_of(lambda: compiled(unpack, (x, 2), out))

    typed = op("typed")
    def both(*args, **kwargs):
        # Eager and compiled: what arrives, or the error.
        def called(call):
            toy.CALLS.clear()
            error = error_of(call)
            return error or [str(value) for value in toy.CALLS[-1]]
        return (called(lambda: typed(*args, **kwargs)),
                called(lambda: compiled(lambda *args: typed(*args, **kwargs), *args)))
    for name, args, kwargs in (
        ("missing", (x,), {{}}),
        ("missing a tensor", (), dict(rows=1)),
        ("unexpected", (x, 2), dict(epsilon=1)),
        ("twice", (x, 2), dict(x=x)),
        ("too many", (x, 2, 0.5, "a"), {{}}),
        ("no tensor", (3.0, 2), {{}}),
        ("no whole number", (x, 2.5), {{}}),
        ("a string", (x, "2"), {{}}),
        ("None", (x, 2), dict(factor=None)),
        ("no string", (x, 2), dict(name=2.0)),
        ("no truth", (x, 2), dict(negate="no")),
        ("no member", (x, 2), dict(level="LOW")),
    ):
        answers[name] = both(*args, **kwargs)
    answers["taken"] = [
        both(x, rows)[1] == both(x, 2)[0] for rows in (2.0, torch.tensor([2])[0].item())]
    answers["truth for numbers"] = both(x, True, True)[1], both(x, 2, level=True, limit=None)[1]
    answers["numbers for truth"] = both(x, 2, 3, negate=1, limit=4.0)[1]
    answers["no such member"] = both(x, 2, level=-1)
    keeps = op("keeps", out=("out",), kept=True)
    answers["memory that is kept"] = [
        torch.equal(
            compiled(lambda x: (keeps(x), keeps(x + 1))[0], x, backend=backend), x)
        for backend in ("eager", "aot_eager", "inductor")]
    out = torch.empty_like(x)
    answers["memory that is given"] = [
        compiled(lambda x, out: keeps(x, out=out), x, out) is out, torch.equal(out, x)]
    slots = op("slots", returns="(Tensor, Tensor)")
    answers["a named tuple returned"] = type(compiled(slots, x)).__name__
    def kept(given):
        return given.get("state") if given.get("keep", True) else None
    advance = op("advance", returns="(Tensor, Tensor, Tensor)", mutates=("state",),
                 results=lambda given: 3 if given.get("keep", True) else (True, False, True),
                 inputs={{1: kept}})
    state = torch.zeros(4, 3)
    _, back, _ = compiled(lambda x, s: advance(x, s), x, state)
    _, made, _ = compiled(lambda x: advance(x), x)
    first, none, last = compiled(lambda x, s: advance(x, s, keep=False), x, state)
    answers["an argument given back"] = [
        back is state, torch.equal(made, x), none is None, torch.equal(last, 2 * x),
        torch.equal(state, 2 * x)]
    compiled(lambda x, a, b: advance(x, choice=False, at=toy.Slots(a, b)), x, x, x)
    answers["a choice, and a named tuple that may be missing"] = [
        toy.CALLS[-1][0] is False, type(toy.CALLS[-1][1]).__name__]
    same = op("same", returns="(Tensor, Tensor)", results=lambda given: 2)
    first, _ = compiled(lambda x: same(x), x)
    answers["an argument that is returned all the same"] = [first is x, torch.equal(first, x)]
    answers["eager calls the original"] = scale.__wrapped__ is toy.scale
    print(json.dumps(answers))
"""


def test_the_engine_carries_outputs_mutation_and_odd_values(run_child: RunChild) -> None:
    answers = run_child(ENGINE.replace("TOY", repr(TOY)), release="0.6.3").json
    assert answers["number or tensor"] == [True, True]
    assert answers["enum and dataclass"] == [True, True, True]
    assert answers["a dataclass given"] == [True, True]
    assert answers["a number read from a tensor"] is True
    assert answers["what arrives"] == [True, False]
    assert answers["an output given"] == [True, True]
    assert answers["it is returned"] is True
    assert answers["as many results as the call has"] is True
    assert answers["some of the outputs given"] == [False, True, False]
    assert answers["mutation seen by later nodes"] is True
    assert answers["mutation seen by the caller"] is True
    assert answers["at its default"] is True
    assert "hook=other" in answers["not at its default"][1]
    kind, text = answers["inexpressible"]
    assert kind == "Inexpressible"
    assert "anything" in text
    assert answers["a tensor by declaration"] is True
    low, bf16 = "<Level.LOW: 1>", "torch.bfloat16"
    assert answers["defaults tell what annotations do not"] == [
        [low, "Level", "False", "None", bf16, "None"],
        ["<Level.HIGH: 2>", "Level", "True", "None", bf16, "None"],
        ["2", "int", "False", "False", bf16, "None"],
        [low, "Level", "False", "None", "torch.float16", "None"],
    ]
    kind, text = answers["declared to stay at its default"]
    assert "pair=" in text
    assert answers["a named tuple"] == [True, 15.0]
    kind, text = answers["not that named tuple"]
    assert "packed=" in text
    assert "expected Packed" in text
    assert answers["memory that is kept"] == [True, True, True]
    assert answers["memory that is given"] == [True, True]
    assert answers["a named tuple returned"] == "Slots"
    assert answers["an argument given back"] == [True] * 5
    assert answers["a choice, and a named tuple that may be missing"] == [True, "Slots"]
    assert answers["an argument that is returned all the same"] == [False, True]
    assert answers["eager calls the original"] is True
    # As Dynamo puts it for any function in Python: it names the function, and shows the arguments.
    for name in ("missing", "missing a tensor", "unexpected", "twice", "too many"):
        _, traced = answers[name]
        assert "Argument mismatch when attempting to trace function typed" in traced[1], traced
        assert "flashinfer_shim" not in traced[1], (name, traced)
    for name, parameter in {
        "no tensor": "x",
        "no whole number": "rows",
        "a string": "rows",
        "None": "factor",
        "no string": "name",
        "no truth": "negate",
        "no member": "level",
    }.items():
        _, traced = answers[name]
        assert "typed()" in traced[1], (name, traced)
        assert f"'{parameter}'" in traced[1] or f"{parameter}=" in traced[1], (name, traced)
        assert "TypeError" in str(traced), (name, traced)
        assert "flashinfer_shim" not in traced[1], (name, traced)
    assert answers["taken"] == [True, True]
    assert answers["truth for numbers"] == [
        ["1", "1.0", "False", "1", "None"],
        ["2", "2.0", "False", "1", "None"],
    ]
    assert answers["numbers for truth"] == ["2", "3.0", "True", "1", "4"]
    assert answers["no such member"] == [["2", "2.0", "False", "-1", "None"]] * 2
