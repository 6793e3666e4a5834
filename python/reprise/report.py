"""What became of the graphs that torch.compile gave us."""
import collections
import threading
import weakref


class Graph:
    """One graph of AOT autograd: kind is "inference", "forward" or "backward"."""

    def __init__(self, kind, nodes):
        self.kind, self.nodes = kind, nodes
        self.eager = []  # (node, op, reason, line of the model): what PyTorch runs
        self._parts = []  # not kept alive: they go with the compiled function

    def add(self, part):
        self._parts.append(weakref.ref(part))

    @property
    def parts(self):
        """How many programs the graph became."""
        return len(self._parts)

    @property
    def programs(self):
        """Those of them that are still there."""
        return [p.program for p in (ref() for ref in self._parts) if p is not None]

    def texts(self):
        """Each of them in the library's text form, which `reprise explain`, `bench` and `dump` read."""
        return [p.text() for p in (ref() for ref in self._parts) if p is not None]

    @property
    def copied(self):
        """Results that are copied at every call into the strides that PyTorch expects."""
        return sum(len(p.restride or ()) for p in (ref() for ref in self._parts) if p is not None)

    def facts(self):
        """The library's own facts, of all programs: (kind, reason, message, site, count, of)."""
        return [fact for p in self.programs for fact in p.explain()]


class Report:
    """graphs: all so far. Printed: a line a graph, then the reasons for which nodes run in PyTorch, counted."""

    def __init__(self):
        self.graphs, self._lock = [], threading.Lock()

    def add(self, graph):
        with self._lock:
            self.graphs.append(graph)

    def clear(self):
        with self._lock:
            self.graphs.clear()

    @property
    def reasons(self):
        """How many nodes run in PyTorch, by (op, reason)."""
        return collections.Counter((op, reason) for g in self.graphs for _, op, reason, _ in g.eager)

    def __str__(self):
        lines = [f"{len(self.graphs)} graph{'s' * (len(self.graphs) != 1)}"]
        for g in self.graphs:
            split = f"; {len(g.eager)} nodes run in PyTorch" if g.eager else ""
            copied = f"; {g.copied} results are copied into other strides" if g.copied else ""
            lines.append(f"  {g.kind}: {g.nodes} nodes in {g.parts} program{'s' * (g.parts != 1)}{split}{copied}")
        for (op, reason), n in self.reasons.most_common():
            lines.append(f"  {n} x {op}: {reason}")
        return "\n".join(lines)

    __repr__ = __str__


REPORT = Report()
