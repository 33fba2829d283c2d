# Thresholds of the matched budget, from the tokens of the vanilla async run.


rule calibrate:
    input:
        f"{ROOT}/runs/{{task}}/async/seed{FIRST_SEED}/tokens.parquet",
    output:
        f"{ROOT}/calibration/{{task}}.json",
    log:
        f"{LOGS}/calibration/{{task}}.log",
    benchmark:
        f"{LOGS}/calibration/{{task}}.benchmark.tsv"
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        seed=FIRST_SEED,
        steps=settings.load_any_scale(SCALE).calibration_steps,
        thresholds=published_thresholds,
    shell:
        "estr calibrate {wildcards.task} --seed {params.seed} {params.options} 2> {log}"
