"""Segments on disk: written whole, read by age, damaged ones named."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from kit.damage import damaged

from kohaku_ray.errors import DataError
from kohaku_ray.models.request import shard_of
from kohaku_ray.records import Reply
from kohaku_ray.store import segments
from kohaku_ray.store.segments import Entry, Loaded, SegmentStore, ledger_damage, segment_table
from kohaku_ray.store.storage import checksum


def entry(text: str) -> Entry:
    return Entry(Reply(text, prompt_tokens=3, cached_tokens=1, completion_tokens=2, replica="r"), "model", 0.25)


def every(_: str) -> bool:
    return True


def test_entries_come_back_as_they_were(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("one")), ("b", entry("zwei\n")), ("c", entry(""))])
    loaded = store.load(every)
    assert loaded.entries == {"a": entry("one"), "b": entry("zwei\n"), "c": entry("")}
    assert not loaded.damaged
    assert store.load(lambda key: key == "b").entries == {"b": entry("zwei\n")}


def test_segments_of_earlier_versions_are_read(tmp_path):
    store = SegmentStore(str(tmp_path))
    kept = Entry(Reply("x", note="n", served_model="m", server="s"), "model", 1.0)
    table = segment_table([("k", kept)])
    for names, read in ((["served_model", "server"], "n"), (["note", "served_model", "server"], "")):
        store._write_table(table.drop_columns(names), "0" * 20, "")
        reply = store.load(every).entries["k"].reply
        assert (reply.note, reply.served_model, reply.server) == (read, "", "")
        store._directory.remove(store._names()[0])
    store.write([("k", kept)])
    reply = store.load(every).entries["k"].reply
    assert (reply.note, reply.served_model, reply.server) == ("n", "m", "s")


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.long])])
def test_a_damaged_segment_is_named_and_left_aside_and_its_replies_are_not_there(tmp_path, n):
    store = SegmentStore(str(tmp_path))
    written = {}
    for size in (2, 20):
        some = [(f"{size} {number}", entry("one " * number)) for number in range(size)]
        written[store.write(some)] = some
    before = store.load(every)
    for how in damaged(tmp_path / "segments", range(n)):
        loaded = store.load(every)
        assert loaded.damaged, how
        assert loaded.entries == dict(item for name in written.keys() - {*loaded.damaged} for item in written[name]), (
            how
        )
    assert store.load(every) == before == Loaded(dict(item for some in written.values() for item in some), ())


def test_a_segment_under_another_name_or_of_another_shape_is_damaged(tmp_path):
    store = SegmentStore(str(tmp_path))
    kept, moved = store.write([("a", entry("one"))]), store.write([("b", entry("two"))])
    (tmp_path / moved).rename(tmp_path / "segments" / "0.arrow")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, (foreign := pa.table({"key": ["b"], "generation": [0]})).schema) as writer:
        writer.write_table(foreign)
    other = f"segments/1-{checksum(data := sink.getvalue().to_pybytes())}.arrow"
    (tmp_path / other).write_bytes(data)
    loaded = store.load(every)
    assert (list(loaded.entries), loaded.damaged) == (["a"], ("segments/0.arrow", other))
    assert (tmp_path / kept).exists()


def test_a_write_that_fails_leaves_no_file_and_what_a_kill_left_goes_with_the_next_owner(tmp_path, monkeypatch):
    store = SegmentStore(str(tmp_path))
    (tmp_path / "segments").mkdir()

    def full(*_):
        raise DataError("cannot rename")

    with monkeypatch.context() as patched:
        patched.setattr(type(store._directory), "rename", full)
        with pytest.raises(DataError, match="cannot rename"):
            store.write([("a", entry("one"))])
    assert not list((tmp_path / "segments").iterdir())
    (tmp_path / "segments" / "0-ab.arrow.0123abcd.tmp").write_bytes(b"half")
    store.remove_unfinished()
    assert not list((tmp_path / "segments").iterdir())


def test_a_shard_that_dies_of_its_segments_three_times_says_so(tmp_path):
    store = SegmentStore(str(tmp_path))

    class Killed(BaseException):
        pass

    def start(owner="me", error=Killed):
        with store.starting("0-of-2", owner):
            raise error

    for _ in range(2):
        with pytest.raises(Killed):
            start()
    with pytest.raises(ZeroDivisionError):  # it lived to say so
        start(error=ZeroDivisionError)
    for owner in ("me", "me", "a later job", "me", "me", "me"):
        with pytest.raises(Killed):
            start(owner)
    with pytest.raises(DataError, match=r"shard 0-of-2 of ledger .* died 3 times in a row while it read segments/"):
        start()
    (counted,) = tmp_path.glob("starting*")
    for torn in ("", '{"owner": "me"}', '["me", 3]', '{"owner": "me", "n_died": "many"}'):
        counted.write_text(torn)
        with pytest.raises(Killed):
            start()
    with store.starting("0-of-2", "a later job"):
        pass
    assert not list(tmp_path.glob("starting*"))


def test_a_crash_between_merge_and_removal_leaves_only_repeats(tmp_path):
    store = SegmentStore(str(tmp_path))
    names = [store.write([(f"k{number}", entry(f"{number}"))]) for number in range(4)]
    before = store.load(every).entries
    store._directory.remove = lambda *_: None
    store._merge(store.index(every), names)
    assert len(store.names()) == 5
    assert SegmentStore(str(tmp_path)).load(every).entries == before


def replaced(text: str, generation: int) -> Entry:
    return replace(entry(text), generation=generation)


@pytest.mark.parametrize("generations", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_latest_generation_wins_wherever_it_stands(tmp_path, generations):
    store = SegmentStore(str(tmp_path))
    store.write([("a", replaced(f"reply {generation}", generation)) for generation in generations[:2]])
    store.write([("a", replaced(f"reply {generations[2]}", generations[2]))])
    assert store.load(every).entries == {"a": replaced("reply 2", 2)}


def test_keys_in_memory_with_replies_on_disk_are_a_dictionary_of_replies(tmp_path):
    """Entries replaced, repeated, flushed or not, read by this process or the next, at any moment."""
    rng, store = random.Random(1), SegmentStore(str(tmp_path))
    recorded, expected = store.index(every), {}
    for step in range(400):
        key = f"{rng.randrange(60):032x}"
        known = expected.get(key)
        entry_ = replaced(f"reply {step}", 0 if known is None else known.generation + 1)
        recorded.record(key, entry_)
        expected[key] = entry_
        if rng.random() < 0.1:
            written = list(recorded.unwritten.items())
            name = store.write(written)
            late = rng.choice(written)[0]  # replaced while the others were written
            newer = replaced(f"late {step}", expected[late].generation + 1)
            recorded.unwritten[late] = expected[late] = newer
            recorded.written(name, written)
        assert recorded[key] == expected[key]
    assert dict(recorded) == expected
    assert (len(recorded), "no such key" in recorded) == (len(expected), False)
    unwritten = list(recorded.unwritten.items())
    recorded.written(store.write(unwritten), unwritten)
    other = SegmentStore(str(tmp_path))
    assert dict(other.index(every)) == expected == dict(recorded)
    other._merge(other.index(every), other.names())
    assert len(other.names()) == 1
    assert dict(other.index(every)) == expected == dict(recorded)  # whose files are gone


def test_a_large_segment_is_not_merged_again_and_what_came_first_stays_first(tmp_path, monkeypatch):
    store = SegmentStore(str(tmp_path), "0of1")
    first = store.write([("early", entry("first")), ("late", entry("first"))])
    large = store.write([(f"k{number}", entry("x" * 10_000)) for number in range(6)] + [("early", entry("second"))])
    SegmentStore(str(tmp_path), "0of2").write([("other", entry("other"))])
    later = [
        store.write([(f"s{number}", entry(str(number))), ("k1", entry("second")), ("early", entry("third"))])
        for number in range(4)
    ]
    before = store.load(every).entries
    assert (before["early"].reply.text, len(before["k1"].reply.text)) == ("first", 10_000)
    monkeypatch.setattr(segments, "LARGE_BYTES", 50_000)
    monkeypatch.setattr(segments, "MOST_SMALL", 5)
    recorded = store.index(every)
    store.flush(recorded)
    assert set(later) < set(store.names()), "four are small, and the first lies before the large one"
    recorded.record("new", entry("new"))
    store.flush(recorded)
    assert {first, large} <= set(store.names())
    assert len(store.names()) == 4
    assert dict(recorded) == store.load(every).entries == before | {"new": entry("new")}


@pytest.mark.parametrize("is_local", [True, False])
def test_a_day_of_flushes_leaves_few_files_and_every_reply_is_found_meanwhile(tmp_path, monkeypatch, is_local):
    """engine6 B3: with merges at opening and leaving alone, 43,200 files were mapped after a day."""
    monkeypatch.setattr(segments, "MOST_SMALL", 8)
    monkeypatch.setattr(SegmentStore, "is_local", is_local)
    store = SegmentStore(str(tmp_path), "0of1")
    recorded, expected = store.index(every), {}
    for number in range(200):
        recorded.record(key := f"{number % 150:032x}", new := replaced(str(number), number // 150))
        expected[key] = new
        assert store.flush(recorded) == 1
        assert len(store.names()) < 8
    assert dict(recorded) == expected == SegmentStore(str(tmp_path)).load(every).entries
    assert set(store.table_of._open) <= set(recorded.files) == set(store.names())


def test_a_merge_closes_the_segments_that_it_drops_alone(tmp_path):
    """scale5.md, 8: after each merge all segments were opened, and hashed, again."""
    store, opened = SegmentStore(str(tmp_path)), []
    names = [store.write([(key, entry(key))]) for key in "abc"]
    recorded = store.index(every)
    read, store.table_of._read = store.table_of._read, lambda name: opened.append(name) or read(name)
    store._merge(recorded, names[:2])
    assert [recorded[key].reply.text for key in "abc"] == ["a", "b", "c"]
    assert names[2] not in opened
    assert len(opened) == 1


@pytest.mark.parametrize("becomes", ["deleted", "moved", "another ledger", "its segments deleted"])
def test_replies_of_a_ledger_that_goes_are_written_again_and_it_is_said(tmp_path, becomes):
    """attack6 B9: 100 paid replies were gone, and nothing was said."""
    path, other = tmp_path / "ledger", tmp_path / "other"
    SegmentStore(str(other)).write([("theirs", entry("theirs"))])
    SegmentStore(str(path), "0of2").write([("before", entry("before"))])
    store = SegmentStore(str(path), "0of1")
    recorded = store.index(every)
    for key in ("one", "two"):
        recorded.record(key, entry(key))
        store.flush(recorded)
    before = set(store.names())
    recorded.record("late", entry("late"))
    if becomes == "its segments deleted":
        shutil.rmtree(path / "segments")
    else:
        path.rename(tmp_path / "moved")
    if becomes == "deleted":
        shutil.rmtree(tmp_path / "moved")
    if becomes == "another ledger":
        other.rename(path)
    said = rf"ledger {path} was deleted, moved or replaced .*: 3 files of replies were gone, 3 are written there again"
    for _ in range(2):
        with pytest.raises(DataError, match=said):
            store.flush(recorded)
    again = SegmentStore(str(path)).load(every).entries
    assert set(again) - {"theirs"} == {"before", "one", "two", "late"} == set(recorded)
    assert before < set(SegmentStore(str(path)).names()), "as they were"
    store.flush(store.index(every))


def test_what_is_lost_of_a_ledger_that_goes_is_asked_again(tmp_path):
    store = SegmentStore(str(tmp_path))
    store.write([("a", entry("one"))])
    recorded = store.index(every)
    store.table_of.cache_clear()  # as of an object store
    shutil.rmtree(tmp_path / "segments")
    with pytest.raises(DataError, match=r"1 files of replies were gone, 0 are written there again, the calls of the"):
        store.flush(recorded)
    assert "a" not in store.index(every)


def test_a_segment_that_is_damaged_after_its_keys_were_read_says_so(tmp_path):
    store = SegmentStore(str(tmp_path))
    name = store.write([("a", entry("one"))])
    recorded = store.index(every)
    store.table_of.cache_clear()
    (tmp_path / name).write_bytes(b"no segment")
    with pytest.raises(DataError, match=rf"segment {name} of ledger .* is damaged"):
        recorded["a"]


def test_segments_of_sibling_shards_are_not_read(tmp_path):
    for shard in ("0of2", "1of2", "0of3", ""):
        SegmentStore(str(tmp_path), shard).write([(f"key {shard}", entry(shard))])

    def read(shard):
        store, opened = SegmentStore(str(tmp_path), shard), []
        table_of, store.table_of = store.table_of, lambda name: opened.append(name) or table_of(name)
        assert len(store.index(every)) == len(opened)
        return set(store.index(every))

    everything = {"key 0of2", "key 1of2", "key 0of3", "key "}
    assert read("0of2") == everything - {"key 1of2"}
    assert read("2of3") == everything - {"key 0of3"}
    assert read("0of4") == everything - {"key 1of2"}, "0 of 4 and 1 of 2 have no key in common"
    assert read("") == everything


def test_every_key_is_found_by_a_shard_of_another_number_of_shards(tmp_path):
    keys = [f"{number * 2654435761 % 2**32:08x}{number:024x}" for number in range(120)]
    for shard in range(6):
        some = [(key, entry(key)) for key in keys if shard_of(key, 6) == shard]
        SegmentStore(str(tmp_path), f"{shard}of6").write(some)
    for n_shards in range(1, 17):
        found = []
        for shard in range(n_shards):
            store = SegmentStore(str(tmp_path), f"{shard}of{n_shards}")
            found += store.index(lambda key, shard=shard, n=n_shards: shard_of(key, n) == shard)
        assert sorted(found) == sorted(keys), n_shards
    assert len(SegmentStore(str(tmp_path), "1of12").names()) == 1


def test_a_reply_whose_segment_is_merged_while_it_is_looked_up_is_found(tmp_path):
    store = SegmentStore(str(tmp_path))
    some = [("a", entry("one"))]
    names = [store.write(some), store.write([("b", entry("two"))])]
    recorded = store.index(every)
    opened = recorded._table_of

    def merged_meanwhile(name):
        if name in names and (tmp_path / names[0]).exists():
            recorded._table_of = opened
            store._merge(recorded, names)
            store.table_of.cache_clear()
        return opened(name)

    recorded._table_of = merged_meanwhile
    store.table_of.cache_clear()
    assert recorded["a"] == entry("one")


def test_a_ledger_is_looked_over_for_damaged_and_missing_replies(tmp_path):
    store = SegmentStore(str(tmp_path))
    names = [store.write([(f"k{n}", entry(f"reply {n}"))]) for n in range(3)]
    keys = ["k0", "k1", "k2", "k2"]
    assert ledger_damage(str(tmp_path), keys) == []
    file = tmp_path / names[0]
    file.write_bytes(file.read_bytes()[:-9] + b"?" + file.read_bytes()[-8:])
    (tmp_path / names[2]).unlink()
    damaged, missing = map(str, ledger_damage(str(tmp_path), keys))
    assert damaged.startswith(f"segment {names[0]} of ledger {tmp_path} is damaged")
    assert missing.startswith(f"ledger {tmp_path} lacks 2 of the 3 replies that the run is made of")
