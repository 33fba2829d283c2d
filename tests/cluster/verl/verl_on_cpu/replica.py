"""A rollout replica that samples with transformers, token by token, and can be aborted between any two of them."""

import asyncio
import json
import os

import numpy as np
import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from estr.algorithm import logprob_and_entropy
from estr.cluster.verl.columns import FIELD, TokenColumns

NAME = "transformers"


def server_name(replica_rank):
    return f"transformers_server_{replica_rank}"


class Server:
    """verl's server interface.

    `ESTR_TEST_TOKEN_SECONDS` slows the sampling down, so that updates fall into trajectories. `ESTR_TEST_FORCED` (ids)
    is what a first turn begins with, whatever the policy thinks of it: an untrained one would never call a tool.
    """

    def __init__(self, path, response_length, seed):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.end = {self.model.generation_config.eos_token_id, self.model.config.eos_token_id} - {None}
        self.response_length = response_length
        self.generator = torch.Generator().manual_seed(seed)
        self.global_steps = None
        self.running = asyncio.Event()
        self.running.set()
        self.seconds = float(os.environ.get("ESTR_TEST_TOKEN_SECONDS", "0"))
        self.forced = json.loads(os.environ.get("ESTR_TEST_FORCED", "[]"))
        self.active = 0

    async def generate(self, prompt_ids, sampling_params, request_id, **named):
        await self.running.wait()
        limit = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self.response_length
        temperature = sampling_params.get("temperature", 1.0)
        tokens, logprobs, entropies, cache, reason = [], [], [], None, "length"
        version = self.global_steps
        inputs = torch.tensor([list(prompt_ids)])
        forced = self.forced_after(list(prompt_ids))
        self.active += 1
        try:
            while len(tokens) < limit:
                if not self.running.is_set():
                    reason = "aborted"
                    break
                with torch.no_grad():
                    output = self.model(inputs, past_key_values=cache, use_cache=True)
                logits, cache = output.logits[0, -1].float(), output.past_key_values
                scale = temperature or 1.0
                if temperature:
                    chosen = torch.multinomial((logits / scale).softmax(-1), 1, generator=self.generator)
                else:
                    chosen = logits.argmax(-1, keepdim=True)
                if forced:
                    chosen = torch.tensor([forced.pop(0)])
                logprob, entropy = logprob_and_entropy(logits, chosen[0], scale)
                tokens.append(int(chosen))
                logprobs.append(float(logprob))
                entropies.append(float(entropy))
                if tokens[-1] in self.end:
                    reason = "completed"
                    break
                inputs = chosen[None]
                await asyncio.sleep(self.seconds)
        finally:
            self.active -= 1
        columns = TokenColumns(
            np.asarray(entropies, np.float32), np.full(len(tokens), -1 if version is None else version, np.int64)
        )
        return TokenOutput(
            token_ids=tokens,
            log_probs=logprobs,
            stop_reason=reason,
            extra_fields={"global_steps": version, FIELD: columns},
        )

    def forced_after(self, prompt):
        """What is left of the forced tokens: a resumed request may have some of them in its prompt."""
        for done in range(len(self.forced), 0, -1):
            part = self.forced[:done]
            if done == len(self.forced) and any(prompt[i : i + done] == part for i in range(len(prompt))):
                return []
            if prompt[-done:] == part:
                return self.forced[done:]
        return list(self.forced)

    async def update_weights(self, state, global_steps):
        tied = self.model.config.tie_word_embeddings
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected and (not missing or (tied and missing == ["lm_head.weight"])), (missing, unexpected)
        self.global_steps = global_steps

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def abort_all_requests(self, reject_request=False):
        self.running.clear()
        while self.active:
            await asyncio.sleep(0.01)

    async def resume_generation(self):
        self.running.set()

    async def nothing(self, *arguments, **named):
        pass

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class Replica(RolloutReplica):
    async def launch_servers(self):
        path = self.model_config.get("local_path", None) or self.model_config.path
        handle = (
            ray.remote(Server)
            .options(name=server_name(self.replica_rank), max_concurrency=200, num_cpus=0)
            .remote(path, self.config.response_length, seed=self.replica_rank)
        )
        await handle.set_global_steps.remote(0)
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"transformers:{self.replica_rank}"


class Adapter(BaseRollout):
    """Takes the weights on the rollout's side of the checkpoint engine to the server."""

    server_name = staticmethod(server_name)

    def __init__(self, config, model_config, device_mesh, replica_rank=None, **named):
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ.get("RANK", 0))
        self.replica_rank = rank if replica_rank is None else replica_rank
        self.is_leader_rank = True
        self.sleep_level = 1

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **named):
        state = {}
        if hasattr(weights, "__aiter__"):
            async for name, weight in weights:
                state[name] = weight.detach().float().cpu().clone()
        else:
            state = {name: weight.detach().float().cpu().clone() for name, weight in weights}
        await ray.get_actor(self.server_name(self.replica_rank)).update_weights.remote(state, global_steps)

    async def resume(self, tags):
        pass

    async def release(self):
        pass


RolloutReplicaRegistry.register(NAME, lambda: Replica)
_ROLLOUT_REGISTRY[(NAME, "async")] = "verl_on_cpu.replica.Adapter"
