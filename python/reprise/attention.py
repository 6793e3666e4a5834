"""Attention as one op: PyTorch takes scaled_dot_product_attention apart before a backend sees it, or into ops of its own kernels. Here calls of it
in the graphs that TorchDynamo gives become reprise::attention, which stays whole and is the library's attention, forward and backward. Where the
graph is split there, PyTorch computes it. Calls with dropout, of a mask with a gradient, or of batches that differ are left as they are."""
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.library.custom_op("reprise::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:
    y = F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return _laid_out(y)


def _laid_out(y):
    """With what belongs to one token side by side: heads are joined without a copy."""
    return y.transpose(1, 2).contiguous().transpose(1, 2) if y.dim() == 4 else y.contiguous()


@attention.register_fake
def _(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    return _laid_out(query.new_empty((*query.shape[:-1], value.shape[-1])))


@torch.library.custom_op("reprise::attention_backward", mutates_args=())
def attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], is_causal: bool, scale: Optional[float],
                       enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        given = [t.detach().requires_grad_() for t in (query, key, value)]
        y = F.scaled_dot_product_attention(*given, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        return tuple(g.contiguous() for g in torch.autograd.grad(y, given, grad))


@attention_backward.register_fake
def _(grad, query, key, value, attn_mask, is_causal, scale, enable_gqa):
    return tuple(t.new_empty(t.shape) for t in (query, key, value))


def _keep(ctx, inputs, output):
    query, key, value, mask, ctx.is_causal, ctx.scale, ctx.enable_gqa = inputs
    ctx.save_for_backward(query, key, value, mask)


def _gradients(ctx, grad):
    query, key, value, mask = ctx.saved_tensors
    return *torch.ops.reprise.attention_backward(grad, query, key, value, mask, ctx.is_causal, ctx.scale, ctx.enable_gqa), None, None, None, None


attention.register_autograd(_gradients, setup_context=_keep)


def _call(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    kind = query.device.type
    given = [query, key, value, attn_mask]
    if torch.is_autocast_enabled(kind):  # as PyTorch's own op has it
        narrow = torch.get_autocast_dtype(kind)
        given = [t.to(narrow) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in given]
    q, k, v, mask = given
    whole = dropout_p == 0 and q.dim() in (3, 4) and q.dim() == k.dim() == v.dim() and q.dtype == k.dtype == v.dtype and q.is_floating_point()
    whole = whole and k.shape[:-2] == v.shape[:-2] and (q.shape[:-2] == k.shape[:-2] or (enable_gqa and q.dim() == 4 and q.shape[0] == k.shape[0]))
    whole = whole and (mask is None or (not mask.requires_grad and mask.dtype in (torch.bool, q.dtype)))
    if whole:
        return torch.ops.reprise.attention(q, k, v, mask, is_causal, scale, enable_gqa)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _flex(*given, **named):
    """flex_attention as its definition has it: whole scores, with the functions of score and mask over all places."""
    from torch._higher_order_ops.flex_attention import _permute_strides, math_attention
    out, *more = math_attention(*given, **named)
    return _permute_strides(out, given[0].stride()), *more


def take_apart(gm):
    """Calls of flex_attention in a graph of TorchDynamo are ops that a program has; the operator itself is a kernel of Inductor's alone."""
    for m in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
        found = [n for n in m.graph.nodes if n.op == "call_function" and n.target is torch.ops.higher_order.flex_attention]
        for n in found:
            n.target = _flex
        if found:
            m.recompile()


def keep_whole(gm):
    """In a graph of TorchDynamo and in those that it calls, unless functions are transformed there, which know no op of ours."""
    modules = [m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    if any("functorch" in getattr(n.target, "__module__", "") or "vmap" in getattr(n.target, "__name__", "")
           for m in modules for n in m.graph.nodes if n.op == "call_function" and isinstance(getattr(n.target, "__module__", ""), str)):
        return
    for m in modules:
        found = [n for n in m.graph.nodes if n.op == "call_function" and n.target is torch._C._nn.scaled_dot_product_attention]
        for n in found:
            n.target = _call
        if found:
            m.recompile()
