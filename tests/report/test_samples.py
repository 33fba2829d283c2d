"""Samples of a language model: what is read, and which file is named when something is amiss."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples_folder import write_sample

from estr.errors import UserError
from estr.report.samples import load_sample
from estr.report.tokens import token_sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "smollm2", ("mismatch", "stale"))


def test_a_sample_names_its_model_and_what_differs(folder: Path) -> None:
    sample = load_sample(folder)
    assert sample.short_model == "SmolLM2-135M"
    assert sample.scenarios["mismatch"].maker == "bf16 against fp32, same weights"
    assert sample.scenarios["stale"].maker == "bf16 against fp32, 4 gradient steps apart"
    tokens = sample.read_tokens("stale")
    assert len(tokens) == sample.scenarios["stale"].tokens
    assert tokens["log_ratio"].equals(tokens["target_logprob"] - tokens["behavior_logprob"])
    assert set(tokens["scenario"]) == {"stale"}


def test_tokens_without_finite_signals_are_left_out(folder: Path) -> None:
    path = folder / "tokens.parquet"
    tokens = pd.read_parquet(path)
    tokens.loc[tokens.index[:3], "entropy"] = np.nan
    tokens.to_parquet(path)
    sample = load_sample(folder)
    assert len(sample.read_tokens("mismatch")) == sample.scenarios["mismatch"].tokens - 3


def edit_record(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "sample.json"
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))

    return edit


def edit_tokens(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        change(pd.read_parquet(folder / "tokens.parquet")).to_parquet(folder / "tokens.parquet")

    return edit


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (edit_record(lambda record: record.pop("model")), r"sample\.json: field 'model' is missing"),
        (
            edit_record(lambda record: record["scenarios"]["stale"].update(tokens="many")),
            r"field 'scenarios\.stale\.tokens' is missing or malformed",
        ),
        (edit_record(lambda record: record.update(settings={})), r"field 'settings\.group' is missing"),
        (edit_record(lambda record: record.update(scenarios={"stale": 3})), r"scenarios\.stale is no JSON object"),
        (edit_tokens(lambda tokens: tokens.drop(columns="entropy")), r"tokens\.parquet: lacks the columns entropy"),
        (edit_tokens(lambda tokens: tokens.iloc[1:]), r"3599 tokens of scenario 'mismatch', sample\.json says 3600"),
        (edit_tokens(lambda tokens: tokens.assign(position=0)), "has a position of one sequence twice"),
        (edit_tokens(lambda tokens: tokens.assign(entropy=np.nan)), "holds no token with finite signals"),
        (lambda folder: (folder / "tokens.parquet").write_bytes(b"PAR1"), "cannot be read as parquet"),
        (lambda folder: (folder / "tokens.parquet").unlink(), r"tokens\.parquet: does not exist"),
    ],
)
def test_a_damaged_sample_is_named(folder: Path, damage: Callable[[Path], None], complaint: str) -> None:
    damage(folder)
    with pytest.raises(UserError, match=complaint):
        token_sources([folder])


def test_a_scenario_that_was_not_sampled_is_left_out(folder: Path) -> None:
    assert [source.key for source in token_sources([folder], ["stale", "switch"])] == ["smollm2_stale"]
    with pytest.raises(UserError, match="no run folders were given"):
        token_sources([folder], ["switch"])
