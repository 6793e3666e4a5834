"""A training step: forward and backward are programs of Reprise, the optimizer is PyTorch's; dropout follows torch.manual_seed."""
import torch
from torch import nn
from torch.nn import functional as F

import reprise

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 4))
compiled = torch.compile(model, backend="reprise")
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

x = torch.randn(256, 20)
y = (x[:, :4] ** 2).argmax(1)  # something to be learned
first = None
for step in range(60):
    optimizer.zero_grad()
    loss = F.cross_entropy(compiled(x), y)
    loss.backward()
    optimizer.step()
    first = first or loss.item()
print(f"loss {first:.3f} -> {loss.item():.3f}")
assert loss.item() < first / 2
print(reprise.explain())
