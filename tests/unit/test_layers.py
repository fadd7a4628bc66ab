"""Imports only point down, never in a circle, and each foreign library has one home. Read off the
source: an import inside a function counts like any other."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import diskless

ROOT = Path(diskless.__file__).parent
LAYERS = (
    {"errors", "config", "paths", "model", "checksum", "malloc", "notes", "parity", "retention"},
    {"identity"},
    {
        "codec",
        "placement",
        "repair",
        "balance",
        "plan",
        "policy",
        "eviction",
        "ends",
        "upkeep",
        "namespace",
        "protocol",
        "checkpoint",
    },
    {"advice"},
    {"agent", "tier"},
    {"rpc", "gateway"},
    {"dashboard"},
    {"node", "client"},
    {"launch", "spark"},
    {"operate"},
    {"workloads"},
    {"bench", "chaos", "demo", "doctor", "testing"},
    {"cli"},
)
"""From the bottom up. What stands in one layer may not import its neighbours, but for
those named below."""
NEIGHBOURS = {("config", "errors"), ("config", "model"), ("paths", "errors"), ("model", "errors"),
              ("repair", "placement"), ("balance", "repair"), ("namespace", "repair"),
              ("namespace", "policy"), ("eviction", "policy"), ("namespace", "eviction"),
              ("retention", "errors"), ("tier", "agent")}  # fmt: skip
HOMES = {
    "grpc": {"rpc", "bench"},
    "ray": {"launch"},
    "pyeclib": {"codec", "bench"},
    "cryptography": {"identity"},
    "obstore": {"tier", "bench"},
    "zstandard": {"tier"},
    "aiohttp": {"dashboard"},
    "prometheus_client": {"dashboard"},
}
"""The benchmark measures the libraries themselves."""
PRIVATE_IN_RAY = ("ray._", "ray.core.")
TOP = {"__init__", "__main__"}
"""The public API and `python -m diskless`: nothing imports them."""


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of ours, with the part of the package that it belongs to."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[:2] != ("rpc", "v1"):  # generated
            yield parts[0], path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(tree: ast.Module, *, typing: bool) -> Iterator[ast.AST]:
    """Like `ast.walk`, but without what is for the type checker alone unless `typing`."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        if typing or not is_for_types(node):
            yield node
            ahead += ast.iter_child_nodes(node)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def imported(path: Path, *, typing: bool = True) -> tuple[str, ...]:
    """What a module imports, anywhere in it, by its full name; for the type checker alone, too,
    if `typing`."""
    names: list[str] = []
    for node in nodes(tree_of(path), typing=typing):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


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


def test_what_is_private_in_ray_is_used_in_one_module() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for _, path in sources()
        if any(name.startswith(PRIVATE_IN_RAY) for name in imported(path))
    }
    assert users == {"launch/ray_internals.py"}


def modules() -> dict[str, Path]:
    """Every module by its full name. Not the public API, which imports on demand what it offers."""
    found = {}
    for part, path in sources():
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if part not in TOP:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_cycle(known: Mapping[str, Path]) -> list[str]:
    """Modules of which each imports the next one when it runs; empty if there is no such cycle."""
    graph = {
        module: {
            target
            for name in imported(path, typing=False)
            if (target := name if name in known else name.rpartition(".")[0]) in known
        }
        for module, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert import_cycle(modules()) == []


def test_an_import_cycle_within_functions_would_be_noticed(tmp_path: Path) -> None:
    texts = {
        "a": "def f():\n    from b import g\n",
        "b": "import c\n",
        "c": "if TYPE_CHECKING:\n    import a\n",
    }
    known = {name: tmp_path / f"{name}.py" for name in texts}
    for name, text in texts.items():
        known[name].write_text(text)
    assert import_cycle(known) == []
    known["c"] = tmp_path / "d.py"
    known["c"].write_text("def h():\n    import a\n")
    assert sorted(set(import_cycle(known))) == ["a", "b", "c"]


def test_clients_know_nothing_of_agents() -> None:
    known = {target for part, target in edges() if part in ("client", "spark", "workloads")}
    assert not known & {"agent", "namespace", "rpc", "gateway", "node", "launch", "operate"}
