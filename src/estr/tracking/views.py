"""Saved views of an experiment's runs: filter, order and columns, as MLflow's own "share" saves them.

MLflow keeps a view in a tag of the experiment and opens it by its key, so that a link is all that a reader needs.
"""

import json
from dataclasses import dataclass

from estr.tracking.store import Study

SMOOTHING = 70  # per cent, as MLflow's charts count it
SCORES = ("eval/avg_at_4", "eval/pass_at_4")


@dataclass(frozen=True)
class View:
    """`search` is a filter in MLflow's language, which has no `or`; `metrics` and `tags` are the columns.

    The order is by the metric `by`, largest first.
    """

    key: str
    experiment: str
    title: str
    search: str
    tags: tuple[str, ...]
    metrics: tuple[str, ...]
    by: str = "eval/avg_at_4"


VIEWS = (
    View(
        "estr-icepop-gsm8k",
        "main_results",
        "Compare ESTR and IcePop on GSM8K",
        "tags.kind = 'run' and tags.task = 'gsm8k' and tags.label != 'sync' and tags.label != 'async' "
        "and tags.label != 'kpop' and tags.label != 'm2po'",
        ("method", "seed"),
        (*SCORES, "reward", "masked_fraction", "masked_entropy", "ratio_deviation"),
    ),
    View(
        "methods-dapo-math",
        "main_results",
        "Every method on DAPO-Math, best first",
        "tags.kind = 'run' and tags.task = 'dapo_math'",
        ("method", "seed"),
        (*SCORES, "reward", "entropy", "kl_to_behavior", "masked_fraction"),
    ),
    View(
        "evaluations",
        "main_results",
        "All evaluations, best first",
        "tags.kind = 'evaluation'",
        ("task", "method", "seed"),
        SCORES,
    ),
    View(
        "masked-tokens",
        "mask_behavior",
        "How many tokens each rule masks at the end, and of what entropy",
        "tags.kind = 'run'",
        ("task", "method", "seed"),
        ("masked_fraction", "masked_entropy", "sequences_masked_fraction", "ratio_deviation"),
        by="masked_fraction",
    ),
    View(
        "matched-budget",
        "matched_budget",
        "Who learns at ESTR's masking budget",
        "tags.kind = 'run'",
        ("label", "seed"),
        (*SCORES, "reward", "masked_fraction", "masked_entropy"),
    ),
    View(
        "staleness",
        "staleness_sweep",
        "Reward against staleness",
        "tags.kind = 'run'",
        ("overrides", "seed"),
        ("staleness_intra", "staleness_inter", "reward", *SCORES),
        by="staleness_inter",
    ),
)


def view_tags(experiment: str) -> dict[str, str]:
    """The experiment's tags that hold its views."""
    return {f"mlflow.sharedViewState.{view.key}": _state(view) for view in VIEWS if view.experiment == experiment}


def link_of(study: Study, view: View) -> str:
    """Relative to the server."""
    return f"#/experiments/{study.chapter(view.experiment).experiment_id}/runs?viewStateShareKey={view.key}"


def _state(view: View) -> str:
    state = {
        "searchFilter": view.search,
        "orderByKey": f"metrics.`{view.by}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [f"tags.`{tag}`" for tag in view.tags] + [f"metrics.`{name}`" for name in view.metrics],
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": SMOOTHING, "selectedXAxisMetricKey": ""},
    }
    return json.dumps(state)
