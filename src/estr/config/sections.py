"""What may stand in the files under `configs/`: one class per section, strict types, unknown keys refused."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from estr.net.address import require_no_password

_LARGEST = 2**63 - 1  # what arrays and random generators take
Positive = Annotated[int, Field(gt=0, le=_LARGEST)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PolicySizes(Section):
    """Sizes of the tiny policy; the vocabulary comes from the task."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    max_position_embeddings: Positive


class DapoMathSizes(Section):
    """The laptop counterpart of DAPO-Math: how long its chains are and how noisy its demonstrations."""

    steps: Positive
    largest_term: Positive
    largest_total: Positive
    skip_rate: Share
    slip_rate: Share


class Gsm8kSizes(Section):
    """The laptop counterpart of GSM8K: sentences of a story, its numbers, and how noisy its demonstrations."""

    steps: Positive
    largest_number: Positive
    largest_total: Positive
    skip_rate: Share
    slip_rate: Share


class BrowseCompPlusSizes(Section):
    """The laptop counterpart of BrowseComp-Plus: its corpus, its questions, the search tool, the demonstrations."""

    people: Positive
    relations: Positive
    fewest_hops: Positive
    most_hops: Positive
    hits: Positive
    skip_rate: Share
    slip_rate: Share


CounterpartSizes = DapoMathSizes | Gsm8kSizes | BrowseCompPlusSizes
COUNTERPARTS: dict[str, type[CounterpartSizes]] = {
    "dapo_math": DapoMathSizes,
    "gsm8k": Gsm8kSizes,
    "browsecomp_plus": BrowseCompPlusSizes,
}


class DataSizes(Section):
    """Rows of the prepared sets."""

    train_problems: Positive
    eval_problems: Positive
    demonstrations: Positive


class PretrainSettings(Section):
    """The warm start: supervised training on demonstrations, cosine schedule to 5 % of the peak."""

    steps: Positive
    batch_size: Positive
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    seed: Count


class TrainSettings(Section):
    """Asynchronous GRPO. `prompts` problems with `group` responses each make one update."""

    steps: Positive
    prompts: Positive
    group: Annotated[int, Field(ge=2)]
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_low: Annotated[float, Field(ge=0, lt=1)]
    clip_high: Annotated[float, Field(ge=0)]
    grad_norm_limit: Annotated[float, Field(gt=0)]
    max_tokens: Positive
    temperature: Annotated[float, Field(gt=0)]
    on_switch: Literal["retract", "in_place"]
    checkpoint_every: Positive
    tokens_first: Count
    tokens_every: Positive
    validate_every: Count
    validate_problems: Positive


class EvaluationSettings(Section):
    """k sampled answers per held-out problem."""

    samples: Positive
    temperature: Annotated[float, Field(gt=0)]
    seed: Count


class ConcurrentSettings(Section):
    """Throughput measurement of the concurrent engine; threshold and interval have verl's meaning."""

    steps: Positive
    warmup_steps: Count
    staleness_threshold: Annotated[float, Field(ge=0)]
    sync_interval: Positive
    slots: Positive


class SampleSettings(Section):
    """Tokens of a real language model, sampled and scored for the scaling-law figures."""

    prompts: Positive
    group: Annotated[int, Field(ge=2)]
    max_tokens: Positive
    gradient_steps: Positive
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    switches: Positive
    temperature: Annotated[float, Field(gt=0)]
    seed: Count


class FrontierSettings(Section):
    """Search for the largest learning rate and inter-trajectory staleness at which training does not collapse."""

    steps: Positive
    learning_rate: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)]
    inter: Annotated[list[Count], Field(min_length=2)]

    @field_validator("learning_rate", "inter")
    @classmethod
    def _rising(cls, values: list[float]) -> list[float]:
        if any(after <= before for before, after in pairwise(values)):
            raise ValueError("must rise from value to value")
        return values


class TaskScale(Section):
    """A task at one scale: its counterpart's sizes, and what differs from the scale's own sections."""

    counterpart: dict[str, Any]
    seeds: Annotated[list[Count], Field(min_length=1)] | None = None
    policy: dict[str, Any] = {}
    data: dict[str, Any] = {}
    pretrain: dict[str, Any] = {}
    train: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    concurrent: dict[str, Any] = {}


class ScaleConfig(Section):
    """One file of `configs/scales/`."""

    engine: Literal["embedded"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    tasks: dict[str, TaskScale]
    policy: PolicySizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings
    calibration_steps: Positive
    concurrent: ConcurrentSettings
    samples: dict[str, SampleSettings] = {}
    frontier: FrontierSettings


class TaskSizes(Section):
    """What one task takes from a scale."""

    seeds: list[Count]
    counterpart: CounterpartSizes
    policy: PolicySizes
    data: DataSizes
    pretrain: PretrainSettings
    train: TrainSettings
    evaluation: EvaluationSettings
    concurrent: ConcurrentSettings


class Staleness(Section):
    """Weight versions a trajectory spans (`intra`), and from its last token to its update (`inter`)."""

    intra: Count
    inter: Count


class TaskConfig(Section):
    """One file of `configs/tasks/`; `thresholds` are those of a method that differ on this task."""

    staleness: Staleness
    thresholds: dict[str, dict[str, float | str]] = {}


class MethodConfig(Section):
    """One file of `configs/methods/`."""

    title: str
    source: str
    synchronous: bool
    rule: str
    thresholds: dict[str, float | str]


class MatrixAtScale(Section):
    """What a matrix has at one scale in place of its own."""

    tasks: list[str] | None = None
    overrides: dict[str, list[str | int | float]] | None = None


class RunMatrix(Section):
    """Every combination of tasks, methods and override values, with the scale's seeds: all, the first n, or a list."""

    tasks: list[str]
    methods: list[str]
    overrides: dict[str, list[str | int | float]] = {}
    seeds: Positive | list[Count] | None = None
    at: dict[str, MatrixAtScale] = {}


class ExperimentConfig(Section):
    """One file of `configs/experiments/`: what it trains, measures, samples, searches, and the artifacts made of it."""

    title: str
    engines: list[Literal["embedded", "verl"]] = ["embedded", "verl"]
    runs: list[RunMatrix] = []
    measurements: list[RunMatrix] = []
    samples: list[str] = []
    frontiers: list[RunMatrix] = []
    tables: list[str] = []
    figures: list[str] = []


class StudyConfig(Section):
    """`configs/config.yaml`."""

    scale: str
    experiments: list[str]
    results: str
    figures: str
    published_copies: str | None = None
    tracking_uri: str | None = None
    live_tracking: bool = False

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri is not None:
            require_no_password(uri)
        return uri


class Deviations(Section):
    """`configs/paper/deviations.yaml`: where a reproduction knowingly differs from the paper."""

    every_scale: list[str]
    by_scale: dict[str, list[str]]

    def of(self, scale: str) -> list[str]:
        return self.every_scale + self.by_scale.get(scale, [])
