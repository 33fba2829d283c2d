"""What a scale of the verl engine says, and one resolved, hashed `ClusterRun` per run of it."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from estr.config.identity import Identity
from estr.config.sections import Count, EvaluationSettings, Positive, Section, Share
from estr.errors import UserError
from estr.net.address import parse_address

SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
"""Variables that hold a key by their name: WANDB_API_KEY, HF_TOKEN."""


class Parallelism(Section):
    """How a model is split over GPUs."""

    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    expert: Positive = 1


class ClusterPolicy(Section):
    """The policy that every run of a task starts from: a Hugging Face name below the site's `models`, or a folder."""

    model: str


class ClusterTrain(Section):
    """GRPO in verl: `prompts` problems with `group` responses each make one update."""

    epochs: Positive
    train_problems: Positive
    prompts: Positive
    group: Annotated[int, Field(ge=2)]
    learning_rate: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_low: Annotated[float, Field(ge=0, lt=1)]
    clip_high: Annotated[float, Field(ge=0)]
    grad_norm_limit: Annotated[float, Field(gt=0)]
    prompt_tokens: Positive
    max_tokens: Positive
    model_tokens: Positive
    turns: Positive
    temperature: Annotated[float, Field(gt=0)]
    staleness_threshold: Annotated[float, Field(ge=0)]
    sync_interval: Positive
    partial_rollout: bool
    save_every: Positive
    tokens_first: Count
    tokens_every: Count

    @property
    def steps(self) -> int:
        """Updates of the whole run, a multiple of the interval between pushes of weights."""
        updates = self.epochs * self.train_problems // self.prompts
        return max(updates // self.sync_interval, 1) * self.sync_interval


class ClusterResources(Section):
    """Nodes and how the models are laid out on them; `hours` is the wall time asked of Slurm for one job."""

    backend: Literal["megatron", "fsdp2"]
    train_nodes: Positive
    rollout_nodes: Positive
    gpus_per_node: Positive
    actor: Parallelism
    reference: Parallelism
    rollout_tensor: Positive
    rollout_expert: Positive
    memory_fraction: Share
    tokens_per_gpu: Positive
    hours: Positive

    @property
    def nodes(self) -> int:
        return self.train_nodes + self.rollout_nodes


class ClusterTask(Section):
    """A task at this scale: what differs from the scale's own sections. `reported` says whether the paper has its
    values.
    """

    reported: bool
    seeds: Annotated[list[Count], Field(min_length=1)] | None = None
    policy: dict[str, Any]
    train: Annotated[dict[str, Any], Field(default_factory=dict)]
    resources: Annotated[dict[str, Any], Field(default_factory=dict)]
    evaluation: Annotated[dict[str, Any], Field(default_factory=dict)]


class ClusterScale(Section):
    """A file of `configs/scales/` for the verl engine; `train` and `resources` need not be complete, the tasks add to
    them.
    """

    engine: Literal["verl"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    tasks: dict[str, ClusterTask]
    train: dict[str, Any]
    resources: dict[str, Any]
    evaluation: dict[str, Any]
    calibration_steps: Positive


class ClusterRun(Identity):
    """Everything that decides the numbers of a run in verl."""

    IRRELEVANT: ClassVar[dict[str, Any]] = {"evaluation": True, "train": {"save_every"}, "resources": {"hours"}}

    synchronous: bool
    reported: bool
    policy: ClusterPolicy
    train: ClusterTrain
    resources: ClusterResources
    evaluation: EvaluationSettings


class Site(Section):
    """`configs/site.yaml`: what one cluster has and calls its own."""

    models: str
    partition: str | None
    account: str | None
    gpu: str
    memory_gb: Positive
    cores: Positive
    launch: str
    setup: str
    retrievers: dict[str, str]
    retriever_port: Annotated[int, Field(ge=1024, le=65535)]
    judge_url: str | None
    judge_model: str | None
    ray_port: Annotated[int, Field(ge=1024, le=10000)]
    interface: str | None
    environment: dict[str, str]
    verl_settings: list[str]

    @model_validator(mode="after")
    def _holds_no_key(self) -> Self:
        """The file is in git, and what it says is shown on command lines."""
        services = [where for where in self.retrievers.values() if "://" in where]
        for url in filter(None, (self.judge_url, *services)):
            parse_address(url, "configs/site.yaml is in git; the judge's is read from ESTR_JUDGE_API_KEY")
        for name in self.environment:
            if SECRET_NAME.search(name):
                raise UserError(
                    f"configs/site.yaml: key 'environment' holds {name}, and the file is in git: set it where you call "
                    "snakemake, jobs get it from there"
                )
        return self
