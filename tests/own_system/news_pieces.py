"""The lookup of the file beside, over chunks of news: the second of two ways to say what is read and how it is cut."""

from dataclasses import replace

from kohaku_ray.systems.base import Chunks, View
from tests.own_system.lookup import SYSTEM as LOOKUP

SYSTEM = replace(
    LOOKUP,
    name="news_pieces",
    views={"text": View(kinds=("chunk",), dense=True, lexical=True), "rows": View(kinds=("paragraph",), lexical=True)},
    chunks=Chunks(size=300, overlap=50),
    document_format="news",
)
