"""README and docs/ are true where a test can tell: links, verbs, options, and plain words."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import diskless
from diskless.cli.edge import VERBS, cli

ROOT = Path(diskless.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"bench-report.md", "bench-full.md"}  # by `diskless bench report`, with their dates

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)", re.DOTALL)

EXAMPLE_DATE = "2026-01-31"
"""In examples of times, such as `up --restore … --at`."""

# Options in the pages that belong to other programs.
FOREIGN = {
    "--appendonly", "--save",  # redis-server
    "--properties-file",  # spark-submit
    "--node-ip-address",  # ray
    "--pdb",  # pytest
    "--host", "--hosts", "--ray-only",  # cluster/launch.py and cluster/hosts.py
}  # fmt: skip


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


def links(page: Path) -> list[tuple[Path, str]]:
    """What a page links to within the project: a file, and a heading of it or ""."""
    found = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def commands(text: str) -> Iterator[str]:
    """The command lines of `diskless` in a page: in blocks, and in running text."""
    blocks = "\n".join(FENCED.findall(text))
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    spans = INLINE.findall(FENCED.sub("", text))
    for line in [*(blocks + "\n" + indented).replace("\\\n", " ").splitlines(), *spans]:
        if "handshake" in line:  # The words that a handshake's proofs begin with.
            continue
        for part in re.split(r"\s#\s|\s#$|;\s|&&|\||…", " ".join(line.split())):
            match = re.match(r"\s*(?:\$ |[A-Z_]+=\S+ )*diskless (?=[a-z-])(.*)", part)
            if match:
                yield match[1]


def words_of(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # A quote that goes on in what was cut off.
        return line.split()


def own_options(command: click.Command) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


def wrong(line: str) -> str:
    """What is not true of a command line, or "". Only verbs and options are looked at."""
    words = words_of(line)
    context = click.Context(cli)
    command: click.Command = cli
    for word in words:
        if word.startswith("-"):
            options = {
                option for each in command.params for option in (*each.opts, *each.secondary_opts)
            }
            options |= {"-h", "--help", "--version"}
            if (option := word.partition("=")[0].rstrip(".,:]")) not in options:
                return f"`diskless {line}`: no option {option} of {command.name}"
        elif isinstance(command, click.Group) and word not in ("VERB",):
            found = command.get_command(context, word.rstrip(".,:"))
            if found is None:
                return f"`diskless {line}`: no verb {word}"
            command = found
    return ""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name}: no file {target}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: no heading #{anchor} in {target.name}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = {PAGES[0]}, [PAGES[0]]
    while ahead:
        for target, _ in links(ahead.pop()):
            if target.suffix == ".md" and target not in reached:
                reached.add(target)
                ahead.append(target)
    assert reached >= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_verbs_and_options_of_command_lines_exist(page: Path) -> None:
    assert [said for line in commands(page.read_text()) if (said := wrong(line))] == []


def all_options(command: click.Command) -> set[str]:
    found = own_options(command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= all_options(inner)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_in_running_text_exist(page: Path) -> None:
    spans = " ".join(INLINE.findall(FENCED.sub("", page.read_text())))
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", spans))
    assert said - all_options(cli) - FOREIGN - {"--help", "--version"} == set()


def test_the_operators_page_names_every_verb() -> None:
    text = (ROOT / "docs/operating.md").read_text()
    table = text.partition("| verbs | for |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z-]+)`", table)) == sorted(VERBS)


def test_the_readme_shows_every_step_of_the_demo() -> None:
    steps = re.findall(r'_step\("(.+?)"\)', (ROOT / "diskless/demo.py").read_text())
    (transcript, *_) = FENCED.findall((ROOT / "README.md").read_text())
    shown = re.findall(r"^  (\w.+?)  +[\d.]+ s  ", transcript, re.MULTILINE)
    assert set(shown) == {step for step in steps if not step.endswith(", once")}


@pytest.mark.parametrize("line", ["up --agent 6", "upp", "chaos kil 2", "tier flush --weit"])
def test_a_wrong_line_would_be_noticed(line: str) -> None:
    assert wrong(line)


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in GENERATED], ids=named)
def test_no_diary(page: Path) -> None:
    """When something was run belongs to generated reports."""
    said = re.findall(r"\b20\d\d-\d\d-\d\d\b|\bissue \d+", page.read_text())
    assert [text for text in said if text != EXAMPLE_DATE] == []


def test_the_tree_of_contributing_is_the_tree() -> None:
    text = (ROOT / "docs/CONTRIBUTING.md").read_text()
    table = text.partition("| folder | what it owns |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`diskless/([a-z]+)/`", table))
    assert named == {path.parent.name for path in (ROOT / "diskless").glob("*/__init__.py")}
    suites = re.search(r"^\| `tests/` \| (.+) \|$", table, re.MULTILINE)
    assert suites is not None
    found = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/*.py")}
    assert set(re.findall(r"`(\w+)`", suites[1])) == found
