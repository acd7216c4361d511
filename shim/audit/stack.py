"""Who calls a function of FlashInfer: read from the stack, of Python or of Dynamo's tracing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._guards import CompileContext, TracingContext
from torch._ops import OpOverload, OpOverloadPacket

from ..location import package_directory
from ..opaque.later import NAMESPACE

#: How a call came about.
TRACED = "traced"  #: Dynamo met it while it compiled the caller
ALONE = "alone"  #: Dynamo compiled it by itself, having given up its caller
MODE = "mode"  #: under a dispatch mode: a fake mode, make_fx, non-strict export
EAGER = "eager"  #: nobody compiled anything
OP = "op"  #: from the inside of somebody's own op
DISABLED = "disabled"  #: under torch.compiler.disable, in a compiled function
GRAPH = "graph"  #: by a Python function that a compiled graph calls
BROKEN = "broken"  #: in a compiled function, but not in its graph

_CALLS_AN_OP = frozenset(
    getattr(kind.__call__, "__code__", None) for kind in (OpOverload, OpOverloadPacket)
)
_TORCHS_OPS = frozenset(("aten", "prim", "prims"))
_OURS = f"{package_directory()}{os.sep}"
_TORCHS = f"{os.path.dirname(torch.__file__)}{os.sep}"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_EVAL_FRAME = os.path.join(_TORCHS, "_dynamo", "eval_frame.py")


class Origin(NamedTuple):
    """Where a call came from.

    Attributes:
        how: one of the words above.
        by: the compiled function that was traced, the op, or the disabled function; else empty.
        where: ``FILE:LINE in FUNCTION``, outside FlashInfer, torch and ourselves.
    """

    how: str
    by: str
    where: str


def of_call(frame: FrameType | None, how: str = EAGER) -> Origin | None:
    """The origin of a call that runs; None where one of our own ops makes it.

    Args:
        frame: of the call.
        how: said where the stack shows nothing particular.
    """
    where = disabled = ""
    for each in _upwards(frame):
        code = each.f_code
        if not where and not is_library(code.co_filename):
            where = place(code.co_filename, each.f_lineno, code.co_name)
        if code in _CALLS_AN_OP:
            op = _name_of_op(each.f_locals.get("self"))
            space = op.partition("::")[0]
            if space == NAMESPACE:
                return None
            if space not in _TORCHS_OPS:
                return Origin(OP, op, where)
        elif code.co_filename == _EVAL_FRAME and how == EAGER:
            if code.co_name == "compile_wrapper":
                return Origin(DISABLED if disabled else BROKEN, disabled, where)
            function = each.f_locals.get("fn")
            if code.co_name == "_fn" and function is not None and not disabled:
                if _is_graph(function, each.f_back):
                    return Origin(GRAPH, "", where)
                disabled = _named(function)
    return Origin(how, "", where)


def of_trace() -> tuple[Origin, str]:
    """The origin of a call that Dynamo traces, and which compilation that is."""
    stack = TracingContext.extract_stack()
    outside = [each for each in stack if not is_library(each.filename)]
    if outside:
        first, last = outside[0], outside[-1]
        region = f"{first.filename} in {_resumed(first.name)}"
        origin = Origin(TRACED, region, place(last.filename, last.lineno or 0, last.name))
    else:
        origin = _without_a_caller(sys._getframe(1))
    # Without the number of the attempt: Dynamo starts anew when it meets a graph break.
    compilation = str(CompileContext.current_compile_id()).partition("_")[0]
    return origin, compilation


def place(file: str, line: int, function: str) -> str:
    """A place in a source file, as all notes tell it."""
    return f"{file}:{line} in {_resumed(function)}"


def without_line(where: str) -> str:
    """``FILE in FUNCTION`` of such a place."""
    return re.sub(r":\d+ in ", " in ", where)


def is_library(file: str) -> bool:
    """Whether ``file`` is of FlashInfer, of torch, of ourselves, or is no file at all."""
    upstream = next(iter(getattr(sys.modules.get("flashinfer"), "__path__", ())), None)
    return (
        is_torchs(file)
        or file.startswith(_OURS)
        or (upstream is not None and file.startswith(f"{upstream}{os.sep}"))
    )


def is_torchs(file: str) -> bool:
    """Whether ``file`` is of torch, or is no file: code that it has made."""
    return file.startswith(("<", _TORCHS))


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _without_a_caller(frame: FrameType | None) -> Origin:
    """Of a function that is compiled by itself: as somebody asked for, or for want of a caller."""
    how = ALONE
    for each in _upwards(frame):
        code = each.f_code
        if code.co_filename == _EVAL_FRAME and code.co_name == "compile_wrapper":
            how = TRACED  # nothing stands between torch.compile and the function
        if not is_library(code.co_filename):
            return Origin(how, "", place(code.co_filename, each.f_lineno, code.co_name))
    return Origin(how, "", "")


def _resumed(function: str) -> str:
    """The name of a function, where Dynamo has made one of what comes after a graph break."""
    found = _RESUMED.fullmatch(function)
    return found.group(1) if found else function


def _name_of_op(op: Any) -> str:
    name = getattr(op, "_qualified_op_name", None) or getattr(op, "_name", "")
    return str(name).partition(".")[0]


def _named(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _is_graph(function: Any, caller: FrameType | None) -> bool:
    """Whether ``function`` is what a backend made: compiled code knows it as such a global."""
    names = {} if caller is None else caller.f_globals
    return any(
        getattr(value, "_torchdynamo_orig_callable", None) is function
        for name, value in list(names.items())
        if name.startswith("__compiled_fn")
    )
