# Sampled accuracy of the warm start and of every run's last policy on the held-out problems.


rule evaluate_warm_start:
    input:
        f"{DATA}/eval.parquet",
        rules.pretrain.output,
    output:
        f"{WARM_START}/evaluation.json",
    log:
        f"{LOGS}/warm_start/{{task}}.evaluate.log",
    benchmark:
        f"{LOGS}/warm_start/{{task}}.evaluate.benchmark.tsv"
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        settings=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).evaluation),
    shell:
        "estr evaluate {wildcards.task} warm_start {params.options} 2> {log}"


rule evaluate:
    input:
        f"{DATA}/eval.parquet",
        f"{WARM_START}/evaluation.json",
        f"{RUN}/run.json",
        f"{RUN}/policy/config.json",
        f"{RUN}/policy/model.safetensors",
        f"{RUN}/policy/tokenizer.json",
    output:
        f"{RUN}/evaluation.json",
    log:
        f"{RUN_LOGS}/evaluate.log",
    benchmark:
        f"{RUN_LOGS}/evaluate.benchmark.tsv"
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1500,
        runtime=10,
    params:
        options=OPTIONS,
        settings=lambda w: str(run_config(w).evaluation),
    shell:
        "estr evaluate {wildcards.task} {wildcards.label} --seed {wildcards.seed} {params.options} 2> {log}"
