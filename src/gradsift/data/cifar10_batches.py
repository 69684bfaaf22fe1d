"""CIFAR-10 as its author publishes it: the folder of the "python" archive or of the "binary" one."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gradsift.data.cifar10 import CLASSES, share_out
from gradsift.data.federated import FederatedData
from gradsift.data.npz import Array
from gradsift.errors import GradsiftError

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
PIXELS = 3 * 32 * 32


def is_cifar10_folder(folder: Path) -> bool:
    """Whether this looks like one of the two archives, unpacked."""
    return any((folder / f"{BATCHES[0]}{suffix}").exists() for suffix in ("", ".bin"))


def import_cifar10(
    folder: str | os.PathLike[str],
    *,
    clients: int = 100,
    partition: str = "one-class",
    alpha: float | None = None,
    at_least: int | None = None,
    seed: int = 0,
) -> FederatedData:
    """CIFAR-10 from ``cifar-10-batches-py`` or ``cifar-10-batches-bin``; the options are those of ``cifar10``.

    The python batches are pickles: they are read without running anything they name, see ``_Batch``.
    """
    base = Path(folder)
    if not is_cifar10_folder(base):
        raise GradsiftError(
            f"{str(base)!r} is no folder of CIFAR-10 batches: it has no {BATCHES[0]} or {BATCHES[0]}.bin"
        )
    binary = (base / f"{BATCHES[0]}.bin").exists()
    images, labels = [], []
    for batch in BATCHES:
        path = base / (f"{batch}.bin" if binary else batch)
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise GradsiftError(f"CIFAR-10 needs the file {path}: {problem.strerror}") from None
        pixels, classes = _binary(content, path) if binary else _python(content, path)
        wrong = np.flatnonzero(classes >= CLASSES)
        if len(wrong):
            raise GradsiftError(f"{path} is damaged: label {classes[wrong[0]]} of image {wrong[0]} is not in 0 to 9")
        images.append(pixels.reshape(-1, 3, 32, 32))
        labels.append(classes)
    options: dict[str, Any] = {"clients": clients, "partition": partition, "alpha": alpha, "at_least": at_least}
    return share_out(images, labels, "channels-first", **options, seed=seed)


def _binary(content: bytes, path: Path) -> tuple[Array, Array]:
    """Records of one label byte and 3,072 pixel bytes."""
    if not content or len(content) % (1 + PIXELS):
        raise GradsiftError(f"{path} is truncated or not a batch: {len(content)} bytes, not records of {1 + PIXELS}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:], records[:, 0]


def _python(content: bytes, path: Path) -> tuple[Array, Array]:
    """A pickled dict with b"data" [n, 3072] and b"labels", a list."""
    try:
        batch = _Batch.loads(content)
        # Python 2 wrote its keys as bytes, Python 3 may have rewritten them as text.
        fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        stored, labels = fields["data"], fields["labels"]
        pixels = stored.bytes() if isinstance(stored, _Array) else np.asarray(stored, dtype=np.uint8)
        if isinstance(labels, _Array):
            labels = labels.bytes()
        classes = np.array([int(label) for label in labels], dtype=np.int64)
    except Exception as problem:  # a damaged pickle raises almost anything
        raise GradsiftError(f"{path} is not a CIFAR-10 python batch, or is damaged: {problem!r}") from problem
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(pixels) != len(classes) or len(pixels) == 0:
        raise GradsiftError(f"{path} is damaged: data is {list(pixels.shape)}, there are {len(classes)} labels")
    if int(classes.min()) < 0:
        raise GradsiftError(f"{path} is damaged: it has the label {int(classes.min())}")
    return pixels, classes


class _Dtype:
    """Stands for numpy.dtype in a pickle: only remembers its name."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields: a byte has neither."""


class _Array:
    """Stands for a numpy array in a pickle: only remembers what it was made of."""

    def __setstate__(self, state: Any) -> None:
        """(version, shape, dtype, is_fortran, bytes)."""
        _, self.shape, self.dtype, self.fortran, self.raw = state

    def bytes(self) -> Array:
        """The array, which must be of bytes."""
        if self.dtype.name not in ("u1", "uint8"):
            raise ValueError(f"an array of {self.dtype.name}, not of bytes")
        raw = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        return np.frombuffer(raw, dtype=np.uint8).reshape(self.shape, order="F" if self.fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", raw))
    return array


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"refused: bytes encoded as {encoding!r}")
    return text.encode("latin1")


class _Batch(pickle.Unpickler):
    """Reads numbers, strings, containers and arrays of bytes; a pickle that names anything else is refused.

    Not even numpy's own functions are reached: arrays are put together here from their bytes.
    """

    ALLOWED = {  # noqa: RUF012  (never written to)
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy.core.numeric", "_frombuffer"): _frombuffer,
        ("numpy._core.numeric", "_frombuffer"): _frombuffer,
        ("_codecs", "encode"): _encode,
    }

    @classmethod
    def loads(cls, content: bytes) -> Any:
        """The object in a pickle of Python 2 or 3."""
        return cls(io.BytesIO(content), encoding="bytes").load()

    def find_class(self, module: str, name: str, /) -> Any:
        """The stand-ins above, and nothing else."""
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"refused: the file names {module}.{name}") from None
