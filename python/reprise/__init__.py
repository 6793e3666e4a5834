"""Reprise for Python: torch.compile(model, backend="reprise"), graphs of the library for any array, and what the library knows of itself.

    compiled = torch.compile(model, backend="reprise")      # inference and training, CPU and CUDA
    print(reprise.explain())                                # what ran where, and why

    f = reprise.compile_ir(text)                            # a graph in text form
    y = f(numpy_array)                                      # NumPy, JAX, PyTorch, anything with __dlpack__
"""
from . import _c
from ._c import Array, Error

__version__ = _c.version()
__all__ = ["Array", "Error", "Function", "backend", "backends", "compile_ir", "doctor", "explain", "ops", "reset"]


def doctor():
    """What the library found on this machine, and why something is absent."""
    return _c.doctor()


def ops():
    """The op table: a dict an op, with name, schema, doc, lowering, differentiable, flags."""
    names = ("name", "schema", "doc", "lowering", "differentiable", "flags")
    return [dict(zip(names, row)) for row in _c.ops()]


def backends():
    """Names that option `engine` takes."""
    return _c.backends()


def _like(array):
    """What makes an array of the first argument's framework of one of ours."""
    library = type(array).__module__.split(".")[0]
    if library == "torch":
        import torch
        return torch.from_dlpack
    if library == "numpy":
        import numpy
        return numpy.from_dlpack
    if library in ("jax", "jaxlib"):
        import jax
        return jax.dlpack.from_dlpack
    if library == "cupy":
        import cupy
        return cupy.from_dlpack
    return lambda a: a


class Function:
    """A compiled graph. Called with arrays of any framework that has DLPack; results are the first argument's framework's arrays."""

    def __init__(self, program):
        self._program = program

    @property
    def name(self):
        return self._program.name

    def __call__(self, *arrays):
        results = self._program.arrays(list(arrays))
        make = _like(arrays[0]) if arrays else (lambda a: a)
        results = [make(r) for r in results]
        return results[0] if len(results) == 1 else tuple(results)

    def explain(self):
        """Facts of what became of the graph: (kind, reason, message, site, count, of)."""
        return self._program.explain()


def compile_ir(text, **options):
    """Compiles a graph in the library's text form (docs/ir.md). Options: engine, engine_options (a dict), numbers ("default" or "fast"), tune,
    wait, no_graph, strict."""
    known = {"engine", "engine_options", "numbers", "tune", "wait", "no_graph", "strict"}
    for name in options.keys() - known:
        raise ValueError(f"reprise: no option {name!r}; there are {', '.join(sorted(known))}")
    if "engine_options" in options:
        options["engine_options"] = tuple((str(k), str(v)) for k, v in (options["engine_options"] or {}).items())
    check_numbers(options)
    return Function(_c.Program.read(text, options))


def check_numbers(options):
    """Of options: numbers may be "default", eager's bits, or "fast"."""
    if options.get("numbers", "default") not in ("default", "fast"):
        raise ValueError(f"reprise: no numbers {options['numbers']!r}; there are default, fast")


def backend(gm, example_inputs, **keywords):
    """The backend of torch.compile (entry point `torch_dynamo_backends`)."""
    from .dynamo import backend as compile_with
    return compile_with(gm, example_inputs, **keywords)


def explain():
    """What torch.compile(backend="reprise") did so far: an object that prints itself; its fields are documented there."""
    from .report import REPORT
    return REPORT


def reset():
    """Forgets the report, and what compiled functions have compiled (torch._dynamo.reset() forgets the functions themselves)."""
    from .report import REPORT
    REPORT.clear()
    _c.reset()
