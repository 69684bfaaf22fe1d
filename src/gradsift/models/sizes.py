"""Check and compute the sizes of models."""

from gradsift import check
from gradsift.errors import GradsiftError


def image_sides(image_size: int | tuple[int, int], least: int) -> tuple[int, int]:
    """Return (H, W) of images, where one number means a square; a side shorter than ``least`` is refused."""
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2:
        raise GradsiftError(f"image_size must be one number or (height, width), got {image_size!r}")
    for side in sides:
        check.integer("image_size", side, least)
    return sides[0], sides[1]


def scaled(units: int, width: float) -> int:
    """Return ``units`` times ``width``, rounded, at least 1."""
    check.real("width", width, above=0)
    return max(1, round(units * width))
