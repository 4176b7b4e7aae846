"""Completion in a shell: commands, flags, files, and the names of presets and sweeps."""

from __future__ import annotations

import argparse
import os
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def script_of(shell: str) -> str:
    """Return the script that a shell reads at its start to complete ``kohaku-ray``."""
    from argcomplete.shell_integration import shellcode

    return str(shellcode(["kohaku-ray"], shell=shell)).strip()


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and exit; do nothing otherwise."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def presets(prefix: str, **_: Any) -> list[str]:
    """Complete a configuration: presets, beside files."""
    from kohaku_ray.config.anchor import preset_names

    return [*preset_names(), *_files(prefix)]


def sweeps(prefix: str, **_: Any) -> list[str]:
    """Complete a sweep: those of ``configs/sweeps``, beside files."""
    from kohaku_ray.sweep.load import SWEEPS

    return [*sorted(file.stem for file in SWEEPS.glob("*.yaml")), *_files(prefix)]


def _files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(("yaml", "yml", "json", "toml"))(prefix))
