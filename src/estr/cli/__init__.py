"""`estr`: every stage of the reproduction, and the benchmarks by themselves, as commands."""

from estr.cli import benchmarks, commands
from estr.cli.group import main

__all__ = ["benchmarks", "commands", "main"]
