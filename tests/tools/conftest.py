from hypothesis import HealthCheck, settings

# the same examples on every run, and no deadlines: a busy machine is no finding
settings.register_profile("untimed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
