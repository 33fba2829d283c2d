"""Sums of micro-batches, ranks and attempts -> the tables of a run, against `estr.algorithm` on the whole batch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from estr.algorithm import TokenSignals, build_rule, diagnose
from estr.cluster.launch.export import export, last_update, metrics_so_far, updates_done_again
from estr.cluster.sums import DIVISORS
from estr.errors import UserError
from estr.records import token_rows, write_table

RULE = build_rule("entropy_scaled", tau=0.1)


def signals(seed: int, rows: int = 6, length: int = 9, version: int = 1) -> TokenSignals:
    generator = torch.Generator().manual_seed(seed)
    behavior = -2 * torch.rand(rows, length, generator=generator)
    return TokenSignals(
        behavior_logprob=behavior,
        target_logprob=behavior + torch.rand(rows, length, generator=generator) - 0.5,
        entropy=2 * torch.rand(rows, length, generator=generator),
        advantage=torch.randn(rows, 1, generator=generator).expand(rows, length).contiguous(),
        response_mask=torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=generator),
        weight_version=torch.full((rows, length), version),
    )


def write(
    folder: Path, step: int, rank: int, attempt: int, part: TokenSignals, count: int = 0, version: int = 2
) -> None:
    """As a trainer process records a micro-batch (estr.cluster.verl.record), from the same numbers."""
    folder.mkdir(exist_ok=True)
    keep = RULE.keep(part)
    found = diagnose(part, keep)
    kept = int((keep & part.usable).sum())
    sizes = {"usable": int(part.usable.sum()), "kept": kept, "dropped": int(part.usable.sum()) - kept}
    sizes |= {"response_tokens": part.response_tokens, "trajectories": len(part.response_mask)}
    line = {"attempt": attempt, "step": step, "target_version": version, "time": 100.0 * step + rank, "loss": 0.5}
    names = ("response_tokens", "usable", "dropped", "kept")
    line |= {
        name: found[name] * sizes[size] if sizes[size] else 0.0 for size in names for name in DIVISORS[size]
    } | sizes
    line |= {"staleness_intra": 0.0, "staleness_inter": float(len(part.response_mask))}
    line |= {"staleness_intra_max": 0.0, "staleness_inter_max": 1.0, "log_ratio_max": found["log_ratio_max"]}
    line["sequences_masked_fraction"] = float((part.response_mask & ~keep).any(1).sum())
    line |= {
        "rewards": [1.0, 0.0] * (len(keep) // 2),
        "groups": ["a", "a", "b", "b", "c", "c"],
        "turns": [1] * len(keep),
    }
    with (folder / f"sums-rank{rank}-attempt{attempt}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    tokens = torch.zeros_like(part.weight_version)
    table = token_rows(step, version, part, tokens, keep, torch.zeros(len(keep)))
    write_table(table, folder / f"tokens-rank{rank}-attempt{attempt}-{count:06d}.parquet")


def test_means_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    parts = [signals(seed) for seed in range(4)]
    for number, part in enumerate(parts):
        write(tmp_path / "record", 1, rank=number % 2, attempt=0, part=part, count=number)
    assert export(tmp_path / "record", [], 1e-6, tmp_path) == 1
    row = pq.read_table(tmp_path / "metrics.parquet").to_pylist()[0]
    whole = TokenSignals(*(torch.cat([getattr(p, name) for p in parts]) for name in TokenSignals.__annotations__))
    expected = diagnose(whole, RULE.keep(whole))
    for names in DIVISORS.values():
        for name in names:
            if name in expected:
                assert row[name] == pytest.approx(expected[name], rel=1e-6), name
    assert row["log_ratio_max"] == pytest.approx(expected["log_ratio_max"])
    assert (row["reward"], row["accuracy_groups_mixed"], row["staleness_inter"]) == (0.5, 1.0, 1.0)
    assert row["loss"] == pytest.approx(2.0)
    tokens = pq.read_table(tmp_path / "tokens.parquet").to_pandas()
    assert len(tokens) == whole.response_tokens
    assert tokens["sequence"].nunique() == 24


def test_an_update_done_again_counts_once(tmp_path: Path) -> None:
    record = tmp_path / "record"
    for step, attempt in [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]:
        write(record, step, 0, attempt, signals(10 * step + attempt), count=step)
    assert (last_update(record), updates_done_again(record)) == (4, 1)
    assert export(record, [], 1e-6, tmp_path) == 4
    tokens = pq.read_table(tmp_path / "tokens.parquet").to_pandas()
    third = signals(31)
    assert (tokens["step"] == 3).sum() == third.response_tokens
    assert np.isclose(tokens.loc[tokens["step"] == 3, "entropy"].sum(), third.entropy[third.response_mask].sum())


def test_gradient_norms_come_from_verls_log(tmp_path: Path) -> None:
    write(tmp_path / "record", 1, 0, 0, signals(0))
    lines = [{"step": 3, "data": {"actor/grad_norm": 7.0}}, {"step": 3, "data": {"other": 1}}]
    (tmp_path / "verl.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "da')
    export(tmp_path / "record", [tmp_path / "verl.jsonl", tmp_path / "none.jsonl"], 1e-6, tmp_path)
    assert pq.read_table(tmp_path / "metrics.parquet")["grad_norm"].to_pylist() == [7.0]


def test_a_line_cut_by_a_kill_is_no_update(tmp_path: Path) -> None:
    record = tmp_path / "record"
    write(record, 1, 0, 0, signals(0))
    with (record / "sums-rank0-attempt0.jsonl").open("a") as file:
        file.write('{"attempt": 0, "st')
    assert last_update(record) == 1
    (record / "sums-rank0-attempt0.jsonl").write_text("no json\n" + (record / "sums-rank0-attempt0.jsonl").read_text())
    with pytest.raises(UserError, match="line 1: damaged"):
        last_update(record)


def test_a_run_under_way_has_the_updates_of_logged_versions(tmp_path: Path) -> None:
    record, log = tmp_path / "record", tmp_path / "log.jsonl"
    assert metrics_so_far(record, [log], 1e-6, 9) is None
    for step, version in ((1, 2), (2, 2), (3, 3)):
        write(record, step, 0, 0, signals(step), version=version)
    assert metrics_so_far(record, [log], 1e-6, 9) is None
    log.write_text('{"step": 3, "data": {"actor/grad_norm": 0.25}}\n')  # version 2 is trained, its third update is not
    table = metrics_so_far(record, [log], 1e-6, 9)
    assert table is not None
    assert (table["step"].to_pylist(), table["grad_norm"].to_pylist()) == ([1, 2], [0.25, 0.25])


def test_a_run_under_way_has_no_update_that_a_resume_would_do_again(tmp_path: Path) -> None:
    record, log = tmp_path / "record", tmp_path / "log.jsonl"
    for step in (1, 2, 3, 4):
        write(record, step, 0, 0, signals(step), version=step - 1)
    log.write_text('{"step": 4, "data": {"actor/grad_norm": 0.25}}\n')
    assert metrics_so_far(record, [log], 1e-6, saved_version=0) is None
    table = metrics_so_far(record, [log], 1e-6, saved_version=2)
    assert table is not None and table["step"].to_pylist() == [1, 2]


def test_a_missing_update_is_named(tmp_path: Path) -> None:
    record = tmp_path / "record"
    for step in (1, 3):
        write(record, step, 0, 0, signals(step), count=step)
    with pytest.raises(UserError, match=r"updates \[2\] were not recorded"):
        export(record, [], 1e-6, tmp_path)


def test_nothing_recorded(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    assert last_update(tmp_path / "record") == 0
    with pytest.raises(UserError, match="external_lib"):
        export(tmp_path / "record", [], 1e-6, tmp_path)


def test_the_recipe_of_the_guide(tmp_path: Path) -> None:
    """docs/use_in_verl.md numbers the updates of its own example, and its snippet makes the tables."""
    text = (Path(__file__).parents[1] / "docs" / "use_in_verl.md").read_text()
    settings = dict(re.findall(r"^ +\+?([\w.]+)=(\S+)", text, re.MULTILINE))
    interval = settings["trainer.v1.separate_async.parameter_sync_step"]
    assert settings["actor_rollout_ref.actor.policy_loss.updates_per_version"] == interval
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    write(tmp_path / "record", 1, 0, 0, signals(0))
    subprocess.run([sys.executable, "-c", snippet.replace("/shared", str(tmp_path))], check=True)
    assert pq.read_table(tmp_path / "tables" / "metrics.parquet")["step"].to_pylist() == [1]
    assert len(pq.read_table(tmp_path / "tables" / "tokens.parquet")) == signals(0).response_tokens
