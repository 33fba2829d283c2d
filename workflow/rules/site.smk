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


def in_a_job(command, starter=""):
    """The same after the site's setup, started by `starter`."""
    setup = SITE.setup.replace("{", "{{").replace("}", "}}")
    return f"{setup}; {starter}{inside(command)}"


ON_EVERY_NODE = (
    "{resources.mpi} --nodes={resources.nodes} --ntasks={resources.tasks} --ntasks-per-node=1 --kill-on-bad-exit=1 "
)


# what every job gets of a node; a site without partition or account leaves them to the cluster
NODE = {"mem_mb": 1000 * SITE.memory_gb, "cpus_per_task": SITE.cores}
NODE |= {"slurm_partition": SITE.partition} if SITE.partition else {}
NODE |= {"slurm_account": SITE.account} if SITE.account else {}
