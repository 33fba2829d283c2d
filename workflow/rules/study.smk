# MLflow: opened once, before any job, because concurrent first use corrupts a fresh database.


rule open_study:
    output:
        f"{ROOT}/mlflow/study.json",
    log:
        f"{LOGS}/mlflow/study.log",
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        uri=f"--uri {STUDY.tracking_uri}" if STUDY.tracking_uri else "",
        live="--live" if STUDY.live_tracking else "",
    shell:
        "estr track open {params.options} {params.uri} {params.live} 2> {log}"


rule track_runs:
    input:
        study=ancient(f"{ROOT}/mlflow/study.json"),
        runs=everywhere(source_files),
    output:
        f"{ROOT}/mlflow/runs.json",
    log:
        f"{LOGS}/mlflow/runs.log",
    benchmark:
        f"{LOGS}/mlflow/runs.benchmark.tsv"
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        runs=everywhere(run_folders),
    shell:
        "estr track runs {params.runs} --out {output} {params.options} 2> {log}"


rule track:
    input:
        study=ancient(f"{ROOT}/mlflow/study.json"),
        tables=[CLAIMS, *all_tables()],
        figures=all_figures(),
        report=f"{ROOT}/report.html",
    output:
        touch(f"{ROOT}/mlflow/published"),
    log:
        f"{LOGS}/mlflow/publish.log",
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        artifacts=artifact_options(),
    shell:
        "estr track publish {params.artifacts} --report {input.report} {params.options} 2> {log}"
