#!/usr/bin/env python3
"""Writes tests/data/golden/training/optimizers.txt: parameters after each step of torch.optim (Lion and LAMB: timm).
usage: scripts/golden_training.py tests/data/golden/training   (needs torch and timm; the tests need only the files)

Three parameters of sizes (5), (2, 3), (); the second has no gradient at step 2. Values and gradients are those of value() and gradient().
A line: NAME STEP and the numbers of all three, float64."""
import sys

import torch
from timm.optim import Lamb, Lion

STEPS, LR = 7, 0.0625
SIZES = [(5,), (2, 3), ()]


def value(k, i):
    return ((k * 31 + i * 17) % 97 - 48) / 53


def gradient(k, i, t):
    return ((k * 13 + i * 29 + t * 41) % 89 - 44) / 37


def tensor(f, size):
    n = torch.Size(size).numel()
    return torch.tensor([f(i) for i in range(n)], dtype=torch.float64).reshape(size)


O = torch.optim
CASES = {
    "sgd": lambda p: O.SGD(p, LR),
    "sgd_decay_maximize": lambda p: O.SGD(p, LR, weight_decay=0.1, maximize=True),
    "sgd_momentum": lambda p: O.SGD(p, LR, momentum=0.9),
    "sgd_dampening": lambda p: O.SGD(p, LR, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "sgd_nesterov": lambda p: O.SGD(p, LR, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True),
    "adam": lambda p: O.Adam(p, LR),
    "adam_decay_maximize": lambda p: O.Adam(p, LR, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, maximize=True),
    "adam_amsgrad": lambda p: O.Adam(p, LR, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: O.AdamW(p, LR),
    "adamw_amsgrad": lambda p: O.AdamW(p, LR, betas=(0.5, 0.9), weight_decay=0.2, amsgrad=True, maximize=True),
    "rmsprop": lambda p: O.RMSprop(p, LR),
    "rmsprop_momentum": lambda p: O.RMSprop(p, LR, alpha=0.9, eps=1e-3, weight_decay=0.1, momentum=0.7, maximize=True),
    "rmsprop_centered": lambda p: O.RMSprop(p, LR, centered=True),
    "rmsprop_all": lambda p: O.RMSprop(p, LR, momentum=0.5, centered=True, weight_decay=0.1),
    "adagrad": lambda p: O.Adagrad(p, LR),
    "adagrad_all": lambda p: O.Adagrad(p, LR, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3, maximize=True),
    "adadelta": lambda p: O.Adadelta(p, LR),
    "adadelta_all": lambda p: O.Adadelta(p, LR, rho=0.8, eps=1e-3, weight_decay=0.1, maximize=True),
    "adamax": lambda p: O.Adamax(p, LR),
    "adamax_all": lambda p: O.Adamax(p, LR, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, maximize=True),
    "nadam": lambda p: O.NAdam(p, LR),
    "nadam_all": lambda p: O.NAdam(p, LR, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, momentum_decay=0.02, maximize=True),
    "nadam_decoupled": lambda p: O.NAdam(p, LR, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: O.RAdam(p, LR),
    "radam_all": lambda p: O.RAdam(p, LR, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, maximize=True),
    "radam_decoupled": lambda p: O.RAdam(p, LR, betas=(0.9, 0.99), weight_decay=0.1, decoupled_weight_decay=True),
    "lion": lambda p: Lion(p, LR),
    "lion_all": lambda p: Lion(p, LR, betas=(0.8, 0.9), weight_decay=0.1, maximize=True),
    # timm counts LAMB's steps for a group, not for a parameter: its cases have all gradients at every step
    "lamb": lambda p: Lamb(p, LR, max_grad_norm=None),
    "lamb_plain": lambda p: Lamb(p, LR, weight_decay=0.0, max_grad_norm=None),
    "lamb_all": lambda p: Lamb(p, LR, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0, max_grad_norm=None, trust_clip=True, always_adapt=True),
}


def optimizers(out):
    for name, make in CASES.items():
        p = [tensor(lambda i: value(k, i), s).requires_grad_() for k, s in enumerate(SIZES)]
        opt = make(p)
        for t in range(1, STEPS + 1):
            for k, s in enumerate(SIZES):
                absent = k == 1 and t == 2 and not name.startswith("lamb")
                p[k].grad = None if absent else tensor(lambda i: gradient(k, i, t), s)
            opt.step()
            numbers = torch.cat([x.detach().reshape(-1) for x in p]).tolist()
            out.write(f"{name} {t} {' '.join(f'{x:.17g}' for x in numbers)}\n")


if __name__ == "__main__":
    with open(f"{sys.argv[1]}/optimizers.txt", "w") as f:
        optimizers(f)
