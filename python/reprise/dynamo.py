"""The backend of torch.compile: AOT autograd gives graphs of ATen ops, each becomes one program of the library, or several with PyTorch's
own ops between them where the library lacks one."""
import contextlib
import functools
import logging
import math  # of what python_of() writes
import operator
import threading

import sympy
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.passes.split_module import split_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy

from . import _c, check_numbers
from .attention import keep_whole, take_apart
from .constructors import move
from .decompose import table
from .lower import FLOW, ROUNDINGS, Lowering, beyond, checks, hint, type_of, where
from .real import as_real, product_precision
from .report import REPORT, Graph
from .schema import Slot, Unsupported

log = logging.getLogger("reprise")


def bind(table=True):
    """How the C module exchanges tensors with PyTorch: by the tensor class's table of C functions, or, without it, by capsules."""
    return _c.bind_exchange(torch.Tensor, torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack,
                            getattr(torch._C, "_cuda_getCurrentRawStream", None), table)


bind()
aten = torch.ops.aten
OPTIONS = {"engine", "engine_options", "numbers", "tune", "strict", "wait", "no_graph"}
DRAWING = threading.Lock()  # the library's default generators are set, drawn from and read in one go
NOTHING = torch.empty(0)
SAVED = "reprise_saved"  # in a node's meta: a value of the forward that the backward alone reads, of any strides
MOST_ROUNDS = 8  # a graph is split again where a part of it turns out to be refused


class NotSupported(RuntimeError):
    """A node that the library does not run, where the whole graph was asked for."""


# ---------------------------------------------------------------- one program


def device_of(graph):
    """The device of a graph: that of its tensors with dims, or of any."""
    devices = {}
    for n in graph.nodes:
        for v in n.meta["val"] if isinstance(n.meta.get("val"), (list, tuple)) else [n.meta.get("val")]:
            if isinstance(v, torch.Tensor):
                devices[v.device] = devices.get(v.device, 0) + (1 if v.dim() else 0)
    cuda = [d for d in devices if d.type != "cpu"]
    return max(cuda, key=devices.get) if cuda else torch.device("cpu")


def library_device(device):
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"the device {device}")
    return (0, 0) if device.type == "cpu" else (1, device.index or 0)


VIEWS = {"contiguous", "reshape", "_reshape_alias", "_unsafe_view", "to_dtype", "_to_copy", "copy_", "flatten", "expand"}


def may_alias(node):
    """Does a result of the node share memory with an operand, or could it?"""
    if node.target is operator.getitem or getattr(node.target, "__name__", "") in FLOW:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    return schema.name.split("::")[1] in VIEWS or any(r.alias_info is not None for r in schema.returns)


def owned_arguments(graph, results):
    """Placeholders whose memory a result may lie in."""
    bases = {}
    for n in graph.nodes:
        if n.op == "placeholder":
            bases[n] = {n}
        elif n.op == "call_function" and may_alias(n):
            bases[n] = set().union(*(bases.get(a, set()) for a in n.all_input_nodes))
    return set().union(*(bases.get(r, set()) for r in results)) if results else set()


def viewed(node):
    """The node whose memory a node's only result is a view of by its schema; None: its memory is its own, or nobody says."""
    if node.target is operator.getitem:
        return viewed(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not isinstance(node.args[0], torch.fx.Node) or schema.is_mutable:
        return None
    return node.args[0] if schema.arguments[0].alias_info is not None and any(r.alias_info is not None for r in schema.returns) else None


def python_of(low, e):
    """Source of a size's expression over the arguments `a` of a call."""
    if e in (sympy.true, sympy.false):
        return str(bool(e))
    if e.is_Integer:
        return str(int(e))
    if e.is_Symbol:
        if e not in low.sizes:
            raise Unsupported(f"the size {e}, which no argument has")
        k, d = low.sizes[e]
        return f"a[{k}]" if isinstance(low.placeholders[k].meta["val"], torch.SymInt) else f"a[{k}].shape[{d}]"
    if e.is_number:
        return repr(float(e))
    parts = [python_of(low, p) for p in e.args]
    kind = type(e).__name__
    if kind == "ToFloat":
        return f"float({parts[0]})"
    if kind in ROUNDINGS:
        return f"{ROUNDINGS[kind]}({parts[0]})"
    if kind in ("OpaqueUnaryFn_sqrt", "sqrt"):
        return f"{parts[0]} ** 0.5"
    joined = {"Add": " + ", "Mul": " * ", "FloorDiv": " // ", "CleanDiv": " // ", "Mod": " % ", "PythonMod": " % ", "Pow": " ** ", "PowByNatural": " ** ",
              "FloatPow": " ** ", "FloatTrueDiv": " / ", "IntTrueDiv": " / "}.get(kind)
    if joined:
        return "(" + joined.join(parts) + ")"
    if kind in ("Max", "Min"):
        return f"{kind.lower()}({', '.join(parts)})"
    said = {"Equality": " == ", "Unequality": " != ", "StrictLessThan": " < ", "LessThan": " <= ", "StrictGreaterThan": " > ", "GreaterThan": " >= ",
            "And": " and ", "Or": " or "}.get(kind)
    if said:
        return "(" + said.join(parts) + ")"
    if kind == "Not":
        return f"(not {parts[0]})"
    raise Unsupported(f"the size {e} ({kind}) as a result")


class AsTraced:
    """An argument in the traced call, as far as sizes go."""

    def __init__(self, val):
        self.shape = [hint(s) for s in val.shape] if isinstance(val, torch.Tensor) else None
        self.number = hint(val) if isinstance(val, (torch.SymInt, int)) else None


def recorded(device):
    """Does a graph of the user's record what is called now?"""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Part:
    """A graph that the library runs whole: the program, and what of its results is made outside of it."""

    def __init__(self, gm, name, options):
        graph = gm.graph
        self.device = device_of(graph)
        self.place = library_device(self.device)
        low = self.low = Lowering(graph, self.device)
        self.faults = []  # (node, reason)
        output = next(n for n in graph.nodes if n.op == "output")
        self.constants = []  # (tensor) behind the arguments
        for owner in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):  # with those of branches and loops
            for n in owner.graph.nodes:
                if n.op == "get_attr":
                    self.constant(n, owner)
        self.handed = []  # functions of the arguments, whose results are arguments behind the constants
        for e, negative in beyond(graph):
            try:
                self.handed.append(eval("lambda a: " + python_of(low, e)))
            except (Unsupported, KeyError):
                continue
            low.hand_over(e, negative)
        for n in graph.nodes:
            if n.op in ("placeholder", "output", "get_attr"):
                continue
            try:
                low.lower(n)
            except Unsupported as e:
                self.faults.append((n, str(e)))
                self.absent(n)
        self.results, programmed = [], []  # what run() gives back: ("program", k) | ("argument", k) | ("python", function) | ("view", "program" or "argument", k, function) | ("none",)
        slots = {}
        whole = {r for r in output.args[0] if isinstance(r, torch.fx.Node)}
        for r in output.args[0]:
            self.results.append(self.result(r, slots, programmed, whole))
        tokens = {n.args[0] for n in low.asserted if checks(n)}
        self.tokens = [k for k, n in enumerate(low.placeholders) if n in tokens or k in low.names]  # arguments that the program gets nothing for
        self.holds, self.asserts = [], []  # (a function of the arguments, what to say): before a run; (op, more of its arguments), of results behind the others
        nodes = list(graph.nodes) if low.asserted else []
        last = max((k for k, n in enumerate(nodes) if n.target is aten.copy_.default), default=0)
        self.before_writes = set(nodes[:last])
        for n in low.asserted:
            self.assertion(n, slots, programmed, whole)
        held = owned_arguments(graph, programmed)
        arguments = low.placeholders
        owned = tuple(k for k, n in enumerate(arguments) if n in held)
        self.symbolic = bool(low.sizes)
        self.expect = [n.meta["val"] for n in programmed]
        self.restride = None
        self.arranged = False  # the program's call() gives what run() gives
        self.free = tuple(k for k, n in enumerate(programmed) if SAVED in n.meta and not any(r[0] == "view" and r[1:3] == ("program", k) for r in self.results))
        options = {**{k: v for k, v in options.items() if k != "strict"}, "static_sizes": not self.symbolic, "device": self.place,
                   "free_strides": self.free}
        self.program = _c.Program(name, len(arguments) + len(self.constants) + len(self.handed), low.steps, tuple(low.env[n].index for n in programmed), owned, options)
        self.random = low.random

    def constant(self, n, gm):
        """A tensor of the graph's own becomes one more argument; who uses anything else has no operand."""
        value = functools.reduce(getattr, n.target.split("."), gm)
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
            with unset_fake_temporarily():
                value = value.to(self.device)  # a number of the CPU is as good on the device of the others
        if not isinstance(value, torch.Tensor) or value.device != self.device:
            return
        try:
            type_of(value)
        except Unsupported:
            return
        n.meta.setdefault("val", value)
        self.low.env[n] = Slot(self.low.n_slots)
        self.low.n_slots += 1
        self.constants.append(value)

    def absent(self, n):
        """Results of a node that is not lowered, so that the others are looked at."""
        val = n.meta.get("val")
        try:
            if isinstance(val, (list, tuple)):
                self.low.env[n] = [self.stand_in(v) for v in val]
            elif isinstance(val, torch.Tensor):
                self.low.env[n] = self.stand_in(val)
        except Unsupported:
            pass

    def stand_in(self, v):
        if not isinstance(v, torch.Tensor):
            return None
        type_of(v)
        return self.low.full(0, v.dtype, [self.low.size(s) for s in v.shape])

    def view(self, r, whole):
        """(what result r is a view of, a function of the arguments that gives its sizes, strides, and place behind the other's); None if it
        is a view of no argument and no other result. Autograd reads all of these off the tensors that a graph gives."""
        root, n = None, r
        while (n := viewed(n)) is not None:
            root = n if n.op == "placeholder" or n in whole else root
        if root is None:
            return None
        a, b = r.meta["val"], root.meta["val"]
        if not isinstance(a, torch.Tensor) or a.dtype != b.dtype:
            return None
        try:
            sizes, strides, (offset,) = (tuple(python_of(self.low, sympy.sympify(s.node.expr if isinstance(s, torch.SymInt) else s)) for s in list_of)
                                         for list_of in (a.shape, a.stride(), (a.storage_offset() - b.storage_offset(),)))
        except (Unsupported, KeyError) as e:
            self.faults.append((r, str(e)))
            return ("none",)
        group = lambda words: "(" + "".join(w + ", " for w in words) + ")"
        return ("view", root, eval(f"lambda a: ({group(sizes)}, {group(strides)}, {offset})"))

    def assertion(self, n, slots, programmed, whole):
        """What a node asserts of sizes is looked at before a run. PyTorch asserts what it says of a tensor, which is a result for that."""
        of = n.args[0]
        if n.target is aten._assert_scalar.default:
            try:
                expression = of.meta["val"].node.expr if isinstance(of, torch.fx.Node) else sympy.sympify(of)
                self.holds.append((eval("lambda a: " + python_of(self.low, expression)), n.args[1]))
            except (Unsupported, KeyError, AttributeError) as e:
                self.faults.append((n, str(e)))
            return
        if n in self.before_writes:
            self.faults.append((n, "an assertion before the graph writes"))
            return
        op, more = n.target, n.args[1:]
        if checks(n):
            op, of, more = functools.partial(n.args[1], **n.kwargs), n.args[2], n.args[3:]
        self.results.append(self.result(of, slots, programmed, whole))
        self.asserts.append((op, more))

    def result(self, r, slots, programmed, whole):
        if r is None:
            return ("none",)
        if not isinstance(r, torch.fx.Node):
            return ("python", lambda a: r)
        while r.target is operator.getitem and checks(r.args[0]):
            r = r.args[0].args[0]  # the token that the check was given
        if r.op == "placeholder":
            return ("argument", self.low.placeholders.index(r))
        val = r.meta.get("val")
        if isinstance(val, torch.Tensor) and val.device != self.device:
            self.faults.append((r, f"a result on {val.device}"))
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            try:
                source = python_of(self.low, val.node.expr) if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)) else repr(val)
            except (Unsupported, KeyError) as e:
                self.faults.append((r, str(e)))
                source = "0"
            return ("python", eval("lambda a: " + source))
        if isinstance(val, torch.Tensor) and (view := self.view(r, whole)):
            return view if view[0] == "none" else ("view", *self.result(view[1], slots, programmed, whole), view[2])
        if not isinstance(self.low.env.get(r), Slot):
            self.faults.append((r, f"a result of type {type(val).__name__}"))
            return ("none",)
        if r not in slots:
            slots[r] = len(programmed)
            programmed.append(r)
        return ("program", slots[r])

    def types(self):
        """What the library is told of each argument; Unsupported where it has no such thing."""
        types = []
        for n in self.low.placeholders:
            val = n.meta.get("val")
            if isinstance(val, torch.Tensor):
                dtype, sizes = type_of(val)
                types.append((dtype, *library_device(val.device), sizes, tuple(isinstance(s, torch.SymInt) for s in val.shape)))
            elif len(types) in self.low.names:
                types.append((type_of(NOTHING)[0], 0, 0, (0,), (False,)))
            elif isinstance(val, (torch.SymInt, int)):
                number = hint(val) + self.low.shifts.get(len(types), 0)
                types.append((_c.dtypes()["int64"], 0, 0, (0, number), (False, isinstance(val, torch.SymInt))))
            else:
                raise Unsupported(f"an argument of type {type(val).__name__}")
        for t in self.constants:
            types.append((type_of(t)[0], *self.place, tuple(t.shape), (False,) * t.dim()))
        traced = [AsTraced(n.meta.get("val")) for n in self.low.placeholders] if self.handed else []
        traced = [t.number if isinstance(t.number, int) else t for t in traced]
        for f in self.handed:
            types.append((_c.dtypes()["int64"], 0, 0, (0, f(traced) + self.low.shifts.get(len(types), 0)), (False, True)))
        return types

    def text(self):
        """The program as the library traces it, in its text form: what `reprise explain|bench|dump FILE` take. Why not, as a comment."""
        try:
            return self.program.text(self.types())
        except (Unsupported, _c.Error) as e:
            return "".join(f"# {line}\n" for line in str(e).splitlines())

    def check(self):
        """What the library refuses of it, by a trace without data: [(node, reason)]."""
        try:
            types = self.types()
        except Unsupported as e:
            return [(None, str(e))]
        return [(self.low.nodes[k] if k >= 0 else None, reason) for k, reason in self.program.check(types)]

    # ---- calls

    def draw(self):
        """The library's generator goes on where PyTorch's stands; returns what is called behind the run, which tells PyTorch how far it went.
        In a graph of the user's each replay begins where two numbers say that PyTorch draws in it."""
        if recorded(self.device):
            state = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=self.device)
            _c.follow_generator(*self.place, state.data_ptr())
            return lambda held=state: _c.follow_generator(*self.place, 0)  # until then no other tensor of the graph lies there
        if self.device.type == "cuda":
            generator = torch.cuda.default_generators[self.device.index or 0]
            _c.set_generator(*self.place, generator.initial_seed() & (2**64 - 1), generator.get_offset() // 4)
            return lambda: generator.set_offset(4 * _c.get_generator(*self.place)[1])
        _c.set_generator(*self.place, int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0)
        return lambda: None

    def run(self, args):
        """A list of arguments, emptied, to a list of results."""
        for holds, said in self.holds:
            if not holds(args):
                raise RuntimeError(said)
        if self.arranged:
            out = self.program.call(args)
            args.clear()
            return out
        given = args
        if self.constants or self.handed or self.low.shifts or self.tokens:
            given = [*args, *self.constants, *(f(args) for f in self.handed)]
            for k, shift in self.low.shifts.items():
                given[k] += shift
            for k in self.tokens:
                given[k] = NOTHING
        if self.random:
            with DRAWING:
                behind = self.draw()
                try:
                    got = self.program.run(given)
                finally:
                    behind()
        else:
            got = self.program.run(given)
        if self.restride is None:
            self.look_at(got)
            self.arrange()
        for k, order in self.restride:
            got[k] = torch.empty_strided(got[k].shape, strides_in_order(order, got[k]), dtype=got[k].dtype, device=got[k].device).copy_(got[k])
        out = [got[r[1]] if r[0] == "program" else args[r[1]] if r[0] == "argument" else r[1](args) if r[0] == "python"
               else view_of(got if r[1] == "program" else args, r[2], r[3](args)) if r[0] == "view" else None for r in self.results]
        args.clear()
        asserted = out[len(out) - len(self.asserts):]
        del out[len(out) - len(self.asserts):]
        for (op, more), t in zip(self.asserts, asserted):
            op(t, *more)
        return out

    def arrange(self):
        """Where calls need nothing of Python's, the program does all of it."""
        places = {"program": lambda k: k, "argument": lambda k: -1 - k, "none": lambda: None}
        if not (self.constants or self.handed or self.low.shifts or self.tokens or self.random or self.restride or self.asserts) and all(r[0] in places for r in self.results):
            self.program.arrange(tuple(places[r[0]](*r[1:]) for r in self.results))
            self.arranged = True

    def look_at(self, got):
        """Results whose memory PyTorch expects to lie otherwise are copied at every call."""
        found = []
        for k, (t, want) in enumerate(zip(got, self.expect)):
            if k in self.free:
                continue
            try:
                strides = [hint(s) for s in want.stride()]
            except Unsupported:  # they depend on data: nobody can rely on them
                continue
            inner = [d for d in range(t.dim()) if t.shape[d] > 1]
            order = lambda of: sorted(inner, key=lambda d: of[d], reverse=True)
            numbers = [(t.stride(d), w) for d in inner if isinstance(w := want.stride(d), int)]
            if t.numel() and (any(s != w for s, w in numbers) or order(t.stride()) != order(strides)):
                found.append((k, sorted(range(t.dim()), key=lambda d: strides[d], reverse=True)))
        self.restride = found


def as_traced(gm, call):
    """A graph whose ops are in part PyTorch's: they read what a forward has saved with the strides that they were traced with."""
    saved = [(k, order_of(n.meta["val"])) for k, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder") if SAVED in n.meta]

    def around(args):
        for k, order in saved:
            strides = strides_in_order(order, args[k])
            if any(args[k].stride(d) != strides[d] for d in order if args[k].shape[d] > 1):
                args[k] = torch.empty_strided(args[k].shape, strides, dtype=args[k].dtype, device=args[k].device).copy_(args[k])
        return call(args)

    return around if saved else call


def order_of(val):
    """Dims of a traced value from outermost to innermost."""
    return sorted(range(val.dim()), key=lambda d: hint(val.stride(d)), reverse=True)


def view_of(tensors, k, place):
    t = tensors[k]
    return t.as_strided(place[0], place[1], t.storage_offset() + place[2])


def strides_in_order(order, t):
    """Dense strides with dims from outermost to innermost as `order` says."""
    out, step = [0] * t.dim(), 1
    for d in reversed(order):
        out[d] = step
        step *= max(t.shape[d], 1)
    return out


# ---------------------------------------------------------------- splitting


def levels(graph, refused):
    """A number a node: even for the library, odd for PyTorch; none below that of an operand."""
    level, written, highest = {}, 0, 0
    for n in graph.nodes:
        if n.op in ("placeholder", "output", "get_attr"):
            continue
        schema = getattr(n.target, "_schema", None)
        writes = schema is not None and schema.is_mutable
        # Nothing moves past a write: neither what stands behind it nor what stands before it.
        below = highest if writes else max([level.get(a, 0) for a in n.all_input_nodes] + [written])
        eager = n in refused
        if n.target is operator.getitem:
            below = level.get(n.args[0], 0)
            eager = below % 2 == 1
        level[n] = below if below % 2 == int(eager) else below + 1
        highest = max(highest, level[n])
        if writes:
            written = level[n]
    return level


def refuse(refused, found):
    """Adds nodes; were there new ones?"""
    new = False
    for n, reason in found:
        if n is not None and n not in refused:
            refused[n] = reason
            new = True
    return new


class Compiled:
    """A graph of AOT autograd as it runs."""

    def __init__(self, gm, kind, options):
        gm = move(gm, device_of(gm.graph))
        real, around = as_real(gm, SAVED) or (gm, None)
        for n, of in zip(*([m for m in g.graph.nodes if m.op == "placeholder"] for g in (real, gm))):
            n.meta.update({SAVED: True} if SAVED in of.meta else {})
        gm = real
        nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
        self.report = Graph(kind, len(nodes))
        strict = bool(options.get("strict"))
        refused = {}
        name = f"{kind} of {len(nodes)} nodes"
        for _ in range(MOST_ROUNDS):
            if not refused:
                part, found = self.attempt(gm, name, options)
                if not found:
                    self.report.add(part)
                    self.call = part.run
                    break
            else:
                found = self.split(gm, name, options, refused)
                if not found:
                    break
            if strict:
                n, reason = found[0]
                raise NotSupported(f"reprise: {n.target if n is not None else 'the graph'} ({n.name if n is not None else kind}): {reason}"
                                   + (f" at {where(n)}" if n is not None and where(n) else ""))
            if not refuse(refused, found):
                refused = {n: found[0][1] for n in nodes}
        else:
            refused = {n: "the graph was split too often" for n in nodes}
        if all(n in refused for n in nodes):
            self.report._parts.clear()
            self.call = lambda args: self.eager(gm, args)
        if refused:
            self.call = as_traced(gm, self.call)
        if around:
            self.call = around(self.call)
        for n, reason in refused.items():
            self.report.eager.append((n.name, str(n.target), reason, where(n) or ""))
        REPORT.add(self.report)

    @staticmethod
    def eager(gm, args):
        given = list(args)
        args.clear()
        return gm(*given)

    @staticmethod
    def attempt(gm, name, options):
        """(the part, what is refused of it)"""
        try:
            part = Part(gm, name, options)
        except Unsupported as e:
            return None, [(None, str(e))]
        found = list(part.faults)
        known = {n for n, _ in found}
        found += [(n, r) for n, r in part.check() if n not in known]
        return part, found

    def split(self, gm, name, options, refused):
        for n in gm.graph.nodes:
            if n.op != "placeholder":
                n.meta.pop(SAVED, None)  # ops of PyTorch's may read it, which were traced with its strides
        level = levels(gm.graph, refused)
        output = next(n for n in gm.graph.nodes if n.op == "output")
        for n in sorted(level, key=level.get):  # parts are called in the order of their first nodes
            output.prepend(n)
        whole = split_module(gm, None, lambda n: level[n], keep_original_order=True, keep_original_node_name=True)
        found, programs = [], []
        by_name = {n.name: n for n in gm.graph.nodes}
        for child_name, child in whole.named_children():
            if not child_name.startswith("submod_") or int(child_name[7:]) % 2 == 1:
                continue
            for n in child.graph.nodes:
                if n.op == "placeholder" and "val" not in n.meta and n.name in by_name:
                    n.meta.update(by_name[n.name].meta)
            output = next(n for n in child.graph.nodes if n.op == "output")
            single = not isinstance(output.args[0], (tuple, list))
            if single:
                output.args = ([output.args[0]],)
            part, wrong = self.attempt(child, name, options)
            found += [(by_name.get(n.name) if n is not None else None, r) for n, r in wrong]
            if any(n is None for n, _ in found):
                return [(n, found[0][1]) for n in gm.graph.nodes if n.op == "call_function"]
            programs.append((child_name, part, single))
        if found:
            return found
        for child_name, part, single in programs:
            setattr(whole, child_name, Caller(part.run, single))
            self.report.add(part)
        self.call = lambda args: self.eager(whole, args)
        return []


class Caller(torch.nn.Module):
    """A part among PyTorch's own ops."""

    def __init__(self, run, single):
        super().__init__()
        self.run, self.single = run, single

    def forward(self, *args):
        out = self.run(list(args))
        return out[0] if self.single else tuple(out)


# ---------------------------------------------------------------- the backend


def partition(joint, inputs, **keywords):
    """Forward and backward of a joint graph. What the forward writes is not what the backward may read: an argument's first value is kept as
    a copy where the backward needs it. Random numbers of a checkpointed part are kept, not drawn again: PyTorch would have the state of
    its own generator saved and set around each of its ops."""
    graph, kept = joint.graph, []
    for n in graph.nodes:
        if "recompute" in n.meta and torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()):
            for m in (n, *(u for u in n.users if u.target is operator.getitem)):
                m.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for n in [n for n in graph.nodes if n.op == "call_function" and n.target is aten.copy_.default and n.args[0].op == "placeholder"]:
        users = [u for u in n.args[0].users if not (u.target is aten.copy_.default and u.args[0] is n.args[0])]
        if not users:
            continue
        with graph.inserting_before(first):
            copy = graph.call_function(aten.clone.default, (n.args[0],))
        copy.meta.update(n.args[0].meta, recompute=CheckpointPolicy.MUST_SAVE)
        for u in users:
            u.replace_input_with(n.args[0], copy)
        kept.append(copy.name)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **keywords)
    output = next(n for n in forward.graph.nodes if n.op == "output")
    for n in [n for n in forward.graph.nodes if n.name in kept and output not in n.users]:
        n.replace_all_uses_with(n.args[0])
        forward.graph.erase_node(n)
    forward.recompile()
    mark_saved(forward, backward, keywords["num_fwd_outputs"])
    return forward, backward


def mark_saved(forward, backward, n_outputs):
    """What the backward alone reads may lie in memory as the library likes it, in both graphs: an op that goes by memory's order keeps it."""
    if any(n.target in (aten.as_strided.default, aten.as_strided_scatter.default) for n in backward.graph.nodes):
        return
    given = next(n for n in forward.graph.nodes if n.op == "output").args[0]
    read = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
    for n in set(given[n_outputs:]) - set(given[:n_outputs]):
        if n.op != "call_function" or not isinstance(n.meta.get("val"), torch.Tensor) or n.name not in read:
            continue
        try:
            order_of(n.meta["val"])
        except Unsupported:  # strides that depend on data: nobody could restore them
            continue
        n.meta[SAVED] = read[n.name].meta[SAVED] = True


def compile_graph(kind, options, gm, example_inputs):
    if not any(n.op == "call_function" for n in gm.graph.nodes):
        return make_boxed_func(gm.forward)
    call = Compiled(gm, kind, options).call

    def boxed(args):
        return call(args)

    boxed._boxed_call = True
    return boxed


@contextlib.contextmanager
def portable():
    """Ops that are those of one kernel library alone stay out of graphs that are traced in here."""
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)


def whole_graph_asked():
    """Is torch.compile(fullgraph=True) tracing the graph?"""
    try:
        return bool(InstructionTranslator.current_tx().one_graph)
    except AttributeError:  # nobody traces: the backend was called by hand
        return False


def follow_precision():
    """Products and convolutions of float32 are as exact as PyTorch's, whose convolutions on a GPU round to TF32 from the start."""
    try:
        convolutions = "high" if torch.backends.cudnn.allow_tf32 else "highest"
    except RuntimeError:
        convolutions = "high" if torch.backends.cudnn.conv.fp32_precision != "ieee" else "highest"
    _c.set_precision(product_precision(), convolutions)


def engine_pairs(given):
    """Keys and values of engine_options as texts."""
    if not isinstance(given, dict):
        raise ValueError(f"reprise: engine_options is a dict of keys and values, no {type(given).__name__}")
    return tuple((str(k), str(v)) for k, v in given.items())


def backend(gm, example_inputs, *, options=None, mode=None, **unknown):
    """torch.compile(model, backend="reprise", options={...}). Options: engine (a name of reprise.backends()), engine_options (a dict, of what
    the engine takes), strict (a node that the library does not run is an error that names it, instead of a split; fullgraph=True asks for
    it), numbers ("default": eager's bits; "fast"), tune (schedules of kernels are measured), wait, no_graph."""
    options = dict(options or {})
    for name in list(options):
        if name not in OPTIONS:
            raise ValueError(f"reprise: no option {name!r}; there are {', '.join(sorted(OPTIONS))}")
    if mode not in (None, "default"):
        raise ValueError(f"reprise: no mode {mode!r}: calls are graphed anyhow")
    for name in unknown:
        raise ValueError(f"reprise: no argument {name!r}")
    options.setdefault("strict", whole_graph_asked())
    if options.get("engine_options") is not None:
        options["engine_options"] = engine_pairs(options["engine_options"])
    else:
        options.pop("engine_options", None)
    if options.get("engine") not in (None, *_c.backends()):
        raise ValueError(f"reprise: no engine {options['engine']!r}; there are {', '.join(_c.backends())}")
    check_numbers(options)
    _c.set_threads(torch.get_num_threads())
    follow_precision()

    def compiler(kind):
        return functools.partial(compile_graph, kind, options)

    wrapped = aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler("inference"),
                           decompositions=table(), partition_fn=partition, keep_inference_input_mutations=True)
    take_apart(gm)
    keep_whole(gm)
    with portable():
        return wrapped(gm, example_inputs)
