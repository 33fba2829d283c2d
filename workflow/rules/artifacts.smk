# Tables, figures and the report, from the tables on disk alone. `snakemake <experiment>` builds one experiment's.


rule table:
    input:
        runs=lambda w: evaluated(experiment_of("tables", w.name)),
        calibration=lambda w: calibrations(experiment_of("tables", w.name)),
        paper="configs/paper/reported.csv",
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
    conda:
        "../../environment.yml"
    params:
        runs=lambda w: run_folders(experiment_of("tables", w.name)),
        calibration=lambda w, input: " ".join(f"--calibration {path}" for path in input.calibration),
    shell:
        "estr table {wildcards.name} {params.runs} {params.calibration} --out {output.csv} 2> {log}"


rule figure:
    input:
        lambda w: evaluated(experiment_of("figures", w.name)),
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
        runs=lambda w: run_folders(experiment_of("figures", w.name)),
    shell:
        "estr figure {wildcards.name} {params.runs} --out {output.png} 2> {log}"


rule html:
    input:
        tables=all_tables(),
        figures=all_figures(),
        runs=all_runs(),
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
        runs=all_run_folders(),
    shell:
        "estr report {params.runs} {params.artifacts} --out {output} {params.options} 2> {log}"


rule reference:
    input:
        tables=all_tables(),
        figures=all_figures(),
        runs=all_runs(),
    output:
        f"docs/results/{SCALE}/README.md",
    log:
        f"{LOGS}/reference.log",
    conda:
        "../../environment.yml"
    params:
        artifacts=artifact_options(),
        runs=all_run_folders(),
    shell:
        "estr reference {params.runs} {params.artifacts} --out {output} 2> {log}"


for _name, _experiment in EXPERIMENTS.items():

    rule:
        name:
            _name
        input:
            [f"{ROOT}/tables/{table}.csv" for table in _experiment.tables],
            [f"{FIGURES}/{figure}.png" for figure in _experiment.figures],
        localrule: True
