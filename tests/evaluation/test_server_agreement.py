"""One policy through the embedded engine and through a real OpenAI-compatible server on the CPU: equal accuracy.

The server is `transformers serve` (it needs fastapi, uvicorn, openai and accelerate). Two things about it are in the
way of plain sampling, and both are settled by files in the model folder, since a request cannot:
without `generation_config.json` it decodes greedily whatever the temperature, and past the closing token; and for a
model of Qwen's type it guesses how a reply is structured, drops the text before a tool call from the history, and
returns the end of the prompt as part of the reply where it finds no `<|im_start|>assistant` line. A
`response_template` with the text alone gives the reply as it was written.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from statistics import mean, pvariance

import pytest

from estr.config import EvaluationSettings, RunConfig, resolve
from estr.data.read import read_problems
from estr.embedded.answer import EmbeddedEngine
from estr.embedded.policy import load_policy, save_policy
from estr.embedded.tokenizer import UNKNOWN
from estr.embedded.trainer import behavior_copy
from estr.evaluation.openai_engine import OpenAIEngine, SamplingSettings, load_tokenizer
from estr.evaluation.sample import Engine, Sample
from estr.layout import Layout
from estr.stages import prepare_data, warm_start
from estr.tasks import laptop_counterpart
from estr.tasks.base import Problem
from estr.tasks.laptop import first_words

pytest.importorskip("accelerate", reason="transformers serve loads no model without it")

TASKS = ("dapo_math", "gsm8k")
PROBLEMS, SERVER_SAMPLES, EMBEDDED_SAMPLES = 24, 8, 64
PRETRAIN_STEPS = 600  # enough for answers that are neither all right nor all wrong
Z = 3.3  # two samples of one population differ by more in one of a thousand cases
RESPONSE_TEMPLATE = {
    "start_anchor": "<|im_start|> assistant",
    "defaults": {"role": "assistant"},
    "fields": {
        "content": {"close_pattern": r"<\|im_end\|>", "content": "text", "content_args": {"strip": False}},
    },
}


@pytest.fixture(scope="module", params=TASKS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Layout]:
    """A tiny policy of the task, warm-started."""
    layout = Layout(tmp_path_factory.mktemp("results"), "smoke")
    config = resolve("smoke", request.param, "sync", 0)
    config = config.model_copy(update={"pretrain": config.pretrain.model_copy(update={"steps": PRETRAIN_STEPS})})
    prepare_data(layout, config)
    warm_start(layout, config)
    return config, layout


def export(policy: Path, folder: Path) -> None:
    """The weights that rollouts are sampled from (bfloat16 values, kept in float32), as a folder that can be served."""
    shutil.copytree(policy, folder)
    save_policy(behavior_copy(load_policy(policy)), folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"response_template": RESPONSE_TEMPLATE}))


@contextmanager
def served(model: Path) -> Iterator[str]:
    """`transformers serve` on 127.0.0.1; gives its address."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", "float32"]
    log = model.parent / "server.log"
    with log.open("wb") as output:
        quiet = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=quiet)
    try:
        deadline = time.monotonic() + 180
        while "Application startup complete" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


class WordEngine(OpenAIEngine):
    """A tiny policy reads the unknown words of a tool as `<unk>`; a server with a byte-level tokenizer would not."""

    def _truncate(self, text: str, tokens: int) -> str:
        assert self._tokenizer is not None
        words = first_words(text, tokens).split()
        return " ".join(word if self._tokenizer.token_to_id(f" {word}") is not None else UNKNOWN for word in words)


def samples_of(engine: Engine, problems: Sequence[Problem], k: int) -> list[list[Sample]]:
    found = dict(engine.answer(problems, k, range(len(problems))))
    return [found[position] for position in range(len(problems))]


@pytest.mark.slow
def test_a_server_and_the_embedded_engine_agree(trained: tuple[RunConfig, Layout], tmp_path: Path) -> None:
    config, layout = trained
    task = laptop_counterpart(config.task, config.counterpart.model_dump())
    problems = read_problems(layout.data(config.task) / "eval.parquet")[:PROBLEMS]
    model, limit = tmp_path / "model", config.train.max_tokens
    export(layout.warm_start(config.task), model)
    settings = EvaluationSettings(samples=EMBEDDED_SAMPLES, temperature=1.0, seed=0)
    embedded = samples_of(EmbeddedEngine.load(model, task, settings, limit), problems, EMBEDDED_SAMPLES)
    with served(model) as url:
        # one at a time: the server has one random generator, so that seeds count in their order only
        sampling = SamplingSettings(max_tokens=limit, dialogue_tokens=limit)
        server = WordEngine(url, str(model), task, sampling, tokenizer=load_tokenizer(model), concurrency=1)
        remote = samples_of(server, problems, SERVER_SAMPLES)

    def correct(problem: int, sample: Sample) -> float:
        return task.reward(sample.text, problems[problem].ground_truth)

    usual = [Counter(map(opening, samples)).most_common(1)[0][0] for samples in embedded]
    assert 0.1 < mean(values(embedded, correct)) < 0.9, "a policy that is always right or wrong shows nothing"
    for name, value in {
        "correct": correct,
        "begins as usual": lambda problem, sample: opening(sample) == usual[problem],
        "completed": lambda problem, sample: sample.status == "completed",
        "tokens": lambda problem, sample: sample.tokens,
        "turns": lambda problem, sample: sample.turns,
        "tool calls": lambda problem, sample: sum(sample.tool_calls.values()),
        "tool errors": lambda problem, sample: sample.tool_errors,
    }.items():
        assert_equal_means(name, values(embedded, value), values(remote, value))


def opening(sample: Sample) -> tuple[str, ...]:
    """The first words of the last turn; their spread shows at what temperature they were sampled."""
    return tuple(sample.text.split()[:2])


def values(samples: list[list[Sample]], value: Callable[[int, Sample], float]) -> list[float]:
    return [float(value(problem, sample)) for problem, several in enumerate(samples) for sample in several]


def assert_equal_means(name: str, first: list[float], second: list[float]) -> None:
    """The means are as near as two samples of one population: for 0/1 values, the two-proportion interval.

    Samples of one problem belong together; ignoring that makes the interval wider than it need be.
    """
    error = math.sqrt(pvariance(first + second) * (1 / len(first) + 1 / len(second)))
    assert abs(mean(first) - mean(second)) <= Z * error + 1e-12, (name, mean(first), mean(second), error)
