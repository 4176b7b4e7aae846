"""Slides as LaTeX makes them: one page per step of a slide (pandoc#7160)."""

import pymupdf
from kit.trees import outline

from kohaku_ray.documents.parse import parse_file

SLIDES = (
    ("Why energy", ["Training used 1,287 MWh.", "It emitted 552 tonnes.", "The PUE was 1.10."]),
    ("How measured", ["Meters were read every hour.", "They were calibrated in 2020."]),
    ("Results", ["The result was 42 MWh."]),
)


def slides(steps):
    file = pymupdf.open()
    number = 0
    for title, points in SLIDES * (1 if steps else 2):
        for n in range(1, len(points) + 1) if steps else [len(points)]:
            number += 1
            page = file.new_page(width=362, height=272)
            page.insert_text((110, 40), title if steps or number <= 3 else f"{title}, again", fontsize=14)
            for i, point in enumerate(points[:n]):
                page.insert_text((120, 90 + 30 * i), point, fontsize=11)
    return parse_file("talk.pdf", file.tobytes())


def test_the_steps_of_a_slide_are_one_slide():
    document = slides(steps=True)
    assert [(title, " ".join(texts)) for title, texts in outline(document)] == [
        (title, " ".join(points)) for title, points in SLIDES
    ]
    assert document.dropped == ("3 slides whose text is a part of the next one's: 1, 2, 4",)


def test_a_slide_that_says_something_else_under_the_same_title_stays():
    file = pymupdf.open()
    for point in ("Training used 1,287 MWh.", "It emitted 552 tonnes."):
        page = file.new_page(width=362, height=272)
        page.insert_text((110, 40), "Why energy", fontsize=14)
        page.insert_text((120, 90), point, fontsize=11)
    assert len(parse_file("talk.pdf", file.tobytes()).sections) == 2
