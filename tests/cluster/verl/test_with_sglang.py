"""Stock verl trainers driving a real SGLang server: pushes between versions, aborted and resumed trajectories."""

import json
import os
from pathlib import Path

import pytest
import torch
from test_training import FULLY, SEPARATE, assert_masks_are, fully_async, separate_async, trained
from verl_runs import REPOSITORY, common_settings, run_verl, verl_environment

from estr.algorithm import build_rule, logprob_and_entropy

pytestmark = pytest.mark.slow

PYTHONS = {version: REPOSITORY / f".venv-sglang-{version}" / "bin" / "python" for version in ("0.5.12", "0.5.23")}
PARITY = 1e-5


def environment(folder: Path, version: str) -> dict[str, str]:
    if not PYTHONS[version].exists():
        pytest.skip(f"no environment of SGLang {version}; make cluster-env builds it")
    return verl_environment(folder, ESTR_SGLANG_PYTHON=str(PYTHONS[version]), ESTR_TEST_LOG=str(folder / "server"))


def long_answers(settings: list[str], rate: float) -> list[str]:
    changed = ("data.max_response_length", "actor_rollout_ref.rollout.name", "actor_rollout_ref.actor.optim.lr")
    return [s for s in settings if not s.startswith(changed)] + [
        "data.max_response_length=90",
        "actor_rollout_ref.rollout.name=sglang_http",
        "actor_rollout_ref.actor.calculate_entropy=True",
        f"actor_rollout_ref.actor.optim.lr={rate}",
    ]


def answers(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "server" / "answers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("version", PYTHONS)
def test_separate_async_at_learning_rate_zero(
    version: str, policy_folder: Path, problems: Path, tmp_path: Path
) -> None:
    """Every version has the same weights, so both engines must agree on every token, across aborts and resumes."""
    settings = common_settings(policy_folder, problems, tmp_path, "estr") + separate_async(3)
    run = run_verl(SEPARATE, long_answers(settings, 0.0), tmp_path, environment(tmp_path, version))
    tokens = trained(run)
    assert_masks_are(build_rule("entropy_scaled"), tokens)
    assert (tokens.groupby("sequence")["weight_version"].nunique() > 1).any(), "no trajectory spans two versions"
    assert (tokens["target_logprob"] - tokens["behavior_logprob"]).abs().max() < PARITY
    assert max(line["entropy_shift_max"] for line in run.sums()) < PARITY
    aborted = [answer for answer in answers(tmp_path) if answer["finish"] == "abort" and answer["tokens"]]
    assert aborted, "nothing was aborted with tokens"
    assert all(set(answer["version"]) <= {answer["global_steps"]} for answer in answers(tmp_path))


@pytest.mark.parametrize("version", os.environ.get("ESTR_TEST_SGLANG", "0.5.12").split(","))
def test_fully_async_with_a_learning_rate(version: str, policy_folder: Path, problems: Path, tmp_path: Path) -> None:
    """What the server says of each token is what the weights of its stamped version say."""
    from transformers import AutoModelForCausalLM

    settings = common_settings(policy_folder, problems, tmp_path, "icepop", low=0.8, high=1.2) + fully_async(24)
    run = run_verl(FULLY, long_answers(settings, 3e-3), tmp_path, environment(tmp_path, version))
    tokens = trained(run)
    assert_masks_are(build_rule("ratio_interval", low=0.8, high=1.2), tokens)
    fresh = tokens["weight_version"] == tokens["target_version"]
    size = (tokens["target_logprob"] - tokens["behavior_logprob"]).abs()
    assert size[fresh].max() < PARITY and size[~fresh].max() > 1e-3

    policy = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    given = [answer for answer in answers(tmp_path) if answer["tokens"]]
    stamps = {stamp for answer in given for stamp in answer["version"]}
    assert len(stamps) >= 2
    for stamp in stamps:
        policy.load_state_dict(weights(tmp_path / "server" / f"weights-{stamp}"), strict=False)
        for answer in given:
            if set(answer["version"]) == {stamp}:
                assert_is_said_by(policy, answer)


def assert_is_said_by(policy, answer: dict) -> None:
    ids = torch.tensor([answer["prompt"] + answer["tokens"]])
    with torch.no_grad():
        logits = policy(ids).logits[0, len(answer["prompt"]) - 1 : -1]
    logprob, entropy = logprob_and_entropy(logits, torch.tensor(answer["tokens"]))
    torch.testing.assert_close(logprob, torch.tensor(answer["logprob"]), atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy, torch.tensor(answer["entropy"]), atol=1e-4, rtol=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
