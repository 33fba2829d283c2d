from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from estr.algorithm.rules import build_rule
from estr.config import (
    Deviations,
    expand,
    keep_rule,
    load_experiment,
    load_method,
    load_scale,
    load_study,
    parse,
    parse_label,
    read_yaml,
    resolve,
)
from estr.errors import UserError

METHODS = ("sync", "async", "icepop", "kpop", "m2po", "estr")


def edit(path: Path, **changes: object) -> None:
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | changes))


def test_every_file_is_valid_and_every_run_resolves() -> None:
    load_study()
    parse(Deviations, read_yaml(Path("configs/paper/deviations.yaml")), "deviations.yaml")
    for scale in ("smoke", "laptop"):
        for path in Path("configs/experiments").glob("*.yaml"):
            for run in expand(load_experiment(path.stem).runs, scale):
                assert resolve(scale, run.task, run.label, run.seed) == run


def test_resolved_values_of_the_paper() -> None:
    estr = resolve("laptop", "dapo_math", "estr", 0)
    assert (estr.staleness.intra, estr.staleness.inter) == (8, 10)
    assert build_rule(estr.rule, **estr.thresholds) == build_rule("entropy_scaled", tau=1.6, eps=0.01)
    assert (estr.train.clip_low, estr.train.clip_high, estr.train.group) == (0.2, 0.28, 8)
    sync = resolve("laptop", "dapo_math", "sync", 0)
    assert (sync.staleness.intra, sync.staleness.inter, sync.rule) == (0, 0, "keep_all")
    published = {
        "icepop": build_rule("ratio_interval", low=0.5, high=5.0),
        "kpop": build_rule("binary_kl", phi=0.1),
        "m2po": build_rule("second_moment", budget=0.04, eligible="all"),
        "async": build_rule("keep_all"),
    }
    for method, rule in published.items():
        assert keep_rule(resolve("laptop", "dapo_math", method, 0)) == rule


def test_methods_differ_in_rule_and_synchrony_alone() -> None:
    decided = {"method", "rule", "thresholds", "staleness"}
    runs = [resolve("laptop", "dapo_math", method, 0).model_dump(exclude=decided) for method in METHODS]
    assert all(run == runs[0] for run in runs)


def test_overrides_reach_their_section() -> None:
    run = resolve("laptop", "dapo_math", "estr__intra=5__learning_rate=0.0003__tau=1.0", 2)
    assert run.thresholds == {"tau": 1.0, "eps": 0.01}
    assert (run.staleness.intra, run.train.learning_rate) == (5, 3e-4)
    assert resolve("laptop", "dapo_math", "icepop__thresholds=matched", 0).matched_budget


def test_hash_follows_what_changes_the_training() -> None:
    base = resolve("laptop", "dapo_math", "estr", 0)
    assert base.hash == resolve("laptop", "dapo_math", "estr", 0).hash
    hashes = {base.hash, resolve("laptop", "dapo_math", "estr", 1).hash}
    hashes |= {resolve("laptop", "dapo_math", "estr__tau=1.0", 0).hash}
    hashes |= {base.model_copy(update={"train": base.train.model_copy(update={"steps": 9})}).hash}
    assert len(hashes) == 4
    for section, change in (
        ("evaluation", {"samples": 8}),
        ("data", {"eval_problems": 9}),
        ("train", {"checkpoint_every": 7}),
    ):
        same = base.model_copy(update={section: getattr(base, section).model_copy(update=change)})
        assert same.hash == base.hash


@given(
    st.sampled_from(METHODS),
    st.dictionaries(st.sampled_from(["tau", "intra", "phi", "steps"]), st.integers(0, 99) | st.just(0.25)),
)
def test_label_round_trip(method: str, overrides: dict[str, int | float]) -> None:
    label = "__".join([method, *(f"{key}={value}" for key, value in sorted(overrides.items()))])
    assert parse_label(label) == (method, overrides)


@pytest.mark.parametrize(
    "label", ["estr__tau", "estr__=3", "estr__tau=", "estr__ta u=1", "estr__tau=[1]", "estr__tau=../x"]
)
def test_malformed_label(label: str) -> None:
    with pytest.raises(UserError, match="is not key=value"):
        parse_label(label)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("laptop", "dapo_math", "ppo", 0), "unknown method 'ppo': methods/ has async, estr"),
        (("laptop", "chess", "estr", 0), "unknown task 'chess': tasks/ has browsecomp_plus"),
        (("tablet", "dapo_math", "estr", 0), "unknown scale 'tablet'"),
        (("laptop", "dapo_math", "estr__intra=-1", 0), "'staleness.intra': Input should be greater"),
        (("laptop", "dapo_math", "estr__steps=many", 0), "'train.steps': Input should be a valid integer"),
        (("laptop", "dapo_math", "estr__thresholds=mine", 0), "thresholds can only be 'matched'"),
        (("laptop", "dapo_math", "estr", -1), "'seed'"),
        (
            ("laptop", "dapo_math", "estr__phi=1", 0),
            "unknown override 'phi'; there are intra, inter, tau, eps, thresholds",
        ),
        (("laptop", "dapo_math", "estr__tau=1.6", 0), "write it as 'estr'"),
        (("laptop", "dapo_math", "estr__tau=1", 0), "write it as 'estr__tau=1.0'"),
        (("laptop", "dapo_math", "sync__intra=5", 0), "sync: unknown override 'intra'"),
        (("laptop", "dapo_math", "estr__learning_rate=3e-4", 0), "write it as 'estr__learning_rate=0.0003'"),
        (("laptop", "dapo_math", "estr__tau=1.0__inter=2", 0), "write it as 'estr__inter=2__tau=1.0'"),
    ],
)
def test_unknown_names_and_bad_values(arguments: tuple[str, str, str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(*arguments)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("estr__tau=-1", "entropy_scaled: tau must be >= 0"),
        ("icepop__low=7.0", "ratio_interval: low must be"),
        ("m2po__eligible=some", "eligible"),
    ],
)
def test_bad_thresholds_name_the_method_file(label: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"configs/methods/.*{message}"):
        resolve("laptop", "dapo_math", label, 0)


def test_unknown_key_names_file_and_key(workspace: Path) -> None:
    edit(workspace / "configs/scales/laptop.yaml", sedes=[1])
    with pytest.raises(UserError, match=r"configs/scales/laptop.yaml: key 'sedes': Extra inputs"):
        load_scale("laptop")


def test_wrong_type_names_file_and_key(workspace: Path) -> None:
    edit(workspace / "configs/methods/estr.yaml", synchronous="perhaps")
    with pytest.raises(UserError, match=r"configs/methods/estr.yaml: key 'synchronous'.*'perhaps'"):
        load_method("estr")


def test_broken_yaml_is_one_line(workspace: Path) -> None:
    (workspace / "configs/methods/estr.yaml").write_text("title: [ESTR\nrule: x\n")
    with pytest.raises(UserError, match=r"estr.yaml: not valid YAML") as caught:
        load_method("estr")
    assert "\n" not in str(caught.value)


def test_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no configs/ folder"):
        load_scale("nowhere")


def test_a_run_that_two_matrices_name_is_made_once(workspace: Path) -> None:
    edit(
        workspace / "configs/experiments/main_results.yaml",
        runs=[
            {"tasks": ["dapo_math"], "methods": ["async"]},
            {"tasks": ["dapo_math"], "methods": ["async"], "overrides": {"inter": [10, 20], "learning_rate": [1e-4]}},
        ],
    )
    runs = expand(load_experiment("main_results").runs, "laptop")
    assert [(run.label, run.seed) for run in runs] == [
        (label, seed) for label in ("async", "async__inter=20") for seed in (0, 1, 2)
    ]


def test_a_task_changes_sections_of_its_scale_and_thresholds_of_a_method() -> None:
    dapo_math, browsecomp = (resolve("laptop", task, "estr", 0) for task in ("dapo_math", "browsecomp_plus"))
    assert (dapo_math.train.prompts, browsecomp.train.prompts) == (32, 16)
    assert dapo_math.train.clip_high == browsecomp.train.clip_high
    assert (dapo_math.thresholds["tau"], browsecomp.thresholds["tau"]) == (1.6, 1.0)
    assert resolve("laptop", "browsecomp_plus", "estr__tau=1.6", 0).thresholds["tau"] == 1.6
    gsm8k = resolve("laptop", "gsm8k", "estr", 0)
    assert (gsm8k.staleness.intra, gsm8k.staleness.inter) == (5, 13)
    assert (browsecomp.staleness.intra, browsecomp.staleness.inter) == (5, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"stepps": 3}}, r"laptop.yaml, tasks.gsm8k.train: key 'stepps'"),
        ({"counterpart": {"steps": 3}}, r"laptop.yaml, tasks.gsm8k.counterpart: key 'largest_number'"),
        ({"colour": "red"}, r"laptop.yaml: key 'tasks.gsm8k.colour'"),
    ],
)
def test_a_wrong_key_of_a_task_is_named(workspace: Path, change: dict, message: str) -> None:
    path = workspace / "configs/scales/laptop.yaml"
    content = yaml.safe_load(path.read_text())
    content["tasks"]["gsm8k"] |= change
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=message):
        resolve("laptop", "gsm8k", "estr", 0)
