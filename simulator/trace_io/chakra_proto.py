"""The Chakra protobuf messages, built at run time from a table: no generated code, no version clash.

References
----------
MLCommons Chakra 1.0.0, ``et_def.proto``: field numbers and types.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import IO, Any

from simulator.errors import TraceError

PACKAGE = "ChakraProtoMsg"
NODE_TYPES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
COMM_TYPES = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
              "reduce_scatter_block", "barrier")  # fmt: skip
MAX_MESSAGE_BYTES = 1 << 30

_KINDS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
          "sfixed64", "bool", "string", "bytes")  # fmt: skip
_WIRE = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8,
         "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17,
         "sint64": 18}  # fmt: skip
_ENUM, _MESSAGE, _OPTIONAL, _REPEATED = 14, 11, 1, 3


@cache
def messages() -> dict[str, Any]:
    """Return the message classes by name: ``GlobalMetadata``, ``Node``, ``IOInfo``, ``AttributeProto``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="chakra_et_def.proto", package=PACKAGE, syntax="proto3")
    node_type = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        node_type.value.add(name=name if number in (0, 1) else f"{name}_NODE", number=number)
    for kind in _KINDS:
        values = file.message_type.add(name=f"{kind.capitalize()}List")
        values.field.add(name="values", number=1, type=_WIRE[kind], label=_REPEATED)
    _attribute(file.message_type.add(name="AttributeProto"))
    _fields(
        file.message_type.add(name="IOInfo"),
        (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    )
    _fields(
        file.message_type.add(name="GlobalMetadata"),
        (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    )
    _fields(
        file.message_type.add(name="Node"),
        (
            ("id", 1, "uint64"),
            ("name", 2, "string"),
            ("type", 3, "NodeType!"),
            ("ctrl_deps", 4, "uint64*"),
            ("data_deps", 5, "uint64*"),
            ("start_time_micros", 6, "uint64"),
            ("duration_micros", 7, "uint64"),
            ("inputs", 8, "IOInfo"),
            ("outputs", 9, "IOInfo"),
            ("attr", 10, "AttributeProto*"),
        ),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "IOInfo", "AttributeProto")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{n}")) for n in names}


def _fields(message: Any, fields: tuple[tuple[str, int, str], ...]) -> None:
    for name, number, text in fields:
        kind = text.rstrip("*!")
        label = _REPEATED if text.endswith("*") else _OPTIONAL
        if text.endswith("!"):
            message.field.add(name=name, number=number, type=_ENUM, type_name=f".{PACKAGE}.{kind}", label=label)
        elif kind in _WIRE:
            message.field.add(name=name, number=number, type=_WIRE[kind], label=label)
        else:
            message.field.add(name=name, number=number, type=_MESSAGE, type_name=f".{PACKAGE}.{kind}", label=label)


def _attribute(message: Any) -> None:
    _fields(message, (("name", 1, "string"), ("doc_string", 2, "string")))
    message.oneof_decl.add(name="value")
    for index, kind in enumerate(_KINDS):
        number = 3 + 2 * index
        single = message.field.add(name=f"{kind}_val", number=number, type=_WIRE[kind], label=_OPTIONAL)
        single.oneof_index = 0
        many = message.field.add(name=f"{kind}_list", number=number + 1, type=_MESSAGE, label=_OPTIONAL)
        many.type_name = f".{PACKAGE}.{kind.capitalize()}List"
        many.oneof_index = 0


def varint(value: int) -> bytes:
    """Encode an unsigned integer as protobuf does.

    Examples
    --------
    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(stream: IO[bytes], source: str) -> Iterator[bytes]:
    """Yield the messages of a stream in which a varint length precedes each one.

    Raises
    ------
    TraceError
        If the stream ends inside a message or a length is absurd.
    """
    while True:
        size = shift = 0
        while True:
            byte = stream.read(1)
            if not byte:
                if shift:
                    raise TraceError(f"{source}: ends inside the length of a message")
                return
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
            if shift > 63:
                raise TraceError(f"{source}: is not a Chakra trace: a message length does not end")
        if size > MAX_MESSAGE_BYTES:
            raise TraceError(f"{source}: is not a Chakra trace: a message of {size} bytes")
        data = stream.read(size)
        if len(data) < size:
            raise TraceError(
                f"{source}: ends inside a message: {len(data)} of {size} bytes",
                hint="the file was cut; copy it again",
            )
        yield data
