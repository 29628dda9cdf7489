"""Data types: their names in torch and their bytes per element. No torch."""

from typing import Final, NamedTuple

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.names import did_you_mean, in_any_case


class Dtype(NamedTuple):
    """A data type."""

    name: str
    nbytes: int
    """Bytes per element."""


BFLOAT16: Final = Dtype("bfloat16", 2)
FLOAT16: Final = Dtype("float16", 2)
FLOAT32: Final = Dtype("float32", 4)
"""Type in which softmax, norms, routing and interpolation compute."""
INT32: Final = Dtype("int32", 4)
INT64: Final = Dtype("int64", 8)
"""Type of token ids, positions and expert indices."""
BOOL: Final = Dtype("bool", 1)

MODEL_DTYPES: Final = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32}
"""Types that a model's weights and activations can have, by name."""

_ALIASES: Final = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
}


def dtype_named(name: str) -> Dtype:
    """The model type called `name`, in any case; raises DeviceError if there is none."""
    found = in_any_case(name, [*MODEL_DTYPES, *_ALIASES])
    if found is None:
        near = did_you_mean(name, MODEL_DTYPES, _ALIASES)
        raise DeviceError(
            f"dtype {name!r} is unknown; {near}use {', '.join(MODEL_DTYPES)}", arguments=["dtype"]
        )
    return MODEL_DTYPES[_ALIASES.get(found, found)]
