"""``radar --run``: what functions that moved return, by their own Python in either release.

Each release is imported in child processes of its own, on a pretended device: no kernel runs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..proof.children import Answers, ask
from ..proof.examples import EXAMPLES, Example
from ..upstream import Installed
from .radar_drift import Drift
from .radar_report import Opinion, comparable
from .radar_source import Source, opened

#: Seconds of silence after which a child is ended.
_SILENCE = 300.0
#: Where examples are valid calls that say nothing else.
_USUAL_ARCH = "10.0"


def opinions_on(
    drifts: Sequence[Drift],
    source: Source,
    base: str,
    here: Installed | None,
    time_limit: float,
    tell: Callable[[str], None],
) -> Mapping[str, Opinion]:
    """By patch, for each function that moved and that both releases have.

    Args:
        drifts: what became of the patches.
        source: the release that is looked at.
        base: the tested release to compare with.
        here: what is installed; where it is not ``base``, that is fetched.
        time_limit: for fetching, in seconds.
        tell: called with what begins now.

    Raises:
        Unusable: ``base`` cannot be fetched.
    """
    patches = [drift.patch.name for drift in drifts if comparable(drift)]
    if not patches:
        return {}
    if find_spec("torch") is None:
        return dict.fromkeys(patches, Opinion("not run", "torch is not installed"))
    examples = [each for each in EXAMPLES.values() if each.patch in patches and each.op_calls]
    with ExitStack() as stack:
        tree = None
        if here is None or here.release != base:
            tree = stack.enter_context(opened(base, time_limit, tell)).tree
        old = _outputs(examples, tree, partial(_telling, tell, base))
        new = _outputs(examples, source.tree, partial(_telling, tell, source.release))
    by_patch: dict[str, list[Opinion]] = defaultdict(list)
    for example in examples:
        by_patch[example.patch].append(_compare(example, old[example.name], new[example.name]))
    return {patch: gravest(by_patch[patch]) for patch in patches}


def _telling(tell: Callable[[str], None], release: str, text: str) -> None:
    tell(f"{release}, {text}")


#: What a release says of an example: the results for each batch size, or why there are none.
_Outputs = list[list[str]] | str


def _outputs(
    examples: Sequence[Example], tree: Path | None, tell: Callable[[str], None]
) -> dict[str, _Outputs]:
    """Ask the FlashInfer in ``tree``, or the installed one."""
    environ = dict(os.environ)
    if tree is not None:
        paths = [str(tree), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    by_arch: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_arch[example.arch or _USUAL_ARCH].append(example)
    found: dict[str, _Outputs] = {}
    for arch, group in by_arch.items():
        answers = ask("shadow", group, arch=arch, tell=tell, time_limit=_SILENCE, environ=environ)
        found |= {example.name: _answer(answers, example.name) for example in group}
    return found


def _answer(answers: Answers, name: str) -> _Outputs:
    if name in answers.faults:
        return answers.faults[name]
    result = answers.results[name]
    outputs: _Outputs = result["skipped"] or result["outputs"]
    return outputs


def _compare(example: Example, old: _Outputs, new: _Outputs) -> Opinion:
    if isinstance(old, str) or isinstance(new, str):
        return Opinion("not run", old if isinstance(old, str) else str(new))
    mode = f"{example.mode}: " if example.mode else ""
    if all(each[:1] == ["raises"] for each in old):
        return Opinion("not run", f"{mode}the older release {' '.join(old[0])}")
    for before, after in zip(old, new, strict=True):
        if before != after:
            found, expected = "; ".join(after), "; ".join(before)
            return Opinion("differs", f"{mode}{found} instead of {expected}")
    return Opinion("agrees")


def gravest(opinions: Sequence[Opinion]) -> Opinion:
    """One for all examples of a patch."""
    by_verdict: dict[str, list[Opinion]] = defaultdict(list)
    for opinion in opinions:
        by_verdict[opinion.verdict].append(opinion)
    differ, agree, not_run = (by_verdict[each] for each in ("differs", "agrees", "not run"))
    if agree and not_run and not differ:
        reason = f"{len(not_run)} of {len(opinions)} examples were not run ({not_run[0].reason})"
        return Opinion("agrees", reason)
    return next(iter((*differ, *agree, *not_run)), Opinion("not run", "it has no example"))
