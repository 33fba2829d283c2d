import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Body, ChatServer, completion
from sums_task import CountingEngine, Sums, sum_problems
from tokenizers import Tokenizer, models

from estr.errors import UserError
from estr.evaluation.judge import ExactMatchJudge, LlmJudge
from estr.evaluation.openai_engine import SamplingSettings
from estr.evaluation.standalone import choose_judge, evaluate_engine, evaluate_on_server, fingerprint, served_model
from estr.provenance import read_json
from estr.scoring import scoring_rule


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def say_the_number(body: Body) -> dict[str, Any]:
    return completion(f"#### {body['messages'][1]['content'].split()[2]}")


def test_a_model_behind_a_server_is_evaluated_to_a_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = {"k": 2, "sampling": SamplingSettings(temperature=0.7)}
    with ChatServer(say_the_number, models=("other", str(model))) as server:
        evaluate_on_server(model, Sums(), sum_problems(5), server.url, out, **given)
        assert {body["model"] for body in server.requests} == {str(model)}
        asked = len(server.requests)
        # again, at another address: nothing is sampled a second time
        with ChatServer(say_the_number) as elsewhere:
            evaluate_on_server(model, Sums(), sum_problems(5), elsewhere.url + "/v1", out, **given)
            assert elsewhere.requests == []
        assert asked == 10
        # other weights in the folder: all of it
        (model / "model.safetensors").write_bytes(b"others")
        evaluate_on_server(model, Sums(), sum_problems(5), server.url, out, **given)
        assert len(server.requests) == 20
    content = json.loads((out / "evaluation.json").read_text())
    assert (content["task"], content["avg@2"], content["engine"]) == ("sums", 1, "OpenAI-compatible server")
    assert content["settings"]["temperature"] == 0.7
    assert {"commit", "machine", "problems_sha256"} <= set(content)
    assert str(tmp_path) not in json.dumps(content) and server.url not in json.dumps(content)


def test_any_engine_can_be_given(tmp_path: Path) -> None:
    content = evaluate_engine(CountingEngine(), Sums(), sum_problems(5), tmp_path, k=4, seed=0, settings={"x": 1})
    assert read_json(tmp_path / "evaluation.json") == content
    assert (content["avg@4"], content["settings"]) == (0.5, {"x": 1})


def test_the_name_under_which_a_server_has_the_model(model: Path) -> None:
    for names, expected in (
        (("x", str(model)), str(model)),
        (("x", "tiny"), "tiny"),
        (("anything",), "anything"),
    ):
        with ChatServer(say_the_number, models=names) as server:
            assert served_model(server.url, model) == expected
    for names in (("x", "y"), ()):
        with ChatServer(say_the_number, models=names) as server, pytest.raises(UserError, match="serves"):
            served_model(server.url, model)


def test_what_is_no_model_folder_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        evaluate_on_server(
            tmp_path, Sums(), sum_problems(1), "http://127.0.0.1:1", tmp_path, k=1, sampling=SamplingSettings()
        )
    before = fingerprint(model)
    (model / "evaluation.json").write_text("{}")
    assert fingerprint(model) == before
    (model / "config.json").write_text("{ }")
    assert fingerprint(model) != before
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no model folder"):
        fingerprint(model)


def test_the_judge_of_an_evaluation(tmp_path: Path) -> None:
    browsing = replace(Sums(), rule=scoring_rule("browsecomp_plus_exact"))
    assert choose_judge(Sums(), None, None, tmp_path) is None
    assert isinstance(choose_judge(browsing, None, None, tmp_path), ExactMatchJudge)
    assert isinstance(choose_judge(browsing, "http://127.0.0.1:1", "m", tmp_path), LlmJudge)
    with pytest.raises(UserError, match="both"):
        choose_judge(browsing, "http://127.0.0.1:1", None, tmp_path)
