"""Entropy, log-prob and version of every token against transformers, through everything that a rollout goes through."""

import random
from importlib.metadata import version

import pytest
from sglang_server import VOCABULARY, Models, Server

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


LONG = 800


@pytest.mark.parametrize(
    ("temperature", "sampling"),
    [(0.7, {}), (1.0, {}), (1.3, {"top_p": 0.9}), (0.7, {"top_k": 20})],
    ids=["0.7", "1.0", "1.3 top-p", "0.7 top-k"],
)
def test_equals_transformers(plain: Server, models: Models, temperature: float, sampling: dict) -> None:
    """130 tokens, beyond the 50 after which SGLang sends in parts; the prompt of 40 is prefilled in chunks of 16."""
    requests = plain.start([prompt(seed, 40) for seed in range(3)], 130, temperature=temperature, **sampling)
    for request in requests:
        answer = request.answer()
        assert len(answer.tokens) == 130 and set(answer.version) == {"0"}
        assert max(models.deviation(answer, temperature, {"0": "A"})) < TOLERANCE


def test_prefix_cache(plain: Server, models: Models) -> None:
    ids = prompt(7, 48)
    plain.generate(ids, 20, temperature=1.0)
    again = plain.generate(ids, 60, temperature=1.0)
    assert again.cached > 0
    assert max(models.deviation(again, 1.0, {"0": "A"})) < TOLERANCE


def test_stop_tokens_and_different_lengths(plain: Server, models: Models) -> None:
    stops = list(range(0, VOCABULARY, 12))
    stopped = [plain.start([prompt(seed, 20)], 120, temperature=1.0, stop_token_ids=stops)[0] for seed in range(4)]
    short = plain.start([prompt(9, 20)], 1, temperature=1.0)[0]
    answers = [request.answer() for request in [*stopped, short]]
    assert any(answer.finish == "stop" for answer in answers) and len(answers[-1].tokens) == 1
    for answer in answers:
        assert max(models.deviation(answer, 1.0, {"0": "A"})) < TOLERANCE


def test_greedy_reports_temperature_one(plain: Server, models: Models) -> None:
    assert max(models.deviation(plain.generate(prompt(3, 20), 30, temperature=0), 1.0, {"0": "A"})) < TOLERANCE


def test_retract_with_weight_update(uncached: Server, models: Models) -> None:
    """The cache is computed anew: each token matches the weights of its stamp, before and after the switch."""
    requests = uncached.start([prompt(seed, 24) for seed in range(4)], LONG, temperature=1.0)
    uncached.follow(prompt(90, 24), LONG // 4)
    uncached.post("/pause_generation", mode="retract")
    flush = version("sglang") != "0.5.12"  # whose server dies of it
    update = {"model_path": str(models.folders["B"]), "weight_version": "1", "flush_cache": flush}
    assert uncached.post("/update_weights_from_disk", **update).json()["success"]
    uncached.post("/continue_generation")
    answers = [request.answer() for request in requests]
    assert any(len(set(answer.version)) == 2 for answer in answers)
    for answer in answers:
        assert len(answer.tokens) == LONG and answer.version == sorted(answer.version)
        assert max(models.deviation(answer, 1.0, {"0": "A", "1": "B"})) < TOLERANCE


def test_abort_with_weight_update_and_resume(plain: Server, models: Models) -> None:
    """What verl does. The last test on this server: its weights are B's from here on."""
    prompts = [prompt(20 + seed, 24) for seed in range(4)]
    requests = plain.start(prompts, LONG, temperature=1.0)
    plain.follow(prompt(90, 24), LONG // 4)
    plain.post("/pause_generation", mode="abort")
    partial = [request.answer() for request in requests]
    ended = [(answer.finish, len(answer.tokens)) for answer in partial]
    assert any(finish == "abort" and 0 < tokens < LONG for finish, tokens in ended), ended
    update = {"model_path": str(models.folders["B"]), "weight_version": "1", "flush_cache": True}
    assert plain.post("/update_weights_from_disk", **update).json()["success"]
    plain.post("/continue_generation")
    for ids, answer in zip(prompts, partial, strict=True):
        assert set(answer.version) <= {"0"}
        assert not answer.tokens or max(models.deviation(answer, 1.0, {"0": "A"})) < TOLERANCE
        resumed = plain.generate(ids + answer.tokens, 60, temperature=1.0)
        assert set(resumed.version) == {"1"}
        assert max(models.deviation(resumed, 1.0, {"1": "B"})) < TOLERANCE
