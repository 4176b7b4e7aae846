"""Words and numbers cut at a line's end, as a table: the two lines and the text that they make."""

from kit.rows import check_rows

from kohaku_ray.documents.pdf.page import join_lines


@check_rows(
    ("upper", "lower", "text"),
    [
        ("A data-", "driven estimate", "A data-driven estimate"),
        ("The state-of-the-", "art devices", "The state-of-the-art devices"),
        ("an energy-", "efficient chip", "an energy-efficient chip"),
        ("a state-", "of-the-art model", "a state-of-the-art model"),
        ("a large-", "scale run", "a large-scale run"),
        ("the high-", "performance mode", "the high-performance mode"),
        ("by e-", "mail", "by e-mail"),
        ("the GPT-", "3 model", "the GPT-3 model"),
        ("of carbon-", "free power", "of carbon-free power"),
        ("the experi-", "ment", "the experiment"),
        ("he high-", "lights it", "he highlights it"),
        ("its short-", "comings", "its shortcomings"),
        ("is in-", "dependent", "is independent"),
        ("under-", "standing", "understanding"),
        ("costs were 12,", "345 dollars", "costs were 12,345 dollars"),
        ("costs were 1,012,", "345 dollars", "costs were 1,012,345 dollars"),
        ("costs were 12,", "345,678 dollars", "costs were 12,345,678 dollars"),
        ("in 2019,", "345 were built", "in 2019, 345 were built"),
        ("with 10, 12,", "345 and 400", "with 10, 12, 345 and 400"),
        ("with 12,", "345 and 400 W", "with 12, 345 and 400 W"),
        ("with 1.12,", "345 W", "with 1.12, 345 W"),
        ("12,", "3456 W", "12, 3456 W"),
        ("changed by −", "3 units", "changed by −3 units"),
        ("changed by -", "3 units", "changed by -3 units"),
        ("from 20–", "25 %", "from 20–25 %"),
        ("about 3/", "4 of it", "about 3/4 of it"),
        ("a dash -", "and more", "a dash - and more"),
        ("was 3.", "14 units", "was 3. 14 units"),
    ],
)
def test_words_and_numbers_go_on_over_a_lines_end(upper, lower, text):
    assert join_lines([upper, lower], ()) == text


def test_the_document_itself_says_which_words_have_a_hyphen():
    assert join_lines(["an under-", "standing"], {"under-standing"}) == "an under-standing"
