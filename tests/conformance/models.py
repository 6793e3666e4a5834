#!/usr/bin/env python3
"""Compares the models of models/ with torchvision's and transformers' on the same weights: output, loss, every gradient, and all state
after some steps of SGD: models.py MODEL_RUN [MODEL ...].

A tensor passes if its largest difference is at most 1e-4 of its largest value. Where one fails - after some steps a relu that is on in one
program is off in the other - float64 decides: all tensors in float64, ours and PyTorch's, must differ by 1e-9 at most. All ways of
running must give the same bits.
Needs torch, torchvision, transformers, safetensors."""

import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

STEPS = 5
LIMIT = 1e-4
WIDE_LIMIT = 1e-9
IMAGES = {"resnet18": (2, 3, 64, 64), "resnet50": (2, 3, 64, 64), "resnext101_32x8d": (4, 3, 64, 64)}
TEXTS = {"bert2": (2, 12), "bert": (1, 12)}


def make(name):
    torch.manual_seed(1)
    if name in IMAGES:
        import torchvision
        model = getattr(torchvision.models, name)(weights=None)
        return model, [torch.randn(IMAGES[name])], torch.randint(0, 1000, IMAGES[name][:1])
    import transformers
    config = transformers.BertConfig(num_hidden_layers=2 if name == "bert2" else 12, hidden_dropout_prob=0.0,
                                     attention_probs_dropout_prob=0.0, attn_implementation="eager")
    model = transformers.BertForMaskedLM(config)
    ids = torch.randint(0, config.vocab_size, TEXTS[name])
    mask = torch.ones(TEXTS[name])
    mask[-1, -3:] = 0
    return model, [ids, torch.randint(0, 2, TEXTS[name]), mask], torch.randint(0, config.vocab_size, (ids.numel(),))


def call(model, name, inputs):
    if name in IMAGES:
        return model(*inputs)
    return model(input_ids=inputs[0], token_type_ids=inputs[1], attention_mask=inputs[2]).logits


def loss_of(model, name, inputs, target):
    y = call(model, name, inputs)
    return y, torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), target)


def expected(model, name, inputs, target, start):
    model.load_state_dict(start)
    model.train()
    y, loss = loss_of(model, name, inputs, target)
    loss.backward()
    found = {"output": y.detach().clone()}
    for n, p in model.state_dict(keep_vars=True).items():
        if p.grad is not None:
            found["grad." + n] = p.grad.clone()
    model.zero_grad()
    model.load_state_dict(start)
    opt = torch.optim.SGD(model.parameters(), lr=2**-7, momentum=0.9)
    for k in range(STEPS):
        loss = loss_of(model, name, inputs, target)[1]
        loss.backward()
        opt.step()
        opt.zero_grad()
        found[f"loss.{k}"] = loss.detach().clone()
    for n, t in model.state_dict().items():
        found["after." + n] = t.clone()
    return found


def distance(a, b):
    a, b = a.double(), b.double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-7)).item() if b.numel() else 0.0


def write(path, start, inputs, target):
    tensors = {"model." + n: t.clone().contiguous() for n, t in start.items()}
    tensors.update({f"input.{i}": t for i, t in enumerate(inputs)}, target=target)
    save_file(tensors, path)


def widened(tensors):
    return [t.double() if t.is_floating_point() else t for t in tensors]


def check(program, name, folder):
    model, inputs, target = make(name)
    start = {n: t.clone() for n, t in model.state_dict().items()}
    path = os.path.join(folder, "in.safetensors")
    write(path, start, inputs, target)
    want = expected(model, name, inputs, target, start)

    def run(way):
        out = os.path.join(folder, way + ".safetensors")
        subprocess.run([program, name, path, out, way, str(STEPS)], check=True)
        return load_file(out)

    have = run("eager")
    one_sided = sorted(set(want) ^ set(have))
    failures = len(one_sided)
    if one_sided:
        print(f"{name}: only on one side: {one_sided[:5]}")
    far = {n: d for n in set(want) & set(have) if (d := distance(have[n], want[n])) > LIMIT}
    for way in ("compiled", "step"):
        other = run(way)
        differ = [n for n in have if n not in other or not torch.equal(have[n], other[n])]
        failures += len(differ)
        if differ:
            print(f"{name}: {way} differs from eager in {len(differ)} of {len(have)}: {differ[:3]}")
    decided = ""
    if far:
        start, inputs = dict(zip(start, widened(start.values()))), widened(inputs)
        write(path, start, inputs, target)
        want, have = expected(model.double(), name, inputs, target, start), run("float64")
        wide = {n: distance(have[n], want[n]) for n in want if n in have}
        wrong = {n: d for n, d in wide.items() if d > WIDE_LIMIT}
        failures += len(wrong)
        for n in sorted(wrong)[:5]:
            print(f"{name}: {n}: {wrong[n]:.1e} in float64")
        decided = f", {len(far)} beyond {LIMIT} (largest {max(far.values()):.1e}), in float64 at most {max(wide.values()):.1e}"
    print(f"{name}: {len(want)} tensors compared with PyTorch{decided}; three ways the same bits; {failures} failures", flush=True)
    return failures


def main():
    names = sys.argv[2:] or ["resnet18", "bert2", "resnet50", "resnext101_32x8d", "bert"]
    with tempfile.TemporaryDirectory() as folder:
        failures = sum(check(sys.argv[1], name, folder) for name in names)
    print(f"{failures} failures")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
