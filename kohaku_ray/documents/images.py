"""Turn the bytes of an untrusted image into pixels without transparency, as PNG named by its hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import struct
import warnings
import zlib
from typing import Any
from urllib.parse import unquote_to_bytes

from kohaku_ray.documents.model import Image
from kohaku_ray.errors import DataError

MIN_PIXELS = 64  # shortest side of an image that is kept; smaller ones are icons, bullets and rules
MAX_PIXELS = 100_000_000  # most pixels of an image that is decoded
MAX_BYTES = 64 * 2**20  # largest image file, in bytes
DIGEST_DIGITS = 32  # hexadecimal digits of an image's name
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")  # formats that Pillow may read
_MARKUP = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?P<tag>\??!?[A-Za-z]+)")
_DATA_URI = re.compile(r"data:(?P<type>[^,;]*)(?P<options>[^,]*),(?P<body>.*)", re.IGNORECASE | re.DOTALL)
_UP = 2  # PNG's filter that stores a row as its difference to the row above


class BadImageError(DataError):
    """An image cannot be used; the document that holds it can."""


class SmallImageError(BadImageError):
    """An image is too small to carry content."""


def read_image(data: bytes) -> Image:
    """Decode an image file; of an animation the first picture.

    Transparency becomes white, CMYK and indexed colours become RGB, and a photograph is turned as its EXIF orientation
    says. Colour profiles are not applied.

    Raises:
        SmallImageError: A side is shorter than `MIN_PIXELS`.
        BadImageError: It is no image, is broken, or has too many bytes or pixels.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps, UnidentifiedImageError

    if not data:
        raise BadImageError("the file is empty")
    if len(data) > MAX_BYTES:
        raise BadImageError(f"{len(data):,} bytes, at most {MAX_BYTES:,} are allowed")
    if markup := _MARKUP.match(data):
        is_svg = b"<svg" in data[:1000].lower()
        kind = "SVG, which is not read: export it as PNG" if is_svg else "HTML or XML, no image: fetch the image itself"
        raise BadImageError(f"the file is {kind} (it begins with <{markup['tag'].decode()})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of 90 to 179 megapixels, and of odd metadata
            with Pillow.open(io.BytesIO(data), formats=FORMATS) as opened:
                check_pixels(*opened.size)
                opened.load()
                return as_image(without_transparency(ImageOps.exif_transpose(opened)))
    except DataError:
        raise
    except UnidentifiedImageError:
        raise BadImageError(f"no image in a format that is read ({', '.join(FORMATS)})") from None
    except Pillow.DecompressionBombError:
        raise BadImageError(f"more than {MAX_PIXELS:,} pixels: reduce it") from None
    except (MemoryError, RecursionError):
        raise BadImageError("it takes more memory than there is: reduce it") from None
    except Exception as error:  # Pillow's decoders raise anything on a broken file
        raise BadImageError(f"broken ({type(error).__name__}: {str(error)[:120]})") from None


def check_pixels(width: int, height: int) -> None:
    """Raise SmallImageError or BadImageError where an image has too few or too many pixels to be decoded."""
    if width * height > MAX_PIXELS:
        raise BadImageError(f"{width:,} × {height:,} pixels, at most {MAX_PIXELS:,} are allowed: reduce it")
    if min(width, height) < MIN_PIXELS:
        raise SmallImageError(f"{width} × {height} pixels, at least {MIN_PIXELS} on each side are needed")


def without_transparency(picture: Any) -> Any:
    """Turn a Pillow image into RGB or grey, as it looks on white paper."""
    from PIL import Image as Pillow

    if picture.has_transparency_data:
        shown = picture.convert("RGBA")
        return on_white(shown.convert("RGB"), shown.getchannel("A"))
    if picture.mode.startswith("I;16"):
        return Pillow.frombytes("L", picture.size, picture.tobytes()[picture.mode == "I;16" :: 2])
    if picture.mode in ("I", "F"):
        low, high = picture.getextrema()
        scale = 255 / max(high - low, 1e-9)
        return picture.convert("F").point(lambda value: value * scale - low * scale).convert("L")
    return picture if picture.mode in ("RGB", "L") else picture.convert("L" if picture.mode == "1" else "RGB")


def on_white(picture: Any, alpha: Any) -> Any:
    """Lay a Pillow image on white paper; ``alpha`` is grey, of the same size or not."""
    from PIL import Image as Pillow

    if alpha.size != picture.size:
        alpha = alpha.resize(picture.size, Pillow.Resampling.BILINEAR)
    return Pillow.composite(picture, Pillow.new(picture.mode, picture.size, "white"), alpha)


def as_image(picture: Any) -> Image:
    """Encode a Pillow image, RGB or grey, as PNG; see `check_pixels`."""
    check_pixels(*picture.size)
    data = _png(picture)
    return Image(image_digest(data), data, *picture.size)


def _png(picture: Any) -> bytes:
    """Write a PNG: each row as its difference to the row above, runs of equal bytes compressed.

    Charts take half as long as with Pillow's fastest level and photographs a third, in fewer bytes.
    """
    import numpy as np

    pixels = np.asarray(picture)
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    colours = 2 if pixels.ndim == 3 else 0
    head = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", packer.compress(filtered.data) + packer.flush()), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
        for kind, data in parts
    )


def image_digest(data: Any) -> str:
    """Digest an image's PNG, bytes or anything with a buffer: the name of its file."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]


def image_name(digest: str) -> str:
    """Name of an image's file below an index's directory."""
    return f"images/{digest}.png"


def data_uri(source: str) -> bytes | None:
    """Decode the bytes of a ``data:`` URI, or raise BadImageError; None: it is another kind of address."""
    match = _DATA_URI.match(source)
    if match is None:
        return None
    body = unquote_to_bytes(match["body"])
    if not match["options"].lower().rstrip().endswith(";base64"):
        return body
    try:
        return base64.b64decode(re.sub(rb"\s", b"", body), validate=True)
    except binascii.Error as error:
        raise BadImageError(f"broken data URI ({error})") from None
