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
        f"{RUN}/policy/model.safetensors",
    log:
        LOGS + "/runs/{task}/{label}/seed{seed}/train.log",
    benchmark:
        LOGS + "/runs/{task}/{label}/seed{seed}/train.benchmark.tsv"
    params:
        config_hash=lambda w: run_config(w).hash,
    resources:
        mem_mb=1500,
        runtime=30,
    shell:
        "estr train {wildcards.task} {wildcards.label} --seed {wildcards.seed} {OPTIONS} 2> {log}"


rule calibrate:
    input:
        f"{ROOT}/runs/{{task}}/async/seed{FIRST_SEED}/tokens.parquet",
    output:
        ROOT + "/calibration/{task}.json",
    log:
        LOGS + "/calibration/{task}.log",
    shell:
        "estr calibrate {wildcards.task} --seed {FIRST_SEED} {OPTIONS} 2> {log}"
