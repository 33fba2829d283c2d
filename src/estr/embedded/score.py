"""A rollout's tokens under the weights that are trained."""

import torch
from torch import Tensor

from estr.algorithm.signals import TokenSignals, token_logprob
from estr.embedded.policy import Policy, response_logits
from estr.embedded.sampler import Rollout


def score(policy: Policy, rollout: Rollout, advantage: Tensor, temperature: float) -> TokenSignals:
    """The signals of every token, `target_logprob` with its gradient; `advantage` `[rows]` is that of each response."""
    logits = response_logits(policy, rollout.prompts, rollout.prompt_valid, rollout.tokens, rollout.mask)
    logprob = token_logprob(logits, rollout.tokens[rollout.mask], temperature)
    target = torch.zeros(rollout.mask.shape).masked_scatter(rollout.mask, logprob)
    return TokenSignals(
        behavior_logprob=rollout.logprob,
        target_logprob=target,
        entropy=rollout.entropy,
        advantage=advantage[:, None].expand_as(target),
        response_mask=rollout.mask,
        weight_version=rollout.version,
    )
