"""A real SGLang server on a CPU with a tiny random Qwen2. Everything here needs one of SGLang's environments."""

import importlib.util
import os

# for the fused kernel's own test; the server is started without it
os.environ["TRITON_INTERPRET"] = "1"

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*.py"]
else:
    from sglang_server import models, plain, uncached

    __all__ = ["models", "plain", "uncached"]
