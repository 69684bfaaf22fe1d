"""Sizes of models."""

from gradsift import check
from gradsift.errors import GradsiftError


def image_sides(image_size: int | tuple[int, int], least: int) -> tuple[int, int]:
    """(H, W) of images, from one number where they are square; no side shorter than ``least``."""
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2:
        raise GradsiftError(f"image_size must be one number or (height, width), got {image_size!r}")
    for side in sides:
        check.integer("image_size", side, least)
    return sides[0], sides[1]


def scaled(units: int, width: float) -> int:
    """So many units times the width, at least one."""
    check.real("width", width)
    if width <= 0:
        raise GradsiftError(f"width must be above 0, got {width!r}")
    return max(1, round(units * width))
