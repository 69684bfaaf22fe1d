"""Colours have enough contrast and differ for colour-blind readers too; no two methods look the same."""

from itertools import combinations

import numpy as np
import pytest

from gradsift.report import style
from gradsift.report.runs import Floats

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour: str) -> Floats:
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, eye: str) -> Floats:
    """CIE L*a*b* of a colour as that eye sees it."""
    xyz = TO_XYZ @ np.clip(EYES[eye] @ linear(colour), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("named", "lines"), [(style.LIGHT, style.LIGHT_LINES), (style.DARK, style.DARK_LINES)])
def test_contrast(named: dict[str, str], lines: tuple[str, ...]) -> None:
    assert contrast(named["ink"], named["paper"]) >= 7
    assert contrast(named["axis"], named["paper"]) >= 3
    for line in lines:
        assert contrast(line, named["paper"]) >= 3  # WCAG 1.4.11, for graphical objects


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("lines", [style.LIGHT_LINES, style.DARK_LINES])
def test_colours_differ_for_every_eye(lines: tuple[str, ...], eye: str) -> None:
    for one, other in combinations(lines, 2):
        assert np.linalg.norm(lab(one, eye) - lab(other, eye)) >= 12, (one, other)


def test_methods_differ_without_colour_too() -> None:
    looks = [style.look(i) for i in range(45)]
    assert len(set(looks)) == len(looks)
    assert len({(look.dashes, look.marker) for look in looks}) == len(looks)


def test_every_colour_of_a_figure_has_one_variable() -> None:
    light, dark = style.css_variables(dark=False), style.css_variables(dark=True)
    assert light.keys() == dark.keys()
    assert len(set(light.values())) == len(light)
    assert {style.look(i).colour for i in range(20)} <= set(light.values())
