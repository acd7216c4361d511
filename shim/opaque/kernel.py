"""What torch's dispatcher calls for an op that is a function of FlashInfer as it is.

It is in Python, and in compiled code that no CUDA graph has captured it is most of what a call
costs beside the function's own work. So it has source of its own, with the op's parameters: two
tests, and the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .capture import capturing

# Without torch.no_grad(): an object of it costs more than all the rest of this.
_SOURCE = """
def kernel({declared}):
    if _capturing():
        return _usual({passed_on})
    if not _is_grad_enabled():
        {call}
    else:
        _set_grad_enabled(False)
        try:
            {call}
        finally:
            _set_grad_enabled(True)
"""


@dataclass(frozen=True)
class Quick:
    """How a function is called with the arguments of an op.

    Attributes:
        function: of FlashInfer.
        names: by argument of the op, the function's parameter.
        defaults: of the parameters that have one.
        returns: whether the op returns what the function does, or nothing.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    defaults: Mapping[str, Any]
    returns: bool = True


def kernel(
    arguments: Iterable[Any],
    quick: Quick,
    functions: Mapping[str, Callable[..., Any]],
    key: str,
    usual: Callable[..., Any],
) -> Callable[..., Any]:
    """The kernel.

    Args:
        arguments: of the op's schema.
        quick: how the function is called where nothing is captured.
        functions: where the function is looked up at each call, since another one may come in its
            place.
        key: of the function there.
        usual: called with the same arguments elsewhere.
    """
    known: dict[str, Any] = {
        "_functions": functions,
        "_usual": usual,
        "_capturing": capturing,
        "_is_grad_enabled": torch.is_grad_enabled,
        "_set_grad_enabled": torch._C._set_grad_enabled,
    }
    declared, passed_on, by_name = [], [], []
    keyword_only = False
    for argument in arguments:
        name = argument.name
        if argument.kwarg_only and not keyword_only:
            keyword_only = True
            declared.append("*")
        parameter = quick.names[name]
        if argument.has_default_value():
            known[f"_default_{name}"] = quick.defaults[parameter]
            declared.append(f"{name}=_default_{name}")
        else:
            declared.append(name)
        passed_on.append(f"{name}={name}" if keyword_only else name)
        by_name.append(f"{parameter}={name}")
    call = f"{'return ' * quick.returns}_functions[{key!r}]({', '.join(by_name)})"
    source = _SOURCE.format(declared=", ".join(declared), passed_on=", ".join(passed_on), call=call)
    exec(compile(source, f"<the kernel of {key}>", "exec"), known)
    made: Callable[..., Any] = known["kernel"]
    return made
