"""The parts of a run under way: written where rows are made, found again, joined to the bytes of one writer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_tables import N_BLOCKS, rows_of, tables_of

from kohaku_ray.errors import DataError
from kohaku_ray.store import tables as tables_module
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.parts import FOLDER, JoinedParts, RunParts
from kohaku_ray.store.storage import publish
from kohaku_ray.store.tables import SCHEMAS


def ids_of(block: int) -> list[str]:
    return [row["question_id"] for row in rows_of(block)["votes"]]


def write_all(parts: RunParts, n_blocks: int = N_BLOCKS) -> list[str]:
    return [parts.write(ids_of(block), tables_of(block), {"n_questions": block}) for block in range(n_blocks)]


def test_joined_parts_are_the_bytes_of_tables_that_never_left_memory(tmp_path, monkeypatch):
    blocks = [tables_of(block) for block in range(N_BLOCKS)]
    monkeypatch.setattr(tables_module, "ROW_GROUP_BYTES", 2 * blocks[0]["trace"].nbytes)
    for name in ("parts", "memory"):
        (tmp_path / name).mkdir()
    parts = RunParts(str(tmp_path / "parts"), "one")
    joined = JoinedParts(parts, write_all(parts))
    for _ in range(2):  # they are read again by every file that a run writes
        assert [tables["votes"] for tables in joined] == [tables["votes"] for tables in blocks]
    assert [tables["trace"].nbytes for tables in joined] == [tables["trace"].nbytes for tables in blocks]
    RunDirectory(str(tmp_path / "parts")).write_tables(joined)
    RunDirectory(str(tmp_path / "memory")).write_tables(blocks)
    for name in SCHEMAS:
        written, expected = (tmp_path / folder / f"{name}.parquet" for folder in ("parts", "memory"))
        assert written.read_bytes() == expected.read_bytes(), name
    assert pq.ParquetFile(tmp_path / "parts" / "trace.parquet").num_row_groups == N_BLOCKS / 2
    parts.clear()
    assert not (tmp_path / "parts" / FOLDER).exists()


def torn_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def torn_empty(file: Path) -> None:
    file.write_bytes(b"")


def torn_inside(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("tear", [torn_short, torn_empty, torn_inside])
def test_a_torn_part_is_named_and_the_others_are_found(tmp_path, tear):
    parts = RunParts(str(tmp_path), "one")
    names = write_all(parts, 3)
    file = tmp_path / FOLDER / names[1]
    tear(file)
    counts, [error] = parts.find()
    assert counts == {names[0]: {"n_questions": 0}, names[2]: {"n_questions": 2}}
    with pytest.raises(DataError) as raised:
        list(JoinedParts(parts, names))
    for told in (str(error), str(raised.value)):
        assert told.startswith(f"{file} is damaged (it is torn")
        assert told.endswith("repeat the command, which makes it again from the ledger")
    parts.write(ids_of(1), tables_of(1), {"n_questions": 1})
    assert len(parts.find()[0]) == 3
    file.unlink()
    with pytest.raises(DataError, match=f"{names[1]}: .*: repeat the command"):
        parts.read(names[1])


def test_parts_of_another_run_are_not_found_and_are_counted_as_they_are_removed(tmp_path):
    one, other = RunParts(str(tmp_path), "one"), RunParts(str(tmp_path), "other")
    write_all(one, 2)
    write_all(other, 3)
    (tmp_path / FOLDER / "unfinished.part.1234.tmp").touch()
    assert {len(parts.find()[0]) for parts in (one, other)} == {2, 3}
    assert set(one.find()[0]).isdisjoint(other.find()[0])
    assert one.remove_others() == 4
    assert (len(one.find()[0]), other.find()) == (2, ({}, []))


def test_a_full_disk_at_the_join_is_named_and_leaves_the_parts(tmp_path, monkeypatch):
    parts = RunParts(str(tmp_path), "one")
    names, add = write_all(parts), tables_module.TableWriter.add

    def fill(writer, table):
        if table.schema.names == SCHEMAS["trace"].names:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add(writer, table)

    with monkeypatch.context() as patch:
        patch.setattr(tables_module.TableWriter, "add", fill)
        with pytest.raises(DataError, match=r"\.parquet: cannot be written \(No space left on device\): free the"):
            RunDirectory(str(tmp_path)).write_tables(JoinedParts(parts, names))
    assert sorted(file.name for file in tmp_path.iterdir()) == [FOLDER], "no half table"
    assert list(parts.find()[0]) == sorted(names)
    RunDirectory(str(tmp_path)).write_tables(JoinedParts(parts, names))
    assert RunDirectory(str(tmp_path)).read_table("votes").num_rows == sum(len(ids_of(n)) for n in range(N_BLOCKS))


def test_parts_on_an_object_store_are_found_joined_and_removed(s3):
    path = s3.uri("runs/parts")
    parts = RunParts(path, "one")
    names = write_all(parts, 3)
    publish(s3.uri("runs/parts/parts/other.part"), b"x")
    assert sorted(parts.find()[0]) == sorted(names)
    assert parts.remove_others() == 1
    RunDirectory(path).write_tables(JoinedParts(parts, names))
    joined = RunDirectory(path).read_table("votes")["question_id"].to_pylist()
    assert joined == [key for block in range(3) for key in ids_of(block)]
    parts.clear()
    assert parts.find() == ({}, [])
