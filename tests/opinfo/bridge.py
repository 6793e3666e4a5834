"""The library from Python, for the checks of this folder: its public C interface through ctypes, ops by their names.

Knows no op: schemas are those that the library tells (rp_op_info_get). Tensors are handles, numbers of pointers; memory of torch
tensors is wrapped, so that strides come along, and results are copied out."""
import contextlib
import ctypes as C
import re

import torch

DTYPES = {}  # torch dtype: number; filled from rp_dtype_name
NO_INT = -(2**63)


class Scalar(C.Structure):
    class Value(C.Union):
        _fields_ = [("i", C.c_int64), ("f", C.c_double), ("b", C.c_bool)]

    _fields_ = [("kind", C.c_int), ("v", Value)]


class Attr(C.Structure):
    class Value(C.Union):
        _fields_ = [("i", C.c_int64), ("f", C.c_double), ("b", C.c_bool), ("scalar", Scalar), ("dtype", C.c_int),
                    ("ints", C.POINTER(C.c_int64)), ("floats", C.POINTER(C.c_double)), ("generator", C.c_void_p), ("string", C.c_char_p)]

    _fields_ = [("kind", C.c_int), ("n", C.c_size_t), ("v", Value)]


INT, FLOAT, BOOL, SCALAR, DTYPE, INTS, GENERATOR, STRING, FLOATS, NONE = range(10)  # rp_attr_kind


class Scope(C.Structure):
    _fields_ = [("id", C.c_uint64)]


class Device(C.Structure):
    _fields_ = [("type", C.c_int), ("index", C.c_int32)]


class Info(C.Structure):
    _fields_ = [("name", C.c_char_p), ("schema", C.c_char_p), ("doc", C.c_char_p), ("lowering", C.c_char_p), ("differentiable", C.c_bool),
                ("flags", C.c_uint32)]


IN_PLACE = 1  # RP_OP_INPLACE
BODY = C.CFUNCTYPE(None, C.c_void_p, C.POINTER(C.c_void_p), C.c_size_t, C.POINTER(C.c_void_p), C.c_size_t)


class Fn(C.Structure):
    _fields_ = [("body", BODY), ("ctx", C.c_void_p), ("ctx_bytes", C.c_size_t), ("name", C.c_char_p)]


class CompileOptions(C.Structure):  # zeros behind what is set: defaults
    _fields_ = [("struct_size", C.c_size_t), ("backend", C.c_char_p), ("rest", C.c_uint8 * 128)]


class BackwardOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("retain_graph", C.c_bool), ("create_graph", C.c_bool), ("allow_unused", C.c_bool)]


class Refused(Exception):
    """The library returned an error: its status and its message."""


class Unsaid(Exception):
    """The schema has no place for an argument."""


# ---------------------------------------------------------------- schemas


class Param:
    def __init__(self, text, keyword):
        kind, self.name, self.default = re.fullmatch(r"(.+?) (\w+)(?:=(.+))?", text).groups()
        self.base, self.keyword = re.match(r"\w+", kind)[0].replace("SymInt", "int"), keyword
        length = re.search(r"\[(\d*)\]", kind)
        self.many, self.length = length is not None, int(length[1]) if length and length[1] else 0
        self.optional, self.written = kind.endswith("?") or "?[" in kind, "!" in kind
        self.tensor = self.base == "Tensor"


def parts_of(text):
    """Splits at the commas outside of brackets."""
    return [p.strip() for p in re.split(r",(?![^\[(]*[\])])", text) if p.strip()]


class Row:
    def __init__(self, info):
        self.name, self.schema, self.flags = info.name.decode(), info.schema.decode(), info.flags
        arguments, results = re.fullmatch(r"\w+\((.*)\) -> (.*)", self.schema).groups()
        self.params, keyword = [], False
        for part in parts_of(arguments):
            keyword = keyword or part == "*"
            if part != "*":
                self.params.append(Param(part, keyword))
        self.n_out = 0 if results == "()" else len(parts_of(results[1:-1])) if results.startswith("(") else 1


def attribute(p, value, keep):
    """value as parameter p takes it; `keep` holds what must live as long as the call."""
    a = Attr()
    number = isinstance(value, (bool, int, float))

    def need(condition):
        if not condition:
            raise Unsaid(f"{p.name}={value!r} ({type(value).__name__})")

    def whole(v):
        need(isinstance(v, int) and not isinstance(v, bool) and NO_INT <= v < 2**63)
        return int(v)

    if p.base == "int" and p.many and p.length and isinstance(value, int):
        value = [value] * p.length
    if p.base == "int" and p.many and isinstance(value, int):
        value = [value]
    if p.base == "float" and p.many and number:
        value = [value] * max(p.length, 1)
    if value is None:
        need(p.optional)
        a.kind = NONE
    elif p.base in ("int", "float") and p.many:
        need(isinstance(value, (list, tuple)))
        a.kind, a.n = (INTS, len(value)) if p.base == "int" else (FLOATS, len(value))
        data = (C.c_int64 * (len(value) + 1))(*map(whole, value)) if p.base == "int" else (C.c_double * (len(value) + 1))(*value)
        keep.append(data)
        if p.base == "int":
            a.v.ints = data
        else:
            a.v.floats = data
    elif p.base == "int":
        a.kind, a.v.i = INT, whole(value)
    elif p.base == "Scalar" or (p.base in ("float", "bool") and p.optional):  # optional ones are held as Scalars
        need(number)
        a.kind = SCALAR
        if isinstance(value, bool):
            a.v.scalar.kind, a.v.scalar.v.b = 3, value
        elif isinstance(value, int):
            a.v.scalar.kind, a.v.scalar.v.i = 1, whole(value)
        else:
            a.v.scalar.kind, a.v.scalar.v.f = 2, value
    elif p.base == "float":
        need(number)
        a.kind, a.v.f = FLOAT, float(value)
    elif p.base == "bool":
        need(isinstance(value, (bool, int)))
        a.kind, a.v.b = BOOL, bool(value)
    elif p.base == "ScalarType":
        need(value in DTYPES)
        a.kind, a.v.dtype = DTYPE, DTYPES[value]
    elif p.base == "str":
        need(isinstance(value, str))
        a.kind, a.v.string = STRING, value.encode()
        keep.append(a.v.string)
    elif p.base == "MemoryFormat":
        formats = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
        need(value in formats)
        a.kind, a.v.i = INT, 1 + formats.index(value)
    elif p.base == "Layout":
        need(value == torch.strided)
        a.kind, a.v.i = INT, 1
    elif p.base == "Device":
        need(torch.device(value) == torch.device("cpu"))
        a.kind, a.v.i = INT, 0
    else:
        need(False)
    return a


def default(p):
    t = p.default
    if t is None:
        raise Unsaid(f"no {p.name}")
    if t == "None":
        return None
    if t in ("True", "False"):
        return t == "True"
    if t.startswith("["):
        return [int(v) for v in t[1:-1].split(",") if v]
    if p.base == "str":
        return t.strip("'\"")
    if p.base == "ScalarType":
        return getattr(torch, t)
    return float(t) if p.base == "float" or re.search(r"[.e]", t) else int(t)


# ---------------------------------------------------------------- the library


def pointers(handles):
    return (C.c_void_p * (len(handles) + 1))(*handles)


class Library:
    RESULTS = {"rp_error_message": C.c_char_p, "rp_status_name": C.c_char_p, "rp_dtype_name": C.c_char_p, "rp_scope_begin": Scope,
               "rp_from_blob": C.c_void_p, "rp_compile": C.c_void_p, "rp_failed": C.c_bool, "rp_requires_grad": C.c_bool,
               "rp_ndim": C.c_size_t, "rp_op_count": C.c_size_t, "rp_size": C.c_int64}
    P, Z, I = C.c_void_p, C.c_size_t, C.c_int64
    ARGUMENTS = {"rp_scope_end": [Scope, P, Z], "rp_ndim": [P], "rp_size": [P, I], "rp_dtype_of": [P], "rp_requires_grad": [P],
                 "rp_from_blob": [P, P, Z, P, C.c_int, Device, P, P], "rp_to_host": [P, P, Z], "rp_set_requires_grad": [P, C.c_bool],
                 "rp_op_call": [C.c_char_p, P, Z, P, Z, P, Z], "rp_grad": [P, Z, P, Z, P, P, P], "rp_compile": [Fn, P],
                 "rp_call": [P, P, Z, P, Z], "rp_compiled_release": [P], "rp_op_info_get": [Z, C.POINTER(Info)]}

    def __init__(self, path):
        self.c = C.CDLL(path)
        for name in {*self.RESULTS, *self.ARGUMENTS}:
            f = getattr(self.c, name)
            f.restype = self.RESULTS.get(name, C.c_int)
            if name in self.ARGUMENTS:
                f.argtypes = self.ARGUMENTS[name]
        for k in range(1, 32):
            name = self.c.rp_dtype_name(k)
            dtype = getattr(torch, name.decode(), None) if name else None
            if isinstance(dtype, torch.dtype):
                DTYPES[dtype] = k
        self.dtype_of_number = {n: t for t, n in DTYPES.items()}

    def rows(self):
        found = {}
        for k in range(self.c.rp_op_count()):
            info = Info()
            self.check(self.c.rp_op_info_get(k, C.byref(info)))
            found[info.name.decode()] = Row(info)
        return found

    def check(self, status=0):
        if status or self.c.rp_failed():
            message = self.c.rp_error_message().decode(errors="replace")
            status = self.c.rp_error_take() or status
            raise Refused(f"{self.c.rp_status_name(status).decode()}: {message}")

    @contextlib.contextmanager
    def scope(self):
        """Of the handles made inside, none outlives it; nor does an error."""
        s = self.c.rp_scope_begin()
        try:
            yield
        finally:
            self.c.rp_scope_end(s, None, 0)
            self.c.rp_error_take()

    def tensor(self, t, gradient=False):
        """A handle over the memory of t, which must live as long."""
        if t is None:
            return None
        if t.dtype not in DTYPES or t.layout != torch.strided:
            raise Unsaid(f"{t.dtype} {t.layout}")
        if t.dim() > 16:
            raise Unsaid("more than 16 dims")
        size, stride = ((C.c_int64 * (t.dim() + 1))(*v) for v in (t.shape, t.stride()))
        h = self.c.rp_from_blob(t.data_ptr() or C.addressof(size), size, t.dim(), stride, DTYPES[t.dtype], Device(0, 0), None, None)
        if gradient:
            self.c.rp_set_requires_grad(h, True)
        self.check()
        return h

    def torch(self, h):
        shape = [self.c.rp_size(h, d) for d in range(self.c.rp_ndim(h))]
        t = torch.empty(shape, dtype=self.dtype_of_number[self.c.rp_dtype_of(h)])
        self.check(self.c.rp_to_host(h, t.data_ptr(), t.numel() * t.element_size()))
        self.check()
        return t

    def apply(self, row, tensors, attrs):
        """The call, its error left where it is; for functions that are traced."""
        out = pointers([None] * row.n_out)
        self.c.rp_op_call(row.name.encode(), pointers(tensors), len(tensors), (Attr * (len(attrs) + 1))(*attrs), len(attrs), out, row.n_out)
        return out[:row.n_out]

    def call(self, row, tensors, attrs):
        out = self.apply(row, tensors, attrs)
        self.check()
        return out

    def requires_grad(self, h):
        return self.c.rp_requires_grad(h)

    def gradients(self, outputs, inputs, grads):
        out, options = pointers([None] * len(inputs)), BackwardOptions(C.sizeof(BackwardOptions), False, False, True)
        self.check(self.c.rp_grad(pointers(outputs), len(outputs), pointers(inputs), len(inputs), pointers(grads), C.byref(options), out))
        return out[:len(inputs)]

    @contextlib.contextmanager
    def compiled(self, row, tensors, attrs):
        """The op as a compiled function of those of its tensors that are there: called with all, it gives handles."""
        there = [k for k, h in enumerate(tensors) if h]

        def body(_, inputs, n_in, out, n_out):
            handles = [None] * len(tensors)
            for k, h in zip(there, inputs[:n_in]):
                handles[k] = h
            for k, h in enumerate(self.apply(row, handles, attrs)):
                out[k] = h

        fn = Fn(BODY(body), None, 0, b"op")
        options = CompileOptions(8 * 2, b"fused")
        f = self.c.rp_compile(fn, C.byref(options))

        def run(tensors):
            out = pointers([None] * row.n_out)
            self.check(self.c.rp_call(f, pointers([tensors[k] for k in there]), len(there), out, row.n_out))
            return out[:row.n_out]

        try:
            self.check()
            yield run
        finally:
            self.c.rp_compiled_release(f)
