"""Configuration files: whatever stands in one, it is a valid configuration or one line that names the file."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from fuzzing import TEXT, accepted_or_refused, cases, changed, mutated, refused
from hypothesis import given
from hypothesis import strategies as st

from estr.cli import main
from estr.config import (
    Deviations,
    StudyConfig,
    expand,
    load_any_scale,
    load_experiment,
    load_method,
    load_site,
    load_task,
    parse,
    read_yaml,
    resolve_any,
)
from estr.config.yaml_files import DEEPEST, LARGEST_FILE, load_yaml
from estr.report.claims.definitions import load_claims

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))


def use(name: str) -> None:
    """Read the file as the commands do, down to each run's thresholds."""
    kind, _, file = name.rpartition("/")
    stem = file.removesuffix(".yaml")
    match kind:
        case "scales":
            for task in load_any_scale(stem).tasks:
                resolve_any(stem, task, "estr", 0)
        case "methods":
            load_method(stem)
            resolve_any("smoke", "dapo_math", stem, 0)
        case "tasks":
            load_task(stem)
            resolve_any("paper", stem, "estr", 0)
            resolve_any("paper", stem, "sync", 0)
        case "experiments":
            experiment = load_experiment(stem)
            for scale in ("smoke", "paper"):
                if load_any_scale(scale).engine in experiment.engines:
                    for matrices in (experiment.runs, experiment.measurements, experiment.frontiers):
                        expand(matrices, scale)
        case "paper":
            if stem == "claims":
                load_claims()
            else:
                parse(Deviations, read_yaml(Path("configs", name)), name)
        case _:
            if stem == "site":
                load_site()
            else:
                parse(StudyConfig, read_yaml(Path("configs", name)), name)


def test_the_files_as_they_are(checkout: Path) -> None:
    for name in FILES:
        use(name)


@cases(6)
@given(st.data())
def test_mutated_values(checkout: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    content = data.draw(mutated(yaml.safe_load((CONFIGS / name).read_text())))
    with changed(checkout / "configs" / name, yaml.safe_dump(content).encode()):
        accepted_or_refused(lambda: use(name))


HOSTILE_LINES = [
    b"<<: {a: 1}",
    b"? [a]\n: 1",
    b"a: !!python/object:os.system x",
    b"a: !!binary x",
    b"a: 2026-99-99",
    b"---",
]
HOSTILE_LINES += [
    b"a: 0x_",
    b"a: !!int ''",
    b"a: !!float ''",
    b"a: !!timestamp x",
    b"a: !!bool x",
    b"a: &a [*a]",
    b"\ttab: 1",
]
HOSTILE_LINES += [
    b"a: \xff",
    b"a: \x00",
    b"a: .nan",
    b"a: -.inf",
    b"a: 1e999",
    b"[" * 50,
    b"{a: " * 50,
    b"- - - - - -",
    b"\xef\xbb\xbf",
]
HOSTILE_LINES += [
    b"a: " + b"9" * 5_000,
    b'a: "\\ud800"',
    b'a: "\\0"',
    b"%YAML 9.9",
    b"a: *nowhere",
    b"...",
    b"a: !<x> 1",
    b"=: 1",
]


@cases(10)
@given(st.data())
def test_mutated_bytes(checkout: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    lines = (CONFIGS / name).read_bytes().splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        line = data.draw(st.sampled_from([*HOSTILE_LINES, *lines]) | st.binary(max_size=20))
        indent = b" " * data.draw(st.sampled_from([0, 2, 4]))
        lines[place : place + data.draw(st.integers(0, 1))] = [indent + line]
    with changed(checkout / "configs" / name, b"\n".join(lines)):
        accepted_or_refused(lambda: use(name))


@cases(8)
@given(
    st.lists(
        st.sampled_from([*HOSTILE_LINES, b"a:", b"b: 1", b"- x", b"&x", b"*x", b"!!", b"|", b">", b"'", b'"']),
        max_size=8,
    )
)
def test_any_text_is_plain_values_or_refused(lines: list[bytes]) -> None:
    for content in (b"\n".join(lines), b" ".join(lines)):
        found = accepted_or_refused(lambda content=content: load_yaml(content, "here.yaml"), "here.yaml")
        if not isinstance(found, Exception):
            yaml.safe_dump(found)


def bomb(levels: int = 30) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bomb(), "line 5: more than 50,000 values, its aliases included"),
        ("title: &a [*a]", "line 1: it contains itself"),
        ("title: &a {b: &b {c: *a}}", "line 1: it contains itself"),
        ("title: one\nrule: x\ntitle: two", "line 3: key 'title' stands twice"),
        ("title: !!python/object/apply:os.system [true]", "line 1: the tag 'tag:yaml.org,2002:python"),
        ("title: !!python/name:os.system x", "is no plain value"),
        ("title: 2026-01-01", "line 1: '2026-01-01' is no plain value"),
        ("base: &base {a: 1}\nother:\n  <<: *base", "line 3: '<<' is no plain value"),
        ("title: " + "9" * 5_000, "integer of more than 20 characters"),
        ("title: 0x_", "invalid literal"),
        ("title: " + "[" * 100_000, "nested too deeply"),
        ("title: " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested deeper than 32 levels"),
        ("- " * 100_000, "nested too deeply"),
        ("{a: " * 50_000, "nested too deeply"),
        ("? " * 50_000, "nested too deeply"),
        ("title: '" + "x" * LARGEST_FILE + "'", "longer than 256 KiB"),
        ('title: "\\ud800"', "half of a surrogate pair"),
        ('title: "a\\0"', "a null character"),
        ("title: [ESTR\nrule: x", "expected ',' or ']'"),
        ("title:\tx\n\trule: y", "cannot start any token"),
        (b"title: \xff", "invalid start byte"),
        (b"title: a\x00", "special characters are not allowed"),
        ("{}", "key 'title': Field required"),
        ("", "key '(top level)': Input should be a valid dictionary"),
        ("- title", "key '(top level)': Input should be a valid dictionary"),
        ("title: 1", "key 'title': Input should be a valid string (got 1)"),
    ],
)
def test_hostile_files(checkout: Path, content: str | bytes, reason: str) -> None:
    written = content if isinstance(content, bytes) else content.encode()
    with changed(checkout / "configs/methods/estr.yaml", written):
        refused(lambda: load_method("estr"), "configs/methods/estr.yaml", reason)


def test_a_byte_order_mark_is_no_mistake(checkout: Path) -> None:
    path = checkout / "configs/methods/estr.yaml"
    with changed(path, b"\xef\xbb\xbf" + path.read_bytes()):
        assert load_method("estr").title == "ESTR"


def test_aliases_within_bounds_are_taken(checkout: Path) -> None:
    assert load_yaml("a: &x [1, 2]\nb: *x\nc: [*x, *x]", "here") == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], [1, 2]]}


def test_a_folder_and_a_file_that_may_not_be_read(checkout: Path) -> None:
    (checkout / "configs/methods/folder.yaml").mkdir()
    refused(lambda: load_method("folder"), "configs/methods/folder.yaml: cannot be read (Is a directory)")
    (checkout / "configs/methods/folder.yaml").rmdir()
    refused(lambda: read_yaml(Path("configs/nowhere.yaml")), "configs/nowhere.yaml: cannot be read (No such file")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("tasks/dapo_math.yaml", b"inter: 10", b"inter: 0", "staleness.inter"),
        ("methods/estr.yaml", b"tau: 1.6", b"name: x", "unknown threshold 'name'"),
        ("scales/paper.yaml", b"  turns: 100\n", b"", "train.turns"),
        ("scales/smoke.yaml", b"temperature: 1.0", b"temperature: .inf", "finite number"),
    ],
)
def test_regressions(checkout: Path, name: str, old: bytes, new: bytes, message: str) -> None:
    path = checkout / "configs" / name
    content = path.read_bytes()
    assert old in content
    scale = "smoke" if "smoke" in name else "paper"
    label = "estr__inter=5" if name.startswith("tasks") else "estr"
    with changed(path, content.replace(old, new)):
        refused(lambda: resolve_any(scale, "dapo_math", label, 0), message)


def test_a_value_is_repeated_in_short(checkout: Path) -> None:
    rows = "\n".join(f"key{number}: [{number}, {'x' * 100}]" for number in range(500))
    with changed(checkout / "configs/methods/estr.yaml", f"title:\n  {rows.replace(chr(10), chr(10) + '  ')}".encode()):
        refused(lambda: load_method("estr"), "configs/methods/estr.yaml", "'title'", "...")


@cases(1)
@given(st.data())
def test_check_config(checkout: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    content = data.draw(mutated(yaml.safe_load((CONFIGS / name).read_text())))
    with changed(checkout / "configs" / name, yaml.safe_dump(content).encode()):
        check_run(["check-config"])


ARGUMENT = TEXT.filter(lambda text: "\0" not in text and not text.startswith("-"))


@cases(4)
@given(
    st.sampled_from(
        ["train", "throughput", "frontier --axis inter", "calibrate --reference", "evaluate", "cluster command"]
    ),
    st.sampled_from(["dapo_math", "search_r1", "chess", "../tasks/gsm8k"]) | ARGUMENT,
    st.sampled_from(["estr", "estr__tau=1.0", "sync", "../methods/estr", "estr__tau=1.6", "estr__tau=.nan"]) | ARGUMENT,
    st.integers(-1, 3) | st.just(10**30) | ARGUMENT,
    st.sampled_from(["smoke", "laptop", "paper", "../scales/smoke"]) | ARGUMENT,
)
def test_commands_with_any_arguments(
    checkout: Path, command: str, task: str, label: str, seed: Any, scale: str
) -> None:
    arguments = [*command.split(), task, label, "--scale", scale]
    if command.startswith("calibrate"):
        arguments = ["calibrate", task, "--reference", label, "--scale", scale]
    if not command.startswith("frontier"):
        arguments += ["--seed", str(seed)]
    check_run([*arguments, "--results", "nothing"])


def check_run(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 2), (result.output[-2_000:], result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    if result.exit_code == 2 and "Usage:" not in result.stderr:
        (line,) = result.stderr.splitlines()
        assert line.startswith("estr: error: ") and len(line) < 2_000
