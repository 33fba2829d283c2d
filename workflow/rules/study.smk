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
    shell:
        "estr track open {params.options} {params.uri} 2> {log}"


rule track:
    input:
        study=ancient(f"{ROOT}/mlflow/study.json"),
        runs=all_runs(),
        tables=all_tables(),
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
        runs=all_run_folders(),
    shell:
        "estr track publish {params.runs} {params.artifacts} --report {input.report} {params.options} 2> {log}"
