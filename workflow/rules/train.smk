# One job per run. Resume state lies in the run's state/ folder and is not declared: Snakemake deletes the declared
# outputs of failed jobs, and a killed run must find its checkpoint.


rule train:
    input:
        data=rules.prepare.output,
        warm_start=rules.pretrain.output,
        study=ancient(f"{ROOT}/mlflow/study.json"),
        thresholds=matched_thresholds,
    output:
        f"{RUN}/run.json",
        f"{RUN}/metrics.parquet",
        f"{RUN}/tokens.parquet",
        f"{RUN}/policy/config.json",
        f"{RUN}/policy/model.safetensors",
        f"{RUN}/policy/tokenizer.json",
        f"{RUN}/policy/tokenizer_config.json",
    log:
        f"{RUN_LOGS}/train.log",
    benchmark:
        f"{RUN_LOGS}/train.benchmark.tsv"
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1500,
        runtime=30,
    params:
        options=OPTIONS,
        config_hash=lambda w: run_config(w).hash,
    shell:
        "estr train {wildcards.task} {wildcards.label} --seed {wildcards.seed} {params.options} 2> {log}"
