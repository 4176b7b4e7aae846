"""reStructuredText beyond what cases/restructured.txt shows."""

import subprocess
import sys

from kit.trees import texts

from kohaku_ray.documents.parse import parse_file


def test_a_long_line_is_read():
    assert len(texts(parse_file("d/report.rst", b"It is 5 MW. " * 5000))[0]) > 50_000


def test_docutils_is_imported_where_such_a_file_is_read():
    code = (
        "import sys; from kohaku_ray.documents.parse import parse_file; parse_file('a.md', b'Some text.')\n"
        "assert 'docutils' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
