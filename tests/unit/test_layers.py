"""Imports only point down, and each foreign library has one home. Read off the source: an import
inside a function counts like any other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskless

ROOT = Path(diskless.__file__).parent
LAYERS = (
    {"errors", "config", "paths", "model", "checksum", "malloc"},
    {"identity"},
    {"codec", "placement", "repair", "plan", "policy", "namespace", "protocol"},
    {"agent", "tier"},
    {"rpc", "gateway"},
    {"node", "client"},
    {"launch", "spark"},
    {"workloads"},
    {"bench", "chaos", "demo"},
    {"cli"},
)
"""From the bottom up. What stands in one layer may not import its neighbours, but for
those named below."""
NEIGHBOURS = {("config", "errors"), ("config", "model"), ("paths", "errors"), ("model", "errors"),
              ("repair", "placement"), ("namespace", "repair"),
              ("namespace", "policy"), ("tier", "agent")}  # fmt: skip
HOMES = {
    "grpc": {"rpc", "bench"},
    "ray": {"launch"},
    "pyeclib": {"codec", "bench"},
    "cryptography": {"identity"},
    "obstore": {"tier"},
    "zstandard": {"tier"},
}
"""The benchmark measures the libraries themselves."""
TOP = {"__init__", "__main__"}
"""The public API and `python -m diskless`: nothing imports them."""


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of ours, with the part of the package that it belongs to."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[:2] != ("rpc", "v1"):  # generated
            yield parts[0], path


def imported(path: Path) -> Iterator[str]:
    """What a module imports, anywhere in it, by its full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> set[tuple[str, str]]:
    """Who imports whom among the parts of the package."""
    found = set()
    for part, path in sources():
        for name in imported(path):
            package, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if package == "diskless" and target not in (part, "__version__"):
                found.add((part, target))
    return found


def layer_of(part: str) -> int:
    (layer,) = [number for number, parts in enumerate(LAYERS) if part in parts]
    return layer


def test_imports_only_point_down() -> None:
    wrong = {
        (part, target)
        for part, target in edges()
        if part not in TOP and target in set().union(*LAYERS) and layer_of(target) >= layer_of(part)
    }
    assert wrong <= NEIGHBOURS


def test_every_part_of_the_package_has_a_layer() -> None:
    assert {part for part, _ in sources()} - TOP == set().union(*LAYERS)


@pytest.mark.parametrize("library", HOMES)
def test_a_foreign_library_is_imported_only_in_its_home(library: str) -> None:
    users = {
        part
        for part, path in sources()
        if any(name.split(".")[0] == library for name in imported(path))
    }
    assert users <= HOMES[library]
    assert users & HOMES[library]


def test_clients_know_nothing_of_agents() -> None:
    known = {target for part, target in edges() if part in ("client", "spark", "workloads")}
    assert not known & {"agent", "namespace", "rpc", "gateway", "node", "launch"}
