"""The table of operators that the C library reads (native/table.h), filled from the declarations."""

import ctypes as C
import zlib  # hashlib takes longer to import than this whole module

import numpy as np

from .. import dtypes
from ..errors import OpError
from ..kernels import records
from ..operator import MAX_GEOMETRY, MAX_INPUTS, MAX_KERNELS, MAX_RANK, MAX_VALUES

POINTER, TEXT, NUMBER = C.c_void_p, C.c_char_p, C.c_int64
TEXTS = C.POINTER(TEXT)
RESOLVE, INFER, PLAN, KERNEL = range(4)  # which function of an operator
_KINDS = ("int", "ints", "string")


def structure(title, /, **fields):
    return type(title, (C.Structure,), {"_fields_": list(fields.items())})


Vector = structure("Vector", count=NUMBER, values=NUMBER * MAX_VALUES)
Attribute = structure(
    "Attribute",
    name=TEXT, kind_rule=TEXT, rule=TEXT, kind=NUMBER, required=NUMBER, least=NUMBER, most=NUMBER, shortest=NUMBER,
    longest=NUMBER, choices=TEXTS, choice_count=NUMBER, initial=Vector,
)  # fmt: skip
Input = structure("Input", name=TEXT, wants_values=NUMBER)
Overload = structure(
    "Overload",
    types=NUMBER * (MAX_INPUTS + 1), kernels=POINTER * MAX_KERNELS, arguments=TEXT * MAX_KERNELS,
    rules=TEXT * MAX_KERNELS,
)  # fmt: skip
Operator = structure(
    "Operator",
    domain=TEXT, name=TEXT, declaration=TEXT, first_version=NUMBER, parameters_size=NUMBER, geometry_size=NUMBER,
    output_like=NUMBER, attributes=C.POINTER(Attribute), attribute_count=NUMBER, inputs=C.POINTER(Input),
    input_count=NUMBER, overloads=C.POINTER(Overload), overload_count=NUMBER, terms=TEXTS, term_count=NUMBER,
    resolve=POINTER, plan=POINTER, infer=POINTER, kernels_made=NUMBER, results_made=NUMBER,
)  # fmt: skip
Table = structure("Table", operators=C.POINTER(Operator), operator_count=NUMBER)
Answer = structure("Answer", outcome=NUMBER, message=C.c_char * 4096)
Strings = structure("Strings", operator=POINTER, parameters=POINTER, call=POINTER, context=POINTER, status=POINTER)
Python = structure("Python", compile=POINTER, run_strings=POINTER, interrupt=POINTER)
Call = structure("Call", bytes=C.c_char * records.call_dtype(np.dtype((np.void, MAX_GEOMETRY))).itemsize)
LAYOUT = (Vector, Attribute, Overload, Operator, Answer, Strings, Call)  # whose sizes the library tells


def array(kind, items):
    return (kind * max(len(items), 1))(*items)


def table(operators):
    """The table of these operators, with no function yet."""
    return Table(array(Operator, [operator(o, o.signatures()) for o in operators]), len(operators))


def declaration(declared):
    """A digest of what compiled code and Python must agree on about an operator."""
    kernels = [(k.function.__qualname__, k.copies, sorted(k.types.items())) for k in declared.kernels]
    layout = declared.parameters_dtype.descr, declared.geometry_dtype.descr, MAX_RANK, MAX_VALUES, MAX_INPUTS
    found = declared.title, declared.inputs, declared.output, declared.types, declared.attributes, kernels, layout
    return f"{zlib.crc32(repr(found).encode()):08x}"


def operator(declared, signatures):
    """An operator with an overload for each of these {type variable: element type}."""
    terms = [word.encode() for pair in declared.terms.items() for word in pair]
    overloads = [overload(declared, signature) for signature in signatures]
    return Operator(
        domain=declared.domain.encode(),
        name=declared.name.encode(),
        declaration=declaration(declared).encode(),
        first_version=first_version(declared),
        parameters_size=declared.parameters_dtype.itemsize,
        geometry_size=declared.geometry_dtype.itemsize,
        output_like=[i.type for i in declared.inputs].index(declared.output),
        attributes=array(Attribute, list(map(attribute, declared.attributes))),
        attribute_count=len(declared.attributes),
        inputs=array(Input, [Input(i.name.encode(), i.values) for i in declared.inputs]),
        input_count=len(declared.inputs),
        overloads=array(Overload, overloads),
        overload_count=len(overloads),
        terms=array(TEXT, terms),
        term_count=len(terms) // 2,
    )


def first_version(declared):
    """In ai.onnx one that ONNX Runtime's own kernels don't have.

    Its constant folding looks for its own kernel of a node whose inputs are all constant, by this version; one that it
    finds doesn't fit our schema, and the session fails. It then warns that it can't fold the node; the C library does
    in its place.
    """
    return declared.versions[0] - (declared.domain == "")


def attribute(declared):
    least, most = declared.limits
    default = [] if declared.default is None else declared.vector(declared.default).tolist()
    return Attribute(
        name=declared.name.encode(),
        kind_rule=declared.kind_rule.encode(),
        rule=declared.rule.encode(),
        kind=_KINDS.index(declared.kind),
        required=declared.required,
        least=least,
        most=most,
        shortest=declared.lengths[0],
        longest=declared.lengths[1],
        choices=array(TEXT, [choice.encode() for choice in declared.choices]),
        choice_count=len(declared.choices),
        initial=Vector(len(default), (NUMBER * MAX_VALUES)(*default)),
    )


def overload(declared, signature):
    types = [dtypes.TABLE[signature[i.type]].onnx for i in declared.inputs]
    types += [0] * (MAX_INPUTS - len(types)) + [dtypes.TABLE[signature[declared.output]].onnx]
    made = Overload(types=(NUMBER * (MAX_INPUTS + 1))(*types))
    for k, kernel in enumerate(declared.kernels):
        try:
            declared.check_types(kernel, signature)
        except OpError as error:
            made.arguments[k], made.rules[k] = f"{error.argument} = {error.value}".encode(), error.rule.encode()
    return made
