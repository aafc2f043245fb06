"""Pictures of the page: the documentation's, and whether the page still looks like them."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import Page

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MAKE = bool(os.environ.get("SCREENSHOTS"))
"""Whether they are made anew (`make screenshots`)."""
LARGEST = 60_000
"""Bytes of one: they are kept in the repository, and installed."""
COLOURS = 256
_BLOCK = 40
"""Pixels: letters become a tint of grey."""
_DIFFERENT = 12
"""Of 255."""


def taken(page: Page) -> Image.Image:
    """What the window shows."""
    return Image.open(io.BytesIO(page.screenshot(animations="disabled", caret="hide"))).convert("RGB")


def distance(one: Image.Image, other: Image.Image) -> float:
    """The share of the window that looks different, in blocks: another font, or other digits, hardly count. 0 to 1."""
    if one.size != other.size:
        return 1.0
    small = (one.width // _BLOCK, one.height // _BLOCK)
    blocks = [image.convert("RGB").resize(small, Image.Resampling.BOX) for image in (one, other)]
    # Of each block the colour that differs most.
    red, green, blue = ImageChops.difference(*blocks).split()
    most = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return sum(most.histogram()[_DIFFERENT:]) / (small[0] * small[1])


def keep(image: Image.Image, name: str) -> None:
    """Writes it, with few colours."""
    FOLDER.mkdir(exist_ok=True)
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        FOLDER / f"{name}.png", optimize=True
    )


def kept(name: str) -> Image.Image:
    with Image.open(FOLDER / f"{name}.png") as image:
        return image.convert("RGB")
