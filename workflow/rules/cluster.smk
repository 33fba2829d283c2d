# The verl engine: one Slurm job per run, on as many nodes as the task needs. Site settings are in configs/site.yaml.
# Resume state lies in the run's state/ folder and is not declared: Snakemake deletes the declared outputs of failed jobs, and
# a job that was killed or ran out of time must find its checkpoint.


rule train:
    input:
        data=f"{ROOT}/data/{{task}}/train.parquet",
        study=ancient(f"{ROOT}/mlflow/study.json"),
        thresholds=matched_thresholds,
    output:
        f"{RUN}/run.json",
        f"{RUN}/metrics.parquet",
        f"{RUN}/tokens.parquet",
        f"{RUN}/policy/config.json",
    log:
        f"{RUN_LOGS}/train.log",
    benchmark:
        f"{RUN_LOGS}/train.benchmark.tsv"
    conda:
        "../../environments/cluster.yml"
    resources:
        **NODE,
        mpi="srun",
        nodes=lambda w: resources_of(w).nodes,
        tasks=lambda w: resources_of(w).nodes,
        tasks_per_gpu=0,
        gres=lambda w: f"gpu:{SITE.gpu}:{resources_of(w).gpus_per_node}",
        runtime=lambda w: 60 * resources_of(w).hours,
    params:
        config_hash=lambda w: run_config(w).hash,
        options=OPTIONS,
    shell:
        in_a_job(
            "estr train {wildcards.task} {wildcards.label} --seed {wildcards.seed} {params.options}", ON_EVERY_NODE
        )


rule evaluate_warm_start:
    input:
        f"{ROOT}/data/{{task}}/eval.parquet",
    output:
        f"{WARM_START}/evaluation.json",
    log:
        f"{LOGS}/warm_start/{{task}}.evaluate.log",
    benchmark:
        f"{LOGS}/warm_start/{{task}}.evaluate.benchmark.tsv"
    conda:
        "../../environments/cluster.yml"
    resources:
        **NODE,
        gres=lambda w: f"gpu:{SITE.gpu}:{first_resources_of(w).gpus_per_node}",
        runtime=lambda w: 60 * first_resources_of(w).hours,
    params:
        settings=lambda w: str(run_config_of(w.task, "sync").evaluation),
        options=OPTIONS,
    shell:
        in_a_job("estr evaluate {wildcards.task} warm_start {params.options}")


rule evaluate:
    input:
        f"{ROOT}/data/{{task}}/eval.parquet",
        f"{WARM_START}/evaluation.json",
        f"{RUN}/run.json",
        f"{RUN}/policy/config.json",
    output:
        f"{RUN}/evaluation.json",
    log:
        f"{RUN_LOGS}/evaluate.log",
    benchmark:
        f"{RUN_LOGS}/evaluate.benchmark.tsv"
    conda:
        "../../environments/cluster.yml"
    resources:
        **NODE,
        gres=lambda w: f"gpu:{SITE.gpu}:{resources_of(w).gpus_per_node}",
        runtime=lambda w: 60 * resources_of(w).hours,
    params:
        settings=lambda w: str(run_config(w).evaluation),
        options=OPTIONS,
    shell:
        in_a_job("estr evaluate {wildcards.task} {wildcards.label} --seed {wildcards.seed} {params.options}")
