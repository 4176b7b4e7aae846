"""Make the sample collection's paper, slide deck and web page: the same bytes on every run.

    python scripts/make_sample_documents.py [DIRECTORY]

Everything in them was written for this package; organisations, models and figures are invented.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pymupdf

DOCUMENTS = Path(__file__).parents[1] / "kohaku_ray" / "sample" / "documents"
INVENTED = "Invented for testing; figures are not measurements."
SERIF, SERIF_BOLD, SANS, SANS_BOLD = "tiro", "tibo", "helv", "hebo"

PAPER_TITLE = "Idle but Awake: Standby Power of a Fleet for Language Model Inference"
PAPER_AUTHORS = "Giulia Ferro, Marten Quist, Bola Adeyemi"
RUNNING_HEAD = "Ferro, Quist and Adeyemi: Idle but Awake"
# ~ says where a word may be divided; these words may be wherever they stand
DIVIDED = {
    word.replace("~", ""): word
    for word in (
        "stand~by", "ser~vers", "read~ings", "be~cause", "pol~icy", "mod~els", "there~fore", "en~ergy", "re~quests",
        "after~wards", "re~corded", "de~mand", "la~tency", "meter~ing", "pub~lished", "re~plicas", "be~tween",
        "hard~ly", "wait~ing", "com~pares", "operat~ors", "recom~mend", "num~bers",
    )
}  # fmt: skip
PAPER = """
# Abstract
An accel~er~a~tor that holds a model in memory draws power whether or not anybody asks it a ques~tion. We metered an \
infer~ence fleet of 1,152 accel~er~a~tors, called Lark~spur, for 21 weeks. Standby took 37.4 % of the fleet's energy. \
A simple sleep policy, called Dor~mouse, lowered standby energy by 62 % and saved 418 MWh a year, at the price of a \
higher tail latency. The policy needs no change to the models and no forecast of demand.
# 1 Introduction
Accounts of infer~ence count the energy of requests. They seldom count the energy between requests. Operators keep \
replicas awake because loading a model takes time, and because demand cannot be foretold to the second. The result is \
a fleet that is always ready and often idle.
We ask three ques~tions. How much energy does readi~ness take? How much of it can be saved with an energy-efficient \
policy that is simple enough to be trusted? And what do users pay for it in waiting time? We answer them by metering, \
not by model~ling, because published models of standby power dis~agree by a factor of three.
# 2 Fleet and method
## 2.1 The Larkspur fleet
Larkspur serves eleven language models to about 400,000 people. Its 1,152 accel~er~a~tors stand in 144 servers. Each \
server was fitted with an inline meter that reads power once a second. We call a server idle when none of its \
replicas has worked for five seconds.
## 2.2 What was metered
The study ran from 6 January to 1 June 2025. Meters recorded 1.83 billion readings, of which 0.2 % were lost when a \
switch failed. Lost readings were filled in linearly. Cooling is not included; the campus reports a power usage \
effec~tive~ness (PUE) of 1.14, by which our figures may be multi~plied.
An idle server drew 1,480 W on average, and a busy one 5,310 W. Standby is therefore far from free: it takes 27.9 % of \
the power of work. Of the standby power, fans and memory took more than half.
# 3 The Dormouse policy
Dormouse puts a server to sleep when it has been idle for 90 seconds and enough others are awake. Enough means that \
the servers awake could take the highest load of the last ten minutes one and a half times over. A sleeping server \
keeps its model in main memory, switches its accel~er~a~tors off and draws 310 W. The median wake-up took 8.5 s. The \
slowest of the eleven models needed 19 s.
The rule has two numbers, 90 seconds and one and a half. We did not tune them. A search over both, made afterwards \
on the recorded demand, would have raised the saving from 62 % to 66 % only.
# 4 Results
## 4.1 Energy
{table}
Table 1 compares the policies. With Dor~mouse, standby energy over the 21 weeks fell from 272 MWh to 103 MWh. Over a \
year this comes to 418 MWh, about as much as the fleet's busiest model needs. Sleep at fixed night hours, which many \
operators use, saved less than half of that.
{figure}
Savings were largest at night and on Sundays, as Figure 1 shows. Between 2 and 5 in the morning, 71 % of the servers \
slept. At the midday peak hardly any did, and nothing was saved.
## 4.2 Latency
Users paid with waiting time. The 99th percentile of the time to the first token rose from 1.9 s to 2.6 s. The median \
did not change. Of all requests, 0.31 % met a server that was just waking up. No request was refused.
# 5 Limits
One fleet is not all fleets. Larkspur's demand is that of one time zone; a fleet that serves the world has no night. \
Switching accel~er~a~tors off and on may shorten their life. In the 21 weeks we saw four failures among 1,152, \
against five in the 21 weeks before, which proves nothing either way.
# 6 Conclusion
Readiness takes more than a third of the energy of this fleet, and most of that third can be saved. We recommend that \
accounts of infer~ence state standby energy as a line of its own, since a figure per request hides it.
"""
PAPER_FOOTNOTE = (
    "* The meters are accurate to 0.5 %. They were calibrated in December 2024 by an independent laboratory."
)
PAPER_TABLE = (
    ("Policy", "Standby (MWh)", "Sleeps a day", "p99 (s)"),
    ("Always awake", "272", "0", "1.9"),
    ("Night hours", "201", "96", "2.2"),
    ("Dormouse", "103", "1,310", "2.6"),
    ("Tuned Dormouse", "92", "1,545", "2.7"),
)
TABLE_CAPTION = "Table 1: Standby energy over 21 weeks, sleeps a day and tail latency by policy."
FIGURE_CAPTION = "Figure 1: Share of servers asleep by hour of the day, from midnight to midnight."
ASLEEP = (58, 66, 71, 71, 70, 62, 44, 27, 14, 8, 4, 2, 1, 2, 4, 6, 8, 9, 12, 17, 24, 33, 42, 51)

SLIDES_TITLE = "Training on Sunlight: A Year at the Quillon Campus"
SLIDES = (
    (SLIDES_TITLE, ("Bente Orlo, Quillon Energy Cooperative", "Workshop on Computing and Power Grids, May 2025")),
    (
        "Why we tried",
        (
            "Grid power at Quillon is dear in the evening and dirty at night.",
            "The campus has land, sun and one patient customer: research.",
            "Question: can a language model be trained on sunlight alone?",
        ),
    ),
    (
        "The plant",
        (
            "Solar array of 24 MW peak on a former quarry.",
            "Battery of 61 MWh, iron phosphate, in nine containers.",
            "The battery's charge was kept between 15 and 90 % to spare its cells.",
            "A grid connection of 2 MW remains for emergencies.",
        ),
    ),
    (
        "The model",
        (
            "The language model trained on sunlight is called Plover-9B.",
            "Nine billion parameters, 1.1 trillion tokens.",
            "640 accelerators, in halls cooled by outside air.",
            "Its training used 312 MWh over 74 days, pauses included.",
        ),
    ),
    (
        "How jobs follow the sun",
        (
            "Every five minutes a controller compares forecast, charge and load.",
            "It first lowers clocks, then parks racks, then writes a checkpoint.",
            "Training was paused 147 times; the longest pause took 31 hours.",
            "Checkpoints and restarts cost 3.6 % of all energy.",
        ),
    ),
    (
        "What came out",
        (
            "94 % of the energy came from our own array, 6 % from the grid.",
            "Losses in the battery took 11 % of what was stored.",
            "Energy cost 54 euros per MWh, against 97 euros from the grid.",
            "Emissions were 19 gCO2e/kWh, making of the panels included.",
        ),
    ),
    (
        "What went wrong",
        (
            "Sand on the panels: output fell by 7 % in March until they were washed.",
            "Forecasts of haze were wrong on one day in five.",
            "Waking a parked rack took 12 minutes, not the 4 that we had planned.",
        ),
    ),
    (
        "Lessons",
        (
            "Waiting is cheaper than storing: pauses saved a battery twice the size.",
            "Start small jobs at dawn and large ones at ten.",
            "Publish the pauses: a schedule without them looks better than it is.",
            INVENTED,
        ),
    ),
)

PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>How to Read the Energy Label for AI Models | Ebba Foundation</title>
<meta name="description" content="What the grades A to G on the label mean, and who checks them.">
<meta name="author" content="Ebba Foundation">
<meta name="date" content="2024-09-30">
<link rel="canonical" href="https://example.org/guides/ebba2024-energy-label">
<style>body {{ font-family: serif; max-width: 40em }}</style>
<script>document.title = "never run";</script>
</head>
<body>
<nav><a href="/">Home</a> <a href="/guides">Guides</a> <a href="/about">About us</a></nav>
<main>
<h1>How to Read the Energy Label for AI Models</h1>
<p>Since March 2024, every language model offered in the Vestmark has carried a label like the one on refrigerators.
It shows a grade from A to G. This guide says what the grades mean, how they are measured and what they leave out.</p>
<p>The Ebba Foundation keeps the public register of labels. We sell nothing &amp; take no money from providers.</p>
<h2>What the label shows</h2>
<p>The large letter is the grade. Below it stand the energy for 1,000 tokens, the date of the test and the number under
which the model is registered. A small drop next to the letter means that the provider has also reported its water
use, which is voluntary.</p>
<h3>The grades</h3>
<table>
<caption>Grades by energy for 1,000 tokens of output</caption>
<thead><tr><th>Grade</th><th>Energy (Wh)</th><th>Models</th></tr></thead>
<tbody>
<tr><td>A</td><td>up to 0.18</td><td>103</td></tr>
<tr><td>B</td><td>0.18 to 0.4</td><td>214</td></tr>
<tr><td>C</td><td>0.4 to 0.9</td><td>327</td></tr>
<tr><td>D</td><td>0.9 to 2.0</td><td>268</td></tr>
<tr><td>E, F or G</td><td>above 2.0</td><td>228</td></tr>
</tbody>
</table>
<p>At the end of September 2024 the register held 1,140 models. Only 9 % of them had reached grade A. More than half of
these were smaller than four billion parameters.</p>
<h3>How long a label lasts</h3>
<p>A label is valid for 18 months. After that the model must be tested again, on the hardware that serves it then. A
model that is changed by more than one tenth of its parameters needs a new label at once.</p>
<h2>How grades are measured</h2>
<p>An accredited laboratory sends 20,000 recorded requests to the model. It meters the servers, not the building.
Three rules keep tests comparable:</p>
<ul>
<li>requests arrive as in everyday use, with quiet hours and busy ones;</li>
<li>the provider chooses the hardware, but must use it in production;</li>
<li>the worst of three runs counts.</li>
</ul>
<p>A test costs between 3,500 and 8,000 crowns, depending on the size of the model. Universities pay half. A test takes
two days, most of which goes into waiting for the quiet hours to pass.</p>
<h2>Who checks</h2>
<p>The Market Office may test any model without notice. In the first half-year it tested 62 models and downgraded 5.
A provider whose label is wrong by two grades or more can be fined up to 250,000 crowns. Honest mistakes of one grade
are corrected in the register and not fined.</p>
<h2>What the label leaves out</h2>
<p>The label says nothing about training, about the making of hardware or about how useful an answer is. A model with
grade A that needs five attempts is no bargain. We have asked the Market Office to add a mark for tasks solved per
watt-hour; it plans a trial with 40 models in 2026.</p>
<p>Nor does the label tell you which electricity is used. Two providers can run the same model with the same grade,
one on hydropower and one on coal. Look for the green strip at the lower edge: it is printed only where the provider
has contracts for clean power in every hour, not merely over the year.</p>
<h2>Questions we are often asked</h2>
<h3>May a provider leave the label off?</h3>
<p>No. Advertising a model without its label is an offence after the first warning. Models that are given away for
research are exempt.</p>
<h3>Is a lower grade a reason not to use a model?</h3>
<p>Not by itself. Ask what the task is worth. For a short reply to a simple question, a model of grade C or D is
seldom needed. For a long report that saves a journey, even grade E may be the frugal choice.</p>
<p><em>{INVENTED}</em></p>
</main>
<footer><p>Ebba Foundation, Harbour Street 5</p></footer>
</body>
</html>
"""


@dataclass
class Pen:
    """Sets lines in the columns of a paper, page after page."""

    file: pymupdf.Document
    top: float
    column: int = 0

    LEFT, WIDTH, GUTTER, FOOT = 54.0, 234.0, 19.0, 752.0

    @property
    def page(self) -> pymupdf.Page:
        """The page that is being set."""
        return self.file[-1]

    @property
    def x(self) -> float:
        """Left edge of the column."""
        return self.LEFT + self.column * (self.WIDTH + self.GUTTER)

    def __post_init__(self) -> None:
        self.y = self.top

    def need(self, height: float) -> None:
        """Go to the next column or page unless so many points are left in this one."""
        foot = self.FOOT - (44 if len(self.file) == 1 else 0)
        if self.y + height <= foot:
            return
        self.column += 1
        if self.column == 2:
            self.column, self.top = 0, 66.0
            new_page(self.file)
        self.y = self.top

    def lines(self, text: str, size: float, font: str, leading: float) -> None:
        """Set a paragraph."""
        for line in broken(text, pymupdf.Font(font), size, self.WIDTH):
            self.need(leading)
            self.y += leading
            self.page.insert_text((self.x, self.y), line, fontname=font, fontsize=size)


def broken(text: str, font: pymupdf.Font, size: float, width: float) -> Iterator[str]:
    """Yield lines no wider than ``width``; words may be divided at ``~``."""
    line = ""
    for word in text.split():
        pieces = DIVIDED.get(word, word).split("~")
        while True:
            gap = " " if line else ""
            fits = [n for n in range(len(pieces), 0, -1) if _fits(line + gap, pieces, n, font, size, width)]
            if not fits:
                yield line
                line = ""
                continue
            n = fits[0]
            line += gap + "".join(pieces[:n])
            if n == len(pieces):
                break
            yield line + "-"
            line, pieces = "", pieces[n:]
    yield line


def _fits(line: str, pieces: Sequence[str], n: int, font: pymupdf.Font, size: float, width: float) -> bool:
    hyphen = "-" if n < len(pieces) else ""
    return (not line and n == 1) or font.text_length(line + "".join(pieces[:n]) + hyphen, size) <= width


def new_page(file: pymupdf.Document) -> None:
    """Begin a page of the paper, with its running head and number."""
    page = file.new_page(width=595, height=842)
    page.insert_text((54, 40), RUNNING_HEAD, fontname=SERIF, fontsize=8)
    page.insert_text((294, 806), str(len(file)), fontname=SERIF, fontsize=9)


def paper() -> bytes:
    """The two-column paper."""
    file = pymupdf.open()
    new_page(file)
    page = file[0]
    y = 84.0
    for line in broken(PAPER_TITLE, pymupdf.Font(SERIF_BOLD), 18, 480):
        page.insert_text((54, y), line, fontname=SERIF_BOLD, fontsize=18)
        y += 22
    page.insert_text(
        (54, y + 2), f"{PAPER_AUTHORS}, Northmoor Institute of Computing, 2025", fontname=SERIF, fontsize=10.5
    )
    page.draw_line((54, 762), (180, 762), width=0.5)
    page.insert_text((54, 774), PAPER_FOOTNOTE, fontname=SERIF, fontsize=8)
    pen = Pen(file, y + 18)
    for paragraph in PAPER.strip().split("\n"):
        set_paragraph(pen, paragraph)
    pen.lines(INVENTED, 9.5, SERIF, 12)
    return finished(file, PAPER_TITLE, PAPER_AUTHORS, "20250620090000")


def set_paragraph(pen: Pen, paragraph: str) -> None:
    """Set a heading, the table, the figure or a paragraph of text."""
    if paragraph == "{table}":
        set_table(pen)
    elif paragraph == "{figure}":
        set_figure(pen)
    elif paragraph.startswith("#"):
        size = 10 if paragraph.startswith("##") else 12
        pen.need(60)
        pen.y += 6
        pen.lines(paragraph.lstrip("# "), size, SERIF_BOLD, size + 3)
        pen.y += 3
    else:
        pen.lines(paragraph, 9.5, SERIF, 12)
        pen.y += 8


def set_table(pen: Pen) -> None:
    """Set the table between three rules, its caption above."""
    pen.need(130)
    pen.lines(TABLE_CAPTION, 8.5, SERIF, 11)
    pen.y += 6
    rule(pen)
    for i, row in enumerate(PAPER_TABLE):
        pen.y += 13
        for cell, x in zip(row, (2, 84, 150, 205), strict=True):
            pen.page.insert_text((pen.x + x, pen.y), cell, fontname=SERIF, fontsize=8.5)
        if i in (0, len(PAPER_TABLE) - 1):
            pen.y += 4
            rule(pen)
    pen.y += 16


def rule(pen: Pen) -> None:
    """Draw a rule across the column."""
    pen.page.draw_line((pen.x, pen.y), (pen.x + pen.WIDTH, pen.y), width=0.6)


def set_figure(pen: Pen) -> None:
    """Set the bar chart, its caption below."""
    pen.need(150)
    picture = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 240, 100))
    picture.clear_with(255)
    for hour, share in enumerate(ASLEEP):
        picture.set_rect(pymupdf.IRect(hour * 10 + 1, 100 - share, hour * 10 + 8, 100), (96,))
    pen.page.insert_image((pen.x, pen.y, pen.x + pen.WIDTH, pen.y + 98), pixmap=picture)
    pen.y += 102
    pen.lines(FIGURE_CAPTION, 8.5, SERIF, 11)
    pen.y += 14


def slides() -> bytes:
    """The slide deck, with a number and a running line on every slide."""
    file = pymupdf.open()
    for number, (title, points) in enumerate(SLIDES, 1):
        page = file.new_page(width=960, height=540)
        page.draw_rect((0, 0, 960, 14), color=None, fill=(0.1, 0.35, 0.3))
        first = number == 1
        page.insert_text((60, 210 if first else 90), title, fontname=SANS_BOLD, fontsize=36)
        y = 280.0 if first else 160.0
        for point in points:
            small = point == INVENTED
            bullet = "" if first or small else "\u00b7 "
            page.insert_text((60, y), bullet + point, fontname=SANS, fontsize=14 if small else 23)
            y += 58
        page.insert_text((60, 520), "Orlo, Training on Sunlight", fontname=SANS, fontsize=11)
        page.insert_text((890, 520), f"{number} / {len(SLIDES)}", fontname=SANS, fontsize=11)
    return finished(file, SLIDES_TITLE, "Bente Orlo", "20250514080000")


def finished(file: pymupdf.Document, title: str, author: str, date: str) -> bytes:
    """A file's bytes, with nothing in them that depends on when or where they were made."""
    stamp = f"D:{date}Z"
    file.set_metadata({"title": title, "author": author, "creationDate": stamp, "modDate": stamp})
    return bytes(file.tobytes(garbage=4, deflate=True, no_new_id=True))


def main() -> int:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=DOCUMENTS)
    directory = parser.parse_args().directory
    contents = {"ferro2025.pdf": paper(), "orlo2025.pdf": slides(), "ebba2024.html": PAGE.encode()}
    for name, content in contents.items():
        (directory / name).write_bytes(content)
        sys.stdout.write(f"{directory / name}: {len(content):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
