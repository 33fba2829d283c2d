"""The evaluation of the paper's scale: a policy behind an SGLang server that lives as long as the evaluation."""

import random
from pathlib import Path

import pytest

from estr.cluster.launch.server import sglang_server
from estr.embedded.policy import Policy, PolicyShape, save_policy
from estr.embedded.tokenizer import ChatTokenizer
from estr.errors import UserError
from estr.evaluation.openai_engine import SamplingSettings
from estr.evaluation.standalone import evaluate_on_server
from estr.tasks.dapo_math_laptop import DapoMathLaptop

pytestmark = pytest.mark.slow
CPU = ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--skip-server-warmup"]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    tokenizer = ChatTokenizer.from_words(DapoMathLaptop().vocabulary())
    save_policy(Policy(PolicyShape(len(tokenizer), 32, 64, 2, 2, 2, 256)).initialize(0), tmp_path / "policy")
    tokenizer.save(tmp_path / "policy")
    return tmp_path / "policy"


def test_a_policy_is_served_and_scored(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.delenv("TRITON_INTERPRET")
    task = DapoMathLaptop()
    problems = task.problems("eval", 4, 0)
    sampling = SamplingSettings(temperature=1.0, top_p=1.0, max_tokens=24, dialogue_tokens=24, seed=0)
    port = random.randint(20_000, 50_000)
    log = tmp_path / "server.log"
    with sglang_server(policy, log, gpus=1, model_tokens=128, port=port, options=CPU) as url:
        scores = evaluate_on_server(policy, task, problems, url, tmp_path / "out", k=2, sampling=sampling)
    assert (scores["n_problems"], scores["missing"]) == (4, 0)
    assert 0 < scores["agent"]["tokens"] <= 24
    assert (tmp_path / "out" / "evaluation.json").exists()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"SGLang ended while it started"),
        sglang_server(tmp_path / "none", tmp_path / "log.txt", gpus=1, model_tokens=128, options=CPU),
    ):
        pass
