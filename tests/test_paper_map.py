"""docs/paper_map.md leads nowhere dead, and leaves out nothing of the paper."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from estr.cli import main
from estr.config import load_experiment
from estr.report.captions import CAPTIONS
from estr.report.figures import FIGURES
from estr.report.tables import TABLES

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "docs/paper_map.md").read_text()
NAMED = sorted(set(re.findall(r"`([^`]+)`", TEXT)))


def resolves(name: str) -> bool:
    """A module, or an attribute of one."""
    try:
        importlib.import_module(name)
        return True
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return hasattr(importlib.import_module(module), attribute)


def test_a_dead_name_is_noticed() -> None:
    assert resolves("estr.algorithm.objective")
    assert not resolves("estr.algorithm.no_such_rule")


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("estr.")])
def test_code_exists(name: str) -> None:
    assert resolves(name)


@pytest.mark.parametrize("path", [name for name in NAMED if re.match(r"(tests|configs|docs)/", name)])
def test_file_exists(path: str) -> None:
    assert (REPOSITORY / path).exists()


@pytest.mark.parametrize("command", [name for name in NAMED if name.startswith(("snakemake ", "estr "))])
def test_command_exists(command: str) -> None:
    program, target = command.split()[:2]
    if program == "estr":
        assert isinstance(main, click.Group) and target in main.commands
    else:
        known = TABLES if "/tables/" in target else FIGURES
        assert Path(target).stem in known


def test_every_name_is_of_a_known_kind() -> None:
    assert all(name.startswith(("estr", "snakemake ", "tests/", "configs/", "docs/")) for name in NAMED)


def test_every_equation_table_and_figure_of_both_versions_is_there() -> None:
    rows = "\n".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|"))
    assert {int(number) for number in re.findall(r"Eq\. (\d+)", rows)} == set(range(1, 49))
    assert {int(n) for n in re.findall(r"(?<!v2 )Table (\d+)", rows)} == set(range(1, 8))
    assert {int(n) for n in re.findall(r"v2 Table (\d+)", rows)} == set(range(1, 9))
    assert {int(n) for n in re.findall(r"(?<!v2 )Figure (\d+)", rows)} == set(range(1, 16))
    described = {4, 5, 6, 7, 8, 9, 10, 11}  # v2's text says nothing of its first three
    assert {int(n) for n in re.findall(r"v2 Figure (\d+)", rows)} == described
    assert all(f"Prop. {name}" in rows for name in ("1", "A1", "A2", "A3", "A4"))


def artifacts() -> list[tuple[set[str], set[str], set[str]]]:
    """Per row of the last table: functions, names of the experiments, names of the tables and figures."""
    rows = [line.split("|")[1:-1] for line in TEXT[TEXT.index("## Tables and figures") :].splitlines() if "`" in line]
    found = []
    for cells in (row for row in rows if len(row) == 4):
        functions, configurations, commands = (re.findall(r"`([^`]+)`", cell) for cell in cells[1:])
        made = {Path(command.split()[1]).stem for command in commands if command.startswith("snakemake ")}
        experiments = {Path(name).stem for name in configurations if "/experiments/" in name}
        found.append((set(functions), experiments, made))
    return found


def test_the_function_and_the_configuration_of_an_artifact_are_those_that_make_it() -> None:
    for functions, experiments, made in artifacts():
        makers = {f"{maker.__module__}.{maker.__name__}" for name in made for maker in makers_of(name)}
        assert makers <= functions, made
        if experiments:
            declared = [load_experiment(name) for name in experiments]
            assert made <= {name for one in declared for name in (*one.tables, *one.figures)}, made


def makers_of(name: str) -> list[Callable[..., None]]:
    return [known[name] for known in (TABLES, FIGURES) if name in known]


def test_every_artifact_that_is_made_is_on_the_map_and_has_a_caption() -> None:
    on_map = {Path(name.split()[1]).stem for name in NAMED if name.startswith("snakemake ")}
    assert {*TABLES, *FIGURES} == on_map
    assert set(CAPTIONS) == set(FIGURES)
