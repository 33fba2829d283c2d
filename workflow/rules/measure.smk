# Throughput of the concurrent engine, tokens of a real language model, and the stability frontier.


# Takes all cores, so that nothing else runs while it is measured.
rule throughput:
    input:
        rules.prepare.output,
        rules.pretrain.output,
    output:
        f"{THROUGHPUT}/throughput.json",
        f"{THROUGHPUT}/steps.parquet",
        f"{THROUGHPUT}/trajectories.parquet",
    log:
        f"{LOGS}/throughput/{{task}}/{{label}}/seed{{seed}}.log",
    benchmark:
        f"{LOGS}/throughput/{{task}}/{{label}}/seed{{seed}}.benchmark.tsv"
    conda:
        "../../environment.yml"
    threads: workflow.cores
    resources:
        mem_mb=2500,
        runtime=20,
    params:
        options=OPTIONS,
        config_hash=lambda w: run_config(w).hash,
        settings=lambda w: str(settings.load_sizes(SCALE, w.task).concurrent),
    shell:
        "estr throughput {wildcards.task} {wildcards.label} --seed {wildcards.seed} {params.options} 2> {log}"


# The language model is the longest single job: it starts first, or it would run alone in the end.
rule llm_weights:
    output:
        f"{STUDY.results}/cache/{{sample}}/source.json",
    log:
        "logs/cache/{sample}.log",
    benchmark:
        "logs/cache/{sample}.benchmark.tsv"
    priority: 10
    conda:
        "../../environment.yml"
    resources:
        mem_mb=3000,
        runtime=20,
    params:
        options=f"--results {STUDY.results}",
    shell:
        "estr llm weights {params.options} 2> {log}"


rule sample:
    input:
        ancient(f"{STUDY.results}/cache/{{sample}}/source.json"),
    output:
        f"{SAMPLE}/sample.json",
        f"{SAMPLE}/tokens.parquet",
    log:
        f"{LOGS}/samples/{{sample}}.log",
    benchmark:
        f"{LOGS}/samples/{{sample}}.benchmark.tsv"
    priority: 10
    conda:
        "../../environment.yml"
    resources:
        mem_mb=7500,
        runtime=60,
    params:
        options=OPTIONS,
        settings=lambda w: str(settings.load_scale(SCALE).samples[w.sample]),
    shell:
        "estr llm sample {wildcards.sample} {params.options} 2> {log}"


# Bisection within one job: each finished run is kept, so that a stopped search goes on where it was.
rule frontier:
    input:
        rules.prepare.output,
        rules.pretrain.output,
        lambda w: str(LAYOUT.calibration(w.task)) if run_config_of(w.task, w.label).matched_budget else [],
    output:
        f"{FRONTIER}/frontier.json",
    log:
        f"{LOGS}/frontier/{{task}}/{{label}}/{{axis}}.log",
    benchmark:
        f"{LOGS}/frontier/{{task}}/{{label}}/{{axis}}.benchmark.tsv"
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1500,
        runtime=60,
    params:
        options=OPTIONS,
        config_hash=lambda w: run_config_of(w.task, w.label).hash,
        settings=lambda w: f"{settings.load_scale(SCALE).frontier}, seeds {settings.load_sizes(SCALE, w.task).seeds}",
    shell:
        "estr frontier {wildcards.task} {wildcards.label} --axis {wildcards.axis} {params.options} 2> {log}"
