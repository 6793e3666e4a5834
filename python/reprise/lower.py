"""FX graphs of ATen ops as programs of the library: a list of steps that name a row, its operands and its attributes.

What an op's schema does not say by itself (another name, several rows, a gradient that PyTorch has as an op) stands in SPECIAL. A node that
has no place raises Unsupported with the reason."""
import copy
import functools
import operator

import sympy
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._pytree import tree_leaves

from . import _c
from .schema import NUMBERS, ROWS, Num, Reg, Row, Slot, Truth, Unsupported, arguments, candidates, fits

aten = torch.ops.aten


def hint(size):
    """The number that a size has in the traced call."""
    if isinstance(size, torch.SymInt):
        node = size.node
        value = node.hint if node.has_hint() else None
        if value is None:
            raise Unsupported("a size that depends on data")
        return int(value)
    return int(size)


def type_of(t):
    """(number of the element type, sizes in the traced call) of a fake tensor."""
    if not isinstance(t, torch.Tensor):
        raise Unsupported(f"a result of type {type(t).__name__}")
    name = str(t.dtype)[6:]
    if name not in NUMBERS:
        raise Unsupported(f"the element type {name}")
    if t.layout != torch.strided:
        raise Unsupported(f"the layout {t.layout}")
    if t.is_conj() or t.is_neg():
        raise Unsupported("a conjugate or negative view")
    if t.dim() > 16:
        raise Unsupported("more than 16 dimensions")
    return NUMBERS[name], tuple(hint(s) for s in t.shape)


def expected(val):
    return None if val is None else type_of(val)


def where(node):
    """file:line of the line of the model that the node came from."""
    place = None
    for line in (node.meta.get("stack_trace") or "").splitlines():
        part = line.strip()
        if part.startswith('File "') and ", line " in part:
            path, rest = part[6:].split('", line ', 1)
            place = f"{path}:{rest.split(',')[0].strip()}"
    return place


def checks(node):
    """Is the node an op that only raises, in the chain of effects whose token it hands on?"""
    return getattr(node.target, "__name__", "") == "with_effects" and node.args[1] in CHECKS


RELATIONS = {"Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan"}
ROUNDINGS = {"CeilToInt": "math.ceil", "FloorToInt": "math.floor", "TruncToInt": "int", "RoundToInt": "round"}


def beyond(graph):
    """Expressions of the sizes in a graph that no program calculates, but the caller may: numbers that are rounded, what is below 0 divided, and what
    is divided by no number above 0. As (expression, may it be negative)."""
    found = {}

    def visit(e, env):
        low = lambda v, least=0: (bound := env.bound_sympy(v)) is None or bound.lower < least
        divides = type(e).__name__ in ("FloorDiv", "CleanDiv", "Mod", "PythonMod")
        if type(e).__name__ in ROUNDINGS or divides and (low(e.args[0]) or low(e.args[1], 1)):
            found.setdefault(e, low(e))
        else:
            for part in e.args:
                visit(part, env)
    for n in graph.nodes:
        for v in tree_leaves(n.meta.get("val")):
            for s in v.shape if isinstance(v, torch.Tensor) else [v]:
                if isinstance(s, (torch.SymInt, torch.SymFloat)) and not free_unbacked_symbols(s):
                    visit(s.node.expr, s.node.shape_env)
    return found.items()


SHIFT = 2**40  # programs take a number as a size: those that may be negative are that much larger on the way in


class Lowering:
    """The steps of a graph. `nodes[k]` is the node of step k."""

    def __init__(self, graph, device):
        self.steps, self.nodes, self.env, self.device = [], [], {}, device
        self.n_slots, self.n_regs = 0, 0
        self.sizes, self.words, self.random = {}, {}, False
        self.names = set()  # arguments that stand for the ragged sizes of a nested tensor: no numbers
        self.handed = {}  # expressions of sizes that a call hands over as numbers: the argument that each is
        self.shifts = {}  # by argument: what a number that may be negative is made larger by
        self.asserted = []  # nodes that assert something: of a tensor, behind the program; of sizes, before it
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self.node, self.depth = None, 0  # depth: in how many branches and loops
        for n in self.placeholders:
            self.env[n] = Slot(self.n_slots)
            self.n_slots += 1
        for k, n in enumerate(self.placeholders):  # sizes of tensors first, numbers that were handed over only where no tensor has them
            val = n.meta.get("val")
            if isinstance(val, torch.Tensor):
                for d, s in enumerate(val.shape):
                    if isinstance(s, torch.SymInt) and isinstance(s.node.expr, sympy.Symbol):
                        self.sizes.setdefault(s.node.expr, (k, d))
        for k, n in enumerate(self.placeholders):
            val = n.meta.get("val")
            if isinstance(val, torch.SymInt) and isinstance(val.node.expr, sympy.Symbol):
                bound = val.node.shape_env.bound_sympy(val.node.expr)
                if bound is None:
                    self.names.add(k)
                    continue
                self.sizes.setdefault(val.node.expr, (k, 1))
                if bound.lower < 0:
                    self.shifts[k] = SHIFT

    # ---- sizes

    def size(self, s):
        """A size as attributes take it."""
        return self.expression(s.node.expr) if isinstance(s, torch.SymInt) else s

    def register(self, *step):
        self.steps.append((*step, self.n_regs))
        self.nodes.append(self.node)
        self.n_regs += 1
        return Reg(self.n_regs - 1)

    def expression(self, e):
        if e.is_Integer:
            return int(e)
        if e not in self.words:
            self.words[e] = self.calculated(e)
        return self.words[e]

    def hand_over(self, e, negative):
        """A program calculates no such size: it is one more argument, behind all others that there are."""
        self.handed[e] = self.n_slots
        if negative:
            self.shifts[self.n_slots] = SHIFT
        self.n_slots += 1

    def calculated(self, e):
        if e.is_Symbol or e in self.handed:
            if e not in self.sizes and e not in self.handed:
                raise Unsupported(f"the size {e}, which no argument has")
            place = (self.handed[e], 1) if e in self.handed else self.sizes[e]
            value = self.register("size", *place)
            shift = self.shifts.get(place[0])
            return self.register("calc", "sub", self.as_word(value), shift) if shift else value
        kinds = {"Add": "add", "Mul": "mul", "FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "Max": "max", "Min": "min"}
        kind = type(e).__name__
        parts = list(e.args)
        if kind == "Pow" and parts[1].is_Integer and 0 < int(parts[1]) < 64:
            kind, parts = "Mul", [parts[0]] * int(parts[1])
        if kind not in kinds:
            raise Unsupported(f"the size {e} ({kind})")
        value = self.expression(parts[0])
        for part in parts[1:]:
            value = self.register("calc", kinds[kind], self.as_word(value), self.as_word(self.expression(part)))
        return value

    @staticmethod
    def as_word(v):
        return (v.index,) if isinstance(v, (Reg, Num)) else v

    def number(self, e):
        """A float that is calculated of sizes, as attributes take it."""
        if e.is_number:
            return float(e)
        if ("number", e) not in self.words:
            self.words["number", e] = self.calculated_number(e)
        return self.words["number", e]

    def calculated_number(self, e):
        kind, parts = type(e).__name__, list(e.args)
        if e.is_Symbol or e in self.handed or kind in ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "Max", "Min"):
            kind, parts = "ToFloat", [e]
        if kind == "ToFloat":
            return Num(self.register("calc", "num_mul", self.as_word(self.expression(parts[0])), 1.0).index)
        if kind in ("OpaqueUnaryFn_sqrt", "sqrt"):
            return Num(self.register("calc", "num_sqrt", self.as_word(self.number(parts[0])), 0).index)
        kinds = {"Add": "num_add", "Mul": "num_mul", "FloatTrueDiv": "num_div", "IntTrueDiv": "num_div", "FloatPow": "num_pow", "Pow": "num_pow",
                 "PowByNatural": "num_pow"}
        if kind not in kinds:
            raise Unsupported(f"the number {e} ({kind})")
        value = self.number(parts[0])
        for part in parts[1:]:
            value = Num(self.register("calc", kinds[kind], self.as_word(value), self.as_word(self.number(part))).index)
        return value

    def truth(self, e):
        """What is said of sizes, as attributes take it."""
        if e in (sympy.true, sympy.false):
            return bool(e)
        if ("truth", e) not in self.words:
            self.words["truth", e] = self.calculated_truth(e)
        return self.words["truth", e]

    def calculated_truth(self, e):
        calc = lambda kind, a, b: Truth(self.register("calc", kind, self.as_word(a), self.as_word(b)).index)
        least = lambda a, b: calc("min", calc("max", calc("add", calc("sub", a, b), 1), 0), 1)  # of whole numbers: is a >= b?
        kind = type(e).__name__
        if kind in ("And", "Or"):
            found = [self.truth(part) for part in e.args]
            return functools.reduce(lambda a, b: calc("min" if kind == "And" else "max", a, b), found)
        if kind == "Not":
            return calc("sub", 1, self.truth(e.args[0]))
        if kind not in RELATIONS or not all(part.is_integer for part in e.args):
            raise Unsupported(f"what is said by {e} ({kind})")
        a, b = (self.expression(part) for part in e.args)
        if kind in ("Equality", "Unequality"):
            same = calc("min", least(a, b), least(b, a))
            return same if kind == "Equality" else calc("sub", 1, same)
        if kind in ("LessThan", "StrictGreaterThan"):  # a <= b is b >= a, and a > b what that is not; a < b what a >= b is not
            a, b = b, a
        found = least(a, b)
        return calc("sub", 1, found) if kind.startswith("Strict") else found

    # ---- steps

    def value(self, a):
        """An argument of a node: slots for tensors, numbers and registers for sizes."""
        if isinstance(a, Node):
            val = a.meta.get("val")
            if isinstance(val, torch.SymInt):
                return self.size(val)
            if isinstance(val, torch.SymFloat):
                return self.number(val.node.expr)
            if isinstance(val, torch.SymBool):
                return self.truth(val.node.expr)
            if a not in self.env:
                raise Unsupported(f"{a.name}, which is no tensor")
            return self.env[a]
        if isinstance(a, (list, tuple)):
            return [self.value(e) for e in a]
        if isinstance(a, torch.SymInt):
            return self.size(a)
        if isinstance(a, torch.SymFloat):
            return self.number(a.node.expr)
        if isinstance(a, torch.SymBool):
            return self.truth(a.node.expr)
        if isinstance(a, complex):
            raise Unsupported("a complex number")
        return a

    def slots(self, n):
        self.n_slots += n
        return [Slot(k) for k in range(self.n_slots - n, self.n_slots)]

    def emit(self, name, given, expect=None):
        """A call of a row; its results. expect: what PyTorch says of them, one each."""
        row = name if isinstance(name, Row) else ROWS.get(name)
        if row is None:
            raise Unsupported(f"no row {name}")
        tensors, attrs = arguments(row, given)
        if len(tensors) > MOST_TENSORS:
            raise Unsupported(f"{row.name} of {len(tensors)} tensors")
        out = self.slots(row.n_out)
        expect = tuple(expect or ()) + (None,) * (row.n_out - len(expect or ()))
        if any(p.base == "Generator" for p in row.params) or row.name in ("dropout", "native_dropout", "bernoulli_p"):
            if self.depth:
                raise Unsupported("random numbers in a branch or a loop")
            self.random = True
        self.steps.append(("op", row.name, where(self.node), tensors, attrs, tuple(s.index for s in out), expect))
        self.nodes.append(self.node)
        return out

    def one(self, name, expect=None, /, **given):
        return self.emit(name, given, [expect] if expect else None)[0]

    def gradient(self, name, given, grads, wrt, expect):
        """Gradients of a row's results with respect to the parameters named in wrt."""
        row = ROWS[name]
        tensors, attrs = arguments(row, given)
        places, k = {}, 0
        for p in row.params:
            if p.tensor:
                places[p.name] = k
                k += len(given[p.name]) if p.many else 1
        out = self.slots(len(wrt))
        grads = [g.index if g else -1 for g in grads] + [-1] * (row.n_out - len(grads))
        self.steps.append(("grad", row.name, where(self.node), tensors, attrs, tuple(s.index for s in out), tuple(expect), tuple(grads),
                           tuple(places[w] for w in wrt)))
        self.nodes.append(self.node)
        return out

    def full(self, value, dtype, size=()):
        return self.one("full", size=list(size), fill_value=value, dtype=dtype)

    # ---- branches and loops

    def block(self, graph, given, own=0):
        """A graph of a node's own as (slots that it is given, steps, slots of results): `given` are what its arguments are outside, of which
        the first `own` are others at every run."""
        steps, nodes, words, node = self.steps, self.nodes, self.words, self.node
        self.steps, self.nodes, self.words, self.depth = [], [], dict(words), self.depth + 1
        fresh = self.slots(own)
        try:
            found = self.inline(graph, [*fresh, *given[own:]])
            if not all(isinstance(r, Slot) for r in found):
                raise Unsupported("a branch or a loop that gives something else than tensors")
            return tuple(s.index for s in fresh), self.steps, tuple(r.index for r in found)
        finally:
            self.steps, self.nodes, self.words, self.node, self.depth = steps, nodes, words, node, self.depth - 1

    def inline(self, graph, given):
        """The nodes of a graph of a node's own, with its arguments; its results."""
        self.env.update(zip((n for n in graph.nodes if n.op == "placeholder"), given))
        for n in graph.nodes:
            if n.op == "output":
                results = n.args[0] if isinstance(n.args[0], (tuple, list)) else (n.args[0],)
                return [self.value(r) for r in results]
            if n.target in ASSERTS or checks(n):
                raise Unsupported("an assertion in a branch or a loop")
            if n.op not in ("placeholder", "get_attr"):
                self.lower(n)
        raise Unsupported("a graph without results")

    def graph_of(self, node):
        """The graph that an argument of a node is."""
        found = functools.reduce(getattr, node.target.split("."), node.graph.owning_module) if isinstance(node, Node) and node.op == "get_attr" else None
        if not isinstance(found, GraphModule):
            raise Unsupported("a function that is no graph")
        return found.graph

    # ---- nodes

    def lower(self, node):
        self.node = node
        if node.op != "call_function":
            raise Unsupported(f"a node of kind {node.op}")
        val = node.meta.get("val")
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)) and not isinstance(val, bool):
            if free_unbacked_symbols(val):
                raise Unsupported("a number that depends on data")
            return  # calculated where it is used
        if node.target in ASSERTS or checks(node):
            self.asserted.append(node)
            return
        if node.target is operator.getitem:
            if checks(node.args[0]):
                return  # a token, which is what it was before
            whole = self.value(node.args[0])
            self.env[node] = whole[node.args[1]]
            return
        target = node.target
        vals = list(val) if isinstance(val, (list, tuple)) else [val]
        if getattr(target, "__name__", "") in FLOW and isinstance(target, torch._ops.HigherOrderOperator):
            self.env[node] = FLOW[target.__name__](self, node, [expected(v) for v in vals])
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"{getattr(target, '__name__', target)} is no ATen op")
        expect = [expected(v) for v in vals]
        for v in vals:  # a number of the CPU is as good on the device of the others, unless somebody sees it
            if isinstance(v, torch.Tensor) and v.device != self.device and (v.dim() or v.device.type != "cpu"):
                raise Unsupported(f"a result on {v.device}")
        given, defaults = {}, {}
        schema = target._schema
        for k, a in enumerate(schema.arguments):
            if a.has_default_value():
                defaults[a.name] = a.default_value
            if k < len(node.args):
                given[a.name] = self.value(node.args[k])
            elif a.name in node.kwargs:
                given[a.name] = self.value(node.kwargs[a.name])
        namespace, name = target.namespace, schema.name.split("::")[1]
        special = SPECIAL.get(name) if namespace in ("aten", "reprise") or namespace == "prims" and name in PRIMS else None
        if special:
            for k, v in defaults.items():
                given.setdefault(k, v)
            out = special(self, node, given, expect)
        elif namespace != "aten":
            raise Unsupported(f"an op of {namespace}")
        else:
            if schema.is_mutable:
                raise Unsupported("an op that writes")
            out = self.by_schema(name, target._overloadname, given, defaults, expect)
        self.env[node] = out if isinstance(val, (list, tuple)) else out[0] if isinstance(out, list) else out

    def by_schema(self, name, overload, given, defaults, expect):
        given = {k: v for k, v in given.items() if k != "device"}  # results on another one are refused
        rows = candidates(SECOND.get(name, name), overload)
        if not rows:
            raise Unsupported(f"the library has no {name}")
        why = None
        for row in rows:
            try:
                return self.emit(row, fits(row, given, defaults), expect)[:max(len(expect), 1)]
            except Unsupported as e:
                why = why or str(e)  # an exception that is kept keeps all frames below it, and what is to be differentiated
        for row in rows:  # a number where a tensor belongs
            wrapped, numbers = dict(given), [p.name for p in row.params if p.tensor and not p.many and isinstance(given.get(p.name), (bool, int, float, Reg, Num))]
            if not numbers:
                continue
            try:
                for n in numbers:
                    wrapped[n] = self.full(wrapped[n], self.type_of_number(wrapped[n]))
                return self.emit(row, fits(row, wrapped, defaults), expect)[:max(len(expect), 1)]
            except Unsupported:
                continue
        raise Unsupported(why)

    def type_of_number(self, v):
        """A number decides no result's type but by its kind: it is of the result's type where that holds it."""
        val = self.node.meta["val"]
        dtype = val.dtype if isinstance(val, torch.Tensor) else torch.bool
        if isinstance(v, (bool, Truth)):
            return torch.bool
        whole = isinstance(v, (int, Reg))
        return dtype if dtype.is_floating_point or whole and dtype != torch.bool else torch.int64 if whole else torch.float64


# ---------------------------------------------------------------- what schemas do not say

# Ops that are others by a second name. AOT autograd resolves what a model calls, but not what decompositions do (means over sizes that change).
SECOND = dict(pair.split(":") for pair in (
    "absolute:abs arccos:acos arccosh:acosh arcsin:asin arcsinh:asinh arctan:atan arctan2:atan2 arctanh:atanh clip:clamp concat:cat "
    "concatenate:cat det:linalg_det divide:div fix:trunc ger:outer greater:gt greater_equal:ge inverse:linalg_inv less:lt less_equal:le "
    "linalg_matmul:matmul matrix_power:linalg_matrix_power multiply:mul negative:neg not_equal:ne row_stack:vstack subtract:sub "
    "swapdims:transpose true_divide:div special_digamma:digamma special_erf:erf special_erfc:erfc special_erfinv:erfinv special_exp2:exp2 "
    "special_expit:sigmoid special_expm1:expm1 special_gammainc:igamma special_gammaincc:igammac special_gammaln:lgamma special_i0:i0 "
    "special_log1p:log1p special_logit:logit special_logsumexp:logsumexp special_multigammaln:mvlgamma special_polygamma:polygamma "
    "special_psi:digamma special_round:round special_sinc:sinc special_xlogy:xlogy _cdist_forward:cdist "
    "__lshift__:bitwise_left_shift __rshift__:bitwise_right_shift linalg_matrix_exp:matrix_exp _pdist_forward:pdist _sample_dirichlet:sample_dirichlet "
    "_standard_gamma:standard_gamma _standard_gamma_grad:standard_gamma_grad").split())

SPECIAL = {}
ASSERTS = {aten._assert_async.default, aten._assert_async.msg, aten._assert_scalar.default}
CHECKS = {aten._linalg_check_errors.default}
PRIMS = {"convert_element_type", "fma"}  # of PyTorch's own language of primitives


def special(*names):
    def register(f):
        for n in names:
            SPECIAL[n] = f
        return f
    return register


def same(low, node, a, expect):
    return a["self"]


for _name in ("alias", "detach", "lift", "lift_fresh", "_conj_physical"):
    SPECIAL[_name] = same


@special("copy_")
def _copy_(low, node, a, expect):
    source = node.args[0]
    if not isinstance(source, Node) or source.op != "placeholder" or source not in low.placeholders:
        raise Unsupported("a write into what is no argument")
    return low.emit("copy_", {"self": a["self"], "src": a["src"]})


@special("_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
def _nothing(low, node, a, expect):
    return None  # the types of the trace hold in every call, and so do the bounds of its sizes: who guards them is the caller


@special("lift_fresh_copy")
def _clone(low, node, a, expect):
    return low.emit("clone", {"self": a["self"]}, expect)


@special("view", "_unsafe_view", "reshape")
def _view(low, node, a, expect):
    if "size" not in a and "shape" not in a:
        return _view_dtype(low, node, a, expect)
    return low.emit("reshape", {"self": a["self"], "shape": a.get("size", a.get("shape"))}, expect)


def _view_dtype(low, node, a, expect):
    return low.emit("view_copy_dtype", {"self": a["self"], "dtype": a["dtype"]}, expect)


@special("_reshape_copy", "view_copy")
def _view_copy(low, node, a, expect):
    if "dtype" in a:
        return _view_dtype(low, node, a, expect)
    return low.emit("clone", {"self": _view(low, node, a, None)[0]}, expect)


@special("squeeze")
def _squeeze(low, node, a, expect):
    dim = a.get("dim")
    return low.emit("squeeze_dims", {"self": a["self"], "dim": [dim] if isinstance(dim, int) else dim}, expect)


@special("scalar_tensor")
def _scalar_tensor(low, node, a, expect):
    return [low.full(a["s"], node.meta["val"].dtype)]


@special("full", "empty", "empty_permuted", "zeros", "ones", "new_empty", "new_zeros", "new_ones", "new_full", "empty_strided", "new_empty_strided")
def _full(low, node, a, expect):
    name = node.target._schema.name.split("::")[1]
    value = a.get("fill_value", 1 if name.endswith("ones") else 0)
    dtype = node.meta["val"].dtype
    return low.emit("full", {"size": a["size"], "fill_value": value, "dtype": dtype}, expect)


@special("fill")
def _fill(low, node, a, expect):
    if not isinstance(a["value"], Slot):
        return low.emit("fill", a, expect)
    value = low.one("to_dtype", self=a["value"], dtype=node.meta["val"].dtype)
    return low.emit("masked_fill", {"self": a["self"], "mask": low.full(True, torch.bool), "value": value}, expect)


@special("full_like", "empty_like", "zeros_like", "ones_like")
def _full_like(low, node, a, expect):
    name = node.target._schema.name.split("::")[1]
    value = a.get("fill_value", 1 if name.startswith("ones") else 0)
    given = {"self": a["self"], "fill_value": value, "dtype": node.meta["val"].dtype}
    if a.get("memory_format") is not None:
        given["memory_format"] = a["memory_format"]
    return low.emit("full_like", given, expect)


@special("arange")
def _arange(low, node, a, expect):
    return low.emit("arange", {"start": a.get("start", 0), "end": a["end"], "step": a.get("step", 1), "dtype": node.meta["val"].dtype}, expect)


@special("_to_copy")
def _to_copy(low, node, a, expect):
    if not isinstance(a["self"], Slot):  # what vmap makes of a number
        return [low.full(a["self"], node.meta["val"].dtype)]
    x, y = node.args[0].meta["val"], node.meta["val"]
    if x.device != y.device:
        raise Unsupported(f"a copy from {x.device} to {y.device}")
    given = {"self": a["self"]}
    if a.get("memory_format") is not None:
        given["memory_format"] = a["memory_format"]
    if x.dtype == y.dtype:
        return low.emit("clone", given, expect)
    return low.emit("to_dtype", {**given, "dtype": y.dtype}, expect)


@special("convert_element_type")
def _convert_element_type(low, node, a, expect):
    if not isinstance(a["a"], Slot):
        return [low.full(a["a"], node.meta["val"].dtype)]
    x, dtype = a["a"], node.meta["val"].dtype
    return [x] if node.args[0].meta["val"].dtype == dtype else low.emit("to_dtype", {"self": x, "dtype": dtype}, expect)


@special("fma")
def _fma(low, node, a, expect):
    """x y + z: what TorchDynamo makes of addcmul and addcdiv whose `value` is given; y may be a number."""
    x, y, z = (low.value(v) for v in node.args)
    if not isinstance(y, Slot):
        return low.emit("add", {"self": z, "other": x, "alpha": y}, expect)
    return low.emit("addcmul", {"self": z, "tensor1": x, "tensor2": y}, expect)


ATTENTION = ("query", "key", "value", "attn_mask", "is_causal", "scale", "enable_gqa")


@special("attention")
def _attention(low, node, a, expect):
    return low.emit("scaled_dot_product_attention", {"dropout_p": 0.0, **{k: a[k] for k in ATTENTION}}, expect)


@special("attention_backward")
def _attention_backward(low, node, a, expect):
    given = {"dropout_p": 0.0, **{k: a[k] for k in ATTENTION}}
    return low.gradient("scaled_dot_product_attention", given, [a["grad"]], ["query", "key", "value"], expect)


@special("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(low, node, a, expect):
    name = node.target._schema.name.split("::")[1]
    given = {"self": a["self"], "dim": a["dim"]}
    if a.get("half_to_float") or a.get("dtype") is not None:
        given["dtype"] = node.meta["val"].dtype
    if name != "_safe_softmax":
        return low.emit(name[1:], given, expect)
    y = low.one("softmax", **given)  # rows of which nothing is left are 0
    gone = low.one("all", self=low.one("eq_scalar", self=a["self"], other=float("-inf")), dim=[a["dim"]], keepdim=True)
    return low.emit("masked_fill_scalar", {"self": y, "mask": gone, "value": 0}, expect)


@special("split_with_sizes", "split", "unbind", "chunk", "split_copy", "split_with_sizes_copy", "unbind_copy")
def _split(low, node, a, expect):
    dim, parts, at = a.get("dim", 0), node.meta["val"], 0
    name = node.target._schema.name.split("::")[1]
    out = []
    for k, part in enumerate(parts):
        if name.startswith("unbind"):
            out.append(low.one("select", expect[k], self=a["self"], dim=dim, index=k))
            continue
        start, at = at, at + part.shape[dim]
        out.append(low.one("slice", expect[k], self=a["self"], dim=dim, start=low.size(start), end=low.size(at)))
    return [low.one("clone", e, self=t) for t, e in zip(out, expect)] if name.endswith("_copy") else out


MOST_TENSORS = 512  # of a step


@special("cat")
def _cat(low, node, a, expect):
    """Of more tensors than a step takes: of parts."""
    tensors, dim = a["tensors"], a.get("dim", 0)
    while len(tensors) > MOST_TENSORS:
        tensors = [low.one("cat", tensors=tensors[k:k + MOST_TENSORS], dim=dim) for k in range(0, len(tensors), MOST_TENSORS)]
    return low.emit("cat", {"tensors": tensors, "dim": dim}, expect)


@special("slice")
def _slice(low, node, a, expect):
    end = a.get("end")
    if isinstance(end, int) and end >= 2**62:
        end = None
    return low.emit("slice", {"self": a["self"], "dim": a.get("dim", 0), "start": a.get("start"), "end": end, "step": a.get("step", 1)}, expect)


@special("slice_scatter")
def _slice_scatter(low, node, a, expect):
    end = a.get("end")
    given = {**a, "end": None if isinstance(end, int) and end >= 2**62 else end}
    return low.emit("slice_scatter", given, expect)


@special("expand")
def _expand(low, node, a, expect):
    return low.emit("expand", {"self": a["self"], "size": a["size"]}, expect)


@special("as_strided_scatter")
def _as_strided_scatter(low, node, a, expect):
    x = node.args[0].meta["val"]
    sizes, strides = list(a["size"]), list(a["stride"])
    if not x.is_contiguous() or any(not isinstance(v, (int, Reg)) for v in (*sizes, *strides, a["storage_offset"] or 0)) or x.storage_offset():
        raise Unsupported("as_strided_scatter into other than row-major memory")
    place = low.full(a["storage_offset"] or 0, torch.int64, [1] * len(sizes))
    for d, (size, stride) in enumerate(zip(sizes, strides)):
        along = low.one("mul_scalar", self=low.one("arange", start=0, end=size, step=1, dtype=torch.int64), other=stride)
        place = low.one("add", self=place, other=low.one("reshape", self=along, shape=[size if k == d else 1 for k in range(len(sizes))]))
    return low.emit("put", {"self": a["self"], "index": place, "source": a["src"]}, expect)


# ---- branches and loops: operators of a higher order, whose arguments are graphs

FLOW = {}


def flow(name):
    def register(f):
        FLOW[name] = f
        return f
    return register


def _given(low, nodes):
    """What the arguments of a node's graphs are here; sizes are known in them as they are outside."""
    return [low.value(n) if not isinstance(n, Node) or isinstance(n.meta.get("val"), torch.Tensor) else None for n in nodes]


@flow("cond")
def _cond(low, node, expect):
    pred, then, other, operands = node.args
    given, pred = _given(low, operands), low.value(pred)
    blocks = [low.block(low.graph_of(g), given) for g in (then, other)]
    if not isinstance(pred, Slot):
        pred = low.full(pred, torch.bool)
    out = low.slots(len(expect))
    low.steps.append(("cond", where(node), (pred.index,), tuple(s.index for s in out), tuple(expect), *blocks))
    low.nodes.append(node)
    return out


@flow("while_loop")
def _while(low, node, expect):
    cond, body, state, others = node.args
    given = _given(low, [*state, *others])
    if not all(isinstance(g, Slot) for g in given[:len(state)]):
        raise Unsupported("a loop whose state is a number")
    blocks = [low.block(low.graph_of(g), given, own=len(state)) for g in (cond, body)]
    out = low.slots(len(expect))
    low.steps.append(("while", where(node), tuple(g.index for g in given[:len(state)]), tuple(s.index for s in out), tuple(expect), *blocks))
    low.nodes.append(node)
    return out


@flow("invoke_subgraph")
def _invoke(low, node, expect):
    return low.inline(low.graph_of(node.args[0]), _given(low, node.args[2:]))


MOST_UNROLLED = 4096  # nodes of a loop over rows


def _rows(xs):
    if not xs:
        raise Unsupported("a loop over nothing")
    return xs[0].meta["val"].shape[0]


def _unrolled(graph, rows):
    if not isinstance(rows, int):
        raise Unsupported("a loop over rows whose number changes")
    if rows * len(graph.nodes) > MOST_UNROLLED:
        raise Unsupported(f"a loop over {rows} rows, which would be {rows * len(graph.nodes)} nodes")
    return graph, range(rows)


@flow("scan")
def _scan(low, node, expect):
    """Over the first dimension, one after the other."""
    combine, first, xs, others = node.args
    graph, rows = _unrolled(low.graph_of(combine), _rows(xs))
    state, xs, others = (_given(low, nodes) for nodes in (first, xs, others))
    found = []
    for k in rows:
        out = low.inline(graph, [*state, *(low.one("select", self=x, dim=0, index=k) for x in xs), *others])
        state, found = out[:len(state)], [*found, out[len(state):]]
    if not found:
        raise Unsupported("a loop over no rows")
    return [*state, *(low.one("stack", e, tensors=list(ys), dim=0) for ys, e in zip(zip(*found), expect[len(state):]))]


@flow("map_impl")
def _map(low, node, expect):
    body, xs, others = node.args
    graph, rows = _unrolled(low.graph_of(body), _rows(xs))
    xs, others = _given(low, xs), _given(low, others)
    found = [low.inline(graph, [*(low.one("select", self=x, dim=0, index=k) for x in xs), *others]) for k in rows]
    if not found:
        raise Unsupported("a loop over no rows")
    return [low.one("stack", e, tensors=list(ys), dim=0) for ys, e in zip(zip(*found), expect)]


def _widened(graph, rows, vals):
    """The graph for as many rows at once; its results are made element by element of its arguments, (value, is it of a row?) each."""
    dims = {v.dim() for v, many in vals if many}
    if not all(torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in graph.nodes if n.op == "call_function") or len(dims) != 1 or any(
            not isinstance(v, torch.Tensor) or v.dim() > max(dims) for v, _ in vals):
        raise Unsupported("a scan by what is not calculated element by element")
    whole = GraphModule(graph.owning_module, copy.deepcopy(graph))
    with vals[0][0].fake_mode as mode:
        FakeTensorProp(whole, mode).propagate_dont_convert_inputs(*(v.new_empty((rows, *v.shape)) if many else v for v, many in vals))
    return whole.graph


@flow("associative_scan")
def _associative_scan(low, node, expect):
    """In as many steps as the number of rows has bits, each of all rows."""
    combine, xs, others = node.args
    graph, rows = low.graph_of(combine), _rows(xs)
    if not isinstance(rows, int):
        raise Unsupported("a loop over rows whose number changes")
    vals = [(n.meta["val"], k < 2 * len(xs)) for k, n in enumerate(n for n in graph.nodes if n.op == "placeholder")]
    state, others, by = _given(low, xs), _given(low, others), 1
    while by < rows:
        part = lambda x, start, end: low.one("slice", self=x, dim=0, start=start, end=end)
        found = low.inline(_widened(graph, rows - by, vals), [*(part(x, 0, rows - by) for x in state), *(part(x, by, rows) for x in state), *others])
        state = [low.one("cat", e, tensors=[part(x, 0, by), y], dim=0) for x, y, e in zip(state, found, expect)]
        by *= 2
    return state


# ---- convolution

def _spatial(n, v):
    return [v[0]] * n if isinstance(v, (list, tuple)) and len(v) == 1 else v


def _conv(low, node, a, weight):
    n = weight.dim() - 2
    if not 1 <= n <= 3:
        raise Unsupported(f"a convolution over {n} dimensions")
    given = {"stride": _spatial(n, a["stride"]), "padding": _spatial(n, a["padding"]), "dilation": _spatial(n, a["dilation"]), "groups": a["groups"]}
    if a["transposed"]:
        return f"conv_transpose{n}d", {**given, "output_padding": _spatial(n, a["output_padding"])}
    return f"conv{n}d", given


@special("convolution")
def _convolution(low, node, a, expect):
    name, given = _conv(low, node, a, node.args[1].meta["val"])
    return low.emit(name, {"input": a["input"], "weight": a["weight"], "bias": a["bias"], **given}, expect)


@special("convolution_backward")
def _convolution_backward(low, node, a, expect):
    name, given = _conv(low, node, a, node.args[2].meta["val"])
    wrt = [n for n, wanted in zip(("input", "weight"), a["output_mask"]) if wanted]
    out = [None, None, None]
    if wrt:
        types = [expect[("input", "weight").index(w)] for w in wrt]
        grads = low.gradient(name, {"input": a["input"], "weight": a["weight"], "bias": None, **given}, [a["grad_output"]], wrt, types)
        for w, g in zip(wrt, grads):
            out[("input", "weight").index(w)] = g
    if a["output_mask"][2]:
        dims = [0, *range(2, node.args[0].meta["val"].dim())]
        out[2] = low.one("sum", expect[2], self=a["grad_output"], dim=dims)
    return out


# ---- pools and resampling

@special("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(low, node, a, expect):
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return low.gradient(node.target._schema.name.split("::")[1][:10], {n: a[n] for n in names}, [a["grad_output"]], ["self"], expect)


@special("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(low, node, a, expect):
    name = node.target._schema.name.split("::")[1][:-9]
    names = ("self", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    return low.gradient(name, {n: a[n] for n in names}, [a["grad_output"]], ["self"], expect)


@special("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive(low, node, a, expect):
    name = node.target._schema.name.split("::")[1][1:]
    return low.emit(name, {"self": a["self"], "output_size": a["output_size"]}, expect)


@special("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_backward(low, node, a, expect):
    name = node.target._schema.name.split("::")[1][:-9].lstrip("_")
    n = 3 if name.endswith("3d") else 2
    size = [low.size(s) for s in node.args[0].meta["val"].shape[-n:]]
    return low.gradient(name, {"self": a["self"], "output_size": size}, [a["grad_output"]], ["self"], expect)


@special("grid_sampler_2d", "grid_sampler_3d")
def _grid(low, node, a, expect):
    return low.emit("grid_sampler", a, expect)


@special("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_backward(low, node, a, expect):
    wrt = [n for n, wanted in zip(("input", "grid"), a["output_mask"]) if wanted]
    given = {n: a[n] for n in ("input", "grid", "interpolation_mode", "padding_mode", "align_corners")}
    grads = dict(zip(wrt, low.gradient("grid_sampler", given, [a["grad_output"]], wrt, [expect[("input", "grid").index(w)] for w in wrt])))
    return [grads.get("input"), grads.get("grid")]


@special("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d")
def _pad(low, node, a, expect):
    mode = "reflect" if "reflection" in node.target._schema.name else "replicate"
    return low.emit("pad", {"self": a["self"], "pad": a["padding"], "mode": mode}, expect)


@special("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _pad_backward(low, node, a, expect):
    return low.gradient("pad", {"self": a["self"], "pad": a["padding"], "mode": "replicate"}, [a["grad_output"]], ["self"], expect)


def _antialiased(node, a):
    """What `interpolate` takes: the scales where they were given, from which it finds the sizes that PyTorch found."""
    scales = [a["scales_h"], a["scales_w"]]
    there = {"size": a["output_size"]} if None in scales else {"scale_factor": scales}
    return {**there, "mode": "bicubic" if "bicubic" in node.target._schema.name else "bilinear", "align_corners": a["align_corners"], "antialias": True}


@special("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _upsample_aa(low, node, a, expect):
    return low.emit("interpolate", {"input": a["self"], **_antialiased(node, a)}, expect)


@special("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward")
def _upsample_aa_backward(low, node, a, expect):
    x = low.full(0, node.args[0].meta["val"].dtype, a["input_size"])
    return low.gradient("interpolate", {"input": x, **_antialiased(node, a)}, [a["grad_output"]], ["input"], expect)


@special("_pdist_backward")
def _pdist_backward(low, node, a, expect):
    return low.gradient("pdist", {"self": a["self"], "p": a["p"]}, [a["grad_output"]], ["self"], expect)


@special("_segment_reduce_backward")
def _segment_reduce_backward(low, node, a, expect):
    names = ("data", "reduce", "lengths", "offsets", "axis", "initial")
    return low.gradient("segment_reduce", {**{n: a[n] for n in names}, "indices": None, "unsafe": True}, [a["grad"]], ["data"], expect)


@special("native_layer_norm")
def _layer_norm(low, node, a, expect):
    """Mean and 1/std of half types are float32 in the library; on a CPU PyTorch keeps them as it keeps the operand."""
    vals = node.meta["val"]
    cast = [k > 0 and v.dtype in (torch.float16, torch.bfloat16) for k, v in enumerate(vals)]
    out = low.emit("native_layer_norm", a, [None if c else e for c, e in zip(cast, expect)])
    return [low.one("to_dtype", e, self=t, dtype=v.dtype) if c else t for t, e, v, c in zip(out, expect, vals, cast)]


@special("native_dropout")
def _dropout(low, node, a, expect):
    if a["train"] is False:
        return [low.one("clone", self=a["input"]), low.one("ones_like", self=a["input"], dtype=torch.bool)]
    return low.emit("native_dropout", a, expect)


@special("embedding")
def _embedding(low, node, a, expect):
    if a["sparse"]:
        raise Unsupported("a sparse gradient")
    return low.emit("embedding", {"weight": a["weight"], "indices": a["indices"]}, expect)  # padding concerns the gradient alone


@special("embedding_dense_backward")
def _embedding_backward(low, node, a, expect):
    g = node.args[0].meta["val"]
    grad = a["grad_output"]
    if a["padding_idx"] >= 0:  # what looked up the padding counts nothing
        padding = low.one("eq_scalar", self=a["indices"], other=a["padding_idx"])
        grad = low.one("masked_fill_scalar", self=grad, mask=low.one("unsqueeze", self=padding, dim=-1), value=0)
    weight = low.full(0, g.dtype, [a["num_weights"], low.size(g.shape[-1])])
    given = {"weight": weight, "indices": a["indices"], "scale_grad_by_freq": a["scale_grad_by_freq"]}
    return low.gradient("embedding", given, [grad], ["weight"], expect)


@special("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask", "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _fake_quantize(low, node, a, expect):
    """The numbers, and which of them have a gradient."""
    name = node.target._schema.name.split("::")[1].lstrip("_").replace("_cachemask", "")
    names = ("self", "scale", "zero_point", "axis", "quant_min", "quant_max")
    given = {n: a[n] for n in names if n in a}
    y = low.one(name, expect[0], **given)
    if "fake_quant_enabled" in a:
        off = low.one("logical_not", self=a["fake_quant_enabled"])
        y = low.one("where", expect[0], condition=off, self=a["self"], other=y)
    x = node.args[0].meta["val"]
    (there,) = low.gradient(name, given, [low.one("ones_like", self=a["self"])], ["self"], [type_of(x)])
    mask = low.one("ne_scalar", self=there, other=0)
    return [y, low.one("logical_or", self=mask, other=off) if "fake_quant_enabled" in a else mask]


# ---- linear algebra: several results, of which the library's rows have the first ones

@functools.cache
def factors_of_transpose(name):
    """Does PyTorch give, of a row-major matrix, the LU factors of its transpose?"""
    with unset_fake_temporarily():
        a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        lu = aten._linalg_solve_ex(a, a)[1] if name == "_linalg_solve_ex" else aten._linalg_slogdet(a)[2]
        return not torch.equal(lu, torch.linalg.lu_factor(a).LU)


def _with_factors(low, node, a, out, at):
    """Results from `at` on are LU factors, pivots and where they are 0, as far as somebody looks at them."""
    name, vals = node.target._schema.name.split("::")[1], node.meta["val"]
    read = {u.args[1] for u in node.users if u.target is operator.getitem}
    if read & {at, at + 1}:
        turned = factors_of_transpose(name) and node.args[0].meta["val"].is_contiguous()
        x = low.one("transpose", self=a["A"], dim0=-2, dim1=-1) if turned else a["A"]
        out += low.emit("linalg_lu_factor_ex", {"A": x}, [expected(v) for v in vals[at:at + 2]])[:2]
    return out + [None] * (at + 2 - len(out))


@special("_linalg_solve_ex")
def _solve(low, node, a, expect):
    given = {k: a[k] for k in ("A", "B", "left", "check_errors")}
    x, info = low.emit("linalg_solve_ex", given, [expect[0], expect[3]])
    return [*_with_factors(low, node, a, [x], 1), info]


@special("_linalg_slogdet")
def _slogdet(low, node, a, expect):
    return _with_factors(low, node, a, low.emit("linalg_slogdet", {"A": a["A"]}, expect[:2]), 2)


@special("_linalg_det")
def _det(low, node, a, expect):
    return _with_factors(low, node, a, low.emit("linalg_det", {"A": a["A"]}, expect[:1]), 1)


@special("_linalg_eigh")
def _eigh(low, node, a, expect):
    if not a["compute_v"]:
        return [low.one("linalg_eigvalsh", expect[0], self=a["A"], UPLO=a["UPLO"]), None]
    return low.emit("linalg_eigh", {"self": a["A"], "UPLO": a["UPLO"]}, expect)


@special("_linalg_svd")
def _svd(low, node, a, expect):
    if not a["compute_uv"]:
        return [None, low.one("linalg_svdvals", expect[1], A=a["A"], driver=a["driver"]), None]
    return low.emit("linalg_svd", {k: a[k] for k in ("A", "full_matrices", "driver")}, expect)


@special("_int_mm")
def _int_mm(low, node, a, expect):
    wide = {n: low.one("to_dtype", self=a[n], dtype=torch.int32) for n in ("self", "mat2")}
    return low.emit("mm", wide, expect)


@special("embedding_renorm")
def _embedding_renorm(low, node, a, expect):
    return low.emit("embedding_renorm_", {**a, "self": low.one("clone", self=a["self"])}, expect)


def _largest_rows(low, a, bags, of, n, val, padding):
    """By bag and column the first index whose row has what the bag has there; of a bag that is empty any."""
    rows = low.one("index_select", self=a["weight"], dim=0, index=a["indices"])
    there = low.one("index_select", self=bags, dim=0, index=of)
    found = low.one("eq", self=rows, other=there)
    found = low.one("logical_or", self=found, other=low.one("logical_and", self=low.one("isnan", self=rows), other=low.one("isnan", self=there)))
    if padding >= 0:
        found = low.one("logical_and", self=found, other=low.one("unsqueeze", self=low.one("ne_scalar", self=a["indices"], other=padding), dim=-1))
    size = [low.size(s) for s in val.shape]
    last = n - 1 if isinstance(n, int) else low.register("calc", "sub", low.as_word(n), 1)
    place = low.one("unsqueeze", self=low.one("arange", start=0, end=n, step=1, dtype=torch.int64), dim=-1)
    place = low.one("where", condition=found, self=place, other=low.full(last, torch.int64))
    first = low.one("index_reduce", self=low.full(last, torch.int64, size), dim=0, index=of, source=place, reduce="amin", include_self=True)
    index = low.one("index_select", self=a["indices"], dim=0, index=low.one("reshape", self=first, shape=[-1]))
    return low.one("to_dtype", self=low.one("reshape", self=index, shape=size), dtype=val.dtype)


@special("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(low, node, a, expect):
    """The bags; and, where somebody looks at them, what PyTorch's derivative reads: the bag of each index, how many a bag has, and which rows
    are largest."""
    if a["sparse"]:
        raise Unsupported("a sparse gradient")
    read = {u.args[1] for u in node.users if u.target is operator.getitem}
    largest = a["mode"] == 2 and 3 in read
    padding = a["padding_idx"]
    given = {n: a[n] for n in ("weight", "indices", "offsets", "mode", "per_sample_weights", "include_last_offset")}
    bags = low.one("embedding_bag", expect[0], **given, scale_grad_by_freq=False, padding_idx=padding if padding >= 0 else None)
    out = [bags, None, None, None]
    vals = node.meta["val"]
    if read & {1, 2} or largest:
        n = low.size(node.args[1].meta["val"].shape[0])
        place = low.one("arange", start=0, end=n, step=1, dtype=vals[1].dtype)
        of = low.one("sub_scalar", self=low.one("searchsorted", sorted_sequence=a["offsets"], self=place, right=True), other=1)
        out[1] = low.one("to_dtype", self=of, dtype=vals[1].dtype) if vals[1].dtype != torch.int64 else of
        if vals[1].shape[0] == 0:
            out[1] = low.full(0, vals[1].dtype, [0])
        counts = low.one("ones_like", self=of) if padding < 0 else low.one("to_dtype", self=low.one("ne_scalar", self=a["indices"], other=padding), dtype=torch.int64)
        out[2] = low.one("index_add", self=low.full(0, torch.int64, [low.size(s) for s in vals[2].shape]), dim=0, index=of, source=counts)
        if vals[2].dtype != torch.int64:
            out[2] = low.one("to_dtype", self=out[2], dtype=vals[2].dtype)
    if largest and n != 0:
        out[3] = _largest_rows(low, a, bags, of, n, vals[3], padding)
    elif 3 in read:
        out[3] = low.full(0, vals[3].dtype, [low.size(s) for s in vals[3].shape])
    return out


@special("normal")
def _normal(low, node, a, expect):
    if "size" in a:
        raise Unsupported("normal of a size")
    dtype = node.meta["val"].dtype
    mean, std = (v if isinstance(v, Slot) else low.full(v, dtype) for v in (a["mean"], a["std"]))
    return low.emit("normal_tensors", {"mean": mean, "std": std, "generator": a["generator"]}, expect)


@special("randint_like")
def _randint_like(low, node, a, expect):
    if a.get("generator") is not None:
        raise Unsupported("a generator is given")
    return low.emit("randint_like", {"self": a["self"], "low": a.get("low", 0), "high": a["high"], "dtype": node.meta["val"].dtype}, expect)


@special("rand", "randn", "randint")
def _random(low, node, a, expect):
    name = node.target._schema.name.split("::")[1]
    given = {"size": a["size"], "dtype": node.meta["val"].dtype}
    if name == "randint":
        given.update(low=a.get("low", 0), high=a["high"])
    return low.emit(name, given, expect)
