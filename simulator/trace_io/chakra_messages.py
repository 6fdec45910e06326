"""The messages of Chakra's ``.et`` files: the protobuf schema built at run time from a table, and the framing.

No generated code, no version clash. :data:`ATTRIBUTES` names every attribute of a node that is read or written here, with
the arm of the ``oneof`` in which consumers look for it.

References
----------
MLCommons Chakra 1.0.0, ``et_def.proto``: field numbers and types. ``src/feeder_v3`` of astra-sim/chakra: the arms.
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

#: attribute of a node or of the global metadata -> arm; "" is only read
ATTRIBUTES = {
    "is_cpu_op": "bool_val", "is_copy": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val",
    "comm_size_unknown": "bool_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
    "pg_name": "string_val", "pg_id": "", "pg_size": "int64_val", "group": "string_val", "ranks": "int64_list",
    "seq": "int64_val", "dtype": "string_val", "collective": "string_val", "in_msg_nelems": "int64_val",
    "out_msg_nelems": "int64_val", "stream": "string_val", "tid": "", "tensor_size": "uint64_val",
    "start_ns": "int64_val", "duration_ns": "int64_val",
    "rank": "int64_val", "world_size": "int64_val", "epoch_ns": "int64_val", "device": "string_val",
    "step_numbers": "int64_list", "step_starts_ns": "int64_list", "step_ends_ns": "int64_list",
}  # fmt: skip

#: kind of an attribute's value -> its wire type, in the order of the fields of AttributeProto
_WIRE = {"double": 1, "float": 2, "int32": 5, "int64": 3, "uint32": 13, "uint64": 4, "sint32": 17, "sint64": 18,
         "fixed32": 7, "fixed64": 6, "sfixed32": 15, "sfixed64": 16, "bool": 8, "string": 9, "bytes": 12}  # fmt: skip
_ENUM, _MESSAGE, _OPTIONAL, _REPEATED = 14, 11, 1, 3
#: message -> (field, number, type): ``*`` repeats, ``!`` is an enumeration
_FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    **{f"{kind.capitalize()}List": (("values", 1, f"{kind}*"),) for kind in _WIRE},
    "AttributeProto": (("name", 1, "string"), ("doc_string", 2, "string")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    "Node": (
        ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "NodeType!"), ("ctrl_deps", 4, "uint64*"),
        ("data_deps", 5, "uint64*"), ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"), ("outputs", 9, "IOInfo"), ("attr", 10, "AttributeProto*"),
    ),
}  # fmt: skip


@cache  # the descriptor pool takes a message once
def messages() -> dict[str, Any]:
    """Return the message classes by name: ``GlobalMetadata``, ``Node``, ``IOInfo``, ``AttributeProto``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="chakra_et_def.proto", package=PACKAGE, syntax="proto3")
    node_type = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        node_type.value.add(name=name if number in (0, 1) else f"{name}_NODE", number=number)
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, text in fields:
            _field(message, name, number, text)
        if message_name == "AttributeProto":
            message.oneof_decl.add(name="value")
            for index, kind in enumerate(_WIRE):
                _field(message, f"{kind}_val", 3 + 2 * index, kind).oneof_index = 0
                _field(message, f"{kind}_list", 4 + 2 * index, f"{kind.capitalize()}List").oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "IOInfo", "AttributeProto")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{n}")) for n in names}


def _field(message: Any, name: str, number: int, text: str) -> Any:
    kind = text.rstrip("*!")
    wire = _ENUM if text.endswith("!") else _WIRE.get(kind, _MESSAGE)
    field = message.field.add(name=name, number=number, type=wire, label=_REPEATED if "*" in text else _OPTIONAL)
    if kind not in _WIRE:
        field.type_name = f".{PACKAGE}.{kind}"
    return field


def set_attributes(message: Any, **values: object) -> None:
    """Add attributes, each in its arm of :data:`ATTRIBUTES`; those that are None are left out."""
    for name, value in values.items():
        if value is None:
            continue
        attribute, arm = message.attr.add(name=name), ATTRIBUTES[name]
        if arm.endswith("_list"):
            getattr(attribute, arm).values.extend(value)
        else:
            setattr(attribute, arm, value)


def attributes_of(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a message's attributes, whichever arm they are in."""
    for attribute in message.attr:
        arm = attribute.WhichOneof("value")
        if arm is not None and attribute.name in ATTRIBUTES:
            value = getattr(attribute, arm)
            yield attribute.name, list(value.values) if arm.endswith("_list") else value


def write_delimited(file: IO[bytes], message: Any) -> None:
    """Write a message behind its length."""
    data = message.SerializeToString(deterministic=True)
    file.write(varint(len(data)))
    file.write(data)


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
    """Yield the messages of a stream in which a varint length precedes each one."""
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
                f"{source}: ends inside a message: {len(data)} of {size} bytes", hint="the file was cut; copy it again"
            )
        yield data
