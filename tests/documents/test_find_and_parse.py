import datetime
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pyarrow.fs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.documents.find import find_files, links_out
from kohaku_ray.documents.formats import BINARY_FORMATS, FORMATS
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.errors import DataError

KNOWN = ".csv, .docx, .htm, .html, .json, .markdown, .md, .pdf, .pptx, .rst, .text, .tsv, .txt, .xlsx"
TEXT_FORMATS = [suffix for suffix in FORMATS if suffix not in BINARY_FORMATS]


@pytest.fixture
def tree(tmp_path):
    for name in ["b.md", "a.TXT", "deep/er/c.json", "deep/.hidden.md", ".git/d.md", "e.xyz"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Some text.")
    return tmp_path


def test_a_directory_is_searched_deep_for_known_suffixes(tree):
    assert find_files([str(tree)]) == [f"{tree}/a.TXT", f"{tree}/b.md", f"{tree}/deep/er/c.json"]


def test_overlapping_paths_give_each_file_once(tree):
    assert find_files(
        [f"{tree}/deep/../b.md", f"{tree}/b.md", f"{tree}/", f"{tree}/deep", f"file://{tree}"]
    ) == find_files([str(tree)])


def test_an_explicit_file_is_kept_whatever_its_suffix_and_then_refused_by_name(tree):
    assert find_files([f"{tree}/e.xyz"]) == [f"{tree}/e.xyz"]
    with pytest.raises(DataError, match=rf"e\.xyz: unknown suffix \.xyz, known: {KNOWN}: rename or convert the file"):
        parse_file(f"{tree}/e.xyz", b"text")
    with pytest.raises(DataError, match=r"Makefile: unknown suffix \(none\)"):
        parse_file("Makefile", b"text")


def test_links_out_of_the_directory_are_followed_only_where_asked(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "d.md").write_text("A secret.")
    (tree / "deep" / "secret.md").symlink_to(outside / "d.md")
    (tree / "out").symlink_to(outside)
    (tree / "link.md").symlink_to(tree / "b.md")
    inner = set(find_files([str(tree)]))
    assert f"{tree}/link.md" in inner
    assert links_out([str(tree)]) == [f"{tree}/deep/secret.md", f"{tree}/out"]
    assert set(find_files([str(tree)], follow_links=True)) - inner == {f"{tree}/deep/secret.md", f"{tree}/out/d.md"}
    assert find_files([f"{tree}/deep/secret.md"]) == [f"{tree}/deep/secret.md"]  # named by the user
    (outside / "whole").symlink_to(tree)
    assert len(find_files([str(outside / "whole")])) == len(inner)
    (tree / "links").mkdir()
    (tree / "links" / "e.md").symlink_to(outside / "d.md")
    with pytest.raises(DataError, match=r"Links that lead out of it: 1; documents\.follow_links: true follows them"):
        find_files([str(tree / "links")])


def test_files_of_the_kernel_are_empty():
    assert read_bytes("/proc/self/environ") == b""


def test_links_are_followed_but_not_in_circles(tree):
    (tree / "deep" / "up").symlink_to(tree)
    (tree / "other").symlink_to(tree / "deep" / "er")
    assert len(find_files([str(tree)])) == 3


def test_a_missing_path_is_named(tree):
    with pytest.raises(DataError, match=rf"nowhere does not exist: give a directory, or a file .*{KNOWN}"):
        find_files([f"{tree}/nowhere"])
    with pytest.raises(DataError, match=r"\(empty path\) does not exist"):
        find_files([""])


def test_an_empty_directory_is_named_with_what_is_read(tree):
    (tree / "deep" / "er" / "c.json").unlink()
    with pytest.raises(DataError, match=rf"/deep holds no documents: files with these suffixes are read: {KNOWN}"):
        find_files([f"{tree}/deep"])


def test_a_directory_that_cannot_be_listed_is_named(tree, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cannot be listed: Permission denied"):
        find_files([str(tree)])


def test_bytes_are_read_and_a_failure_is_named(tree):
    assert read_bytes(f"{tree}/b.md") == read_bytes(f"file://{tree}/b.md") == b"Some text."
    for name, way_out in {
        "gone.md": f": correct its name or its directory, {tree}.",
        "bb.md": " (did you mean b.md?).",
        "none/b.md": f": there is no directory {tree}/none, correct the path.",
    }.items():
        with pytest.raises(DataError, match=re.escape(f"{name} cannot be read: No such file or directory{way_out}")):
            read_bytes(f"{tree}/{name}")
    with pytest.raises(DataError, match="is a directory and no file: name a file"):
        read_bytes(str(tree))


def test_only_regular_files_are_read_and_the_others_are_named(tree):
    """A pipe that nobody writes to would be read for ever; each of these is one reject, listed but never opened."""
    os.mkfifo(tree / "pipe.md")
    (tree / "zero.txt").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket.md"))
        (tree / "link.md").symlink_to(tree / "b.md")
        (tree / "circle.md").symlink_to(tree / "circle.md")
        (tree / "dangling.md").symlink_to(tree / "nothing.md")
        paths = find_files([str(tree)], follow_links=True)
        assert {os.path.basename(file) for file in paths} == {
            *("a.TXT", "b.md", "c.json", "pipe.md", "zero.txt", "socket.md", "link.md", "circle.md", "dangling.md")
        }
        for name in ("pipe.md", "zero.txt", "socket.md"):
            assert find_files([f"{tree}/{name}"]) == [f"{tree}/{name}"]
            for path in (f"{tree}/{name}", f"file://{tree}/{name}"):
                with pytest.raises(DataError, match=rf"/{name} is no regular file: copy its content to one"):
                    read_bytes(path)
    assert read_bytes(f"{tree}/link.md") == b"Some text."
    with pytest.raises(DataError, match=r"circle\.md cannot be read: Too many levels of symbolic links"):
        read_bytes(f"{tree}/circle.md")
    with pytest.raises(
        DataError, match=r"dangling\.md cannot be read: No such file .*: it is a link to .*/nothing\.md\."
    ):
        read_bytes(f"{tree}/dangling.md")


@pytest.mark.parametrize("uri", ["foo://x/y", "file:///a b"])
def test_a_uri_that_cannot_be_opened_is_named(uri):
    with pytest.raises(DataError, match=r"cannot be opened: .*: write spaces as %20, or give a local path"):
        find_files([uri])


@pytest.fixture
def bucket(monkeypatch):
    """An object store in memory behind ``s3://`` URIs."""
    store = pyarrow.fs._MockFileSystem(datetime.datetime(2025, 1, 1))
    for name in ["docs/b.md", "docs/deep/a c.txt", "docs/.tmp/x.md", "docs/z.bin"]:
        store.create_dir(f"bucket/{name}".rpartition("/")[0], recursive=True)
        with store.open_output_stream(f"bucket/{name}") as stream:
            stream.write(b"Some text.")

    def from_uri(uri):
        return store, uri.removeprefix("s3://").split("?")[0].rstrip("/").replace("%20", " ")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", SimpleNamespace(from_uri=from_uri))


@pytest.mark.usefixtures("bucket")
def test_an_object_store_is_searched_and_read():
    paths = find_files(["s3://bucket/docs/?region=eu-west-1"])
    assert paths == ["s3://bucket/docs/b.md?region=eu-west-1", "s3://bucket/docs/deep/a%20c.txt?region=eu-west-1"]
    assert find_files(["s3://bucket/docs/z.bin"]) == ["s3://bucket/docs/z.bin"]
    assert parse_file(paths[1], read_bytes(paths[1])).doc_id == "a c"
    with pytest.raises(DataError, match="s3://bucket/none does not exist"):
        find_files(["s3://bucket/none"])
    with pytest.raises(DataError, match=r"s3://bucket/docs/gone\.md cannot be read"):
        read_bytes("s3://bucket/docs/gone.md")


@pytest.mark.parametrize("suffix", TEXT_FORMATS)
class TestEveryTextFormat:
    def test_binary_junk(self, suffix):
        with pytest.raises(DataError, match=rf"^x\{suffix} is not text: NUL byte at offset 4"):
            parse_file(f"x{suffix}", b"\xff\xd8ab\x00\x01")

    def test_invalid_utf8(self, suffix):
        if suffix not in (".csv", ".tsv"):
            with pytest.raises(
                DataError, match=rf"^x\{suffix} is not valid UTF-8: byte 0x81 at offset 3: save it as UTF-8"
            ):
                parse_file(f"x{suffix}", b"caf\x81 au lait")
        with pytest.raises(DataError, match="byte 0xff at offset 4"):
            parse_file(f"x{suffix}", b"\xef\xbb\xbfa\xff")

    @check_rows("data", [b"", b" \n\t\r\n"])
    def test_an_empty_file(self, suffix, data):
        with pytest.raises(DataError, match=rf"^x\{suffix} has no text: the file is empty"):
            parse_file(f"x{suffix}", data)

    def test_a_name_that_is_no_id_becomes_one(self, suffix):
        contents = {".json": b'{"text": "Some text."}', ".csv": b"text\nSome text.\n", ".tsv": b"text\nSome text.\n"}
        content = contents.get(suffix, b"Some text.")
        assert parse_file(f"d/a:b{suffix}", content).doc_id == "a-b-6783a31e"
        with pytest.raises(DataError, match=rf"\{suffix}: doc_id 'x+…' has 300 characters, at most 200 are allowed"):
            parse_file(f"d/{'x' * 300}{suffix}", content)

    @settings(max_examples=scaled(40))
    @given(
        data=st.one_of(
            st.binary(), st.text().map(str.encode), st.text('#-*[]()<>|`!{}":,=\n ab1.', max_size=80).map(str.encode)
        )
    )
    def test_hostile_bytes_give_a_document_or_a_data_error(self, suffix, data):
        try:
            document = parse_file(f"x{suffix}", data)
        except DataError as error:
            if "cannot be parsed" in str(error):
                raise AssertionError(f"{data!r} meets a defect") from error
            return
        paragraphs = [paragraph for section in document.sections for paragraph in section.paragraphs]
        assert document.title
        for paragraph in paragraphs:
            assert paragraph.text.strip() or paragraph.attachment
            assert all(paragraph.text[s.start : s.end].strip() for s in paragraph.sentences)
            paragraph.text.encode()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_marks_are_read(encoding):
    mark = "" if encoding in ("utf-8-sig", "utf-16") else "\ufeff"
    document = parse_file("x.txt", f"{mark}Café power.\r\nMore of it.".encode(encoding))
    assert document.sections[0].paragraphs[0].text == "Café power.\nMore of it."


def test_broken_utf16_is_named_by_its_offset():
    with pytest.raises(DataError, match=r"is not valid UTF-16-LE: byte 0x62 at offset 4"):
        parse_file("x.txt", b"\xff\xfea\x00b")
    with pytest.raises(DataError, match="is not text: NUL byte at offset 4"):
        parse_file("x.txt", b"\xff\xfea\x00\x00\x00")


@check_rows(
    ("name", "data"),
    [
        ("x.md", b"![](a.png)"),
        ("x.html", b"<title>Title</title><nav>Menu</nav><script>let a;</script>"),
        ("x.csv", b"text,page\n,3\n"),
        ("x.json", b'{"title": "T", "text": null, "sections": [{"title": " ", "paragraphs": [{"text": " "}]}]}'),
        (
            "x.json",
            b'{"sections": [{"paragraphs": [{"text": "[Image page=1 idx=1 name=Im0.jpg] Size: 9x9, Data: 9 bytes"}]}]}',
        ),
    ],
)
def test_a_document_without_searchable_text_is_refused(name, data):
    with pytest.raises(DataError, match="has no text: nothing in it can be searched"):
        parse_file(name, data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.json", b"[" * 100_000),
        ("x.md", b"*a " * 3000 + b"a* " * 3000),
        ("x.md", b"---\n" + b"[" * 3000 + b"\n---\nx"),
    ],
)
def test_nesting_without_end_is_refused(name, data):
    with pytest.raises(DataError, match=rf"^{name} is nested too deep"):
        parse_file(name, data)


def test_a_defect_of_a_reader_is_one_reject(monkeypatch):
    def defective(name, data):
        return {}["missing"]

    monkeypatch.setitem(FORMATS, ".md", defective)
    with pytest.raises(DataError, match=r"^x\.md cannot be parsed \(KeyError: 'missing'\): report it"):
        parse_file("x.md", b"text")


def test_a_library_is_imported_where_its_format_is_read():
    heavy = {"nltk", "numpy", "pyarrow", "pymupdf", "selectolax", "torch", "ray"}
    of_formats = {"docutils", "docx", "lxml", "openpyxl", "pptx", "pymupdf"}
    code = (
        f"import sys, kohaku_ray.documents.parse as parse\nprint(*sorted({heavy} & set(sys.modules)))\n"
        f"parse.parse_file('a.md', b'Some text.')\nprint(*sorted({of_formats} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", ""]


@pytest.mark.parametrize(
    ("name", "data"), [("x.md", b"# The plant used 41 GWh"), ("x.html", b"<h1>The plant used 41 GWh</h1>")]
)
def test_a_heading_that_is_all_there_is_can_be_searched(name, data):
    (section,) = parse_file(name, data).sections
    assert [paragraph.text for paragraph in section.paragraphs] == [section.title] == ["The plant used 41 GWh"]


def test_a_section_without_text_has_its_heading_as_its_paragraph():
    sections = parse_file("x.md", b"# Report\n\n## Energy\n\nText.\n\n### Water: 12 ML\n").sections
    assert [(section.title, section.paragraphs[0].text) for section in sections] == [
        ("Energy", "Text."),
        ("Energy \u203a Water: 12 ML", "Water: 12 ML"),
    ]
