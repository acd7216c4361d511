"""Small wheels and source archives for the tests of ``radar``."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import releases


def files(release: str) -> dict[str, bytes]:
    """Enough of a real release from 0.6.7 on for the functions whose rows are written by hand."""
    tree = releases.path(release)
    names = ["__init__.py", "_build_meta.py", "jit/core.py", "jit/cpp_ext.py"]
    names.append("quantization/fp4_quantization.py")
    found = {f"flashinfer/{name}": (tree / "flashinfer" / name).read_bytes() for name in names}
    (metadata,) = tree.glob("*.dist-info/METADATA")
    return {**found, str(metadata.relative_to(tree)): metadata.read_bytes()}


def write_wheel(path: Path, contents: Mapping[str, bytes]) -> Path:
    """A zip with these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


def write_sdist(path: Path, contents: Mapping[str, bytes], version: str) -> Path:
    """A ``.tar.gz`` as build tools make it, without a ``dist-info``."""
    top = path.name.removesuffix(".tar.gz")
    plain = {name: data for name, data in contents.items() if ".dist-info/" not in name}
    plain.pop("flashinfer/_build_meta.py", None)
    head = f"Metadata-Version: 2.4\nName: flashinfer-python\nVersion: {version}\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**plain, "PKG-INFO": head.encode()}.items():
            add(archive, f"{top}/{name}", data)
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    """A member; ``fields`` are ``TarInfo``'s."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(data))
