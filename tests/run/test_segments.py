"""Segments on disk: written whole, read by age, damaged ones named."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from kit.damage import damaged

from kohaku_ray.errors import DataError
from kohaku_ray.records import Reply
from kohaku_ray.run import segments
from kohaku_ray.run.segments import Entry, Loaded, SegmentStore, ledger_damage
from kohaku_ray.storage import checksum


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
    store.merge(names)
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
        recorded.unwritten[key] = expected[key] = entry_
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
    small = other.index(every).small
    other.merge(small)
    other.drop(small)
    assert dict(other.index(every)) == expected == dict(recorded)  # whose files are gone


def test_a_large_segment_is_not_merged_again_and_what_came_first_stays_first(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "MERGED_ROWS", 14)
    store = SegmentStore(str(tmp_path), "0of1")
    store.write([("early", entry("first")), ("late", entry("first"))])
    store.write([(f"k{number}", entry(str(number))) for number in range(6)] + [("early", entry("second"))])
    SegmentStore(str(tmp_path), "0of2").write([("other", entry("other"))])
    later = [
        store.write([(f"s{number}", entry(str(number))), ("k1", entry("second")), ("early", entry("third"))])
        for number in range(4)
    ]
    before = store.load(every).entries
    assert (before["early"].reply.text, before["k1"].reply.text) == ("first", "1")
    recorded = store.index(every)
    assert recorded.small == later, "after the large one, and own ones alone"
    merged = store.merge(later[:2])
    recorded.merged(*merged)
    store.drop(later[:2])
    assert recorded.small == [merged[1], *later[2:]] == store.index(every).small
    recorded.merged(*store.merge(recorded.small))
    assert recorded.small == [], "now large"
    assert dict(recorded) == store.load(every).entries == before


def test_a_merge_closes_the_segments_that_it_drops_alone(tmp_path):
    """scale5.md, 8: after each merge all segments were opened, and hashed, again."""
    store, opened = SegmentStore(str(tmp_path)), []
    names = [store.write([(key, entry(key))]) for key in "abc"]
    recorded = store.index(every)
    recorded.merged(*store.merge(names[:2]))
    store.drop(names[:2])
    read, store.table_of._read = store.table_of._read, lambda name: opened.append(name) or read(name)
    assert [recorded[key].reply.text for key in "abc"] == ["a", "b", "c"]
    assert names[2] not in opened
    assert len(opened) == 1


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
    assert read("0of4") == read("") == everything


def test_a_reply_whose_segment_is_merged_while_it_is_looked_up_is_found(tmp_path):
    store = SegmentStore(str(tmp_path))
    some = [("a", entry("one"))]
    names = [store.write(some), store.write([("b", entry("two"))])]
    recorded = store.index(every)
    opened = recorded._table_of

    def merged_meanwhile(name):
        if name in names and (tmp_path / names[0]).exists():
            recorded.merged(*store.merge(names))
            store.drop(names)
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
