"""ESTR in an unmodified verl 0.9.1: `actor_rollout_ref.model.external_lib=estr.cluster.verl`.

Importing this package registers every keep rule as a policy loss (`losses.LOSS_MODES`), lets verl's own agent loops
carry the entropy and the weight version of each token to that loss, and makes verl's SGLang replica return both.
docs/use_in_verl.md has a complete example; `hooks` lists every place where verl is changed.
"""

from estr.cluster.verl import agent_loops, hooks, losses
from estr.cluster.verl.settings import KeepRuleConfig

hooks.install()

__all__ = ["KeepRuleConfig", "agent_loops", "hooks", "losses"]
