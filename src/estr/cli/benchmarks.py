"""The benchmarks by themselves: evaluate any policy, score any answers, serve the documents to search."""

import sys
from pathlib import Path

import click

from estr.cli.commands import WARM_START
from estr.cli.group import PATH, main, scale_options
from estr.config import ClusterScale, load_any_scale, load_site, resolve
from estr.errors import UserError
from estr.layout import PAPER, Layout
from estr.scoring import DEFAULT_RULE, RULES, score_lines, scoring_rule


@main.command()
@click.argument("task", required=False)
@click.argument("label", required=False)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@scale_options
@click.option("--model", type=PATH, help="a model folder, instead of a run: evaluate this policy")
@click.option("--task", "benchmark", help="with --model: the benchmark")
@click.option(
    "--server", help="with --model: URL of an OpenAI-compatible server that serves it [default: embedded engine]"
)
@click.option("--data", type=PATH, help="with --model: a prepared data folder [default: <results>/paper/data/<task>]")
@click.option(
    "--retriever", help="with --model: URL of a search service, or an index folder [default: the data folder]"
)
@click.option("--judge-url", help="with --model: OpenAI-compatible server of the judge")
@click.option("--judge-model", help="with --model: the judge model's name there")
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True, help="with --model: k")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="with --model")
@click.option("--top-p", type=click.FloatRange(min=0, max=1), default=1.0, show_default=True, help="with --model")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="with --model: what the policy may write in a dialogue [default: the paper's limit for the task]",
)
@click.option("--concurrency", type=click.IntRange(min=1), default=16, show_default=True, help="with --server")
@click.option("--out", type=PATH, help="with --model: folder of samples.jsonl and evaluation.json")
def evaluate(
    task: str | None,
    label: str | None,
    seed: int,
    scale: str,
    results: Path,
    model: Path | None,
    benchmark: str | None,
    server: str | None,
    data: Path | None,
    retriever: str | None,
    judge_url: str | None,
    judge_model: str | None,
    samples: int,
    temperature: float,
    top_p: float,
    max_tokens: int | None,
    concurrency: int,
    out: Path | None,
) -> None:
    """Sample k answers per held-out problem; avg@k, pass@k and best@k with intervals.

    \b
      estr evaluate gsm8k estr --seed 0
      estr evaluate gsm8k warm_start
      estr evaluate --model DIR --task gsm8k --server http://127.0.0.1:30000

    LABEL is that of a finished run of TASK, or `warm_start` for the policy that all runs start from. With --model the
    policy is any model folder: behind --server, or one of the laptop's in the embedded engine. A stopped evaluation
    goes on where it was. Keys are read from ESTR_SERVER_API_KEY and ESTR_JUDGE_API_KEY.
    """
    if model is None:
        if task is None or label is None:
            raise UserError("name TASK and LABEL of a run, or a policy with --model DIR --task NAME; see --help")
        _evaluate_run(task, label, seed, Layout(results, scale))
        return
    if benchmark is None or task is not None:
        raise UserError("--model DIR goes with --task NAME and without TASK and LABEL")
    from estr.evaluate_model import Request, evaluate_model

    folder = data or Layout(results, PAPER).data(benchmark)
    scores = evaluate_model(
        Request(
            model=model,
            task=benchmark,
            data=folder,
            evaluations=results / "evaluations",
            out=out,
            server=server,
            retriever=retriever,
            judge_url=judge_url,
            judge_model=judge_model,
            k=samples,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            concurrency=concurrency,
        )
    )
    low, high = scores[f"avg@{samples}_ci"]
    judged = f", judge: {scores['judge']}" if scores["judge"] else ""
    click.echo(
        f"{benchmark}: avg@{samples} {100 * scores[f'avg@{samples}']:.2f} % [{100 * low:.2f}, {100 * high:.2f}], "
        f"pass@{samples} {100 * scores[f'pass@{samples}']:.2f} %, {scores['n_problems']} problems, "
        f"{scores['missing']} samples missing, rule {scores['rule']['name']}{judged}"
    )


def _evaluate_run(task: str, label: str, seed: int, layout: Layout) -> None:
    if isinstance(load_any_scale(layout.scale), ClusterScale):
        _evaluate_on_sglang(task, label, seed, layout)
        return
    from estr import evaluate_run

    if label == WARM_START:
        evaluate_run.evaluate_warm_start(layout, resolve(layout.scale, task, "sync", 0, check_thresholds=False))
    else:
        evaluate_run.evaluate(layout, resolve(layout.scale, task, label, seed, check_thresholds=False))


def _evaluate_on_sglang(task: str, label: str, seed: int, layout: Layout) -> None:
    from estr.cli.cluster import cluster_run
    from estr.cluster.launch import evaluate as behind_sglang

    if label == WARM_START:
        behind_sglang.evaluate_warm_start(layout, cluster_run(layout.scale, task, "sync", 0), load_site())
    else:
        behind_sglang.evaluate(layout, cluster_run(layout.scale, task, label, seed), load_site())


@main.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
def compare(first: Path, second: Path) -> None:
    """The difference in avg@k of two evaluations of the same problems, FIRST minus SECOND, paired by problem.

    \b
      estr compare results/evaluations/gsm8k/a/evaluation.json results/evaluations/gsm8k/b/evaluation.json

    The interval is over problems; it says nothing about the spread between training seeds.
    """
    from estr.evaluation.compare import compare as paired

    found = paired(first, second)
    click.echo(f"{100 * found.mean:+.2f} points [{100 * found.low:+.2f}, {100 * found.high:+.2f}]")


@main.command()
@click.option("--task", type=click.Choice(sorted(DEFAULT_RULE)), required=True)
@click.option("--rule", type=click.Choice(sorted(RULES)), help="[default: the task's own]")
def score(task: str, rule: str | None) -> None:
    """Score JSON lines from standard input: what is extracted from each answer, and is it correct?

    \b
      echo '{"answer": "so 6 * 7 #### 42", "gold": "42"}' | estr score --task gsm8k

    One line goes out for each line that comes in; a line that cannot be scored carries an `error`.
    """
    for line in score_lines(sys.stdin.buffer, scoring_rule(rule or DEFAULT_RULE[task])):
        click.echo(line)


@main.group()
def search() -> None:
    """The retriever that search tools ask."""


@search.command("index")
@click.argument("corpus", type=PATH)
@click.option("--out", type=PATH, required=True, help="folder of the index")
@click.option("--dense", "encoder", help="instead of BM25: embed with this Qwen3 embedding model, a folder or Hub name")
def search_index(corpus: Path, out: Path, encoder: str | None) -> None:
    """Index the documents of CORPUS, a prepared corpus.parquet, with BM25 or with embeddings."""
    from estr.tasks.retrieval import build_index

    build_index(corpus, out, encoder)


@search.command("serve")
@click.argument("where", type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port")
@click.option("--expose", is_flag=True, help="let other machines in; the service asks for no password")
def search_serve(where: Path, host: str, port: int, expose: bool) -> None:
    """Serve an index, a prepared corpus.parquet, or a prepared data folder, over HTTP until Ctrl-C.

    POST /search {query, k}, POST /retrieve (Search-R1's form), GET /documents/ID, GET /health.
    """
    from estr.tasks.retrieval import open_local
    from estr.tools.service import serve

    serve(open_local(where), host=host, port=port, expose=expose)
