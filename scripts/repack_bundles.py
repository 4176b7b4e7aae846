"""Pack bundles anew from their recorded replies: with the tables, the files and the index's identity of this version.

    python scripts/repack_bundles.py ZIP … --index DIR

Calls, times and replies stay. A bundle whose prompts are others now is refused, since their replies are not recorded;
so is one that holds its index. What differs from the old bundle is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kohaku_ray.answering.bundle import (
    RECORDED,
    compare_runs,
    configure_replay,
    identify_index,
    outputs_of,
    unpack,
    write_bundle,
)
from kohaku_ray.answering.replay import RecordedEncoders, RecordedReplies, make_again, open_recorded
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.store import Index
from kohaku_ray.outcomes import plain
from kohaku_ray.records import digest
from kohaku_ray.store.directory import RunDirectory, facts_checksum
from kohaku_ray.store.segments import SegmentStore
from kohaku_ray.store.storage import Directory

COUNTS = ("n_member_errors", "n_questions_in_error", "errors", "flags")
"""Facts of a run that follow from how replies are read."""


class EncodersAgain(RecordedEncoders):
    """What encoders and tokenizers returned: taken from a bundle where it has it, and kept if it is asked for."""

    def __init__(self, before: RecordedEncoders) -> None:
        super().__init__()
        self.before = before.known

    def ask(self, of: str, texts: Sequence[str], compute: Callable[[list[str]], Any]) -> list[F32]:
        """See ``RecordedEncoders``."""
        keys = [digest([of, text]) for text in texts]
        self.known |= {key: self.before[key] for key in keys if key in self.before}
        return super().ask(of, texts, compute)


def repack(path: str, index_path: str) -> list[str]:
    """Pack a bundle anew in its place; returns what is otherwise now, a line each.

    Raises:
        DataError: It holds its index, or its prompts are others now.
    """
    with tempfile.TemporaryDirectory() as home:
        manifest, index = unpack(path, home), Index.open(index_path)
        if Path(home, "index").is_dir():
            raise DataError(f"{path} holds its index: bundle its run anew")
        # Before the run: it may write vectors of queries beside the ledger.
        kept = [file for folder in ("inputs", "ledger") for file in Path(home, folder).rglob("*") if file.is_file()]
        recorded = EncodersAgain(RecordedEncoders.read(f"{home}/{RECORDED}"))
        replies = RecordedReplies(SegmentStore(f"{home}/ledger").load(lambda _: True).entries)
        was, config = RunDirectory(f"{home}/run"), configure_replay(path, home, manifest, index_path)
        opened = open_recorded(config, index, recorded)
        counts = make_again(config, manifest.models_by_member, replies, recorded, opened)
        now = RunDirectory(config.run)
        changes = compare_runs(was, now, config.declaration.outputs, with_text=False)
        if asked := [line for line in changes if line.startswith("prompts: ")]:
            raise DataError(f"{path}: its run asks otherwise now, and these replies are not recorded: {asked[0]}")
        for file in ("config.yaml", "usage.parquet"):
            shutil.copy(was.file(file), now.file(file))
        facts = was.facts() | {key: plain(getattr(counts, key)) for key in COUNTS}
        sums = {key: Directory(now.path).checksum(key) for key in facts["checksums"]}
        facts["checksums"] |= {key: checksum for key, checksum in sums.items() if checksum}
        now.write_text("run.json", json.dumps({**facts, "checksum": facts_checksum(facts)}, indent=2))
        files = outputs_of(now, config, with_text=False) | {RECORDED: recorded.as_parquet()}
        files |= {file.relative_to(home).as_posix(): file.read_bytes() for file in kept}
        write_bundle(path, manifest.model_copy(update={"index": identify_index(index)}), files)
    return changes


def main() -> None:
    """Pack the bundles that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="ZIP")
    parser.add_argument("--index", required=True, metavar="DIR", help="the index that their runs searched")
    given = parser.parse_args()
    for path in given.bundles:
        print(path, *(repack(path, given.index) or ["as before"]), sep="\n  ")


if __name__ == "__main__":
    main()
