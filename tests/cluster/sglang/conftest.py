"""A real SGLang server on a CPU with a tiny random Qwen2. Everything here needs one of SGLang's environments."""

import os
from importlib.metadata import PackageNotFoundError, version

try:
    version("sglang")
except PackageNotFoundError:
    collect_ignore_glob = ["*.py"]
else:
    # for the fused kernel's own test; the server is started without it
    os.environ["TRITON_INTERPRET"] = "1"

    from sglang_server import models, plain, uncached

    __all__ = ["models", "plain", "uncached"]
