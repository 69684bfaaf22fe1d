"""A figure as files for a paper, and as an element of a page that follows the page's fonts and colours."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from gradsift.report.style import css_variables
from gradsift.report.text import clean

FORMATS = ("svg", "png", "pdf")
PNG_DPI = 300
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
# Nothing that changes from one run of the program to the next.
NO_METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": None},
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the name ends in, letters as outlines: it looks the same everywhere."""
    kind = path.suffix.removeprefix(".")
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": path.stem, "pdf.fonttype": 42}):
        figure.savefig(path, format=kind, dpi=PNG_DPI, metadata=NO_METADATA[kind])


def inline(figure: Figure, name: str, title: str, alt: str) -> str:
    """A figure as an <svg> element for a page: letters as text, colours as CSS variables, its own ids."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=NO_METADATA["svg"])
    root = ElementTree.fromstring(buffer.getvalue())
    colours = {colour: f"var({variable})" for variable, colour in css_variables(dark=False).items()}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}style" or (child.tag == f"{SVG}defs" and len(child) == 0):
                parent.remove(child)  # its rules would reach the whole page; the page has them for its figures
    for element in root.iter():
        _adapt(element, name, colours)
    for attribute in ("width", "height"):
        del root.attrib[attribute]
    words = {"title": title, "desc": alt}
    for place, (tag, said) in enumerate(words.items()):
        child = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        child.text = clean(said)
        root.insert(place, child)
    root.set("role", "img")
    root.set("aria-labelledby", " ".join(f"{name}-{tag}" for tag in words))
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, name: str, colours: dict[str, str]) -> None:
    element.tag = element.tag.removeprefix(SVG)  # in HTML the namespace goes without saying
    if element.tail is not None and not element.tail.strip():
        element.tail = None
    if element.text is not None and not element.text.strip():
        element.text = None
    attributes = element.attrib
    if "id" in attributes:
        if element.tag == "g":  # no one refers to it, and every figure has the same
            kind = attributes.pop("id").rstrip("_0123456789")
            if kind in ("axes", "legend"):
                attributes["class"] = kind
        else:
            attributes["id"] = f"{name}-{attributes['id']}"
    link = attributes.pop(f"{XLINK}href", None)
    if link is not None:
        attributes["href"] = f"#{name}-{link.removeprefix('#')}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{name}-")
    if "d" in attributes:
        attributes["d"] = re.sub(
            r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}", " ".join(attributes["d"].split())
        )
    if "style" in attributes:
        style = re.sub(r"#[0-9a-f]{6}", lambda found: colours.get(found[0], found[0]), attributes["style"])
        attributes["style"] = re.sub(r"font-family: [^;]*;? ?", "", style)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
