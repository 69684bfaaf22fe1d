"""Save a figure as a file for a paper, or turn it into an <svg> element that follows the page's fonts and colours."""

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
# Without dates and versions, so that the same runs always give the same files.
NO_METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": None},
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix; letters in SVG become outlines, which need no font."""
    kind = path.suffix.removeprefix(".").lower()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": path.stem, "pdf.fonttype": 42}):
        figure.savefig(path, format=kind, dpi=PNG_DPI, metadata=NO_METADATA[kind])


def inline(figure: Figure, name: str, title: str, alt: str) -> str:
    """Return a figure as an <svg> element for the page: letters as text, colours as CSS variables, ids prefixed."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=NO_METADATA["svg"])
    root = ElementTree.fromstring(re.sub(rb">\s+<", b"><", buffer.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            # The rules of a <style> would apply to the whole page, which has its own for figures.
            if child.tag == f"{SVG}style" or (child.tag == f"{SVG}defs" and len(child) == 0):
                parent.remove(child)
    colours = {colour: f"var({variable})" for variable, colour in css_variables(dark=False).items()}
    for element in root.iter():
        _adapt(element, name, colours)
    del root.attrib["width"], root.attrib["height"]
    for place, (tag, content) in enumerate((("title", title), ("desc", alt))):
        child = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        child.text = clean(content)
        root.insert(place, child)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, name: str, colours: dict[str, str]) -> None:
    element.tag = element.tag.removeprefix(SVG)  # HTML needs no namespace
    attributes = element.attrib
    if element.tag == "g":  # nothing refers to its id, which is the same in every figure
        kind = attributes.pop("id", "").rstrip("_0123456789")
        if kind in ("axes", "legend"):
            attributes["class"] = kind
    elif "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if f"{XLINK}href" in attributes:
        attributes["href"] = f"#{name}-{attributes.pop(f'{XLINK}href').removeprefix('#')}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{name}-")
    if "d" in attributes:
        path = " ".join(attributes["d"].split())
        attributes["d"] = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.2f}", path)
    if "style" in attributes:
        style = re.sub(r"#[0-9a-f]{6}", lambda match: colours.get(match[0], match[0]), attributes["style"])
        attributes["style"] = re.sub(r"font-family: [^;]*;? ?", "", style)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
