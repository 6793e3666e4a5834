"""A model of PyTorch through Reprise: one line. What ran where is told at the end."""
import torch
from torch import nn

import reprise

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()
compiled = torch.compile(model, backend="reprise")

with torch.no_grad():
    for batch in (4, 4, 7, 12):  # the second size makes it a symbol
        x = torch.randn(batch, 3, 32, 32)
        difference = (compiled(x) - model(x)).abs().max().item()
        print(f"{batch:3} pictures: difference {difference:.1e}")
        assert difference < 1e-5
print(reprise.explain())
