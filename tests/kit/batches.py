"""Lines of a batch file, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path


def a_line(custom_id: str, text: str, **body) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions"} | {
        "body": {"model": "fake", "messages": [{"role": "user", "content": text}], **body}
    }


def rows(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
