"""Tensors that a graph makes on the CPU and then copies to its device, as masks and positions of many models: they are made there. A graph that
copies from the CPU is split, and cannot be captured. Functions of them are the device's, too, to the last bit."""
import torch

aten = torch.ops.aten
MAKES = {aten.full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.arange.default, aten.arange.start, aten.arange.start_step,
         aten.eye.default, aten.eye.m, aten.linspace.default, aten.scalar_tensor.default, aten.tril_indices.default, aten.triu_indices.default}
COPIES = {aten._to_copy.default}


def _tensors(n):
    val = n.meta.get("val")
    return [v for v in (val if isinstance(val, (list, tuple)) else [val]) if isinstance(v, torch.Tensor)]


def _on_cpu(n):
    return n.op == "call_function" and bool(_tensors(n)) and all(t.device.type == "cpu" for t in _tensors(n))


def _goes_to(n, device):
    return n.target in COPIES and n.kwargs.get("device") is not None and torch.device(n.kwargs["device"]).type == device.type


def _movable(graph, device):
    """Nodes on the CPU whose values follow from no tensor of another's, and reach nothing but copies to the device."""
    found = {}
    for n in graph.nodes:
        if not _on_cpu(n) or _goes_to(n, device):
            continue
        schema = getattr(n.target, "_schema", None)
        if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in n.target.tags or torch.Tag.data_dependent_output in n.target.tags:
            continue
        given = [a for a in n.all_input_nodes if _tensors(a)]
        if (n.target in MAKES and not given) or (given and "device" not in n.kwargs and all(a in found for a in given)):
            found[n] = None
    more = True
    while more:
        gone = [n for n in found if any(u not in found and not (_goes_to(u, device) and u.args[0] is n) for u in n.users)]
        for n in gone:
            del found[n]
        more = bool(gone)
    return found


def move(gm, device):
    """The graph with such tensors made on `device`; gm, if there are none."""
    if device.type == "cpu":
        return gm
    found = _movable(gm.graph, device)
    for n in found:
        if n.target in MAKES:
            n.kwargs = {**{k: v for k, v in n.kwargs.items() if k != "pin_memory"}, "device": device}
        n.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: _moved(t, device), n.meta["val"])
    if found:
        gm.recompile()
    return gm


def _moved(t, device):
    with t.fake_mode:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
