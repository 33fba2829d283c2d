# The published benchmarks, for engines that train real models. `snakemake published_data` prepares all of them.


rule prepare_published:
    output:
        f"{PUBLISHED}/train.parquet",
        f"{PUBLISHED}/eval.parquet",
        f"{PUBLISHED}/data.json",
    log:
        "logs/paper/data/{benchmark}.log",
    benchmark:
        "logs/paper/data/{benchmark}.benchmark.tsv"
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        copies=f"--from {STUDY.published_copies}" if STUDY.published_copies else "",
        options=f"--scale {PAPER} --results {STUDY.results}",
    shell:
        "estr data prepare {wildcards.benchmark} {params.options} {params.copies} 2> {log}"


rule published_data:
    input:
        expand(f"{PUBLISHED}/data.json", benchmark=BENCHMARKS),
    localrule: True
