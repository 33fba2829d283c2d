"""YAML as `configs/` has it: text, numbers, true, false and null in lists and mappings, every key once.

A file may come from anywhere, so it is bounded before anything is made of it: a few lines of aliases of aliases can
stand for gigabytes.
"""

from pathlib import Path
from typing import Any

import yaml

from estr.errors import UserError

LARGEST_FILE = 1 << 18  # bytes; the largest of this repository has a tenth of that
MOST_VALUES = 50_000  # of a file, an alias counted as all that it stands for
DEEPEST = 32  # levels of lists and mappings
LONGEST_INTEGER = 20  # characters; 64 bits need no more

_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
_INTEGER = "tag:yaml.org,2002:int"


def read_yaml(path: Path) -> Any:
    """What the file holds. Raises `UserError` naming file, line and key for anything but plain YAML within bounds."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: longer than {LARGEST_FILE >> 10} KiB, which no configuration is")
    return load_yaml(content, str(path))


def load_yaml(content: bytes | str, source: str) -> Any:
    """What the text says; `source` names it in the `UserError` that anything else raises."""
    try:
        loader = yaml.SafeLoader(content)
        node = loader.get_single_node()
        if node is None:
            return None
        _Check(loader).size(node)
        return loader.construct_document(node)
    except RecursionError:
        reason = "nested too deeply"
    except UserError as error:
        reason = str(error)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an integer of an alphabet without its digits, 0x_
        reason = " ".join(str(error).split())
    raise UserError(f"{source}: not valid YAML: {reason}")


class _Check:
    """Refuses a document that is not plain, before it is constructed."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader: Any = loader
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def size(self, node: yaml.Node) -> int:
        """Values of the node with all that its aliases stand for."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._open:
            raise _at(node, "it contains itself")
        self._open.add(id(node))
        if len(self._open) > DEEPEST:
            raise _at(node, f"nested deeper than {DEEPEST} levels")
        size = 1 + sum(map(self.size, self._parts(node)))
        if size > MOST_VALUES:
            raise _at(node, f"more than {MOST_VALUES:,} values, its aliases included")
        self._open.remove(id(node))
        self._sizes[id(node)] = size
        return size

    def _parts(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node)
            return []
        if isinstance(node, yaml.SequenceNode) and node.tag == self._loader.DEFAULT_SEQUENCE_TAG:
            return list(node.value)
        if not isinstance(node, yaml.MappingNode) or node.tag != self._loader.DEFAULT_MAPPING_TAG:
            raise _at(node, f"the tag {node.tag[:40]!r} is not taken")
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a list or mapping is no key")
            if key.value in keys:
                raise _at(key, f"key {key.value[:40]!r} stands twice")
            keys.add(key.value)
        return [part for pair in node.value for part in pair]

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        meant = self._loader.resolve(yaml.ScalarNode, node.value, (node.style is None, True))
        if node.tag != meant or meant not in _PLAIN:
            raise _at(node, f"{node.value[:40]!r} is no plain value: no tags, dates or merge keys; put it into quotes")
        if meant == _INTEGER and len(node.value) > LONGEST_INTEGER:
            raise _at(node, f"an integer of more than {LONGEST_INTEGER} characters")
        if "\0" in node.value or any("\ud800" <= char <= "\udfff" for char in node.value):
            raise _at(node, "a null character or half of a surrogate pair is no text")


def _at(node: yaml.Node, reason: str) -> UserError:
    return UserError(f"line {node.start_mark.line + 1}: {reason}")
