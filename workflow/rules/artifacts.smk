# Tables, figures and the report, from the tables on disk alone. `snakemake <experiment>` builds one experiment's.


def calibrations(experiment):
    runs = RUNS[experiment]
    return sorted({str(LAYOUT.calibration(run.task)) for run in runs if run.matched_budget})


rule table:
    input:
        runs=lambda w: evaluated(experiment_of("tables", w.name)),
        calibration=lambda w: calibrations(experiment_of("tables", w.name)),
        paper="configs/paper/reported.csv",
    output:
        report(
            ROOT + "/tables/{name}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"artifact": "{name}"},
        ),
        multiext(ROOT + "/tables/{name}", ".md", ".tex"),
    log:
        LOGS + "/tables/{name}.log",
    params:
        runs=lambda w: run_folders(experiment_of("tables", w.name)),
        calibration=lambda w, input: " ".join(f"--calibration {path}" for path in input.calibration),
        stem=ROOT + "/tables/{name}",
    shell:
        "estr table {wildcards.name} {params.runs} {params.calibration} --out {params.stem} 2> {log}"


rule figure:
    input:
        lambda w: evaluated(experiment_of("figures", w.name)),
    output:
        report(
            FIGURES + "/{name}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"artifact": "{name}"},
        ),
        multiext(FIGURES + "/{name}", ".pdf", ".csv"),
    log:
        LOGS + "/figures/{name}.log",
    params:
        runs=lambda w: run_folders(experiment_of("figures", w.name)),
        stem=FIGURES + "/{name}",
    shell:
        "estr figure {wildcards.name} {params.runs} --out {params.stem} 2> {log}"


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
    params:
        artifacts=artifact_options(),
        runs=all_run_folders(),
    shell:
        "estr report {params.runs} {params.artifacts} --out {output} {OPTIONS} 2> {log}"


for _name, _experiment in EXPERIMENTS.items():

    rule:
        name:
            _name
        input:
            [f"{ROOT}/tables/{table}.csv" for table in _experiment.tables],
            [f"{FIGURES}/{figure}.png" for figure in _experiment.figures],
        localrule: True
