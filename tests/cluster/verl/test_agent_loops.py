"""The agent loops and the client against scripted servers: what aborts, turns and tool messages do to the columns."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.tokenizer import hf_tokenizer
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from estr.cluster.verl.agent_loops import SingleTurn, ToolCalling
from estr.cluster.verl.client import recording
from estr.cluster.verl.columns import FIELD, OUTSIDE, MissingColumns, TokenColumns
from estr.cluster.verl.sglang_replica import columns, recording_server
from estr.cluster.verl.task_reward import last_turn
from estr.cluster.verl.task_tools import TaskTool


def segment(tokens, version, reason="completed", entropy=None):
    """What a server answers; a token's entropy is its id / 100 + its version."""
    entropy = [token / 100 + version for token in tokens] if entropy is None else entropy
    return TokenOutput(
        token_ids=tokens,
        log_probs=[-float(token) for token in tokens],
        stop_reason=reason,
        extra_fields={"global_steps": version, FIELD: TokenColumns.of(entropy, [version] * len(entropy))},
    )


class Remote:
    """A Ray method that answers from a list."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []

    async def remote(self, *arguments, **named):
        self.asked.append(named)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Balancer:
    def __init__(self, server):
        self.require_acquire_fields = Remote([["request_id"]])
        self.require_release_fields = Remote([["request_id"]])
        self.acquire_server = Remote([("server", server)])
        self.release_server = type("Release", (), {"remote": staticmethod(lambda **named: None)})


class Server:
    def __init__(self, segments):
        self.generate = Remote(segments)


@pytest.fixture(scope="module")
def config():
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                "data.max_prompt_length=64",
                "data.max_response_length=40",
                "actor_rollout_ref.rollout.multi_turn.enable=True",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
                "actor_rollout_ref.rollout.name=sglang",
            ],
        )


def client(kind, config, segments):
    return kind(config, Balancer(Server(segments)))


def test_resumed_segments_are_joined(config, monkeypatch) -> None:
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: asyncio.to_thread(lambda: None))
    segments = [segment([1, 2, 3], 5, "aborted"), segment([], 5, "aborted"), segment([4, 5], 6)]
    output = asyncio.run(
        recording(client(FullyAsyncLLMServerClient, config, segments)).generate("r", prompt_ids=[7], sampling_params={})
    )
    assert output.token_ids == [1, 2, 3, 4, 5]
    assert output.extra_fields[FIELD].weight_version.tolist() == [5, 5, 5, 6, 6]
    assert output.extra_fields[FIELD].entropy.tolist() == pytest.approx([5.01, 5.02, 5.03, 6.04, 6.05])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda s: s.extra_fields.pop(FIELD), "no per-token entropy"),
        (lambda s: s.token_ids.append(9), "2 entropies for 3"),
    ],
)
def test_missing_columns_travel_as_an_error(config, damage, says) -> None:
    broken = segment([1, 2], 0)
    damage(broken)
    output = asyncio.run(
        recording(client(LLMServerClient, config, [broken])).generate("r", prompt_ids=[7], sampling_params={})
    )
    found = output.extra_fields[FIELD]
    assert isinstance(found, MissingColumns) and says in str(found)


def test_unknown_client_is_refused(config) -> None:
    class Own(LLMServerClient):
        pass

    with pytest.raises(TypeError, match="not Own"):
        recording(client(Own, config, []))


def loop(kind, config, segments, policy: Path, tools=()):
    from verl.utils.dataset.rl_dataset import RLHFDataset

    async def make_and_run(row):
        made = kind(
            trainer_config=DictConfigWrap(config),
            server_manager=client(LLMServerClient, config, segments),
            tokenizer=hf_tokenizer(str(policy)),
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap(list(tools)),
        )
        return await made.run({}, **row)

    return make_and_run


def test_loops_replace_verls_own() -> None:
    for name, kind in {"single_turn_agent": SingleTurn, "tool_agent": ToolCalling}.items():
        assert _agent_loop_registry[name]["_target_"] == f"{kind.__module__}.{kind.__qualname__}"


def test_single_turn(config, policy_folder: Path) -> None:
    row = {"raw_prompt": [{"role": "user", "content": "7 + 5"}]}
    output = asyncio.run(loop(SingleTurn, config, [segment([9, 10, 11], 3)], policy_folder)(row))
    assert output.response_ids == [9, 10, 11]
    assert output.extra_fields[FIELD].entropy.tolist() == pytest.approx([3.09, 3.10, 3.11])


def test_tool_turns(config, stories) -> None:
    """Two calls and an answer: tool output has no entropy, each turn's tokens have their own version."""
    folder, tokenizer, (problem, *_) = stories
    tool = Gsm8kTool(folder)
    turns = [
        ' <tool_call> {"name": "calculator", "arguments": {"expression": " 7 + 5 "}} </tool_call>',
        ' <tool_call> {"name": "calculator", "arguments": {"expression": " 12 - 3 "}} </tool_call>',
        " #### 9",
    ]
    ids = [[*tokenizer.encode(turn), tokenizer.end_id] for turn in turns]
    segments = [segment(tokens, version) for version, tokens in enumerate(ids, start=2)]
    row = problem.row() | {"raw_prompt": list(problem.prompt)}
    output = asyncio.run(loop(ToolCalling, config, segments, folder, [tool])(row))
    found, mask = output.extra_fields[FIELD], np.array(output.response_mask, bool)
    assert len(found) == len(output.response_ids) == len(mask)
    assert np.array_equal(mask, found.weight_version != OUTSIDE)
    assert np.array_equal(mask, ~np.isnan(found.entropy))
    policy_tokens = np.array(output.response_ids)[mask]
    assert policy_tokens.tolist() == [token for tokens in ids for token in tokens]
    assert found.weight_version[mask].tolist() == [2] * len(ids[0]) + [3] * len(ids[1]) + [4] * len(ids[2])
    np.testing.assert_allclose(found.entropy[mask], policy_tokens / 100 + found.weight_version[mask], rtol=1e-6)
    assert np.array(output.response_logprobs)[mask].tolist() == (-policy_tokens).tolist()
    text = tokenizer.decode(output.response_ids)
    assert " tool 12" in text and " tool 9" in text
    assert tokenizer.decode(output.response_ids[last_turn(found) :]) == " #### 9"


def Gsm8kTool(folder: Path) -> TaskTool:  # noqa: N802
    from estr.tools.calculator import Calculator

    schema = OpenAIFunctionToolSchema.model_validate(Calculator().schema)
    return TaskTool({"type": "native", "task": "gsm8k", "data": str(folder), "tokenizer": str(folder)}, schema)


def test_sglang_server_adds_the_columns() -> None:
    """verl's server reads log-probs out of `meta_info`; ours reads the rest, for the same request."""

    class Manager:
        async def generate_request(self, request, http):
            yield {"output_ids": [4, 5], "meta_info": {"output_token_entropy": [0.1, 0.2]}}

    class VerlsServer:
        async def launch_server(self):
            self.tokenizer_manager = Manager()

        async def generate(self, prompt_ids, sampling_params, request_id):
            request = type("Request", (), {"rid": request_id})
            answer = await self.tokenizer_manager.generate_request(request, None).__anext__()
            return TokenOutput(token_ids=answer["output_ids"], log_probs=[-1.0, -2.0], extra_fields={"global_steps": 7})

    async def ask():
        server = recording_server(VerlsServer)()
        await server.launch_server()
        return await server.generate([1], {}, "request"), server._meta

    output, left = asyncio.run(ask())
    assert output.extra_fields[FIELD].weight_version.tolist() == [7, 7]
    assert output.extra_fields[FIELD].entropy.tolist() == pytest.approx([0.1, 0.2])
    assert left == {}


def test_sglang_without_plugin() -> None:
    with pytest.raises(MissingColumns, match="plugin"):
        columns({}, 3, 0)
    assert len(columns({}, 0, 0)) == 0
