#!/usr/bin/env python3
"""Writes tests/data/golden/training/optimizers.txt: parameters after each step of torch.optim (Lion and LAMB: timm),
schedules.txt: learning rates of torch.optim.lr_scheduler; plateau.txt; lbfgs.txt: evaluations, losses and parameters.
momenta.txt: momenta that schedules cycle; cycled.txt: as optimizers.txt, under such a schedule.
usage: scripts/golden_training.py tests/data/golden/training   (needs torch and timm; the tests need only the files)

Three parameters of sizes (5), (2, 3), (); the second has no gradient at step 2. Values and gradients are those of value() and gradient().
A line of optimizers.txt: NAME STEP and the numbers of all three, float64. A line of schedules, plateaus and momenta: NAME and
the rates before each step."""
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


def optimizers(out, cases, cycled):
    for name, make in cases.items():
        p = [tensor(lambda i: value(k, i), s).requires_grad_() for k, s in enumerate(SIZES)]
        opt = make(p)
        schedule = O.lr_scheduler.OneCycleLR(opt, 0.25, STEPS, pct_start=0.5, base_momentum=0.6, max_momentum=0.9) if cycled else None
        for t in range(1, STEPS + 1):
            for k, s in enumerate(SIZES):
                absent = k == 1 and t == 2 and not name.startswith("lamb")
                p[k].grad = None if absent else tensor(lambda i: gradient(k, i, t), s)
            opt.step()
            if cycled and t < STEPS:
                schedule.step()
            numbers = torch.cat([x.detach().reshape(-1) for x in p]).tolist()
            out.write(f"{name} {t} {' '.join(f'{x:.17g}' for x in numbers)}\n")


L = O.lr_scheduler
BASE, RATES = 0.05, 48
SCHEDULES = {
    "constant": lambda o: L.ConstantLR(o, 0.25, 7),
    "linear": lambda o: L.LinearLR(o, 0.1, 0.9, 11),
    "step": lambda o: L.StepLR(o, 5, 0.7),
    "multistep": lambda o: L.MultiStepLR(o, [3, 9, 9, 20], 0.3),
    "exponential": lambda o: L.ExponentialLR(o, 0.93),
    "polynomial": lambda o: L.PolynomialLR(o, 30, 1.7),
    "cosine": lambda o: L.CosineAnnealingLR(o, 20, 0.004),
    "restarts": lambda o: L.CosineAnnealingWarmRestarts(o, 7, 1, 0.002),
    "restarts_grow": lambda o: L.CosineAnnealingWarmRestarts(o, 3, 2, 0.0),
    "restarts_triple": lambda o: L.CosineAnnealingWarmRestarts(o, 2, 3, 0.01),
    "one_cycle": lambda o: L.OneCycleLR(o, 0.4, RATES, cycle_momentum=False),
    "one_cycle_linear": lambda o: L.OneCycleLR(o, 0.4, RATES, pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=50, cycle_momentum=False),
    "one_cycle_three": lambda o: L.OneCycleLR(o, 0.4, RATES, pct_start=0.25, three_phase=True, cycle_momentum=False),
    "cyclic": lambda o: L.CyclicLR(o, 0.01, 0.2, 5, 3, cycle_momentum=False),
    "cyclic_halves": lambda o: L.CyclicLR(o, 0.01, 0.2, 4, mode="triangular2", cycle_momentum=False),
    "cyclic_range": lambda o: L.CyclicLR(o, 0.01, 0.2, 6, mode="exp_range", gamma=0.95, cycle_momentum=False),
    "lambda": lambda o: L.LambdaLR(o, lambda t: 1 / (1 + t)),
    "warmup_cosine": lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, 1.0, 6), L.CosineAnnealingLR(o, 30)], [6]),
    "three_parts": lambda o: L.SequentialLR(o, [L.ConstantLR(o, 0.1, 5), L.ExponentialLR(o, 0.9), L.StepLR(o, 4, 0.5)], [5, 17]),
    "chained": lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 5), L.ExponentialLR(o, 0.9), L.StepLR(o, 6, 0.5)]),
}
MOMENTA = {
    "one_cycle": lambda o: L.OneCycleLR(o, 0.4, RATES),
    "one_cycle_linear": lambda o: L.OneCycleLR(o, 0.4, RATES, pct_start=0.4, anneal_strategy="linear", base_momentum=0.3, max_momentum=0.7),
    "one_cycle_three": lambda o: L.OneCycleLR(o, 0.4, RATES, pct_start=0.25, three_phase=True),
    "cyclic": lambda o: L.CyclicLR(o, 0.01, 0.2, 5, 3),
    "cyclic_halves": lambda o: L.CyclicLR(o, 0.01, 0.2, 4, mode="triangular2", base_momentum=0.5, max_momentum=0.99),
    "cyclic_range": lambda o: L.CyclicLR(o, 0.01, 0.2, 6, mode="exp_range", gamma=0.95),
}
PLATEAUS = {
    "plateau": {},
    "plateau_max": dict(mode="max", factor=0.5, patience=2, threshold=0.05, cooldown=2),
    "plateau_absolute": dict(factor=0.3, patience=1, threshold=0.1, threshold_mode="abs", min_lr=0.002),
}


def metric(t):
    return 2 + ((t * 37) % 23) / 23 - 0.01 * t


def rates(out, table, step, what="lr"):
    for name, make in table.items():
        p = torch.zeros(1, requires_grad=True)
        opt = O.SGD([p], BASE, momentum=0.5)
        schedule = make(opt)
        out.write(name)
        for t in range(RATES):
            out.write(f" {opt.param_groups[0][what]:.17g}")
            opt.step()
            if t + 1 < RATES:
                step(schedule, t)
        out.write("\n")


def lbfgs(out):
    cases = {
        "plain": dict(lr=0.01, max_iter=6),
        "wolfe": dict(lr=1, max_iter=8, line_search_fn="strong_wolfe"),
        "short": dict(lr=0.8, max_iter=5, history_size=3, line_search_fn="strong_wolfe"),
        "maximize": dict(lr=0.5, max_iter=4, history_size=2, line_search_fn="strong_wolfe", maximize=True),
    }
    for name, options in cases.items():
        sign = -1 if options.get("maximize") else 1
        p = [torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)]
        opt = O.LBFGS(p, **options)

        def closure():
            opt.zero_grad()
            x, y, z = p[0][0], p[0][1], p[1]
            loss = sign * ((1 - x) ** 2 + 10 * (y - x * x) ** 2 + (z - x * y) ** 2)
            loss.backward()
            return loss

        for t in range(4):
            loss = opt.step(closure)
            state = opt.state[p[0]]
            out.write(f"{name} {t} {state['func_evals']} {loss.item():.17g} {p[0][0].item():.17g} {p[0][1].item():.17g} {p[1].item():.17g}\n")


if __name__ == "__main__":
    with open(f"{sys.argv[1]}/optimizers.txt", "w") as f:
        optimizers(f, CASES, False)
    with open(f"{sys.argv[1]}/cycled.txt", "w") as f:
        optimizers(f, {k: v for k, v in CASES.items() if k.startswith(("sgd_mom", "sgd_d", "sgd_n", "ad", "rmsprop_mom", "rmsprop_all", "nadam", "radam", "li", "la"))
                       and not k.startswith(("adag", "adad", "sgd_decay"))}, True)
    with open(f"{sys.argv[1]}/momenta.txt", "w") as f:
        rates(f, MOMENTA, lambda s, t: s.step(), "momentum")
    with open(f"{sys.argv[1]}/schedules.txt", "w") as f:
        rates(f, SCHEDULES, lambda s, t: s.step())
    with open(f"{sys.argv[1]}/plateau.txt", "w") as f:
        rates(f, {k: lambda o, v=v: L.ReduceLROnPlateau(o, **v) for k, v in PLATEAUS.items()}, lambda s, t: s.step(metric(t)))
    with open(f"{sys.argv[1]}/lbfgs.txt", "w") as f:
        lbfgs(f)
