"""How long a server asks to wait, in its headers and words."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from kit.rows import check_rows

from kohaku_ray.models.refusal import told_wait_s


@check_rows(
    ("header", "seconds"),
    [
        *((given, float(given)) for given in ("0", " 1.5 ", "86400")),
        *((timedelta(seconds=seconds), seconds) for seconds in (200, 3 * 86400)),
        (timedelta(seconds=-42), 0.0),
        ("Friday, 31-Dec-99 23:59:59 GMT", 0.0),
        ("Fri Dec 31 23:59:59 1999", 0.0),
        *((bad, None) for bad in ("", "soon", "nan", "-5", "1e0", "0x1", "٣", "\xb2", "9" * 20, "0, 0", "0;q=1", "0s")),
        *((bad, None) for bad in ("Fri, 31 Dec 99999999999 23:59:59 GMT", "1999-12-31T23:59:59Z")),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    if isinstance(header, timedelta):
        header = format_datetime(datetime.now(UTC) + header, usegmt=True)
    assert told_wait_s({"Retry-After": header}, "") == (seconds if seconds is None else pytest.approx(seconds, abs=30))


WAITS = {
    "Google (AtomicBot#267, pixeltable#1092)": ('[{"error": {"details": [{"retryDelay": "24s"}]}}]', {}, 24.0),
    "milliseconds": ("", {"retry-after-ms": "1500"}, 1.5),
    "OpenAI's words": ("Rate limit reached. Please try again in 1m2.5s.", {}, 62.5),
    "other words": ("Please retry after 12 seconds.", {}, 12.0),
    "the header before the words": ("try again in 9s", {"Retry-After": "3"}, 3.0),
    "no wait": ("try again in 5 requests", {}, None),
    "nothing": ("", {}, None),
}


@check_rows("kind", WAITS)
def test_a_wait_is_read_from_headers_and_words(kind):
    text, headers, wait_s = WAITS[kind]
    assert told_wait_s(httpx.Headers(headers), text) == wait_s
