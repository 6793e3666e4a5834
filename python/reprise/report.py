"""What became of the graphs that torch.compile gave us."""
import collections
import threading


class Graph:
    """One graph of AOT autograd: kind is "inference", "forward" or "backward"."""

    def __init__(self, kind, nodes):
        self.kind, self.nodes = kind, nodes
        self.programs = []  # parts that the library runs
        self.eager = []  # (node, op, reason, line of the model): what PyTorch runs
        self.copied = 0  # results that were copied into the strides that PyTorch expects

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
        lines = [f"{len(self.graphs)} graphs"]
        for g in self.graphs:
            split = f"; {len(g.eager)} nodes run in PyTorch" if g.eager else ""
            lines.append(f"  {g.kind}: {g.nodes} nodes in {len(g.programs)} programs{split}")
        for (op, reason), n in self.reasons.most_common():
            lines.append(f"  {n} x {op}: {reason}")
        return "\n".join(lines)

    __repr__ = __str__


REPORT = Report()
