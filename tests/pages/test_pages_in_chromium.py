"""The pages in a browser: what is packed opens, the list filters and sorts, nothing overflows, axe finds nothing."""

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kit.installed import needs
from kit.sweeps import small_sweep
from run_files import index, small_run, small_truth
from test_compare_page import other_run
from test_report_hostile import BAD, hostile_run

from kohaku_ray.evaluation.compare import split_of
from kohaku_ray.evaluation.metrics import Score
from kohaku_ray.pages.compare_page import write_comparison
from kohaku_ray.pages.report import write_report
from kohaku_ray.pages.sweep_page import write_sweep
from kohaku_ray.sweep.compare import SweepGroups

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    needs("playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH, and CHROMIUM names none"),
]

WIDTHS = (1400, 1000, 760, 360)
"""The widest first: what is said of a table that became wide stays."""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def many_groups():
    """Thirty settings with long names on two groups of questions."""
    rng = random.Random(7)
    scores = {label: tuple(Score(rng.random(), {}, 20, 0) for _ in range(30)) for label in ("public", "private")}
    return SweepGroups(tuple(f"queries 4, max_retries 2, top_k {k}" for k in range(30)), split_of("split", scores))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    home = tmp_path_factory.mktemp("pages")
    run, truth = small_run(home / "run"), str(small_truth(home / "truth.csv"))
    index(run / "index", "a2024", "b2025")
    runs = [str(run), str(other_run(home / "other"))]
    return {
        "run": write_report(str(run), truth),
        "compare": write_comparison(truth, runs, str(home / "compare.html"), "wattbot"),
        "sweep": write_sweep(replace(small_sweep(), groups=many_groups()), str(home / "sweep"))[0],
        "hostile": write_report(str(hostile_run(home / "hostile", BAD)), None),
    }


@pytest.fixture
def tab(browser):
    """A tab whose page must not fail, ask anything of a network, or break its own policy."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    tab = context.new_page()
    tab.wrong = []
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("console", lambda message: tab.wrong.append(message.text) if message.type == "error" else None)
    tab.on("dialog", lambda dialog: (tab.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda item: None if item.url.startswith("file://") else tab.wrong.append(item.url))
    yield tab
    assert tab.wrong == []
    context.close()


def until(tab, condition):
    """Wait for a condition; Playwright's own wait_for_function evaluates text in the page, which the page forbids."""
    deadline = time.monotonic() + 30
    while not tab.evaluate(condition):
        assert time.monotonic() < deadline, condition
        tab.wait_for_timeout(20)


def shown(tab):
    ids = "rows => rows.map(row => row.querySelector('code').textContent)"
    return tab.eval_on_selector_all("details.q:not([hidden])", ids)


def open_page(tab, path, fragment=""):
    tab.goto(f"file://{path}{fragment}")
    until(tab, "document.querySelector('#controls output')?.textContent !== ''")


def test_a_question_is_unpacked_when_it_is_opened(tab, pages):
    open_page(tab, pages["run"])
    assert tab.locator(".members").count() == 0
    tab.locator("details.q summary").first.click()
    tab.wait_for_selector("details.q[open] .members")
    assert tab.locator(".members").count() == 1
    assert "The hall drew 41 MW in May." in tab.locator("details.q[open] mark").first.text_content()


def test_an_address_opens_its_question_even_if_it_is_filtered_out(tab, pages):
    open_page(tab, pages["run"], "#q-q2")
    tab.wait_for_selector("details.q[open] .members")
    assert tab.eval_on_selector("details.q[open] code", "one => one.textContent") == "q2"
    open_page(tab, pages["run"], "#show:mark=wrong")
    assert shown(tab) == ["q2"]
    tab.evaluate("location.hash = '#q-q3'")
    tab.wait_for_selector("#q-q3 .members")
    assert shown(tab) == ["q1", "q2", "q3", "q4"]


def test_questions_are_filtered_found_and_sorted(tab, pages):
    open_page(tab, pages["run"])
    assert tab.locator("output").text_content() == "4 of 4 questions"
    for name, value, item in (
        ("mark", "wrong", "q2"),
        ("agree", "split", "q2"),
        ("error", "reference mismatch", "q3"),
        ("cause", "vote", "q2"),
    ):
        tab.select_option(f"select[name={name}]", value)
        assert shown(tab) == [item]
        assert tab.locator("output").text_content() == "1 of 4 questions"
        tab.select_option(f"select[name={name}]", "")
    tab.fill("input[type=search]", "HOW many mars")
    assert shown(tab) == ["q4"]
    tab.press("input[type=search]", "Escape")
    assert shown(tab) == ["q1", "q2", "q3", "q4"]
    tab.select_option("select[name=sort]", "score:1")
    assert shown(tab) == ["q2", "q3", "q1", "q4"]
    tab.select_option("select[name=sort]", "")
    assert shown(tab) == ["q1", "q2", "q3", "q4"]


def test_everything_can_be_done_from_the_keyboard(tab, pages):
    open_page(tab, pages["run"])
    where = (
        "document.activeElement.closest('details.q')?.querySelector('code').textContent ?? document.activeElement.name"
    )
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    assert tab.evaluate(where) == "q2"
    tab.keyboard.press("k")
    assert tab.evaluate(where) == "q1"
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#q-q1 .members")
    tab.keyboard.press("/")
    assert tab.evaluate(where) == "text"
    tab.keyboard.type("jk/")
    assert tab.input_value("input[type=search]") == "jk/"
    tab.keyboard.press("Escape")
    tab.uncheck("input[name=keys]")
    tab.locator("details.q summary").first.focus()
    tab.keyboard.press("j")
    assert tab.evaluate(where) == "q1"


def test_print_has_all_of_the_open_questions_and_no_controls(tab, pages):
    open_page(tab, pages["run"])
    tab.locator("details.q summary").first.click()
    tab.wait_for_selector("details.q[open] .members")
    n_closed = tab.locator("details.q[open] details:not([open])").count()
    assert n_closed
    tab.emulate_media(media="print", color_scheme="dark")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details.q[open] details:not([open])").count() == 0
    assert not tab.locator("#controls").is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details.q[open] details:not([open])").count() == n_closed


def test_hostile_text_does_nothing_when_it_is_opened(tab, pages):
    open_page(tab, pages["hostile"])
    tab.locator("button[name=open]").click()
    tab.wait_for_selector("details.q[open] .members")
    assert "<script>alert(1)</script>" in tab.locator("details.q[open] .members").first.text_content()


def test_a_script_that_got_past_the_escaping_would_not_run(browser, pages, tmp_path):
    owned = "<main><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    bad = Path(pages["run"]).read_text(encoding="utf-8").replace("<main>", owned)
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    tab = browser.new_page()
    tab.goto(f"file://{tmp_path}/bad.html")
    until(tab, "document.querySelector('#controls output').textContent !== ''")
    assert tab.title() != "owned"
    tab.close()


def test_a_cell_of_a_sweep_is_unpacked_when_its_figure_is_followed(tab, pages):
    tab.goto(f"file://{pages['sweep']}")
    assert tab.locator(".asked").count() == 0
    tab.locator("a[href='#cell-4']").first.click()
    tab.wait_for_selector("#cell-4 .asked")
    assert tab.locator("#cell-4 .asked tbody tr").count() == 24


@pytest.mark.parametrize("name", ["run", "compare", "sweep"])
def test_nothing_is_wider_than_the_screen(tab, pages, name):
    tab.set_viewport_size({"width": WIDTHS[0], "height": 900})
    tab.goto(f"file://{pages[name]}")
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    until(tab, "document.querySelector('.body[data-chunk]') === null")
    beyond = """() => [...document.querySelectorAll('main *, header *')].filter(one => !one.closest('.scroll, svg') &&
      !one.closest('figure') && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
      .map(one => one.outerHTML.slice(0, 80))"""
    script = """() => [...document.querySelectorAll('.scroll')].map(one =>
      [one.scrollWidth > one.clientWidth, one.previousElementSibling?.className === 'wide'])"""
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.wait_for_timeout(100)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.evaluate(beyond) == [], width
        boxes = tab.evaluate(script)
        assert all(is_wide == is_said for is_wide, is_said in boxes), width
    assert any(is_wide for is_wide, _ in boxes) or name == "compare"


@pytest.mark.parametrize("name", ["run", "compare", pytest.param("sweep", marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab, pages, name, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    tab.emulate_media(color_scheme=scheme)
    tab.goto(f"file://{pages[name]}")
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    until(tab, "document.querySelector('.body[data-chunk]') === null")
    violations = axe.Axe().run(tab).response["violations"]
    serious = [item for item in violations if item["impact"] in {"serious", "critical"}]
    assert [(item["id"], [node["html"][:160] for node in item["nodes"]][:5]) for item in serious] == []
