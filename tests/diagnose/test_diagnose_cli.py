import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from dumps import TOKENS, without, write

from estr.cli.diagnose import diagnose
from estr.diagnose.columns import KNOWN
from estr.errors import UserError


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(diagnose, [str(argument) for argument in arguments])


def test_help_teaches() -> None:
    shown = run("--help").output
    for part in (
        "estr diagnose results/laptop",
        "--out kept.parquet",
        "--map entropy=rollout_entropy",
        "docs/diagnose.md",
    ):
        assert part in shown


def test_the_manual_names_every_column_that_is_looked_for() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    for field, columns in KNOWN.items():
        for name in (field, *(column.name for column in columns)):
            assert f"`{name}`" in manual


def test_everything_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.parquet", TOKENS)
    outputs = (
        "--json",
        tmp_path / "new/found.json",
        "--out",
        tmp_path / "kept.parquet",
        "--figure",
        tmp_path / "fig1.png",
    )
    result = run(path, "--tau", "1.0", "--tau", "0.5", *outputs)
    assert result.exit_code == 0, result.exception
    assert "ESTR, tau 1 " in result.stdout and "IcePop" in result.stdout
    assert json.loads((tmp_path / "new/found.json").read_text())["rules"]["estr_tau_0.5"]["masked"] == 2
    assert pq.read_table(tmp_path / "kept.parquet")["keep_estr"].to_pylist()[:3] == [True, False, True]
    for suffix in ("png", "pdf", "csv"):
        assert (tmp_path / f"fig1.{suffix}").stat().st_size > 0


@pytest.mark.parametrize(
    ("dump", "option", "output"),
    [
        ("tokens.csv", "--figure", "tokens.png"),  # whose numbers go to tokens.csv
        ("tokens.parquet", "--json", "tokens.parquet"),
        ("tokens.parquet", "--out", "tokens.parquet"),
        ("tokens.parquet", "--json", "link.json"),
    ],
)
def test_no_output_replaces_the_dump(tmp_path: Path, dump: str, option: str, output: str) -> None:
    path = write(tmp_path / "tokens.parquet", TOKENS)
    if dump.endswith(".csv"):
        pq.read_table(path).to_pandas().to_csv(tmp_path / dump, index=False)
    (tmp_path / "link.json").symlink_to(tmp_path / dump)
    before = (tmp_path / dump).read_bytes()
    result = run(tmp_path / dump, option, tmp_path / output)
    assert isinstance(result.exception, UserError) and "the dump itself" in str(result.exception)
    assert (tmp_path / dump).read_bytes() == before


def test_columns_are_mapped(tmp_path: Path) -> None:
    columns = without("entropy", "behavior_logprob") | {"spread": TOKENS["entropy"], "mu": TOKENS["behavior_logprob"]}
    path = write(tmp_path / "dump.parquet", columns)
    result = run(path, "--map", "entropy=spread", "--map", "behavior_logprob=mu", "--budget", "0.4")
    assert result.exit_code == 0, result.exception
    assert "behavior_logprob <- mu" in result.stdout and "entropy <- spread" in result.stdout
    assert "At a budget of 40 %" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--entropy-from-topk", "top"), "--vocabulary N go together"),
        (("--vocabulary", "100"), "go together"),
        (("--figure", "fig.svg"), "name a .png"),
        (("--out", "kept.csv"), "name a .parquet"),
        (("--map", "colour=red"), "unknown field"),
        (("--tau", "-1"), "tau must be >= 0"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], part: str) -> None:
    result = run(write(tmp_path / "dump.parquet", TOKENS), *arguments)
    assert isinstance(result.exception, UserError) and part in str(result.exception)


def test_a_mistake_is_one_line_with_code_2(tmp_path: Path) -> None:
    write(tmp_path / "dump.parquet", without("entropy"))
    command = [sys.executable, "-c", "from estr.cli import main; main()", "diagnose", "dump.parquet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("estr: error: dump.parquet: no entropy of the behavior policy")
