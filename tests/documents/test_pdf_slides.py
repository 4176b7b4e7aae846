"""Slides as LaTeX makes them: one page per step of a slide (pandoc#7160)."""

from documents.sheets import Sheet
from kit.trees import outline

SLIDES = (
    ("Why energy", ["Training used 1,287 MWh.", "It emitted 552 tonnes.", "The PUE was 1.10."]),
    ("How measured", ["Meters were read every hour.", "They were calibrated in 2020."]),
    ("Results", ["The result was 42 MWh."]),
)


class Talk(Sheet):
    """Slides, each a page of its own."""

    def __init__(self):
        super().__init__(362, 272, size=11, step=30)
        self.file.delete_page(0)

    def add(self, title, *points):
        self.add_page()
        self.put(110, 40, title, size=14)
        self.put(120, 90, *points)


def test_the_steps_of_a_slide_are_one_slide():
    talk = Talk()
    for title, points in SLIDES:
        for n in range(1, len(points) + 1):
            talk.add(title, *points[:n])
    document = talk.parse()
    assert [(title, " ".join(texts)) for title, texts in outline(document)] == [
        (title, " ".join(points)) for title, points in SLIDES
    ]
    assert document.dropped == ("3 slides whose text is a part of the next one's: 1, 2, 4",)


def test_a_slide_that_says_something_else_under_the_same_title_stays():
    talk = Talk()
    for point in ("Training used 1,287 MWh.", "It emitted 552 tonnes."):
        talk.add("Why energy", point)
    assert len(talk.parse().sections) == 2
