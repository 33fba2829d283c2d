"""SGLang's HTTP server with the plugin, and the same policy in transformers to hold it against."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from estr.algorithm import logprob_and_entropy
from estr.cluster.meta import ENTROPY, WEIGHT_VERSION

VOCABULARY = 512


@dataclass
class Server:
    """A running server; `generate` blocks, `start` answers later."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    answers: list[Any] = field(default_factory=list)

    def post(self, path: str, **body: Any) -> Any:
        response = httpx.post(f"{self.url}{path}", json=body, timeout=300)
        assert response.status_code == 200, (path, response.text[:500], self.log.read_text()[-2000:])
        return response.json() if response.content and path == "/generate" else response

    def generate(self, ids: Sequence[int], tokens: int, **sampling: Any) -> "Answer":
        limits = {"max_new_tokens": tokens, "ignore_eos": "stop_token_ids" not in sampling}
        return Answer.of(
            ids, self.post("/generate", input_ids=list(ids), return_logprob=True, sampling_params=limits | sampling)
        )

    def follow(self, ids: Sequence[int], tokens: int) -> None:
        """Wait until a request of its own, beside the others, has got this many tokens; then drop it."""
        limits = {"max_new_tokens": 2 * tokens, "ignore_eos": True, "temperature": 1.0}
        body = {"input_ids": list(ids), "stream": True, "sampling_params": limits}
        with httpx.stream("POST", f"{self.url}/generate", json=body, timeout=300) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["meta_info"]["completion_tokens"] >= tokens:
                    return
        raise AssertionError("the request ended early")

    def start(self, prompts: Sequence[Sequence[int]], tokens: int, **sampling: Any) -> list["Pending"]:
        return [Pending(self, ids, tokens, sampling) for ids in prompts]


class Pending:
    """A request in the background."""

    def __init__(self, server: Server, ids: Sequence[int], tokens: int, sampling: dict[str, Any]) -> None:
        self._answer: Answer | None = None

        def ask() -> None:
            self._answer = server.generate(ids, tokens, **sampling)

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()

    def answer(self) -> "Answer":
        self._thread.join(timeout=300)
        assert self._answer is not None, "no answer"
        return self._answer


@dataclass(frozen=True)
class Answer:
    """Tokens with what SGLang and the plugin say about each."""

    prompt: list[int]
    tokens: list[int]
    logprob: list[float]
    entropy: list[float]
    version: list[str]
    finish: str
    cached: int

    @classmethod
    def of(cls, prompt: Sequence[int], answer: dict[str, Any]) -> "Answer":
        meta = answer["meta_info"]
        logprobs = meta["output_token_logprobs"] or []
        found = cls(
            list(prompt),
            answer["output_ids"],
            [value for value, _, _ in logprobs],
            meta.get(ENTROPY, []),
            meta.get(WEIGHT_VERSION, []),
            meta["finish_reason"]["type"],
            meta.get("cached_tokens", 0),
        )
        assert [token for _, token, _ in logprobs] == found.tokens
        assert len(found.entropy) == len(found.version) == len(found.tokens), "columns are not aligned"
        return found


@dataclass(frozen=True)
class Models:
    """Two policies of one shape, A and B, as folders and in memory."""

    folders: dict[str, Path]
    policies: dict[str, Any]

    def deviation(self, answer: Answer, temperature: float, by_version: dict[str, str]) -> tuple[float, float]:
        """Largest |log-prob| and |entropy| deviation from transformers; each token is held against its own weights."""
        ids = torch.tensor([answer.prompt + answer.tokens])
        worst = torch.zeros(2)
        for version in set(answer.version):
            with torch.no_grad():
                logits = self.policies[by_version[version]](ids).logits[0, len(answer.prompt) - 1 : -1].float()
            logprob, entropy = logprob_and_entropy(logits, torch.tensor(answer.tokens), temperature)
            mine = torch.tensor([v == version for v in answer.version])
            errors = [(logprob - torch.tensor(answer.logprob)).abs(), (entropy - torch.tensor(answer.entropy)).abs()]
            worst = torch.maximum(worst, torch.stack([error[mine].max() for error in errors]))
        return float(worst[0]), float(worst[1])


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folders, policies = {}, {}
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
        )
        policy = Qwen2ForCausalLM(config).eval()
        with torch.no_grad():
            policy.lm_head.weight.mul_(12)  # so that entropies vary
        folders[name] = tmp_path_factory.mktemp(name)
        policy.save_pretrained(folders[name])
        policies[name] = policy
    return Models(folders, policies)


def serve(models: Models, log: Path, *options: str) -> Iterator[Server]:
    port = random.randint(20_000, 50_000)  # 0.5.12 wants 10,000 more for itself
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model-path", str(models.folders["A"]), "--device", "cpu", "--dtype", "float32"]
    command += ["--attention-backend", "torch_native", "--skip-tokenizer-init", "--skip-server-warmup"]
    command += ["--context-length", "1000", "--max-total-tokens", "8192", "--max-running-requests", "8"]
    command += ["--weight-version", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait(server)
        yield server
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _wait(server: Server, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()[-4000:]
        try:
            if httpx.get(f"{server.url}/health", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise TimeoutError(server.log.read_text()[-4000:])


@pytest.fixture(scope="session")
def plain(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With prefix cache and chunked prefill."""
    yield from serve(models, tmp_path_factory.mktemp("server") / "log.txt", "--chunked-prefill-size", "16")


@pytest.fixture(scope="session")
def uncached(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without prefix cache, as 0.5.12 needs for a clean retract."""
    yield from serve(models, tmp_path_factory.mktemp("server") / "log.txt", "--disable-radix-cache")
