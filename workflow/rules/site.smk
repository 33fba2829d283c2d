# What the jobs of the verl engine get of a cluster: configs/site.yaml, and the nodes of each task.
SITE = settings.load_site()


def resources_of(wildcards):
    return run_config(wildcards).resources


def first_resources_of(wildcards):
    return run_config_of(wildcards.task, "sync").resources


def inside(command):
    """A command in the environment of the site, for `shell`. No parameter: another launcher retrains nothing."""
    launch = SITE.launch.replace("{", "{{").replace("}", "}}").replace("{{command}}", command)
    return f"{launch} 2> {{log}}"


SETUP = SITE.setup.replace("{", "{{").replace("}", "}}")


# what every job gets of a node; a site without partition or account leaves them to the cluster
NODE = {"mem_mb": 1000 * SITE.memory_gb, "cpus_per_task": SITE.cores}
NODE |= {"slurm_partition": SITE.partition} if SITE.partition else {}
NODE |= {"slurm_account": SITE.account} if SITE.account else {}
