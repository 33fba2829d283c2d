"""What would the rules do to my run? For people who train elsewhere."""

from pathlib import Path

import click

from estr.cli.group import PATH, main
from estr.errors import UserError


@main.command()
@click.argument("tokens", type=PATH)
@click.option("--map", "mapping", multiple=True, metavar="FIELD=COLUMN", help="which column holds a signal (repeat)")
@click.option("--tau", "taus", multiple=True, type=float, help="ESTR's threshold (repeat) [default: 1.6, 1.0]")
@click.option(
    "--budget",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="masked fraction for the matched thresholds [default: ESTR's]",
)
@click.option("--entropy-from-topk", "topk", metavar="COLUMN", help="bound the entropy from lists of top-k log-probs")
@click.option("--vocabulary", type=click.IntRange(min=2), help="with --entropy-from-topk: tokens in the vocabulary")
@click.option("--json", "as_json", type=PATH, help="write the findings as JSON")
@click.option("--figure", type=PATH, help="a .png of log-ratio against entropy; .pdf and .csv go beside it")
@click.option("--out", type=PATH, help="a .parquet: the input rows with one column keep_<rule> per rule")
def diagnose(
    tokens: Path,
    mapping: tuple[str, ...],
    taus: tuple[float, ...],
    budget: float | None,
    topk: str | None,
    vocabulary: int | None,
    as_json: Path | None,
    figure: Path | None,
    out: Path | None,
) -> None:
    """Which tokens of a run, trained with any framework, ESTR and the other rules would drop.

    \b
      estr diagnose results/laptop/runs/dapo_math/async/seed0/tokens.parquet --figure fig1.png
      estr diagnose verl_dump.parquet --map entropy=rollout_entropy --tau 1.0 --out kept.parquet

    TOKENS (.parquet, .csv, .jsonl) holds per token the log-prob under the behavior and under the trained policy and
    the behavior policy's entropy, in nats; one row per token, or one row per sequence with lists. Columns named as
    by verl, TRL, AReaL or estr are found; the others are named with --map: behavior_logprob, target_logprob, entropy,
    advantage, response_mask, step, sequence, position, weight_version (or version_first and version_last),
    target_version. docs/diagnose.md says how to write such a file, and how to read what comes out.
    """
    from estr import diagnose as tool
    from estr.diagnose.columns import parse_mapping
    from estr.diagnose.output import refuse_the_dump
    from estr.diagnose.verdicts import DEFAULT_TAUS
    from estr.provenance import write_json

    if figure is not None and figure.suffix != ".png":
        raise UserError(f"--figure {figure}: name a .png")
    if out is not None and out.suffix != ".parquet":
        raise UserError(f"--out {out}: name a .parquet")
    figures = [] if figure is None else [figure.with_suffix(suffix) for suffix in (".png", ".pdf", ".csv")]
    for output in filter(None, (as_json, out, *figures)):
        refuse_the_dump(output, tokens)
    taus = taus or DEFAULT_TAUS
    dump = tool.read_dump(tokens, parse_mapping(mapping), topk, vocabulary)
    diagnosis = tool.examine(dump, taus, budget)
    found = tool.record(dump, diagnosis)
    click.echo(tool.text(found))
    if as_json is not None:
        as_json.parent.mkdir(parents=True, exist_ok=True)
        write_json(as_json, found)
    if out is not None:
        tool.write_kept(dump, diagnosis, out)
    if figure is not None:
        from estr.diagnose.figure import draw

        draw(dump, diagnosis.usable, taus[0], figure)
