"""What the engine must be told of a function. Data alone, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class MakeTensor(Protocol):
    """Makes one tensor of an example, on a device or without data."""

    def __call__(
        self,
        *size: int,
        dtype: str = "bfloat16",
        values: Sequence[float] | str | None = None,
    ) -> Any:
        """A tensor.

        Args:
            size: its shape.
            dtype: its name in torch.
            values: its elements; ``range`` for 0, 1, 2, ... along the first dimension,
                ``probabilities`` for rows that sum up to one; where they do not matter, normally
                distributed floats or zero integers.
        """
        ...


#: How many results a call has; ``[3]`` is a list of three, ``(1, 2)`` a tuple of one and a None,
#: ``((2,), (1,))`` a tuple of a pair and a tuple of one, ``(True, False, True)`` one with a None in
#: the middle.
Count = int | list[int] | tuple[int, int] | tuple[bool, ...] | tuple[tuple[int], ...]

#: The argument that a result is, from the arguments that were given, by keyword.
GivenBack = Callable[[Mapping[str, Any]], Any]

#: Arguments of one valid call for ``m`` rows, by keyword.
Example = Callable[[MakeTensor, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Op:
    """One function as an op; the rest the engine reads from the function itself.

    Attributes:
        name: the function's, and the op's; of a method ``Class.method``.
        function: the function's, where the op cannot have the name: another op has it.
        module: where the function is defined (``*`` stands for any characters), if modules define
            others of its name, too.
        example: makes the arguments of a valid call, for tests, benchmarks and ``prove``.
        arch: the architecture on which the example is a valid call, such as ``9.0``; where it is
            empty, on 10.0 and most others.
        also: arguments of the example for parameters that not every release has.
        keywords: parameters that upstream takes by ``**kwargs``, all optional; ``annotations`` say
            what they are.
        returns: as the schema language writes it; ``()`` where the function returns nothing. Where
            the number of results depends on the call: as many as there can be.
        results: how many of them the function returns, from the arguments by keyword: those given,
            and for others the defaults that are numbers, strings or None; a single one comes by
            itself. For a method ``holder_state``, the text of its ``state`` (``plan.lse=True;``),
            is among them. Traced by Dynamo, so plain Python. Without it, all.
        named: the class of the results, a named tuple: by its name in the function's module, or by
            its dotted one.
        mutates: parameters whose tensors are written into, but for ``out``.
        out: optional outputs, in the order in which the function returns them, ``None`` for a
            result that nobody can give; where the caller gives one it is written into and returned.
        inputs: results that may be arguments given back, such as a state, by their number: from the
            arguments given, by keyword, the one that it is, or None. Traced by Dynamo, likewise.
            What the function wrote into such a one is declared by ``mutates``.
        part: where the function returns a part of an output that it was given: which, from the
            arguments and the output. Traced by Dynamo, likewise.
        draws: set where the function draws random numbers: the parameters that, all of them given,
            say where in which sequence it begins. A call without them moves on a generator of the
            process, so no such call is left out, made once for two, or made in another order.
        collective: set where several cards take part in a call: each rank has to make it, once and
            in the same order, so none is left out, made once for two that look alike, or moved.
            What it writes into, it writes into copies, which are copied back. Memory that the
            ranks share is no such parameter: nobody but them reads it.
        returned: the name of the argument that the function returns, from the arguments given, by
            keyword; empty where it returns a tensor of its own. For collectives alone.
        kept: set where the result lies in memory that upstream keeps and writes into again: the op
            returns a copy of it.
        captured: unset where a call reads on the host what the GPU has computed, which no CUDA
            graph capture allows: Inductor makes no such graph of it.
        unseen: parameters that concern the contents of tensors alone; a fake is asked for with
            their defaults.
        assumed: arguments with which a fake is asked for, whatever the call gives, in releases that
            have such parameters: they save a look at the contents of tensors.
        annotations: of parameters where upstream's own are missing or of no use, such as
            ``Tensor | float``; ``None`` for one that has to stay at its default; a class by its
            dotted name.
        fake: the results without their data, from the arguments by keyword, where the function
            cannot be run in shadow; the reason stands beside it. A method's takes first an object
            that is in the ``state`` of the one that it is called for.
        state: of a method: attributes of its object that decide what the results look like, also
            of what these hold (``plan.dtype``, of a dict an entry): strings, dtypes, booleans or
            numbers that stay as they are when the object plans anew. An object need not have all
            of them.
        variables: beginnings of the names of environment variables on which shapes depend.
        requires: what has to be importable for it, beside what FlashInfer always needs.
        capability: the oldest compute capability that has a kernel for it.
        newest: the newest one, where there is one.
    """

    name: str
    example: Example
    returns: str = "Tensor"
    results: Callable[[Mapping[str, Any]], Count] | None = None
    keywords: tuple[str, ...] = ()
    named: str = ""
    mutates: tuple[str, ...] = ()
    out: tuple[str | None, ...] = ()
    inputs: Mapping[int, GivenBack] = field(default_factory=dict)
    part: Callable[[Mapping[str, Any], Any], Any] | None = None
    draws: tuple[str, ...] | None = None
    collective: bool = False
    returned: Callable[[Mapping[str, Any]], str] | None = None
    kept: bool = False
    captured: bool = True
    unseen: tuple[str, ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    fake: Callable[..., Any] | None = None
    state: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    capability: tuple[int, int] = (8, 0)
    newest: tuple[int, int] | None = None
    arch: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    function: str = ""
    module: str = ""

    @property
    def path(self) -> str:
        """What its module calls the function, ``Class.method`` for a method."""
        return self.function or self.name

    @property
    def modules(self) -> frozenset[str]:
        """Those of the classes that ``annotations`` and ``named`` tell by dotted names."""
        told = "|".join((self.named, *self.annotations.values())).split("|")
        return frozenset(filter(None, (word.strip().rpartition(".")[0] for word in told)))

    @property
    def every_call_counts(self) -> bool:
        """Whether a call does more than to return and to write, so that none may be left out."""
        return self.collective or self.draws is not None

    @property
    def owner(self) -> str:
        """The class of a method, empty for a function."""
        return self.path.rpartition(".")[0]


@dataclass(frozen=True)
class Uncovered:
    """A public function that cannot be an op.

    Attributes:
        name: the function's.
        reason: why not, as the end of a sentence about it.
        module: where it is defined (``*`` stands for any characters), if that is among the modules
            where functions have the names of others.
    """

    name: str
    reason: str
    module: str = ""


@dataclass(frozen=True)
class Traces:
    """A public function that needs no op: the compiler takes it as it is. A test compiles it.

    Attributes:
        name: the function's.
        example: makes the arguments of a valid call.
    """

    name: str
    example: Example


@dataclass(frozen=True)
class PassedOn:
    """A public function that does nothing but call an op. A test compiles it.

    Attributes:
        name: the function's.
        module: where it is.
        op: what it calls.
    """

    name: str
    module: str
    op: str
