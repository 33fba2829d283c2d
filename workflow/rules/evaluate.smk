# Sampled accuracy of every run's last policy on the held-out problems.


rule evaluate:
    input:
        f"{RUN}/run.json",
        f"{RUN}/policy/model.safetensors",
        rules.pretrain.output,
    output:
        f"{RUN}/evaluation.json",
    log:
        f"{RUN_LOGS}/evaluate.log",
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
