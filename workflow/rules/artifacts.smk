# Tables, figures and the report, from the tables on disk alone. `snakemake <experiment>` builds one experiment's.


rule table:
    input:
        sources=lambda w: source_files(experiment_of("tables", w.name)),
        calibration=lambda w: sorted(set(calibrations(experiment_of("tables", w.name)))),
        paper=["configs/paper/reported.csv", "configs/paper/settings.csv"],
    output:
        csv=report(
            f"{ROOT}/tables/{{name}}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"artifact": "{name}"},
        ),
        md=f"{ROOT}/tables/{{name}}.md",
        tex=f"{ROOT}/tables/{{name}}.tex",
    log:
        f"{LOGS}/tables/{{name}}.log",
    wildcard_constraints:
        name=r"(?!claims\.).+",
    conda:
        "../../environment.yml"
    params:
        sources=lambda w: source_folders(experiment_of("tables", w.name)),
        calibration=lambda w, input: calibration_options(input.calibration),
    shell:
        "estr table {wildcards.name} {params.sources} {params.calibration} --out {output.csv} 2> {log}"


rule claims:
    input:
        sources=everywhere(source_files),
        calibration=everywhere(calibrations),
        claims="configs/paper/claims.yaml",
    output:
        csv=report(CLAIMS, caption="../report/table.rst", category="Claims"),
        md=f"{ROOT}/tables/claims.md",
        tex=f"{ROOT}/tables/claims.tex",
    log:
        f"{LOGS}/tables/claims.log",
    benchmark:
        f"{LOGS}/tables/claims.benchmark.tsv"
    conda:
        "../../environment.yml"
    params:
        sources=everywhere(source_folders),
        calibration=lambda w, input: calibration_options(input.calibration),
    shell:
        "estr table claims {params.sources} {params.calibration} --out {output.csv} 2> {log}"


rule figure:
    input:
        sources=lambda w: source_files(experiment_of("figures", w.name)),
        paper="configs/paper/reported.csv",
    output:
        png=report(
            f"{FIGURES}/{{name}}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"artifact": "{name}"},
        ),
        pdf=f"{FIGURES}/{{name}}.pdf",
        csv=f"{FIGURES}/{{name}}.csv",
    log:
        f"{LOGS}/figures/{{name}}.log",
    conda:
        "../../environment.yml"
    params:
        sources=lambda w: source_folders(experiment_of("figures", w.name)),
    shell:
        "estr figure {wildcards.name} {params.sources} --out {output.png} 2> {log}"


rule html:
    input:
        tables=[CLAIMS, *all_tables()],
        figures=all_figures(),
        runs=everywhere(source_files),
        mlflow=f"{ROOT}/mlflow/runs.json",
        deviations="configs/paper/deviations.yaml",
    output:
        f"{ROOT}/report.html",
    log:
        f"{LOGS}/report.log",
    conda:
        "../../environment.yml"
    params:
        options=OPTIONS,
        artifacts=artifact_options(),
        sources=everywhere(source_folders),
    shell:
        "estr report {params.sources} {params.artifacts} --mlflow {input.mlflow} --out {output} {params.options} 2> {log}"


rule reference:
    input:
        tables=[CLAIMS, *all_tables()],
        figures=all_figures(),
        runs=everywhere(source_files),
    output:
        f"docs/results/{SCALE}/README.md",
    log:
        f"{LOGS}/reference.log",
    conda:
        "../../environment.yml"
    params:
        artifacts=artifact_options(),
        sources=everywhere(source_folders),
    shell:
        "estr reference {params.sources} {params.artifacts} --out {output} 2> {log}"


for _name, _experiment in EXPERIMENTS.items():

    rule:
        name:
            _name
        input:
            [f"{ROOT}/tables/{table}.csv" for table in _experiment.tables],
            [f"{FIGURES}/{figure}.png" for figure in _experiment.figures],
        localrule: True
