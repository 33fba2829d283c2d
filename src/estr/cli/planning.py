"""Planning a cluster: what an asynchronous pipeline would gain there, by the model of `estr.pipeline`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from estr.cli.group import PATH, main
from estr.errors import UserError

if TYPE_CHECKING:
    from estr.pipeline.measurement import Measurement
    from estr.pipeline.model import Outcome
    from estr.pipeline.plan import Choice
    from estr.pipeline.settings import Pipeline

POSITIVE = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)
REQUIRED = ("gpus", "mean_length", "token_ms", "train_seconds")
COLUMNS = ("rollout/train", "s/update", "tokens/s/GPU", "speedup", "trainer idle", "rollout idle", "intra", "inter")
PAPER_ASSUMPTIONS = """\
calibrated with the paper's Table 2, which gives the mean length and one step time per mode; assumed, as it cannot
tell: response lengths had skew {skew:g} (--paper-skew), a full replica is slower by {slot_growth:g}
(--paper-slot-growth), the asynchronous run waited for its trainer, training takes half as long on twice the GPUs,
synchronizations take no time
"""


@main.command()
@click.option("--paper", is_flag=True, help="start from the paper's DAPO-Math run (Table 2, Table 3)")
@click.option("--measured", type=PATH, help="start from a measurement: results/<scale>/throughput/<task>/<label>/seed0")
@click.option("--gpus", type=click.IntRange(min=2), help="GPUs in all (of a measurement: cores)")
@click.option("--gpus-per-replica", type=POSITIVE, help="GPUs of a rollout replica (tensor parallel) [default: 1]")
@click.option("--split", type=POSITIVE, help="GPUs for rollouts, the others train [default: every split is tried]")
@click.option("--slots", type=POSITIVE, help="responses that a replica writes at once [default: 128]")
@click.option("--prompts", type=POSITIVE, help="prompts per update [default: 128]")
@click.option("--group", type=POSITIVE, help="responses per prompt [default: 8]")
@click.option("--mean-length", type=click.FloatRange(min=1), help="mean response length, tokens")
@click.option("--skew", type=SECONDS, help="standard deviation over mean of the response lengths [default: 1.0]")
@click.option("--limit", type=POSITIVE, help="response limit, tokens [default: none]")
@click.option("--token-ms", type=SECONDS, help="milliseconds per token of a replica that writes a single response")
@click.option("--slot-growth", type=SECONDS, help="how much slower, relatively, with all slots running [default: 0]")
@click.option("--train-seconds", type=SECONDS, help="training time of an update on all GPUs")
@click.option("--sync-seconds", type=SECONDS, help="time of a weight synchronization [default: 0]")
@click.option("--prefill-ms", type=SECONDS, help="milliseconds per prefix token read again after it [default: 0]")
@click.option("--threshold", type=SECONDS, help="verl's staleness_threshold [default: 0.1]")
@click.option("--interval", type=POSITIVE, help="verl's trigger_parameter_sync_step [default: 4]")
@click.option("--paper-skew", type=SECONDS, default=1.0, show_default=True, help="with --paper: the skew it had")
@click.option(
    "--paper-slot-growth", type=SECONDS, default=0.0, show_default=True, help="with --paper: the slot growth it had"
)
@click.option("--updates", type=POSITIVE, default=40, show_default=True, help="updates that are observed")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def plan(
    paper: bool,
    measured: Path | None,
    split: int | None,
    paper_skew: float,
    paper_slot_growth: float,
    updates: int,
    seed: int,
    **wanted: Any,
) -> None:
    """Would asynchronous training pay on your cluster, and how should its GPUs be split?

    \b
      estr plan --paper
      estr plan --paper --gpus 32 --threshold 1 --interval 1
      estr plan --measured results/laptop/throughput/dapo_math/estr/seed0
      estr plan --gpus 64 --gpus-per-replica 2 --mean-length 3000 --skew 1.2 --limit 16384 \\
                --token-ms 25 --slot-growth 0.6 --train-seconds 120

    A discrete-event model simulates every split of the GPUs, and synchronous training on all of them. Start from the
    paper's run, from a measurement, or from your own numbers: then --gpus, --mean-length, --token-ms and
    --train-seconds are needed. Options on top of --paper or --measured change that one thing and keep the rest.

    The columns: seconds per update; response tokens per second and GPU; synchronous step time over this one; share of
    time in which the trainer waits for responses, and in which a replica has nothing to write because the staleness
    threshold is reached; versions between a response's first and last token (intra) and from there to its update
    (inter), mean and largest. All numbers are modelled, but for the measured column that --measured adds.

    To read --token-ms off a run: seconds per decoding step. A mean length, a skew and a training time stand in every
    trainer's log.
    """
    from estr.pipeline.measurement import load_measurement
    from estr.pipeline.plan import recommend, simulate_sync, splits, try_split

    if paper and measured:
        raise UserError("--paper and --measured are two starting points: give one of them")
    given = {name: value for name, value in wanted.items() if value is not None}
    measurement = load_measurement(measured) if measured else None
    if measurement:
        _echo_validation(measurement)
    base = _start(paper, measurement, given, paper_skew, paper_slot_growth)
    pipeline = _changed(base, given)
    candidates = [split] if split else splits(pipeline.devices, pipeline.replica_devices)
    pipeline = replace(pipeline, rollout_devices=candidates[0])
    sync = simulate_sync(pipeline, updates, seed)
    bar = tqdm(candidates, "splits", leave=False, disable=None)
    choices = [try_split(pipeline, sync, devices, updates, seed) for devices in bar]
    best = recommend(choices)
    click.echo(_description(pipeline))
    _echo_table(sync, choices, best if split is None else None)
    if split is None:
        click.echo(_recommendation(best))


def _start(
    paper: bool, measurement: "Measurement | None", given: dict[str, Any], skew: float, slot_growth: float
) -> "Pipeline":
    """The pipeline before the single changes."""
    from estr.pipeline.calibration import calibrate, calibrate_to_paper
    from estr.pipeline.lengths import LognormalLengths
    from estr.pipeline.settings import Costs, Pipeline

    if paper:
        from estr.report.efficiency import paper_times
        from estr.report.paper import load_paper_values

        click.echo(PAPER_ASSUMPTIONS.format(skew=skew, slot_growth=slot_growth))
        return calibrate_to_paper(*paper_times(load_paper_values()), skew=skew, slot_growth=slot_growth)
    if measurement:
        return calibrate(measurement)
    missing = [f"--{name.replace('_', '-')}" for name in REQUIRED if name not in given]
    if missing:
        raise UserError(f"give --paper, --measured DIR, or your own numbers; of these {', '.join(missing)} are missing")
    replica = given.get("gpus_per_replica", 1)
    return Pipeline(
        prompts=128,
        group=8,
        lengths=LognormalLengths(given["mean_length"], given.get("skew", 1.0), given.get("limit")),
        costs=Costs(token_seconds=given["token_ms"] / 1000),
        devices=given["gpus"],
        rollout_devices=replica,
        replica_devices=replica,
        slots=128,
        threshold=0.1,
        interval=4,
    )


def _changed(base: "Pipeline", given: dict[str, Any]) -> "Pipeline":
    """`base` with the single changes; the split is the smallest rollout pool."""
    from estr.pipeline.lengths import LognormalLengths

    names = {"gpus": "devices", "gpus_per_replica": "replica_devices"}
    names |= {name: name for name in ("slots", "prompts", "group", "threshold", "interval")}
    changes: dict[str, Any] = {names[name]: value for name, value in given.items() if name in names}
    lengths = base.lengths
    if given.keys() & {"mean_length", "skew", "limit"}:
        limit = given.get("limit", getattr(lengths, "limit", None))
        lengths = LognormalLengths(given.get("mean_length", lengths.mean), given.get("skew", lengths.skew), limit)
    replica = changes.get("replica_devices", base.replica_devices)
    pipeline = replace(base, **changes, lengths=lengths, rollout_devices=replica)
    costs = pipeline.costs
    if "token_ms" in given:
        costs = replace(costs, token_seconds=given["token_ms"] / 1000)
    if "slot_growth" in given:
        costs = replace(costs, slot_seconds=costs.token_seconds * given["slot_growth"] / pipeline.slots)
    if "train_seconds" in given:
        tokens = pipeline.prompts * pipeline.group * lengths.mean
        costs = replace(costs, train_token_seconds=given["train_seconds"] * pipeline.devices / tokens)
    if "sync_seconds" in given:
        costs = replace(costs, sync_seconds=given["sync_seconds"])
    if "prefill_ms" in given:
        costs = replace(costs, prefill_seconds=given["prefill_ms"] / 1000)
    return replace(pipeline, costs=costs)


def _description(pipeline: "Pipeline") -> str:
    lengths, costs = pipeline.lengths, pipeline.costs
    full = 1000 * (costs.token_seconds + pipeline.slots * costs.slot_seconds)
    return (
        f"modelled: {pipeline.devices} GPUs, replicas of {pipeline.replica_devices} with {pipeline.slots} slots, "
        f"{full:.3g} ms per token with all of them running\n"
        f"{pipeline.prompts} x {pipeline.group} responses per update, mean {lengths.mean:.0f} tokens, skew "
        f"{lengths.skew:.2f}; staleness threshold {pipeline.threshold:g}, interval {pipeline.interval}\n"
    )


def _echo_table(sync: "Outcome", choices: "list[Choice]", best: "Choice | None") -> None:
    rows = [COLUMNS, ("sync, all", *_cells(sync, 1.0))]
    for choice in choices:
        rollout, devices = choice.pipeline.rollout_devices, choice.pipeline.devices
        rows.append((f"{rollout}/{devices - rollout}", *_cells(choice.outcome, choice.speedup)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line + ("  <" if best is not None and index >= 2 and choices[index - 2] is best else ""))


def _cells(outcome: "Outcome", speedup: float) -> tuple[str, ...]:
    return (
        f"{outcome.seconds_per_update:.4g}",
        f"{outcome.tokens_per_second_per_device:.4g}",
        f"{speedup:.2f}",
        f"{outcome.trainer_idle:.0%}",
        f"{outcome.rollout_idle:.0%}",
        f"{outcome.intra.mean():.1f} ({outcome.intra.max()})",
        f"{outcome.inter.mean():.1f} ({outcome.inter.max()})",
    )


def _recommendation(best: "Choice") -> str:
    rollout, devices = best.pipeline.rollout_devices, best.pipeline.devices
    text = f"{rollout} rollout and {devices - rollout} training GPUs, {best.speedup:.2f} times as fast as synchronous"
    if best.speedup < 1:
        return f"\nNo split pays, train synchronously; the best: {text}."
    return f"\nRecommended: {text} (the fastest; within 1 %, the least stale)."


def _echo_validation(measurement: "Measurement") -> None:
    from estr.pipeline.calibration import compare, predict

    click.echo(f"the measured window of {measurement.run_id}, and its model from stage times and lengths alone:")
    click.echo(f"{'':22}{'modelled':>12}{'measured':>12}")
    for row in compare(measurement, predict(measurement)):
        click.echo(f"{row.quantity:22}{row.modelled:12.4g}{row.measured:12.4g}  {row.unit}")
    click.echo()
