# Sampled accuracy of every run's last policy on the held-out problems.


rule evaluate:
    input:
        f"{RUN}/run.json",
        f"{RUN}/policy/model.safetensors",
        rules.pretrain.output,
    output:
        f"{RUN}/evaluation.json",
    log:
        LOGS + "/runs/{task}/{label}/seed{seed}/evaluate.log",
    params:
        settings=lambda w: str(run_config(w).evaluation),
    resources:
        mem_mb=1500,
        runtime=10,
    shell:
        "estr evaluate {wildcards.task} {wildcards.label} --seed {wildcards.seed} {OPTIONS} 2> {log}"
