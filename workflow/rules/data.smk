# Data sets and the warm start that every run of a task begins with.


rule prepare:
    output:
        multiext(ROOT + "/data/{task}/", "train.parquet", "eval.parquet", "demonstrations.parquet", "data.json"),
    log:
        LOGS + "/data/{task}.log",
    benchmark:
        LOGS + "/data/{task}.benchmark.tsv"
    params:
        sizes=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).data),
        counterpart=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).counterpart),
    shell:
        "estr data prepare {wildcards.task} {OPTIONS} 2> {log}"


rule pretrain:
    input:
        rules.prepare.output,
    output:
        multiext(
            ROOT + "/warm_start/{task}/",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "warm_start.json",
        ),
    log:
        LOGS + "/warm_start/{task}.log",
    benchmark:
        LOGS + "/warm_start/{task}.benchmark.tsv"
    params:
        policy=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).policy),
        settings=lambda w: str(settings.resolve(SCALE, w.task, "sync", 0).pretrain),
    resources:
        mem_mb=1500,
        runtime=20,
    shell:
        "estr pretrain {wildcards.task} {OPTIONS} 2> {log}"
