"""Element types: our names, their bytes, and what frameworks, traces, logs and tables call them."""

from __future__ import annotations

import re

#: bytes of one element, by the names used in shapes
DTYPE_BYTES: dict[str, int] = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_block": 1,
    "mxfp8": 1,
    "nvfp4": 1,  # half a byte and a scale: whole bytes where operands are counted
    "mxfp4": 1,
    "int64": 8,
    "int32": 4,
    "bool": 1,
    "uint8": 1,
}
#: types whose operands carry scales -> type of their elements
SCALED_ELEMENTS = {"fp8": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}

#: words of C, CUDA, NumPy, NCCL and of people without underscores -> torch's names
_WORDS = {
    **dict.fromkeys(("float", "fp32", "f32", "tf32"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("fp8", "float8", "e4m3", "fp8e4m3", "f8e4m3"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2", "fp8e5m2", "f8e5m2"), "float8_e5m2"),
    **dict.fromkeys(("long", "longint"), "int64"),
    **dict.fromkeys(("int", "signedint"), "int32"),
    **dict.fromkeys(("short", "shortint"), "int16"),
    **dict.fromkeys(("byte", "unsignedchar"), "uint8"),
    **dict.fromkeys(("char", "signedchar"), "int8"),
    "unsignedint": "uint32", "unsignedlong": "uint64", "unsignedlongint": "uint64", "complexfloat": "complex64",
}  # fmt: skip
_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2, "bfloat16": 2,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_OURS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def torch_name(word: str) -> str:
    """Return what torch calls an element type; empty where the word is unknown.

    Examples
    --------
    >>> torch_name("c10::BFloat16"), torch_name("Tensor(long int)"), torch_name("torch.float8_e5m2"), torch_name("fp7")
    ('bfloat16', 'int64', 'float8_e5m2', '')
    """
    last = re.split(r"[(:.]", word.rstrip(")] "))[-1].lower()
    if last in _BYTES:
        return last
    plain = re.sub(r"[ _]", "", last)
    return _WORDS.get(plain, plain if plain in _BYTES else "")


def element_bytes(word: str) -> int:
    """Return the bytes of one element of a type by any of its names, 0 where unknown.

    Examples
    --------
    >>> element_bytes("c10::BFloat16"), element_bytes("Tensor(long int)"), element_bytes("Float8_e4m3fn")
    (2, 8, 1)
    """
    return _BYTES.get(torch_name(word), 0)


def our_name(word: str) -> str:
    """Return the name that shapes have for an element type; empty where there is none.

    Examples
    --------
    >>> our_name("Half"), our_name("float8_e5m2"), our_name("long int"), our_name("double")
    ('fp16', 'fp8', 'int64', '')
    """
    found = torch_name(word)
    found = "fp8" if found.startswith("float8") else _OURS.get(found, found)
    return found if found in DTYPE_BYTES else ""
