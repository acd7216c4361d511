"""``check --deep``: real children that import FlashInfer; and the documented form of the JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import children
import pytest
from check_command import (
    Checked,
    by_hand,
    check,
    dist_info,
    file,
    fine_on,
    nvcc,
    parse,
    pythonpath,
    toolkit,
)
from conftest import CopyRelease, RunChild
from releases import ROOT, path
from toolchain_cases import chain

from shim.cli import check_toolchain
from shim.toolchain import driver

KINDS = ["python -c", "multiprocessing spawn", "python -m"]
DOCUMENT = ROOT / "docs" / "check.md"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """A deep check of 0.6.3 in an environment where there is something to say under every key."""
    scratch = tmp_path_factory.mktemp("deep")
    dist_info(scratch / "more", "flashinfer-cubin", "0.6.3")
    env = {
        **pythonpath(ROOT, path("0.6.3"), scratch / "more"),
        **toolkit(scratch / "cuda", "12.8"),
        "FLASHINFER_SHIM_LOG": "loud",
    }
    return check(partial(children.run_child, scratch=scratch), "--deep", env=env)


def test_every_child_has_the_patches_in_force(deep: Checked) -> None:
    assert deep.child.returncode == 0, deep
    assert [child["kind"] for child in deep.report["children"]] == KINDS
    for child in deep.report["children"]:
        assert (child["error"], child["fault"]) == ("", None), deep
        assert (child["shim"], child["activated_by"]) == (str(ROOT / "shim"), "sitecustomize")
        assert child["flashinfer"] == str(path("0.6.3") / "flashinfer" / "__init__.py")
        assert children.deviating(child["patches"]) == {}
        needless = {name for name, r in child["patches"].items() if r["verdict"] == "not needed"}
        assert needless == {n for n, verdict in fine_on("0.6.3").items() if verdict == "not needed"}


@pytest.fixture
def whole(deep: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That report, with a toolchain of which there is something to say under every key."""
    monkeypatch.setattr(driver, "FILES", (file(tmp_path / "version", "580.65.06"),))
    file(tmp_path / ".cache/flashinfer/0.6.3/90a/cached_ops/tmp/norm.lock")
    environ = toolkit(tmp_path / "cuda", "12.6") | {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    nvcc(
        tmp_path / "cuda",
        "case $* in *--version*) echo 'release 12.6,' ;; *-gencode*) exit 1 ;; esac",
    )
    return deep.report | check_toolchain.as_json(chain(environ, ask=True))


def test_the_document_names_every_key_and_no_other(whole: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {key for key, kind in rows if kind.split()[0] in TYPES}
    assert set(keys(whole)) == documented


def test_the_values_are_of_the_documented_types(whole: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {key: kind for key, kind in rows if kind.split()[0] in TYPES}
    for key, value in keys(whole, values=True):
        words = documented[key].removesuffix(" of strings").split(" or ")
        assert any(isinstance(value, TYPES[word]) for word in words), (key, value)


def test_every_warning_is_documented() -> None:
    names = (
        "check_warnings.py",
        "check_toolchain_warnings.py",
        "check_writers.py",
        "check_deep.py",
        "../matrix.py",
    )
    source = "".join((ROOT / "shim" / "cli" / name).read_text() for name in names)
    codes = set(re.findall(r'(?:Warn|Doubt)\(\s*"(\w+)"', source))
    assert codes == set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", DOCUMENT.read_text(), re.MULTILINE))


def test_children_of_a_path_without_us_are_not_patched_and_it_is_said(run_child: RunChild) -> None:
    checked = parse(by_hand(run_child, release="0.6.3", arguments=["check", "--json", "--deep"]))
    assert checked.child.returncode == 1
    for child in checked.report["children"]:
        assert (child["error"], child["shim"], child["patches"]) == ("", None, {}), checked


def test_the_ledger_is_found_where_another_package_is_called_shim(
    run_child: RunChild, tmp_path: Path
) -> None:
    # The children's working directory comes first on their path, and with it this package.
    file(tmp_path / "shim" / "__init__.py")
    file(tmp_path / "shim" / "hook.py", "def status(): raise SystemExit('not ours')\n")
    arguments = ["check", "--json", "--deep"]
    checked = parse(by_hand(run_child, release="0.6.3", shim=True, arguments=arguments))
    assert checked.child.returncode == 0, checked
    for child in checked.report["children"]:
        assert child["shim"] == str(ROOT / "shim")
        assert child["patches"]["fp4_quantize"]["verdict"] == "applied", checked


def test_a_child_that_cannot_import_flashinfer_is_reported_with_its_last_words(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release(
        "0.6.3",
        edit={"flashinfer/__init__.py": lambda text: f"raise OSError('no driver')\n{text}"},
    )
    checked = check(run_child, "--deep", release=tree)
    assert checked.child.returncode == 1
    for child in checked.report["children"]:
        assert child["error"] == "exit status 1: OSError: no driver", checked

    text = run_child(None, args=["-m", "shim", "check", "--deep"], release=tree)
    assert text.returncode == 1
    assert "OSError: no driver" in text.stdout, text
    assert all(kind in text.stdout.splitlines()[-1] for kind in KINDS), text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with Python 3.11")
def test_children_get_the_flags_that_say_what_is_found(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    shows = "import sys\nraise OSError(f'-P {sys.flags.safe_path}, -s {sys.flags.no_user_site}')\n"
    tree = copy_release("0.6.3", edit={"flashinfer/__init__.py": lambda text: shows})
    words = ["-P", "-s", "-m", "shim", "check", "--json", "--deep"]
    checked = parse(run_child(None, args=words, release=tree))
    said = {child["error"] for child in checked.report["children"]}
    assert said == {"exit status 1: OSError: -P True, -s 1"}, checked


TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "string": str,
    "boolean": bool,
    "object": dict,
    "list": list,
    "null": type(None),
}


def keys(value: Any, *, values: bool = False, prefix: str = "") -> Iterator[Any]:
    """The keys of a JSON value as the document writes them, with their values if asked for."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from keys(each, values=values, prefix=f"{prefix}[]")
        return
    for name, inner in value.items():
        key = name if not prefix else f"{prefix}.*" if prefix in OPEN else f"{prefix}.{name}"
        if key not in NOT_THEMSELVES:
            yield (key, inner) if values else key
        if isinstance(inner, dict | list):
            yield from keys(inner, values=values, prefix=key)


#: Objects whose keys are names of something, and those that the document lists by their keys only.
OPEN = {"companions", "told.refused", "children[].patches"}
NOT_THEMSELVES = {"python", "shim", "loading", "children[].patches.*"}
