"""The op table as PyTorch's schemas: which row a call of an ATen op is, and its arguments as the row takes them.

Knows no op by name. Rows say their schemas themselves (reprise.ops()), and these are PyTorch's; a call is matched with those rows that
bear the op's name, or name and overload, by the names and types of its arguments."""
import re

from . import _c

INT, FLOAT, BOOL, SCALAR, DTYPE, INTS, GENERATOR, STRING, FLOATS, NONE = range(10)  # rp_attr_kind
FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")  # rp_memory_format, from 1
NUMBERS = _c.dtypes()  # element types by name


class Unsupported(Exception):
    """Why the library does not run a node."""


class Slot:
    """A tensor of the program."""
    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class Reg:
    """A whole number that the program calculates of sizes."""
    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class Truth(Reg):
    """What the program calculates of sizes and is 0 or 1: false or true."""
    __slots__ = ()


class Num:
    """A float that the program calculates of sizes."""
    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class Param:
    def __init__(self, text, keyword):
        kind, self.name, self.default = re.fullmatch(r"(.+?) (\w+)(?:=(.+))?", text).groups()
        self.base, self.keyword = re.match(r"\w+", kind)[0].replace("SymInt", "int"), keyword
        length = re.search(r"\[(\d*)\]", kind)
        self.many, self.length = length is not None, int(length[1]) if length and length[1] else 0
        self.optional = kind.endswith("?") or "?[" in kind
        self.tensor = self.base == "Tensor"


def split_list(text):
    """Parts between the commas outside of brackets."""
    return [p.strip() for p in re.split(r",(?![^\[(]*[\])])", text) if p.strip()]


class Row:
    def __init__(self, name, schema):
        self.name, self.schema, self.params = name, schema, []
        arguments, results = re.fullmatch(r"\w+\((.*)\) -> (.*)", schema).groups()
        keyword = False
        for part in split_list(arguments):
            keyword = keyword or part == "*"
            if part != "*":
                self.params.append(Param(part, keyword))
        self.names = {p.name for p in self.params}
        self.n_out = 0 if results == "()" else len(split_list(results[1:-1])) if results.startswith("(") else 1


ROWS = {name: Row(name, schema) for name, schema, *_ in _c.ops()}


def say(value):
    return type(value).__name__ if isinstance(value, (Slot, Reg, Num)) else repr(value)


def word(value):
    """An int as programs hold it: a number, or (register,)."""
    if isinstance(value, Reg):
        return (value.index,)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise Unsupported(f"{say(value)} where an int belongs")
    return int(value)


def attribute(p, value):
    """(kind, value) of parameter p."""
    if p.base == "int" and p.many and (isinstance(value, Reg) or type(value) is int):
        value = [value] * (p.length or 1)
    if p.base == "float" and p.many and isinstance(value, (int, float)):
        value = [value] * (p.length or 1)
    if value is None:
        if not p.optional:
            raise Unsupported(f"None for {p.name}")
        return NONE, None
    number, calculated = isinstance(value, (bool, int, float, Reg, Num)), isinstance(value, (Reg, Num))
    fits = {"int": lambda: isinstance(value, (list, tuple)) if p.many else type(value) is int or isinstance(value, Reg),
            "float": lambda: isinstance(value, (list, tuple)) if p.many else isinstance(value, (int, float)) or (p.optional and calculated), "Scalar": lambda: number,
            "bool": lambda: isinstance(value, (bool, int)), "str": lambda: isinstance(value, str),
            "ScalarType": lambda: str(value).startswith("torch.") and str(value)[6:] in NUMBERS,
            "MemoryFormat": lambda: str(value)[6:] in FORMATS, "Layout": lambda: str(value) == "torch.strided"}.get(p.base, lambda: False)
    if not fits():
        raise Unsupported(f"{p.name}={say(value)} is no {p.base}")
    if p.base == "int":
        return (INTS, tuple(map(word, value))) if p.many else (INT, word(value))
    if p.base == "float" and p.many:
        return FLOATS, tuple(map(float, value))
    if p.base == "Scalar" or (p.base in ("float", "bool") and p.optional):  # optional ones are held as Scalars
        value = float(value) if p.base == "float" and not calculated else value
        return SCALAR, value if isinstance(value, (bool, float)) else (value.index,) if calculated else word(value)
    if p.base == "float":
        return FLOAT, float(value)
    if p.base == "bool":
        return BOOL, bool(value)
    if p.base == "ScalarType":
        return DTYPE, NUMBERS[str(value)[6:]]
    if p.base == "str":
        return STRING, value
    return INT, 1 + FORMATS.index(str(value)[6:]) if p.base == "MemoryFormat" else 1


def default(p):
    t = p.default
    if t is None:
        raise Unsupported(f"no {p.name}")
    if t == "None":
        return None
    if t in ("True", "False"):
        return t == "True"
    if t.startswith("["):
        return [int(v) for v in t[1:-1].split(",") if v]
    if p.base == "str":
        return t.strip("'\"")
    if p.base == "ScalarType":
        return "torch." + t
    return float(t) if p.base == "float" or re.search(r"[.e]", t) else int(t)


def arguments(row, given):
    """(slots, attributes) of a call of row with the arguments `given`, by name. Trailing attributes that are not given are left out."""
    tensors, attrs, last = [], [], 0
    lists = [p for p in row.params if p.tensor and p.many]
    for p in row.params:
        there = p.name in given
        value = given.get(p.name)
        if p.tensor and p.many:
            if not isinstance(value, (list, tuple)) or not all(isinstance(t, Slot) or t is None for t in value):
                raise Unsupported(f"{p.name} is no list of tensors")
            tensors += [-1 if t is None else t.index for t in value]
            if len(lists) > 1 and p is not lists[-1]:
                tensors.append(-1)
        elif p.tensor:
            if not isinstance(value, Slot) and not (value is None and p.optional):
                raise Unsupported(f"{p.name}={say(value)} is no tensor")
            tensors.append(-1 if value is None else value.index)
        elif p.base in ("Generator", "Device"):
            if value is not None:
                raise Unsupported(f"a {p.base.lower()} is given")
            attrs.append((NONE, None))
        else:
            there = there and not (value is None and not p.optional and p.default is not None)
            attrs.append(attribute(p, value if there else default(p)))
        if not p.tensor and there:
            last = len(attrs)
    return tuple(tensors), tuple(attrs[:last])


NEUTRAL = {"device": None, "layout": None, "pin_memory": None, "non_blocking": None, "generator": (None,), "memory_format": None, "out": (None,),
           "cudnn_enabled": None, "implicit": None}


def candidates(name, overload):
    """Rows that may be the op `name.overload`, the likeliest first."""
    o = overload.lower()
    names = [f"{name}_{o}", name + "_scalar" if "scalar" in o else name, f"{name}_mode" if o.endswith("mode") else name, name, name + "_scalar"]
    found = []
    for n in names:
        if n in ROWS and ROWS[n] not in found:
            found.append(ROWS[n])
    return found


def fits(row, given, defaults):
    """`given` without what the row has no place for; Unsupported if that says something."""
    left = {}
    for name, value in given.items():
        if name in row.names:
            left[name] = value
        elif name in NEUTRAL:
            if NEUTRAL[name] is not None and value not in NEUTRAL[name]:
                raise Unsupported(f"{row.name} has no {name}")
        elif name not in defaults or defaults[name] != value:
            raise Unsupported(f"{row.name} has no {name} (here {say(value)})")
    return left
