"""A training step that is one graph: forward, gradients and the update of the parameters are one program, and a call is one launch."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.adam import adam

import reprise

if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
    print("this PyTorch leaves torch.autograd.grad out of graphs")
    raise SystemExit
torch._dynamo.config.trace_autograd_ops = True  # torch.autograd.grad is part of the graph
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 4))
params = list(model.parameters())
means, squares = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
counts = [torch.zeros(()) for _ in params]


@torch.compile(backend="reprise")
def step(x, y):
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        adam(params, list(grads), means, squares, [], counts, foreach=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=3e-3, weight_decay=0.0, eps=1e-8,
             maximize=False)
    return loss.detach()


x = torch.randn(256, 20)
y = (x[:, :4] ** 2).argmax(1)  # something to be learned
losses = [step(x, y).item() for _ in range(100)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < losses[0] / 2
print(reprise.explain())
