"""reStructuredText, also with what Sphinx adds, as in the documentation of most Python packages."""

import subprocess
import sys

from kohaku_ray.documents.parse import parse_file

PAGE = """\
==========
The report
==========

:Author: Ann

.. contents::

It used 31 GWh [1]_ in *2023*, see :ref:`the table <sites>` and :py:meth:`~plant.Plant.run`.

.. [1] Measured by us.

Results
=======

.. _sites:

.. table:: Energy per site

   ====== ======
   Site   MWh
   ====== ======
   Oslo   12
   Rome   1,287
   ====== ======

- first
- second

  - inner

Method
------

It is :math:`E = mc^2`, and |unit|.

.. |unit| replace:: in MWh

.. versionadded:: 3.2
   The pump runs at 5 kW.

.. py:function:: run(speed, *, dry=False)
   :async:

   Start the pump.

.. toctree::
   :maxdepth: 2

   other

.. include:: secret.txt

.. a comment

.. image:: plot.png
"""


def tree(text):
    document = parse_file("d/report.rst", text.encode())
    return document, {section.title: [part.text for part in section.paragraphs] for section in document.sections}


def test_sections_tables_lists_notes_and_formulas():
    document, sections = tree(PAGE)
    assert (document.doc_id, document.title, document.dropped) == ("report", "The report", ("1 included file",))
    assert sections == {
        "The report": [
            "Author: Ann",
            "It used 31 GWh [1] in 2023, see the table and run.",
            "[1] Measured by us.",
        ],
        "Results": [
            "Energy per site\nSite: Oslo; MWh: 12\nSite: Rome; MWh: 1,287",
            "- first\n- second\n  - inner",
        ],
        "Results › Method": [
            "It is E = mc^2, and in MWh.",
            "3.2 The pump runs at 5 kW.",
            "run(speed, *, dry=False)",
            "Start the pump.",
        ],
    }


def test_mistakes_in_the_markup_cost_no_text():
    text = "Title\n==\n\nIt is *5 MW, `and |x| so.\n\n.. table::\n\n   bad\n\n* a\nb 7 GWh\n"
    _, sections = tree(text)
    shown = " ".join(text for texts in sections.values() for text in texts)
    assert all(word in shown for word in ("5 MW", "and", "so.", "7 GWh"))


def test_a_long_line_is_read():
    assert len(tree("It is 5 MW. " * 5000)[1]["report"][0]) > 50_000


def test_docutils_is_imported_where_such_a_file_is_read():
    code = (
        "import sys; from kohaku_ray.documents.parse import parse_file; parse_file('a.md', b'Some text.')\n"
        "assert 'docutils' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
