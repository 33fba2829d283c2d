"""Lets SGLang's CPU path be imported without the CPU build of sgl_kernel, which nobody publishes.

Every function can be imported and raises when it is called; `torch_native` attention calls none.
"""

import sys
import types

__version__ = "0.4.10"
__path__: list[str] = []


def _functions_of(module):
    def function(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*arguments, **named):
            raise NotImplementedError(f"{module}.{name} (stub)")

        missing.__name__ = name
        return missing

    return function


__getattr__ = _functions_of(__name__)
for _name in ("kvcacheio", "mamba"):
    _module = types.ModuleType(f"{__name__}.{_name}")
    _module.__getattr__ = _functions_of(_module.__name__)
    sys.modules[_module.__name__] = globals()[_name] = _module
