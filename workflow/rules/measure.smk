# Throughput of the concurrent engine, and tokens of a real language model.


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
