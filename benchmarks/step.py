"""A whole training step against TRL's GRPOTrainer: sample, reward, score, objective, gradient, optimizer step."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.policies import TASK
from benchmarks.timing import Clock, Measurement, Spent, measured, take_turns
from estr.config import RunConfig, resolve
from estr.data.read import read_problems
from estr.embedded.concurrent import Recipe
from estr.embedded.concurrent.learner import Learner
from estr.embedded.policy import behavior_copy
from estr.layout import Layout
from estr.stages import open_trainer, prepare_data, warm_start
from estr.tasks import laptop_counterpart

TRL = "TRL's GRPOTrainer"


@dataclass(frozen=True)
class StepSizes:
    """`prompts` problems a step, `group` responses each of at most `max_tokens`; the warm start's length and data."""

    prompts: int = 32
    group: int = 8
    max_tokens: int = 18
    pretrain_steps: int = 150
    problems: int = 512

    def config(self, label: str) -> RunConfig:
        config = resolve("laptop", TASK, label, 0)
        train = {"prompts": self.prompts, "group": self.group, "max_tokens": self.max_tokens}
        demonstrations = 8 * self.problems
        data = {"train_problems": self.problems, "eval_problems": 16, "demonstrations": demonstrations}
        changes = {
            "train": config.train.model_copy(update=train),
            "data": config.data.model_copy(update=data),
            "pretrain": config.pretrain.model_copy(update={"steps": self.pretrain_steps, "batch_size": 64}),
        }
        return config.model_copy(update=changes)


@contextmanager
def started(sizes: StepSizes) -> Iterator[Layout]:
    """A results folder with the task's data and a warm start."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder), "laptop")
        config = sizes.config("sync")
        prepare_data(layout, config)
        warm_start(layout, config)
        yield layout


def whole_step(layout: Layout, sizes: StepSizes, steps: int, turns: int) -> list[Measurement]:
    """TRL's step in units of each of ours; a turn is `steps` updates of every trainer, from the same warm start.

    Ours writes metrics, the rules' probes and every token's record besides. `estr` samples each response by up to nine
    weight versions, with the prefix computed again at every switch; the two others are on-policy, as TRL is.
    """
    theirs = TrlSteps(layout, sizes, steps)
    arms: dict[str, Callable[[], object]] = {TRL: theirs}
    for label in ("sync", "estr"):
        arms[f"scheduled, {label}"] = _scheduled(layout, sizes.config(label), steps)
    arms["continuous batch, sync"] = _continuous(layout, sizes.config("sync"), steps)
    spent_by = take_turns(arms, turns)
    case = f"{sizes.prompts} x {sizes.group} responses of {fmean(theirs.lengths):.1f} tokens"
    found = []
    for ours in list(arms)[1:]:
        measurement = measured("training step", case, TRL, ours, spent_by[TRL], spent_by[ours])
        found.append(measurement if "estr" in ours else measurement.aim(at_least=1.5))
    return found


def _scheduled(layout: Layout, config: RunConfig, steps: int) -> Callable[[], Spent]:
    folder = layout.root / "benchmark" / config.label
    state = folder / "state"
    trainer = open_trainer(layout, config, folder, state)

    def call() -> Spent:
        return _each(lambda: trainer._update(), steps)  # `run` would write checkpoints between

    for _ in range(20 if config.staleness.intra else 0):  # until the versions of full staleness exist
        trainer._update()
    return call


def _continuous(layout: Layout, config: RunConfig, steps: int) -> Callable[[], Spent]:
    """The concurrent engine's parts in one process: all slots at once, then the update."""
    problems = read_problems(layout.data(config.task) / "train.parquet")
    task = laptop_counterpart(config.task, config.counterpart.model_dump())
    recipe = Recipe.prepare(config, task, problems, layout.warm_start(config.task))
    learner = Learner(recipe)
    generation = recipe.generation(behavior_copy(learner.policy), slots=config.train.prompts * config.train.group)

    def update() -> None:
        generation.limit += config.train.prompts
        groups = []
        while (complete := generation.advance()) is not None:
            groups += complete
        learner.backward(groups)
        learner.step()
        generation.switch(behavior_copy(learner.policy), learner.version)

    return lambda: _each(update, steps)


def _each(update: Callable[[], object], steps: int) -> Spent:
    """Mean of `steps` updates."""
    clock = Clock()
    for _ in range(steps):
        update()
    whole = clock.stop()
    return Spent(whole.wall / steps, whole.cpu / steps)


class TrlSteps(TrainerCallback):
    """`GRPOTrainer` on the same problems, reward and sizes; a call trains for `steps` updates and times them alone."""

    def __init__(self, layout: Layout, sizes: StepSizes, steps: int) -> None:
        config, self.steps = sizes.config("sync"), steps
        task = laptop_counterpart(TASK, config.counterpart.model_dump())
        problems = read_problems(layout.data(TASK) / "train.parquet")
        start = layout.warm_start(TASK)
        tokenizer = AutoTokenizer.from_pretrained(start)
        rows = [
            {
                "prompt": tokenizer.apply_chat_template(
                    list(problem.prompt), tokenize=False, add_generation_prompt=True
                ),
                "answer": problem.ground_truth,
            }
            for problem in problems
        ]
        self.lengths: list[float] = []
        self.taken: list[Spent] = []

        def reward(completions: Sequence[str], answer: Sequence[str], completion_ids: Any, **_: Any) -> list[float]:
            self.lengths.append(fmean(map(len, completion_ids)))
            return [task.reward(text, truth) for text, truth in zip(completions, answer, strict=True)]

        settings = config.train
        self.trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(start),
            reward_funcs=reward,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            args=GRPOConfig(
                output_dir=str(layout.root / "trl"),
                per_device_train_batch_size=settings.prompts * settings.group,
                gradient_accumulation_steps=1,
                num_generations=settings.group,
                max_completion_length=settings.max_tokens,
                temperature=settings.temperature,
                beta=0.0,
                epsilon=settings.clip_low,
                epsilon_high=settings.clip_high,
                loss_type="dapo",
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.grad_norm_limit,
                lr_scheduler_type="constant",
                max_steps=steps,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                logging_steps=10**6,
                disable_tqdm=True,
            ),
            callbacks=[self],
        )

    def __call__(self) -> Spent:
        self.taken = []
        self.trainer.train()
        return Spent(fmean(each.wall for each in self.taken), fmean(each.cpu for each in self.taken))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._clock = Clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.taken.append(self._clock.stop())
