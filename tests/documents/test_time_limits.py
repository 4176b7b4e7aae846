"""What takes too long gives a reject in time: at Python's level, inside a C library, and by crashing it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
from test_pdf_hostile import assembled, pdf

from kohaku_ray import sample
from kohaku_ray.documents import bounded, parse
from kohaku_ray.documents.markup.markdown import parse_markdown
from kohaku_ray.documents.model import Attachment
from kohaku_ray.documents.parse import FORMATS, parse_file
from kohaku_ray.errors import DataError

LATE = r"its [\d,]+ bytes are not parsed after 0\.3 s of CPU time, .*: split .*set documents\.timeout_s above 0\.3"


def bomb(n_levels):
    """A PDF of a form that draws another ten times, which draws another ten times …"""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</XObject<</X 5 0 R>>>>/Contents 4 0 R>>"
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[3 0 R]>>", page]
    objects.append(b"<</Length 5>>stream\n/X Do\nendstream")
    form = b"<</Type/XObject/Subtype/Form/BBox[0 0 595 842]/Resources<</XObject<</X %d 0 R>>>>/Length 60>>"
    objects += [(form + b"stream\n%s\nendstream") % (6 + i, b"/X Do " * 10) for i in range(n_levels)]
    return assembled([*objects, b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Length 0>>stream\n\nendstream"])


@pytest.fixture
def reader(monkeypatch):
    """Put another reader in the place of Markdown's."""
    return lambda read: monkeypatch.setitem(FORMATS, ".md", read)


def seconds(call):
    """Of the clock: limits are in seconds, and what they end would take minutes or for ever."""
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        call()
    return time.monotonic() - start, str(caught.value)


def stubborn():
    for _ in range(100):
        try:
            time.sleep(0.2)
        except Exception:
            continue


@pytest.mark.parametrize(
    "slow",
    [lambda: time.sleep(20), lambda: re.match(r"(a|aa)+$", "a" * 60 + "b"), stubborn],
    ids=["sleeps", "backtracks", "catches everything"],
)
def test_a_reader_that_takes_too_long_is_ended(reader, slow, monkeypatch):
    monkeypatch.setattr(bounded, "CLOCK_TIMES", 2)
    reader(lambda name, data: slow())
    took, message = seconds(lambda: parse_file("d/x.md", b"text", timeout_s=0.3))
    assert took < 5
    assert re.match(rf"d/x\.md: {LATE}", message)


def test_time_that_the_machine_gives_to_others_does_not_count(reader):
    reader(lambda name, data: time.sleep(0.6) or parse_markdown(name, data))
    assert parse_file("x.md", b"Some text.", timeout_s=0.2).sections
    reader(lambda name, data: busy(threading.Thread(target=spin, args=(0.6,))) or parse_markdown(name, data))
    assert parse_file("x.md", b"Some text.", timeout_s=0.2).sections


def spin(cpu_s):
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def busy(thread):
    thread.start()
    thread.join()


def test_a_child_that_gets_no_time_reads_the_same():
    """A machine under load rejected what a quiet one reads (attack5, A4)."""
    data = pdf("A page.")
    expected = parse_file("x.pdf", data, timeout_s=60)
    children = Path(f"/proc/{bounded._child.process.pid}/task/{bounded._child.process.pid}/children")
    (worker,) = map(int, children.read_text().split())
    os.kill(worker, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (worker, signal.SIGCONT)).start()
    assert parse_file("x.pdf", data, timeout_s=1) == expected


def test_the_timer_is_gone_afterwards_and_the_handler_is_the_one_before(reader, monkeypatch):
    monkeypatch.setattr(bounded, "CLOCK_TIMES", 2)
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    try:
        parse_file("x.md", b"Some text.", timeout_s=0.1)
        reader(lambda name, data: time.sleep(20))
        with pytest.raises(DataError):
            parse_file("x.md", b"text", timeout_s=0.1)
        time.sleep(0.3)
        assert heard == []
        assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_PROF) == (0, 0)
        signal.raise_signal(signal.SIGALRM)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_mupdf_is_ended_inside_a_page_and_the_next_file_is_read():
    good = pdf("An ordinary page.")
    expected = parse_file("x.pdf", good, timeout_s=60)  # the child is up from here on
    assert expected == parse_file("x.pdf", good)
    took, message = seconds(lambda: parse_file("d/x.pdf", bomb(9), timeout_s=0.3))
    assert took < 5
    assert re.match(rf"d/x\.pdf: {LATE}", message)
    started = time.monotonic()
    assert parse_file("x.pdf", good, timeout_s=60) == expected
    assert time.monotonic() - started < 2  # forked, not started anew


@pytest.mark.slow
def test_a_small_file_that_needs_much_memory_is_one_reject():
    packer = zlib.compressobj(9)
    text = b"BT /F 6 Tf 9 9 Td (Hello there) Tj ET\n" * 1000
    content = zlib.compress(b"".join([*(packer.compress(text) for _ in range(1500)), packer.flush()]), 9)
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[4 0 R]>>"]
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>/Contents 5 0 R>>")
    head = b"<</Filter[/FlateDecode/FlateDecode]/Length %d>>" % len(content)
    data = assembled([*objects, b"%sstream\n%s\nendstream" % (head, content)])
    assert len(data) < 2000
    with pytest.raises(DataError, match=r"x\.pdf: page 1 of 1 takes more than 1\.5 GiB of memory: split or simplify"):
        parse_file("x.pdf", data, timeout_s=120)
    assert parse_file("x.pdf", pdf("A page."), timeout_s=60).sections


def test_what_is_wrong_with_a_file_is_told_the_same_way_from_the_child():
    for name, data in {"x.pdf": b"junk", f"d/\udcff{'x' * 200}.pdf": pdf("A page."), "y.pdf": pdf("")}.items():
        with pytest.raises(DataError) as here:
            parse_file(name, data)
        with pytest.raises(DataError) as in_child:
            parse_file(name, data, timeout_s=60)
        assert str(in_child.value) == str(here.value)


def test_a_document_comes_whole_out_of_the_child(monkeypatch):
    monkeypatch.setattr(parse, "CHILD_MIN_BYTES", dict.fromkeys(FORMATS, 0))
    kinds = set()
    for file in sorted(Path(sample.path("documents")).iterdir()):
        document = parse_file(str(file), file.read_bytes(), timeout_s=60)
        assert document == parse_file(str(file), file.read_bytes()), file
        kinds |= {type(p.bbox) for s in document.sections for p in s.paragraphs}
        kinds |= {type(p.attachment) for s in document.sections for p in s.paragraphs}
    assert kinds == {type(None), tuple, Attachment}


def test_a_crash_is_one_reject():
    parse_file("x.pdf", pdf("A page."), timeout_s=60)
    children = Path(f"/proc/{bounded._child.process.pid}/task/{bounded._child.process.pid}/children")
    (worker,) = map(int, children.read_text().split())
    killer = threading.Timer(0.3, os.kill, (worker, signal.SIGSEGV))
    killer.start()
    took, message = seconds(lambda: parse_file("x.pdf", bomb(9), timeout_s=60))
    assert took < 10
    assert re.match(r"x\.pdf: its [\d,]+ bytes ended the parser's process \(signal SIGSEGV\): export", message)
    assert parse_file("x.pdf", pdf("A page."), timeout_s=60).sections


def test_a_child_that_is_killed_is_started_again():
    parse_file("x.pdf", pdf("A page."), timeout_s=60)
    bounded._child.process.kill()
    bounded._child.process.wait()
    assert parse_file("x.pdf", pdf("A page."), timeout_s=60).sections


def test_an_interrupted_question_leaves_no_answer_for_the_next(monkeypatch):
    class Stop(BaseException):
        pass

    def interrupted(connection):
        raise Stop

    parse_file("x.pdf", pdf("A page."), timeout_s=60)
    with monkeypatch.context() as patched:
        patched.setattr(bounded.Connection, "recv", interrupted)
        with pytest.raises(Stop):
            parse_file("x.pdf", pdf("The first."), timeout_s=60)
    (section,) = parse_file("x.pdf", pdf("The second."), timeout_s=60).sections
    assert section.paragraphs[0].text == "The second."


def test_outside_the_main_thread_the_child_keeps_the_time(reader):
    documents = []
    thread = threading.Thread(target=lambda: documents.append(parse_file("x.md", b"Some text.", timeout_s=60)))
    thread.start()
    thread.join()
    assert documents == [parse_file("x.md", b"Some text.")]


def test_the_child_ends_with_its_parent():
    code = (
        "from kohaku_ray.documents import bounded; from kohaku_ray.documents.parse import parse_file; import os, sys\n"
        "parse_file('x.pdf', bytes.fromhex(sys.argv[1]), timeout_s=60)\n"
        "pid = bounded._child.process.pid\n"
        "print(pid, open(f'/proc/{pid}/task/{pid}/children').read(), flush=True); os._exit(0)"
    )
    data = pdf("A page.").hex()
    done = subprocess.run([sys.executable, "-c", code, data], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    pids = done.stdout.split()
    assert len(pids) == 2
    end = time.monotonic() + 10
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert alive == []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
