"""Generates the package `diskless.rpc.v1` from proto/diskless/v1/*.proto.

Runs as hatchling's build hook, so that `pip install` (editable or not) and a
wheel build generate the code, and as a script (`make proto`) after a proto was
edited. The output directory belongs to this file: it is git-ignored, and
whatever else lies in it is deleted.

Only messages and service descriptors are generated, no gRPC stubs: rpc/ takes
method names from the descriptors.
"""

import re
import sys
import tempfile
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.version import Version

SOURCE = "diskless/v1"  # under proto/, as the protos import each other
PACKAGE = "diskless/rpc/v1"  # under the root, as Python imports the result
INIT = '"""Generated from proto/diskless/v1 by proto/build.py. Do not edit."""\n'


class ProtoError(Exception):
    """The protos cannot be compiled into code that this project can ship."""


class ProtoBuildHook(BuildHookInterface):
    """Generates the code before hatchling collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))
        # hatchling leaves out what git ignores unless it is named an artifact.
        build_data["artifacts"].append(f"/{PACKAGE}/")


def generate(root: Path) -> list[Path]:
    """Write the package again and return its modules.

    Raises ProtoError if there are no protos, protoc refuses them (its own lines
    on stderr say where), or the code would need a newer protobuf than pyproject
    promises. The old package is untouched in that case.
    """
    protos = sorted(path.name for path in (root / "proto" / SOURCE).glob("*.proto"))
    if not protos:
        raise ProtoError(f"no .proto files in proto/{SOURCE}")
    with tempfile.TemporaryDirectory() as scratch:
        modules = _compile(root / "proto", protos, Path(scratch))
    _check_runtime(root, modules)
    return _replace(root / PACKAGE, {"__init__.py": INIT, **modules})


def _compile(include: Path, protos: list[str], scratch: Path) -> dict[str, str]:
    """Compile to {file name: text}, with imports that say diskless.rpc.v1.

    protoc derives Python imports from proto paths and has no option to map them.
    So the protos are parsed into descriptors, the descriptors' paths renamed, and
    the code generated from those. The proto package stays diskless.v1.
    """
    well_known = resources.files("grpc_tools") / "_proto"
    descriptors = scratch / "descriptors.pb"
    _protoc(
        f"-I{include}",
        f"-I{well_known}",
        "--include_imports",
        "--include_source_info",
        f"--descriptor_set_out={descriptors}",
        *(f"{SOURCE}/{name}" for name in protos),
    )
    files = FileDescriptorSet.FromString(descriptors.read_bytes())
    for file in files.file:
        file.name = _rename(file.name)
        file.dependency[:] = [_rename(name) for name in file.dependency]
    descriptors.write_bytes(files.SerializeToString())
    _protoc(
        f"--descriptor_set_in={descriptors}",
        f"--python_out={scratch}",
        f"--pyi_out={scratch}",
        *(f"{PACKAGE}/{name}" for name in protos),
    )
    return {path.name: path.read_text() for path in sorted((scratch / PACKAGE).iterdir())}


def _rename(path: str) -> str:
    return re.sub(f"^{SOURCE}/", f"{PACKAGE}/", path)


def _protoc(*args: str) -> None:
    if protoc.main(["protoc", *args]) != 0:
        raise ProtoError(f"protoc refused the protos in proto/{SOURCE}")


def _check_runtime(root: Path, modules: dict[str, str]) -> None:
    """Refuse code that the oldest protobuf we accept would refuse to import."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = {r.name: r for r in map(Requirement, project["dependencies"])}
    bounds = requirements["protobuf"].specifier
    floor = next(Version(bound.version) for bound in bounds if bound.operator == ">=")
    for name, text in modules.items():
        found = re.search(r"^# Protobuf Python Version: (\S+)$", text, re.MULTILINE)
        if found and Version(found[1]) > floor:
            raise ProtoError(
                f"{name} needs protobuf>={found[1]} but pyproject.toml allows {floor}: "
                "raise protobuf there, or hold grpcio-tools to an older release"
            )


def _replace(package: Path, files: dict[str, str]) -> list[Path]:
    package.mkdir(parents=True, exist_ok=True)
    for path in package.iterdir():
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (package / name).write_text(text)
    return sorted(package / name for name in files if name.endswith("_pb2.py"))


if __name__ == "__main__":
    try:
        written = generate(Path(__file__).resolve().parent.parent)
    except ProtoError as error:
        sys.exit(f"proto/build.py: {error}")
    print(f"{PACKAGE}: {', '.join(path.stem for path in written)}")
