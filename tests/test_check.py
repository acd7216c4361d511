"""``check``: verdicts and exit status, on real releases and on changed ones."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest
from check_command import all_are, check, dist_info, file, fine_on, pythonpath
from conftest import CopyRelease, RunChild
from releases import ROOT, path

from shim.patches import FAMILIES, USUAL

FP4 = "flashinfer/fp4_quantization.py"  # up to 0.6.6


def test_every_tested_release_is_fine(each_release: str, run_child: RunChild) -> None:
    checked = check(run_child, release=each_release)
    assert checked.child.returncode == 0, checked
    assert checked.verdicts == fine_on(each_release), checked
    assert checked.report["flashinfer"]["version"] == each_release
    assert checked.child.stderr == "", checked


def test_torch_and_flashinfer_are_not_imported_and_no_process_is_started(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import json, sys
        events = []
        watched = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.")
        sys.addaudithook(lambda event, _: event.startswith(watched) and events.append(event))
        from shim.cli import main
        status = main(["check"])
        roots = {name.partition(".")[0] for name in sys.modules}
        print(json.dumps([status, sorted(roots & {"torch", "flashinfer"}), events]))
        """,
        release="0.6.18.post1",
    )
    assert child.json == [0, [], []], child
    assert "FlashInfer" in child.stdout
    assert "torch" in child.stdout


def test_an_unknown_release_would_be_left_alone_and_one_line_says_so(
    run_child: RunChild, unknown_release: Path
) -> None:
    checked = check(run_child, release=unknown_release)
    assert checked.child.returncode == 1
    assert checked.verdicts == all_are("refused"), checked

    text = run_child(None, args=["-m", "shim", "check"], release=unknown_release)
    assert text.returncode == 1, text
    about = [line for line in text.stdout.splitlines() if "99.0 is not in the table" in line]
    patches = f"all {len(USUAL)} patches"
    assert about == ["refused: release 99.0 is not in the table of tested releases."], text
    assert text.stdout.endswith(f"\n{patches} would stand aside.\n"), text


def test_adapt_allows_an_unknown_release_that_still_fits(
    run_child: RunChild, unknown_release: Path
) -> None:
    checked = check(run_child, release=unknown_release, env={"FLASHINFER_SHIM_POLICY": "adapt"})
    assert checked.child.returncode == 0
    assert checked.verdicts == fine_on("0.7.4"), checked


def test_metadata_and_module_that_contradict_each_other_are_refused(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    checked = check(run_child, release=copy_release("0.6.3", metadata_version="0.6.4"))
    assert checked.child.returncode == 1
    assert checked.verdicts == all_are("refused"), checked
    assert checked.report["flashinfer"]["version"] is None
    assert "contradicts itself" in checked.report["flashinfer"]["problem"]


@pytest.mark.parametrize("version", ["0.6.7.post3+nv26.04", "v0.6.7.post3"])
def test_another_spelling_of_a_tested_release_is_that_release(
    version: str, run_child: RunChild, copy_release: CopyRelease
) -> None:
    checked = check(run_child, release=copy_release("0.6.7.post3", metadata_version=version))
    assert checked.child.returncode == 0, checked
    assert checked.verdicts == fine_on("0.6.7.post3"), checked


@pytest.mark.parametrize(
    "version", ["0.6.12rc1+rtp.260523", "0.7.0.dev20260922", "0.0.0+unknown", "nightly-2026-09"]
)
def test_a_version_that_names_no_tested_release_is_refused(
    version: str, run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release(
        "0.6.13",
        metadata_version=version,
        edit={"flashinfer/_build_meta.py": lambda text: text.replace("0.6.13", version)},
    )
    checked = check(run_child, release=tree)
    assert checked.child.returncode == 1, checked
    assert checked.verdicts == all_are("refused"), checked
    named = version.partition("+")[0]
    assert all(named in reason for reason in checked.reasons), checked


def test_a_changed_body_is_refused_and_the_other_patches_are_not(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    def change_body(text: str) -> str:
        head, define, rest = text.partition("\ndef fp4_quantize(")
        line = "assert input.shape[-1] % sf_vec_size == 0"
        return head + define + rest.replace(line, f"{line}, 'K'", 1)

    tree = copy_release("0.6.3", edit={FP4: change_body})
    checked = check(run_child, release=tree)
    assert checked.child.returncode == 1
    assert checked.verdicts == {**fine_on("0.6.3"), "fp4_quantize": "refused"}, checked


def test_a_name_that_is_bound_again_has_the_verdict_that_it_has_at_import(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    other = "\n\ndef other(*args): ...\n\n\nrmsnorm = other\n"
    tree = copy_release("0.6.3", edit={"flashinfer/norm.py": lambda text: text + other})
    checked = check(run_child, release=tree)
    assert checked.verdicts == {**fine_on("0.6.3"), "rmsnorm": "refused"}, checked
    child = run_child(
        """
        import json, flashinfer, shim
        record = next(r for r in shim.status() if r.patch == "rmsnorm")
        print(json.dumps([flashinfer.norm.rmsnorm.__name__, record.verdict, record.reason]))
        """,
        release=tree,
    )
    (reason,) = (p["reason"] for p in checked.report["patches"] if p["patch"] == "rmsnorm")
    assert child.json == ["other", "refused", reason]


def test_sources_that_are_not_there_are_one_reason_and_one_line(
    run_child: RunChild, tmp_path: Path
) -> None:
    # As in a zip, and where there are .pyc files alone.
    tree = tmp_path / "compiled"
    (tree / "flashinfer").mkdir(parents=True)
    source = path("0.6.3") / "flashinfer" / "_build_meta.py"
    py_compile.compile(str(source), str(tree / "flashinfer" / "__init__.pyc"))
    (metadata,) = path("0.6.3").glob("*.dist-info")
    (tree / metadata.name).symlink_to(metadata)
    reason = f"the source files (.py) of {tree}/flashinfer are not there to be read"
    for env in ({}, {"FLASHINFER_SHIM_POLICY": "adapt"}):
        checked = check(run_child, release=tree, env=env)
        refused = {name for name, verdict in fine_on("0.6.3").items() if verdict == "pending"}
        found = [each for each in checked.report["patches"] if each["verdict"] == "refused"]
        assert {each["patch"] for each in found} == refused, checked
        assert {each["reason"] for each in found} == {reason}, checked
    child = run_child("import flashinfer", release=tree)
    (line,) = child.stderr.splitlines()
    assert reason in line
    child = run_child(None, args=["-m", "shim", "coverage"], release=tree)
    assert (child.returncode, child.stdout) == (2, "")
    assert child.stderr == f"flashinfer-shim coverage: {reason}: install flashinfer-python again\n"


def test_a_disabled_patch_does_not_count(run_child: RunChild, copy_release: CopyRelease) -> None:
    tree = copy_release("0.6.3", metadata_version="0.6.4")
    env = {"FLASHINFER_SHIM_PATCHES": ",".join(f"-{family}" for family in FAMILIES)}
    checked = check(run_child, release=tree, env=env)
    assert checked.child.returncode == 0
    assert checked.verdicts == all_are("disabled"), checked


def test_a_family_is_chosen_by_its_name_and_the_json_says_of_each_patch_which_it_is_of(
    run_child: RunChild,
) -> None:
    env = {"FLASHINFER_SHIM_PATCHES": "norm,page,-rmsnorm"}
    checked = check(run_child, release="0.6.3", env=env)
    assert checked.child.returncode == 0
    families = {patch["patch"]: patch["family"] for patch in checked.report["patches"]}
    assert families == {name: family for family, names in FAMILIES.items() for name in names}
    enabled = {name for name, verdict in checked.verdicts.items() if verdict != "disabled"}
    assert enabled == {*FAMILIES["norm"], *FAMILIES["page"]} - {"rmsnorm"}, checked


def test_off_is_said_and_is_no_fault(run_child: RunChild) -> None:
    checked = check(run_child, release="0.6.3", env={"FLASHINFER_SHIM": "off"})
    assert checked.child.returncode == 0
    assert checked.verdicts == all_are("disabled"), checked
    assert checked.report["loading"]["loads"] is False
    assert "FLASHINFER_SHIM=off" in checked.report["loading"]["reason"]


def test_a_setting_that_is_not_understood_is_a_warning(run_child: RunChild) -> None:
    checked = check(run_child, release="0.6.3", env={"FLASHINFER_SHIM_POLICY": "always"})
    assert checked.child.returncode == 0
    assert checked.warnings == ["setting"], checked
    assert "FLASHINFER_SHIM_POLICY='always'" in checked.report["warnings"][0]["text"]


def test_a_setting_that_is_not_understood_is_a_fault_where_the_shim_is_required(
    run_child: RunChild,
) -> None:
    env = {"FLASHINFER_SHIM_POLICY": "always", "FLASHINFER_SHIM": "require"}
    checked = check(run_child, release="0.6.3", env=env)
    assert checked.child.returncode == 1
    assert checked.verdicts == all_are("refused"), checked


def test_flashinfer_that_is_not_installed_is_said_in_one_line(run_child: RunChild) -> None:
    checked = check(run_child)
    assert checked.child.returncode == 1
    assert checked.report["flashinfer"] is None
    assert set(checked.reasons) == {"FlashInfer is not installed in this environment"}, checked


def test_a_folder_called_flashinfer_is_not_flashinfer(run_child: RunChild, tmp_path: Path) -> None:
    (tmp_path / "old" / "flashinfer" / "data").mkdir(parents=True)
    checked = check(run_child, env=pythonpath(ROOT, tmp_path / "old"))
    assert checked.child.returncode == 1
    assert checked.report["flashinfer"] is None
    assert checked.warnings == ["leftover"], checked


def test_an_empty_dist_info_in_front_does_not_hide_the_release(
    run_child: RunChild, tmp_path: Path
) -> None:
    (tmp_path / "torn" / "flashinfer_python-0.6.2.dist-info").mkdir(parents=True)
    checked = check(run_child, env=pythonpath(ROOT, tmp_path / "torn", path("0.6.3")))
    assert checked.child.returncode == 0
    assert checked.report["flashinfer"]["metadata_version"] == "0.6.3"
    assert checked.warnings == ["empty_metadata"], checked


def test_a_source_tree_without_metadata_is_refused(run_child: RunChild, tmp_path: Path) -> None:
    file(tmp_path / "source" / "flashinfer" / "__init__.py")
    checked = check(run_child, env=pythonpath(ROOT, tmp_path / "source"))
    assert checked.verdicts == all_are("refused"), checked
    assert checked.report["flashinfer"]["distribution"] is None


def test_two_distributions_of_flashinfer_are_a_warning(run_child: RunChild, tmp_path: Path) -> None:
    dist_info(tmp_path / "old", "flashinfer", "0.2.0")
    checked = check(run_child, env=pythonpath(ROOT, path("0.6.3"), tmp_path / "old"))
    assert checked.child.returncode == 0
    assert checked.warnings == ["two_distributions"], checked


def test_wrong_usage_is_status_2_and_nothing_on_stdout(run_child: RunChild) -> None:
    child = run_child(None, args=["-m", "shim", "check", "--colour"])
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "--colour" in child.stderr


def test_an_environment_that_cannot_be_read_is_status_2_and_nothing_on_stdout(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import sys

        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "flashinfer":
                    raise RuntimeError("the index is torn")

        sys.meta_path.insert(0, Broken())
        from shim.cli import main
        sys.exit(main(["check", "--json"]))
        """,
        release="0.6.3",
    )
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "RuntimeError: the index is torn" in child.stderr
    assert "Traceback" not in child.stderr
