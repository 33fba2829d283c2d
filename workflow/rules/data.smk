# Data sets and the warm start that every run of a task begins with.


rule prepare:
    output:
        f"{DATA}/train.parquet",
        f"{DATA}/eval.parquet",
        f"{DATA}/demonstrations.parquet",
        f"{DATA}/data.json",
    log:
        f"{LOGS}/data/{{task}}.log",
    benchmark:
        f"{LOGS}/data/{{task}}.benchmark.tsv"
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        sizes=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).data),
        counterpart=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).counterpart),
    shell:
        "estr data prepare {wildcards.task} {params.options} 2> {log}"


rule pretrain:
    input:
        rules.prepare.output,
    output:
        f"{WARM_START}/config.json",
        f"{WARM_START}/model.safetensors",
        f"{WARM_START}/tokenizer.json",
        f"{WARM_START}/tokenizer_config.json",
    log:
        f"{LOGS}/warm_start/{{task}}.log",
    benchmark:
        f"{LOGS}/warm_start/{{task}}.benchmark.tsv"
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1500,
        runtime=20,
    params:
        options=OPTIONS,
        policy=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).policy),
        settings=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).pretrain),
    shell:
        "estr pretrain {wildcards.task} {params.options} 2> {log}"
