"""The two descriptions of the environment agree with each other and with what is installed."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(requirements: list[str]) -> dict[str, str]:
    pairs = [requirement.split("==") for requirement in requirements]
    assert all(len(pair) == 2 for pair in pairs), "every dependency has one exact version"
    return {name.lower(): number for name, number in pairs}


def test_environment_yml_agrees_with_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    [installed] = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    listed = pins([line for line in installed if not line.startswith("--editable")])
    assert listed == pins(PROJECT["dependencies"]) | pins(PROJECT["optional-dependencies"]["dev"])
    python = next(part for part in environment["dependencies"] if str(part).startswith("python="))
    assert PROJECT["requires-python"] == f"=={python.removeprefix('python=')}.*"


def test_tested_versions_are_the_installed_ones() -> None:
    for name, number in (pins(PROJECT["dependencies"]) | pins(PROJECT["optional-dependencies"]["dev"])).items():
        assert version(name).split("+")[0] == number
