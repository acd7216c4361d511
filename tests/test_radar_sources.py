"""What ``radar`` can be pointed at, and what it refuses: hostile archives, a pip that fails."""

from __future__ import annotations

import contextlib
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import radar_wheels as wheels
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.cli import main, radar_archive
from shim.cli.radar_fetch import NotFetched, fetch
from shim.patches import RELEASES

RADAR = ["radar", "--against", "0.6.3", "--only", "fp4_quantize", "--only", "cuda_version"]
STEPS = ["0.6.6", "0.6.7", "0.6.8", "0.6.11"]


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    return wheels.files("0.6.11.post3")


def json_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*RADAR, str(path), "--json"]) == 1
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_wheel_a_source_archive_and_directories_give_the_same_answer(
    contents: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = wheels.write_wheel(tmp_path / "one-py3-none-any.whl", contents)
    sdist = wheels.write_sdist(tmp_path / "flashinfer_python-1.tar.gz", contents, "0.6.11.post3")
    checkout = tmp_path / "checkout"
    for name, data in contents.items():
        if ".dist-info/" not in name and not name.endswith("_build_meta.py"):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes(data)
    (checkout / "version.txt").write_text("0.6.11.post3\n")
    answers = [json_of(path, capsys) for path in (wheel, sdist, checkout, checkout / "flashinfer")]
    assert [answer.pop("origin") for answer in answers] == [
        "one-py3-none-any.whl",
        "flashinfer_python-1.tar.gz",
        "checkout",
        "flashinfer",
    ]
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert answers[0]["release"] == "0.6.11.post3"
    by_name = {patch["patch"]: patch for patch in answers[0]["patches"]}
    assert by_name["cuda_version"]["status"] == "unchanged"
    assert [step["release"] for step in by_name["fp4_quantize"]["steps"]] == STEPS


def test_the_text_tells_each_step_the_verdicts_and_what_to_do_next(
    contents: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {
        name.replace("0.6.11.post3", "99.0"): data.replace(b"0.6.11.post3", b"99.0")
        for name, data in contents.items()
    }
    wheel = wheels.write_wheel(tmp_path / "flashinfer_python-99.0-py3-none-any.whl", newer)
    assert main([*RADAR, str(wheel)]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    prose = " ".join(lines)  # whatever the width of the terminal
    assert "quantization fp4_quantize signature moved refused will apply" in lines
    for expected in (
        "0.6.7: now in flashinfer.quantization.fp4_quantization",
        "0.6.11: parameter is_global_scale_inversed=False added in front of enable_pdl",
        "not run, --run was not given: fp4_quantize",
        "FlashInfer 99.0 against 0.6.3: 1 signature moved, 1 unchanged.",
    ):
        assert expected in prose
    reason = "release 99.0 is not in the table of tested releases"
    assert f"FLASHINFER_SHIM_POLICY=tested: cuda_version, fp4_quantize refused: {reason}" in prose
    assert "make release RELEASE=99.0" in prose


def test_a_source_that_states_no_release_is_looked_at_and_it_is_said(
    contents: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {name: data for name, data in contents.items() if name.startswith("flashinfer/")}
    del plain["flashinfer/_build_meta.py"]
    # Read in one go: a search that goes back on the blanks would be at it for half an hour.
    plain["flashinfer_python-1.dist-info/METADATA"] = b"Name: x" + b" " * 500_000 + b"y\n\n"
    found = json_of(wheels.write_wheel(tmp_path / "x.whl", plain), capsys)
    assert found["release"] is None
    assert "no metadata states its release" in found["problem"]
    assert found["actions"] == ["give a source that states its release"]


def linked(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "flashinfer/x.py", type=tarfile.SYMTYPE, linkname="/etc/passwd")


def hard_linked(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "a/flashinfer/x.py", type=tarfile.LNKTYPE, linkname="../../etc/passwd")


def with_a_device(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "flashinfer/x", type=tarfile.CHRTYPE)


def outside(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "flashinfer/../../outside.py", b"x")


def absolute(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "/flashinfer/x.py", b"x")


def twice(archive: tarfile.TarFile) -> None:
    for _ in range(2):
        wheels.add(archive, "./flashinfer/x.py", b"x")


def large(archive: tarfile.TarFile) -> None:
    wheels.add(archive, "csrc/x.cu", bytes(1 << 17))


def sparse(archive: tarfile.TarFile) -> None:
    holes = {"GNU.sparse.map": f"{(1 << 17) - 1},1", "GNU.sparse.size": str(1 << 17)}
    wheels.add(archive, "flashinfer/x.py", b"x", pax_headers=holes)


def many(archive: tarfile.TarFile) -> None:
    for number in range(9):
        wheels.add(archive, f"csrc/{number}.cu")


HOSTILE: dict[Callable[[tarfile.TarFile], None], str] = {
    linked: "'flashinfer/x.py' in it is a link",
    hard_linked: "'a/flashinfer/x.py' in it is a link",
    with_a_device: "'flashinfer/x' in it is a link, or no plain file",
    outside: "leads out of the tree",
    absolute: "leads out of the tree",
    twice: "it holds 'flashinfer/x.py' twice",
    large: "it unpacks to more than 0 MB",
    sparse: "'flashinfer/x.py' in it is a sparse file",
    many: "it holds more than 8 files",
    lambda archive: wheels.add(archive, "README", b"nothing"): "there is no FlashInfer in",
}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radar_archive, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(radar_archive, "MOST_MEMBERS", 8)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", ["w:gz", "w"])
@pytest.mark.parametrize(("fill", "words"), HOSTILE.items())
def test_a_hostile_archive_is_refused_with_the_reason(
    fill: Callable[[tarfile.TarFile], None],
    words: str,
    kind: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "inside" / "x.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, kind) as archive:
        fill(archive)
    refused(path, words, capsys)
    assert [each.name for each in tmp_path.iterdir()] == ["inside"]


def refused(path: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RADAR, str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert str(path) in said.err


@pytest.mark.usefixtures("small_limits")
def test_a_hostile_wheel_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.whl"
    for name, data, words in (
        ("../outside.py", b"x", "leads out of the tree"),
        ("flashinfer\\..\\x.py", b"x", "leads out of the tree"),
        ("flashinfer/large.py", bytes(1 << 17), "it unpacks to more than 0 MB"),
        ("flashinfer/none.txt", b"", "there is no FlashInfer in"),
    ):
        refused(wheels.write_wheel(path, {name: data}), words, capsys)

    link = zipfile.ZipInfo("flashinfer/x.py")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    refused(path, "'flashinfer/x.py' in it is a link", capsys)

    # A block of bzip2 comes out whole, whatever the directory says of its size.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("flashinfer/x.py", "x")
    refused(path, "'flashinfer/x.py' in it is neither stored nor deflated", capsys)

    # A directory that tells less than what is in the file: the bytes end where it says.
    wheels.write_wheel(path, {"flashinfer/__init__.py": bytes(1 << 12)})
    lying = path.read_bytes().replace((1 << 12).to_bytes(4, "little"), (8).to_bytes(4, "little"))
    path.write_bytes(lying)
    refused(path, "cannot be read as one", capsys)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_garbage_is_refused_or_read_and_never_leaves_its_directory(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    scratch = tmp_path_factory.mktemp("garbage")
    path, tree = scratch / "x.whl", scratch / "tree"
    tree.mkdir()
    plain = {"flashinfer/__init__.py": b"x = 1\n", "flashinfer/a.py": b"def f(): ...\n" * 9}
    kind = data.draw(st.sampled_from(["bytes", "zip", "tar"]))
    if kind == "bytes":
        path.write_bytes(data.draw(st.binary(max_size=2000)))
    elif kind == "zip":
        wheels.write_wheel(path, plain)
    else:
        wheels.write_sdist(path, plain, "1.0")
    held = bytearray(path.read_bytes())
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(held) or 1), st.integers(0, 255)), max_size=8)
    ):
        held[place : place + 1] = bytes([byte])
    path.write_bytes(held)
    with contextlib.suppress(radar_archive.Refused):
        radar_archive.unpack(path, tree)
    assert sorted(each.name for each in scratch.iterdir()) == ["tree", "x.whl"]


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of pip; it finds its arguments in ``arguments``."""

    def write(program: str) -> None:
        package = tmp_path / "path" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        lines = f"import pathlib, shutil, sys, time\narguments = sys.argv[1:]\n{program}\n"
        (package / "__main__.py").write_text(lines)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        (tmp_path / "pip.py").write_text("raise SystemExit('of the working directory')\n")
        monkeypatch.chdir(tmp_path)

    return write


TAKE = """
to = pathlib.Path(next(a for a in arguments if a.startswith("--dest=")).partition("=")[2])
shutil.copy({wheel!r}, to)
print("pip may say what it likes")
"""


@pytest.mark.parametrize(
    ("named", "asked"), [([], "flashinfer-python"), (["99.0"], "flashinfer-python==99.0")]
)
def test_a_release_is_fetched_by_the_users_pip(
    named: list[str],
    asked: str,
    pip: Callable[[str], None],
    contents: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = wheels.write_wheel(tmp_path / "flashinfer_python-1-py3-none-any.whl", contents)
    pip(
        f"assert arguments[0] == 'download' and arguments[-1] == {asked!r}, arguments"
        + TAKE.format(wheel=str(wheel))
    )
    assert main([*RADAR, *named, "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["origin"] == wheel.name
    assert said.err == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('ERROR: no such release', file=sys.stderr); sys.exit(1)", "no such release"),
        (
            "sys.exit('WARNING: after connection broken by X\\nERROR: No matching release')",
            "No matching release (the index could not be reached)",
        ),
        ("sys.exit(3)", "it said nothing"),
        ("", "it said nothing"),
        ("time.sleep(60)", "it was not done after 0.3 s"),
    ],
)
def test_where_pip_fails_the_message_says_why_and_what_else_can_be_given(
    program: str, reason: str, pip: Callable[[str], None], tmp_path: Path
) -> None:
    pip(program)
    with pytest.raises(NotFetched) as error:
        fetch("99.0", tmp_path, 0.3 if "sleep" in program else 60)
    assert f"gave no wheel: {reason}; give the path of a wheel" in str(error.value)


def test_pip_that_fails_is_status_2(
    pip: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pip("sys.exit(1)")
    assert main(["radar"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "-m pip download flashinfer-python` gave no wheel" in said.err
    assert RELEASES[-1] not in said.err
