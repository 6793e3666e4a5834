#!/usr/bin/env python3
"""Compares the models of models/ with PyTorch's, torchvision's, timm's and transformers' on the same weights: output,
loss, every gradient, and all state after some steps of SGD.

    models.py MODEL_RUN [MODEL ...]     without names all small ones; with --large the large ones, too
        --device cuda   both sides on the first GPU, without TF32
        --out FOLDER    what is found of MODEL goes to FOLDER/MODEL.txt as soon as it is known
        --list          the names

A tensor passes if its largest difference is at most 1e-4 of its largest value. Where one fails, float64 decides: all
tensors in float64, ours and PyTorch's, must differ by 1e-9 at most, each step from the state that PyTorch has before it.
Several steps on end decide nothing there: with batch norm over a few elements a difference grows a hundredfold a step
(ResNet-50 on 2 images of 64 x 64: PyTorch beside itself, images changed by 1e-15, ends up 9e-4 away). Where a single step of such a
model grows a rounding error beyond 1e-9, it must be within 8 times of what PyTorch strays from itself in that step, when its state is moved by a
unit in the last place and its loss is written as logsumexp less the target's logit.
All ways of running must give the same bits.
Needs torch, torchvision, timm, transformers, safetensors."""

import argparse
import math
import os
import subprocess
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

STEPS = 5
LIMIT = 1e-4
WIDE_LIMIT = 1e-9
STRAY = 8  # times what PyTorch strays by itself
RATE = 2**-7
WAYS = ("compiled", "graphed", "step")


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *inputs):
        return self.f(*inputs)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), nn.Linear(64 * 5 * 5, 10)

    def forward(self, x):
        for conv in (self.conv1, self.conv2):
            x = torch.max_pool2d(torch.relu(conv(x)), 2)
        return self.fc(x.flatten(1))


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.RNN(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][-1])


class Lstm(nn.Module):
    def __init__(self, vocabulary, width, hidden, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, ids):
        return self.fc(self.lstm(self.embedding(ids))[0][:, -1])


class Bert(nn.Module):
    """transformers' model with the arguments in our order."""

    def __init__(self, **changes):
        super().__init__()
        import transformers
        config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                                         attn_implementation="eager", **changes)
        self.inner = transformers.BertForMaskedLM(config)

    def forward(self, ids, types, mask):
        return self.inner(input_ids=ids, token_type_ids=types, attention_mask=mask).logits


class Tokens(nn.Module):
    """A causal model of transformers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return self.inner(input_ids=ids, use_cache=False).logits


def gpt2(**changes):
    import transformers
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
                                     bos_token_id=None, eos_token_id=None, **changes)
    return Tokens(transformers.GPT2LMHeadModel(config))


class Rotations(nn.Module):
    """Rotary positions of a Llama, from angles in float64: transformers rounds them to float32 in a model of any type."""

    def __init__(self, width, theta):
        super().__init__()
        self.frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

    def forward(self, x, position_ids):
        angles = position_ids[..., None].double() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def llama(**changes):
    import transformers
    config = transformers.LlamaConfig(rms_norm_eps=1e-5, attn_implementation="eager", **changes)
    model = transformers.LlamaForCausalLM(config)
    model.model.rotary_emb = Rotations(config.hidden_size // config.num_attention_heads, 10000.0)
    return Tokens(model)


def resnet(name, **changes):
    import torchvision
    return getattr(torchvision.models, name)(weights=None, **changes)


def small_resnext():
    """ResNeXt-50 of width 16, of which torchvision builds 64 only."""
    from torchvision.models.resnet import Bottleneck, ResNet

    class Small(ResNet):
        def __init__(self):
            super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=10, groups=32, width_per_group=4)
            self.inplanes = 16
            self.conv1, self.bn1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
            self.layer1 = self._make_layer(Bottleneck, 16, 3)
            self.layer2 = self._make_layer(Bottleneck, 32, 4, stride=2)
            self.layer3 = self._make_layer(Bottleneck, 64, 6, stride=2)
            self.layer4 = self._make_layer(Bottleneck, 128, 3, stride=2)
            self.fc = nn.Linear(512, 10)

    return Small()


def vit(library, **changes):
    if library == "timm":
        import timm
        return timm.create_model("vit_base_patch16_224", pretrained=False, **changes)
    import torchvision
    return torchvision.models.VisionTransformer(**changes)


def floats(*size):
    return lambda: torch.randn(size)


def ids(high, *size):
    return lambda: torch.randint(0, high, size)


def padding(*size):
    def make():
        mask = torch.ones(size)
        mask[-1, -3:] = 0
        return mask
    return make


def text(high, *size):
    """Token 0, which pads, is among them."""
    def make():
        t = torch.randint(0, high, size)
        t[-1, -3:] = 0
        return t
    return make


SMALL_VIT = dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=10)
SMALL_VIT_TV = dict(image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=192, num_classes=10)
SMALL_BERT = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
                  max_position_embeddings=16)
SMALL_GPT2 = dict(vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_positions=32)
SMALL_LLAMA = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=48, max_position_embeddings=32, tie_word_embeddings=False)
LLAMA = dict(vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
             intermediate_size=1536, max_position_embeddings=2048, tie_word_embeddings=True)

# name: model, inputs, target (None: the sum of result - 1)
SMALL = {
    "simple": (lambda: Function(lambda x: torch.sin(x * 2)), [floats(5)], None),
    "trig": (lambda: Function(lambda x, y: torch.cos(x) + torch.sin(y)), [floats(10000), floats(10000)], None),
    "mlp": (lambda: nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 10)), [floats(64, 10)], ids(10, 64)),
    "cnn": (Cnn, [floats(2, 1, 28, 28)], ids(10, 2)),
    "rnn": (Rnn, [floats(10, 64)], lambda: torch.tensor(3)),
    "lstm": (lambda: Lstm(10000, 128, 256, 2), [ids(10000, 4, 32)], ids(2, 4)),
    "lstm-tiny": (lambda: Lstm(50, 10, 12, 3), [ids(50, 3, 7)], ids(3, 3)),
    "vit-tiny": (lambda: vit("timm", **SMALL_VIT), [floats(2, 3, 32, 32)], ids(10, 2)),
    "vit-tiny-torchvision": (lambda: vit("torchvision", **SMALL_VIT_TV), [floats(2, 3, 32, 32)], ids(10, 2)),
    "bert-tiny": (lambda: Bert(**SMALL_BERT), [text(50, 2, 6), ids(2, 2, 6), padding(2, 6)], ids(50, 2, 6)),
    "gpt2-tiny": (lambda: gpt2(**SMALL_GPT2), [ids(50, 2, 9)], ids(50, 2, 9)),
    "llama-tiny": (lambda: llama(**SMALL_LLAMA), [ids(50, 2, 9)], ids(50, 2, 9)),
    "resnext-tiny": (small_resnext, [floats(2, 3, 33, 40)], ids(10, 2)),
    "resnet18": (lambda: resnet("resnet18"), [floats(2, 3, 64, 64)], ids(1000, 2)),
}
LARGE = {
    "resnet50": (lambda: resnet("resnet50"), [floats(2, 3, 64, 64)], ids(1000, 2)),
    "resnext101_32x8d": (lambda: resnet("resnext101_32x8d"), [floats(1, 3, 224, 224)], ids(1000, 1)),
    "resnext101_32x8d@7x7": (lambda: resnet("resnext101_32x8d"), [floats(64, 3, 7, 7)], ids(1000, 64)),
    "bert": (Bert, [text(30522, 1, 12), ids(2, 1, 12), padding(1, 12)], ids(30522, 1, 12)),
    "bert@8x128": (Bert, [text(30522, 8, 128), ids(2, 8, 128), padding(8, 128)], ids(30522, 8, 128)),
    "gpt2": (gpt2, [ids(50257, 1, 16)], ids(50257, 1, 16)),
    "llama": (lambda: llama(**LLAMA), [ids(49152, 1, 16)], ids(49152, 1, 16)),
    "vit_b_16": (lambda: vit("timm"), [floats(1, 3, 224, 224)], ids(1000, 1)),
}
ALL = {**SMALL, **LARGE}


def make(name, device):
    """The same numbers on every device: they are drawn on the CPU."""
    torch.manual_seed(1)
    build, inputs, target = ALL[name]
    model = build().to(device)
    for part in model.modules():
        if isinstance(part, Rotations):
            part.frequencies = part.frequencies.to(device)
    return model, [i().to(device) for i in inputs], target().to(device) if target else None


def names_of(model):
    """Of our names, which leave out the wrappers above."""
    return "inner." if hasattr(model, "inner") else ""


def loss_of(model, inputs, target, twin=False):
    """twin: the same of other operations, which round differently: where a loss is nearly 0, its gradient, softmax less 1, has few digits."""
    result = y = model(*inputs)
    if target is None:
        return y, (y - 1).sum()
    if y.ndim > 2:
        y, target = y.flatten(0, 1), target.flatten()
    if twin:
        return result, (torch.logsumexp(y, 1) - y.gather(1, target[:, None])[:, 0]).mean()
    return result, nn.functional.cross_entropy(y, target)


def state_of(model):
    prefix = names_of(model)
    return {n[len(prefix):]: t for n, t in model.state_dict(keep_vars=True).items()}


def load(model, state):
    prefix = names_of(model)
    model.load_state_dict({prefix + n: t for n, t in state.items()})


def expected(model, inputs, target, start, momentum, steps, twin=False):
    """What PyTorch computes from `start` and the optimizer's `momentum`, which becomes that behind the steps."""
    load(model, start)
    model.train()
    inputs = [i.clone().requires_grad_() if target is None else i for i in inputs]
    y, loss = loss_of(model, inputs, target, twin)
    loss.backward()
    found = {"output": y.detach().clone()}
    if target is None:
        found.update({f"grad.input.{i}": t.grad.clone() for i, t in enumerate(inputs)})
        return found
    for n, p in state_of(model).items():
        if p.grad is not None:
            found["grad." + n] = p.grad.clone()
    model.zero_grad()
    load(model, start)
    opt = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for n, t in momentum.items():
        opt.state[state_of(model)[n]]["momentum_buffer"] = t
    for k in range(steps):
        loss = loss_of(model, inputs, target, twin)[1]
        loss.backward()
        opt.step()
        opt.zero_grad()
        found[f"loss.{k}"] = loss.detach().clone()
    for n, t in state_of(model).items():
        found["after." + n] = t.detach().clone()
        if t in opt.state:
            momentum[n] = opt.state[t]["momentum_buffer"]
    model.zero_grad()
    return found


def distance(a, b):
    a, b = a.double(), b.to(a.device).double()
    return ((a - b).abs().max() / b.abs().max().clamp(min=1e-7)).item() if b.numel() else 0.0


def largest_of(distances):
    """The largest distance of each kind of tensor, in words."""
    kinds = {}
    for n, d in distances.items():
        kind = n.partition(".")[0]
        kinds[kind] = max(kinds.get(kind, 0.0), d)
    return ", ".join(f"{kind} {kinds[kind]:.1e}" for kind in ("output", "loss", "grad", "after") if kind in kinds)


def write(path, start, momentum, inputs, target):
    tensors, seen = {}, set()
    for kind, of in (("model.", start), ("momentum.", momentum)):
        for n, t in of.items():  # a file has no tensor twice: tied weights are copied
            tensors[kind + n] = t.clone() if t.data_ptr() in seen else t.contiguous()
            seen.add(t.data_ptr())
    tensors.update({f"input.{i}": t for i, t in enumerate(inputs)}, rate=torch.tensor(RATE, dtype=torch.float64))
    if target is not None:
        tensors["target"] = target
    save_file(tensors, path)


def widened(tensors):
    return [t.double() if t.is_floating_point() else t for t in tensors]


def check(program, name, folder, device, say):
    begin = time.monotonic()
    model, inputs, target = make(name, device)
    start = {n: t.detach().clone() for n, t in state_of(model).items()}
    path = os.path.join(folder, "in.safetensors")

    def run(way, steps=STEPS):
        """The file of what came out; none if it failed."""
        out = os.path.join(folder, way + ".safetensors")
        arguments = [program, name.partition("@")[0], path, out, way, str(steps)]
        if (code := subprocess.run(arguments, check=False).returncode) != 0:
            say(f"{name}: {way} ends with {code}")
            return None
        return out

    def compared(out, want):
        """The distance of each tensor of both, and the names that are on one side only. Tensor by tensor: all of them are large."""
        if not out:
            return {}, sorted(want)
        with safe_open(out, "pt") as file:
            names = set(file.keys())
            return {n: distance(file.get_tensor(n), want[n]) for n in sorted(names & set(want))}, sorted(names ^ set(want))

    def differing(out, other):
        with safe_open(out, "pt") as a, safe_open(other, "pt") as b:
            names = set(b.keys())
            return [n for n in a.keys() if n not in names or not torch.equal(a.get_tensor(n), b.get_tensor(n))]

    write(path, start, {}, inputs, target)
    eager = run("eager")
    distances, one_sided = compared(eager, expected(model, inputs, target, start, {}, STEPS))
    failures = len(one_sided)
    if one_sided:
        say(f"{name}: only on one side: {one_sided[:5]}")
    far = {n: d for n, d in distances.items() if not d <= LIMIT}
    for way in WAYS:
        other = run(way)
        differ = differing(eager, other) if eager and other else ["all"]
        failures += len(differ)
        if differ:
            say(f"{name}: {way} differs from eager in {len(differ)} of {len(distances)}: {differ[:3]}")
        if other:
            os.remove(other)
    decided = ""
    if far:
        largest = 0.0
        model, inputs = model.double(), widened(inputs)
        start = {n: t.double() if t.is_floating_point() else t for n, t in start.items()}
        momentum = {}
        for step in range(STEPS if target is not None else 1):
            write(path, start, momentum, inputs, target)
            before = {n: t.clone() for n, t in momentum.items()}
            out, want = run("float64", 1), expected(model, inputs, target, start, momentum, 1)
            wide, missing = compared(out, want)
            wrong = {n: d for n, d in wide.items() if not d <= WIDE_LIMIT}
            if wrong:
                moved = {n: t.nextafter(2 * t) if t.is_floating_point() else t for n, t in start.items()}
                beside = expected(model, inputs, target, moved, before, 1, twin=True)
                stray = max(distance(beside[n], want[n]) for n in want)
                say(f"{name}: step {step}: PyTorch strays {stray:.1e} from itself in float64, ours {max(wrong.values()):.1e} from it")
                wrong = {n: d for n, d in wrong.items() if not d <= STRAY * stray}
                del beside, moved
            start = {n: want["after." + n] for n in start}
            del want
            failures += len(wrong) + len(missing)
            largest = max(largest, *wide.values(), 0.0)
            for n in sorted(wrong)[:5] + missing[:5]:
                say(f"{name}: {n} of step {step}: {wide.get(n, math.nan):.1e} in float64")
        decided = f"; {len(far)} beyond {LIMIT}, in float64 at most {largest:.1e} a step"
    say(f"{name}: {len(distances)} tensors compared with PyTorch (largest: {largest_of(distances)}{decided}); "
        f"eager, {', '.join(WAYS)}; {failures} failures; {time.monotonic() - begin:.0f} s")
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    names = (options.names or list(SMALL)) + (list(LARGE) if options.large else [])
    if options.list:
        print(*names, sep="\n")
        return 0
    if unknown := [n for n in names if n not in ALL]:
        parser.error(f"no model {unknown[0]!r}: {', '.join(ALL)}")
    if options.device == "cuda":
        os.environ["MODEL_RUN_DEVICE"] = "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    failures = 0
    for name in names:
        lines = []

        def say(line):
            print(line, flush=True)
            lines.append(line + "\n")
            if options.out:
                os.makedirs(options.out, exist_ok=True)
                with open(os.path.join(options.out, name + ".txt"), "w", encoding="utf-8") as file:
                    file.writelines(lines)

        with tempfile.TemporaryDirectory() as folder:
            failures += check(options.program, name, folder, options.device, say)
    print(f"{failures} failures")
    return failures != 0


if __name__ == "__main__":
    raise SystemExit(main())
