"""SGLang plugin: exact entropy and weight version of every generated token, in `meta_info` (`estr.cluster.meta`).

SGLang finds it by its entry point. One adapter per supported version stands behind the same two columns:
`v0_5_12`, which verl 0.9.1 pins, and `v0_5_23`. Speculative decoding is not supported.
"""

from importlib import import_module
from importlib.metadata import version

ADAPTERS = {"0.5.12": "estr.cluster.sglang.v0_5_12", "0.5.23": "estr.cluster.sglang.v0_5_23"}


def register() -> None:
    """Hook into this process of SGLang. Raises `RuntimeError` for a version without adapter, which SGLang only logs."""
    found = version("sglang")
    if found not in ADAPTERS:
        raise RuntimeError(f"estr has no adapter for SGLang {found}; there are {', '.join(ADAPTERS)}")
    import_module(ADAPTERS[found]).register()
