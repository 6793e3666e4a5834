"""torch.compile(backend="reprise") beside eager PyTorch: what a graph may do, training, sizes, memory, faults.

usage: python -m unittest discover -s python/tests   (where the wheel and PyTorch are installed)

REPRISE_TEST_DEVICE=cuda runs everything on a GPU."""
import copy
import ctypes
import gc
import importlib.util
import math
import operator
import os
import threading
import time
import types
import unittest
import weakref
from unittest import mock

import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import reprise
from reprise import _c
from reprise.constructors import move
from reprise.dynamo import SAVED, as_traced, bind, compile_graph, mark_saved
from reprise.lower import FLOW, Lowering
from reprise.real import Absent, for_all_sizes
from reprise.schema import Unsupported

DEVICE = os.environ.get("REPRISE_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
torch.backends.cudnn.allow_tf32 = False
SITE = "test_torch.py" if DEVICE == "cpu" else "_device.py"  # what sets the default device is the caller of every function of torch
ON_CPU = unittest.skipIf(DEVICE != "cpu", "of a CPU")


@torch.library.custom_op("reprise_test::scaled", mutates_args=())
def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x


@torch.library.custom_op("reprise_test::scaled_back", mutates_args=())
def _scaled_back(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return 2 * x * d


_scaled.register_fake(torch.empty_like)
_scaled_back.register_fake(lambda x, d: torch.empty_like(x))
_scaled.register_autograd(lambda ctx, d: _scaled_back(ctx.saved_tensors[0], d), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class Door(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()
        reprise.reset()

    def same(self, got, want, tolerance=None):
        self.assertEqual(got.shape, want.shape)
        self.assertEqual(got.dtype, want.dtype)
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **({"rtol": tolerance, "atol": tolerance} if tolerance else {}))

    def check(self, f, *args, calls=2, whole=True, **options):
        """f compiled gives what f gives, at every call; all of it in the library if `whole`."""
        run = torch.compile(f, backend="reprise", **options)
        for _ in range(calls):
            got, want = run(*args), f(*args)
            for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True):
                self.same(a, b) if isinstance(b, torch.Tensor) else self.assertEqual(a, b)
        if whole:
            self.assertEqual(dict(reprise.explain().reasons), {})
            self.assertTrue(reprise.explain().graphs)
        return run

    def trained(self, model, batch, steps=3, loss=lambda y: y.square().mean(), tolerance=None, **options):
        """Gradients, parameters and buffers after some steps are eager's."""
        twin = copy.deepcopy(model)
        run = torch.compile(model, backend="reprise", **options)
        for m, call in ((model, run), (twin, twin)):
            optimizer = torch.optim.SGD(m.parameters(), 0.05)
            for _ in range(steps):
                optimizer.zero_grad()
                loss(call(*batch)).backward()
                optimizer.step()
        for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values()):
            with self.subTest(name):
                self.same(a, b, tolerance)
        for a, b in zip(model.parameters(), twin.parameters()):
            self.same(a.grad, b.grad, tolerance)


class Inference(Door):
    def test_pointwise_and_reductions(self):
        self.check(lambda x, y: ((x * y + 2).sin() - 1.5 / (y.abs() + 1), (x - y).softmax(-1), x.sum(0), x.mean(), (3 - x).amax(1, keepdim=True),
                                 x > y, x.to(torch.float64)), torch.randn(5, 7), torch.randn(5, 7))

    def test_products(self):
        self.check(lambda a, b, c: (a @ b + c, torch.einsum("ij,jk->ik", a, b), F.linear(a, b.t(), c)), torch.randn(4, 6), torch.randn(6, 5), torch.randn(5))

    def test_integers_and_indices(self):
        i = torch.tensor([2, 0, 1])
        self.check(lambda x, i: (x[i], x.gather(0, i[:, None]), x.index_add(0, i, x[:3]), torch.where(i > 0, i, 7), i // 2, i % 2, i.cumsum(0)),
                   torch.randn(4, 3), i)

    def test_views_and_strides(self):
        x = torch.randn(6, 8)
        self.check(lambda x: (x.t().reshape(-1)[2:40:3] * 2, x[1:, ::2].exp(), x.unsqueeze(1).expand(6, 3, 8).sum(1), x.flip(0)), x)
        torch._dynamo.reset()
        self.check(lambda x: x.relu() + 1, x.t())
        torch._dynamo.reset()
        self.check(lambda x: x.relu() + 1, x[::2, 1::3])

    def test_strides_of_results(self):
        x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        f = lambda x: (x * 2, x.permute(1, 0, 2, 3) + 1, F.max_pool2d(x, 2))
        for a, b in zip(torch.compile(f, backend="reprise")(x), f(x)):
            self.assertEqual(a.stride(), b.stride())

    def test_arguments_as_results(self):
        x = torch.randn(3, 4)
        run = torch.compile(lambda x: (x, x.view(4, 3), x[1], None, x + 1, 5), backend="reprise")
        a, b, c, d, e, g = run(x)
        self.assertEqual((a.data_ptr(), b.data_ptr(), c.data_ptr()), (x.data_ptr(), x.data_ptr(), x[1].data_ptr()))
        self.assertEqual((d, g), (None, 5))
        x.fill_(7)
        self.same(b, torch.full((4, 3), 7.0))
        self.assertFalse(e.eq(8).all())

    def test_copies_are_nobody_elses_memory(self):
        f = lambda x: (torch.view_copy(x, (4, 3)), *torch.unbind_copy(x), torch.native_dropout(x, 0.5, False)[0], x.clone(), x * 1)
        run = torch.compile(f, backend="reprise")
        for _ in range(2):
            x = torch.randn(3, 4)
            want = f(x.clone())
            got = run(x)
            x.zero_()
            for a, b in zip(got, want):
                self.same(a, b)

    def test_results_outlive_calls_and_arguments(self):
        run = torch.compile(lambda x: (x + 1, (x * 2)[1:]), backend="reprise")
        kept = []
        for k in range(5):
            kept.append(run(torch.full((64,), float(k))))
        torch._dynamo.reset()
        del run
        gc.collect()
        for k, (a, b) in enumerate(kept):
            self.same(a, torch.full((64,), k + 1.0))
            self.same(b, torch.full((63,), k * 2.0))

    def test_arguments_are_let_go(self):
        run = torch.compile(lambda x: x + 1, backend="reprise")
        x = torch.randn(8)
        gone = weakref.ref(x)
        run(x), run(x)
        del x
        gc.collect()
        self.assertIsNone(gone())

    def test_moved_arguments(self):
        run = torch.compile(lambda x, y: x @ y, backend="reprise")
        for _ in range(6):
            a, b = torch.randn(5, 5), torch.randn(5, 5)
            self.same(run(a, b), a @ b)

    def test_empty_and_numbers(self):
        self.check(lambda x, y: (x + 1, x.sum(0), y * 3, y.reshape(1)), torch.randn(0, 4), torch.tensor(2.5))

    def test_numbers_where_tensors_belong(self):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int32):
            x = torch.arange(1, 5).to(dtype)
            with self.subTest(dtype):
                torch._dynamo.reset()
                self.check(lambda x, n: (2.5 ** x, 2 ** x, 0.9 ** n, torch.where(x > 2, x, 7), torch.where(n > 2, 3, n)), x, x[1].clone())

    def test_lists_of_tensors(self):
        def f(xs, ys, n):
            a = torch._foreach_addcmul(xs, ys, ys, value=0.5)
            b = torch._foreach_addcdiv(xs, ys, torch._foreach_add(torch._foreach_abs(ys), 1), [2.0, 3.0])
            c = torch._foreach_lerp(xs, ys, 0.25)
            xs = [x.clone() for x in xs]
            torch._foreach_mul_(xs, 3)
            torch._foreach_sub_(xs, ys, alpha=2)
            return (a, b, c, torch._foreach_norm(ys), torch._foreach_norm(ys, 1), torch._foreach_maximum(ys, 0.1), torch._foreach_minimum(ys, xs),
                    torch._foreach_pow(2.0, ys), torch._foreach_add(ys, n), torch._foreach_sqrt(torch._foreach_mul(ys, ys)), xs)
        self.check(f, [torch.randn(3, 4), torch.randn(5)], [torch.randn(3, 4), torch.randn(5)], torch.tensor(0.5))

    def test_more_tensors_than_a_step_takes(self):
        xs = [torch.randn(2) for _ in range(700)]
        self.check(lambda *xs: (torch.cat(xs), torch.stack(xs).sum(0)), *xs, calls=1)

    def test_products_and_sums_as_dynamo_writes_them(self):
        def f(x, y, z, n):
            x = x.clone()
            x.addcmul_(y, z, value=0.3)
            x.addcdiv_(y, z.abs() + 1, value=n)
            return x
        self.check(f, torch.randn(4, 3), torch.randn(4, 3), torch.randn(3), torch.tensor(0.25))

    def test_types(self):
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            with self.subTest(dtype):
                torch._dynamo.reset()
                self.check(lambda x, y: ((x * y).relu() + 1, x.float().sum()), torch.randn(5, 6).to(dtype), torch.randn(5, 6).to(dtype))
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
            with self.subTest(dtype):
                torch._dynamo.reset()
                self.check(lambda x: (x + 3, x * x, x.bitwise_and(5)), torch.arange(12).to(dtype).reshape(3, 4))

    def test_autocast(self):
        model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))

        def f(x):
            with torch.autocast(DEVICE, torch.bfloat16):
                return model(x)
        run = torch.compile(f, backend="reprise")
        with torch.no_grad():
            x = torch.randn(8, 16)
            self.assertEqual(run(x).dtype, torch.bfloat16)
            self.same(run(x), f(x), 2e-2)

    def test_training_under_autocast(self):
        model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        twin = copy.deepcopy(model)
        x = torch.randn(8, 16)
        for m, call in ((model, torch.compile(model, backend="reprise")), (twin, twin)):
            with torch.autocast(DEVICE, torch.bfloat16):
                y = call(x)
            self.assertEqual(y.dtype, torch.bfloat16)
            y.float().square().sum().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            self.assertEqual(p.grad.dtype, torch.float32)
            self.same(p.grad, q.grad, 5e-2)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_channels_last_convolution(self):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4)).eval().to(memory_format=torch.channels_last)
        with torch.no_grad():
            self.check(model, torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last))

    def test_constants_of_the_model(self):
        table = torch.arange(6.0)
        self.check(lambda x: x * torch.tensor([1.0, 2.0, 3.0], device=x.device) + table[:3] + torch.arange(3, device=x.device) + torch.ones(3, device=x.device), torch.randn(3))

    def test_a_tensor_fills(self):
        number = torch.tensor(3.5, device="cpu")  # of the CPU: it goes with every device
        self.check(lambda x, v: (torch.ops.aten.fill(x, v), torch.ops.aten.fill(x.long(), v), torch.ops.aten.fill(x, number)), torch.randn(3, 4),
                   torch.tensor(2.5))

    def test_memory_without_values(self):
        self.check(lambda x: x + torch.empty_permuted((3, 4), (1, 0), device=x.device).fill_(2) + x.new_empty(4).zero_(), torch.randn(3, 4))

    def test_attention(self):
        q = torch.randn(2, 4, 6, 8)
        self.check(lambda q: (F.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q, is_causal=True)), q)

    def test_graphs_as_text(self):
        x = torch.randn(4, 6)
        f = torch.compile(lambda x: (x @ x.t()).softmax(-1), backend="reprise")
        want = f(x)
        (text,), = [g.texts() for g in reprise.explain().graphs]
        self.assertIn("softmax", text)
        self.same(torch.from_dlpack(reprise.compile_ir(text)(x)), want)

    def test_attention_stays_one_op(self):
        q, k, v = (torch.randn(2, 4, n, 8) for n in (6, 7, 7))
        hidden = torch.rand(2, 1, 6, 7) > 0.3
        hidden[..., 0] = True
        functions = [lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).reshape(2, 6, -1),
                     lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
                     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, hidden)]
        for f in functions:
            given, same = ([t.clone().requires_grad_() for t in (q, k, v)] for _ in range(2))
            reprise.reset()
            y, want = torch.compile(f, backend="reprise")(*given), f(*same)
            self.same(y, want)
            seed = torch.randn_like(want)
            for got, expected in zip(torch.autograd.grad(y, given, seed), torch.autograd.grad(want, same, seed)):
                self.same(got, expected)
            self.assertLess(max(g.nodes for g in reprise.explain().graphs), 10)

    @ON_CPU
    def test_flexible_attention_is_taken_apart(self):
        bias, query = torch.randn(4, 32, 32), torch.randn(1, 4, 32, 16)
        block = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 20), None, None, 32, 32, device="cpu", BLOCK_SIZE=16)
        mods = (lambda s, b, h, i, j: s * 0.5 + bias[h, i, j], lambda s, b, h, i, j: torch.tanh(s / 2) + (i - j) * 0.1)
        for mod in mods:
            torch._dynamo.reset()
            self.check(lambda q: flex_attention(q, q[:, :2], q[:, 2:], score_mod=mod, block_mask=block, enable_gqa=True), query)
        torch._dynamo.reset()
        f = lambda q: flex_attention(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2), score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf))
        run = torch.compile(f, backend="reprise", dynamic=True)
        for n in (16, 24, 17):
            q = torch.randn(2, n, 2, 16)
            self.same(run(q), f(q))
            self.assertEqual(run(q).stride(), f(q).stride())
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_encoder_layers_with_masks(self):
        hidden = torch.zeros(2, 5, dtype=torch.bool)
        hidden[0, 3:] = True
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2, enable_nested_tensor=False).eval()
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        for masks in ({"src_key_padding_mask": hidden}, {"mask": later}, {"mask": nn.Transformer.generate_square_subsequent_mask(5)}, {"mask": later, "src_key_padding_mask": hidden}):
            with self.subTest(masks=list(masks)), torch.no_grad():
                torch._dynamo.reset()
                reprise.reset()
                self.check(lambda x: model(x, is_causal=False, **masks), torch.randn(2, 5, 16), calls=1)

    def test_threads_share_a_function(self):
        run = torch.compile(lambda x: (x @ x).relu().sum(1), backend="reprise")
        run(torch.randn(32, 32))
        run(torch.randn(32, 32))
        wrong = []

        def work(seed):
            g = torch.Generator().manual_seed(seed)
            for _ in range(20):
                x = torch.randn(32, 32, generator=g)
                if not torch.allclose(run(x), (x @ x).relu().sum(1), atol=1e-4):
                    wrong.append(seed)
        threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(wrong, [])

    def test_calls_at_once_keep_their_own_arguments(self):
        """Programs remember what they were called with: calls that overlap with other memory leave each other's alone."""
        run = torch.compile(lambda x, y: (x @ x).sum() + y, backend="reprise")
        with torch.no_grad():
            run(torch.ones(64, 64), torch.zeros(3))
        program = reprise.explain().graphs[0].programs[0]
        wrong = []

        def work(k):
            for i in range(200):
                x, y = torch.full((64, 64), float(k)), torch.full((3,), float(i))
                got = program.run([x, y])[0]
                if not torch.equal(got, torch.full((3,), 64.0 ** 3 * k * k + i)):
                    wrong.append((k, i, got))
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    @ON_CPU
    def test_the_interpreter_goes_on_during_a_call(self):
        x = torch.randn(1500, 1500)
        run = torch.compile(lambda x: x @ x @ x, backend="reprise")
        run(x), run(x)
        ticks, end = [0], threading.Event()

        def tick():
            while not end.is_set():
                ticks[0] += 1
                time.sleep(0.0005)
        t = threading.Thread(target=tick)
        t.start()
        before = ticks[0]
        for _ in range(3):
            run(x)
        during = ticks[0] - before
        end.set()
        t.join()
        self.assertGreater(during, 3)


class Sizes(Door):
    def test_a_size_that_changes(self):
        run = torch.compile(lambda x: (x.reshape(-1, 2).sum(1), x.view(x.shape[0] * 2, -1) + x.shape[0], x.shape[0] * 3), backend="reprise")
        for n in (4, 6, 10, 32, 5):
            x = torch.randn(n, 4)
            got, want = run(x), (x.reshape(-1, 2).sum(1), x.view(n * 2, -1) + n, n * 3)
            self.same(got[0], want[0])
            self.same(got[1], want[1])
            self.assertEqual(got[2], want[2])
        self.assertLessEqual(len(reprise.explain().graphs), 2)  # one of numbers, one of symbols
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_means_over_a_size_that_changes(self):
        for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.binary_cross_entropy_with_logits):
            with self.subTest(loss.__name__):
                torch._dynamo.reset()
                reprise.reset()
                run = torch.compile(loss, backend="reprise", dynamic=True)
                for n in (3, 5, 8):
                    x, y = torch.randn(n, 4, dtype=torch.float64, requires_grad=True), torch.rand(n, 4, dtype=torch.float64)
                    got, want = run(x, y), loss(x, y)
                    self.same(got, want)
                    self.same(torch.autograd.grad(got, x)[0], torch.autograd.grad(want, x)[0])
                self.assertEqual(dict(reprise.explain().reasons), {})

    def test_strided_writes_of_a_size_that_changes(self):
        """What the gradient of a pool of channels_last memory is made of."""
        for pool in (nn.AdaptiveAvgPool2d(1), nn.AvgPool2d(2)):
            with self.subTest(str(pool)):
                torch._dynamo.reset()
                reprise.reset()
                model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), pool).double()
                f = lambda x: model(x.to(memory_format=torch.channels_last))
                run = torch.compile(f, backend="reprise", dynamic=True)
                for n in (3, 5, 2):
                    x = torch.randn(n, 3, 9, 7, dtype=torch.float64)
                    got, want = run(x), f(x)
                    self.same(got, want)
                    weights = torch.rand_like(want)
                    for a, b in zip(*(torch.autograd.grad(y, tuple(model.parameters()), weights) for y in (got, want))):
                        self.same(a, b)
                self.assertEqual(dict(reprise.explain().reasons), {})

    def test_distances(self):
        for p in (0.0, 1.0, 1.5, 2.0, 3.0, math.inf):
            with self.subTest(p):
                torch._dynamo.reset()
                reprise.reset()
                f = lambda x, y: torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist")
                run = torch.compile(f, backend="reprise", dynamic=True)
                for n in (3, 5):
                    x, y = (torch.randn(*s, 3, dtype=torch.float64, requires_grad=True) for s in ((2, n), (1, n + 1)))
                    with torch.no_grad():
                        y[0, 0] = x[0, 0]
                    got, want = run(x, y), f(x, y)
                    self.same(got, want)
                    weights = torch.rand_like(want)
                    for a, b in zip(torch.autograd.grad(got, (x, y), weights), torch.autograd.grad(want, (x, y), weights)):
                        self.same(a, b)
                self.assertEqual(dict(reprise.explain().reasons), {})

    def test_gradients_that_are_ops_of_their_own(self):
        of = lambda *size: torch.randn(*size, dtype=torch.float64)
        rows, planes, volumes, weight = of(2, 4, 12), of(2, 4, 8, 6), of(2, 3, 4, 6, 5), of(10, 4)
        ids, starts = torch.randint(0, 10, (9,)), torch.tensor([0, 3, 3, 7])
        noise = lambda *size: torch.rand(*size, dtype=torch.float64)
        cases = {
            "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 5), rows), "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), planes),
            "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 3), volumes), "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), volumes),
            "fractional_max_pool2d": (lambda x, u: F.fractional_max_pool2d(x, 2, output_size=(4, 3), _random_samples=u.detach()), planes, noise(2, 4, 2)),
            "fractional_max_pool3d": (lambda x, u: F.fractional_max_pool3d(x, 2, output_size=(2, 3, 3), _random_samples=u.detach()), volumes, noise(2, 3, 3)),
            "antialiased": (lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True), planes),
            "antialiased by a scale": (lambda x: F.interpolate(x, scale_factor=(0.7, 1.3), mode="bicubic", antialias=True), planes),
            "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), padding_mode="border", align_corners=False), volumes, of(2, 3, 4, 5, 3)),
            "pdist": (lambda x: F.pdist(x), rows[0]), "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), rows[0], of(48)),
            "bilinear": (lambda x, y, w, b: F.bilinear(x, y, w, b), of(5, 3), of(5, 4), of(2, 3, 4), of(2)),
            "segments": (lambda x: torch.segment_reduce(x, "mean", lengths=torch.tensor([2, 1, 1]), unsafe=True), rows[0]),
            "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3, training=False), planes), "conv_tbc": (lambda x, w, b: torch.conv_tbc(x, w, b, 1), of(7, 2, 3), of(3, 3, 4), of(4)),
            "bags": (lambda w: F.embedding_bag(ids.view(3, 3), w), weight), "bags of sums": (lambda w: F.embedding_bag(ids, w, starts, mode="sum", padding_idx=2), weight),
            "bags with an end": (lambda w: F.embedding_bag(ids, w, torch.tensor([0, 3, 3, 9]), include_last_offset=True, padding_idx=2), weight),
            "bags of weighted sums": (lambda w, u: F.embedding_bag(ids.view(3, 3), w, mode="sum", per_sample_weights=u), weight, noise(3, 3)),
            "counted bags": (lambda w: F.embedding_bag(ids, w, starts, scale_grad_by_freq=True), weight),
            "counted rows": (lambda w: F.embedding(ids, w, scale_grad_by_freq=True), weight), "shortened rows": (lambda w: F.embedding(ids, w * 1, max_norm=1.0), weight)}
        cases.update({f"replicate {x.dim() - 2}": (lambda x: F.pad(x, [1, 2] * (x.dim() - 2), mode="replicate"), x) for x in (rows, planes, volumes)})
        for name, (f, *args) in cases.items():
            with self.subTest(name):
                torch._dynamo.reset()
                reprise.reset()
                args = [t.clone().requires_grad_() for t in args]
                got, want = torch.compile(f, backend="reprise")(*args), f(*args)
                self.same(got, want)
                weights = torch.rand_like(want)
                wrt = [t for t in args if t.shape != (2, 4, 2) and t.shape != (2, 3, 3)]
                for a, b in zip(torch.autograd.grad(got, wrt, weights), torch.autograd.grad(want, wrt, weights)):
                    self.same(a, b)
                self.assertEqual(dict(reprise.explain().reasons), {})

    def test_fake_quantization(self):
        x, scale = torch.randn(5, 6) * 2, torch.tensor([0.1, 0.2, 0.3, 0.1, 0.5])
        one, zero = torch.tensor([0.2]), torch.tensor([1], dtype=torch.int32)
        fs = [lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 1, -8, 7), lambda x: torch.fake_quantize_per_tensor_affine(x, one, zero, -8, 7),
              lambda x: torch.fake_quantize_per_channel_affine(x, scale, torch.zeros(5, dtype=torch.int32), 0, -8, 7)]
        fs += [lambda x, on=on: torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, one, zero, torch.tensor([on]), -8, 7)[0] for on in (0, 1)]
        for f in fs:
            torch._dynamo.reset()
            reprise.reset()
            y, z = x.clone().requires_grad_(), x.clone().requires_grad_()
            got, want = torch.compile(f, backend="reprise")(y), f(z)
            self.same(got, want)
            self.same(torch.autograd.grad(got.sum(), y)[0], torch.autograd.grad(want.sum(), z)[0])
            self.assertEqual(dict(reprise.explain().reasons), {})

    def test_largest_rows_of_bags(self):
        """The first of equal rows has the gradient, in a bag that is empty none; sizes may change."""
        w = torch.randn(10, 4)
        w[4] = w[1]
        for offsets, last in (([0, 2, 2], False), ([0, 3, 5, 9], True), ([0, 0, 9], False)):
            for padding in (None, 2):
                for dtype in (torch.int64, torch.int32):
                    with self.subTest(offsets=offsets, padding=padding, dtype=dtype):
                        self.setUp()
                        ids, offsets = torch.tensor([4, 2, 1, 3, 4, 1, 2, 6, 3], dtype=dtype), torch.as_tensor(offsets, dtype=dtype)
                        f = lambda w: F.embedding_bag(ids, w, offsets, mode="max", include_last_offset=last, padding_idx=padding)
                        mine, theirs = (w.clone().requires_grad_() for _ in range(2))
                        got, want = torch.compile(f, backend="reprise", fullgraph=True)(mine), f(theirs)
                        self.same(got, want)
                        self.same(*(torch.autograd.grad((y * torch.arange(1.0, 5)).sum(), x)[0] for y, x in ((got, mine), (want, theirs))))
                        self.assertEqual(dict(reprise.explain().reasons), {})
        self.setUp()
        f = lambda w, ids, offsets: F.embedding_bag(ids, w, offsets, mode="max")
        run = torch.compile(f, backend="reprise", dynamic=True)
        for n in (5, 8):
            ids, offsets = torch.arange(n) % 6, torch.tensor([0, 2, n - 2])
            mine, theirs = (w.clone().requires_grad_() for _ in range(2))
            self.same(*(torch.autograd.grad(g(x, ids, offsets).cos().sum(), x)[0] for g, x in ((run, mine), (f, theirs))))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_products_of_bytes(self):
        a, b = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((20, 32), (32, 16)))
        self.check(lambda a, b: torch._int_mm(a, b) * 2, a, b, fullgraph=True)

    def test_bags_of_many_in_bfloat16(self):
        w = torch.randn(300, 4, dtype=torch.bfloat16, requires_grad=True)
        f = lambda w: F.embedding_bag(torch.arange(300), w, torch.tensor([0]), mode="mean")
        self.same(torch.autograd.grad(torch.compile(f, backend="reprise")(w).sum(), w)[0], torch.autograd.grad(f(w).sum(), w)[0])

    def test_a_device_is_given(self):
        self.check(lambda x: (x[tuple(torch.tril_indices(4, 3, device=x.device))], torch.randperm(4, device=x.device).sort()[0] * x[:, 0]), torch.randn(4, 3))

    def test_sizes_that_are_rounded(self):
        """A program calculates no such sizes: the call hands them over."""
        functions = (lambda x: (x.topk(int(x.shape[0] * 0.5), 0).values, x[:math.ceil(x.shape[0] * 0.3)] * 2, x.new_zeros(math.floor(x.shape[0] / 3), 2) + x.sum(),
                                x[:round(x.shape[0] * 0.4)].exp(), (x.cumsum(0) < math.ceil(1.25 * x.shape[0] / 4)).float() + int(1.5 * x.shape[0])),
                     lambda x: (F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"), F.interpolate(x[None, None], scale_factor=0.7)),
                     lambda x: x.sum() * (-x.shape[0] // 4) + (3 - x.shape[1]) % 5)
        for f in functions:
            torch._dynamo.reset()
            run = torch.compile(f, backend="reprise", dynamic=True)
            for n, m in ((5, 6), (8, 7), (11, 12), (6, 5)):
                x = torch.randn(n, m)
                for a, b in zip(torch.utils._pytree.tree_leaves(run(x)), torch.utils._pytree.tree_leaves(f(x)), strict=True):
                    self.same(a, b)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_rounded_sizes_in_training(self):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=1.5, mode="bilinear"), nn.Conv2d(3, 2, 3)).double()
        run = torch.compile(model, backend="reprise", dynamic=True)
        for n in (8, 11, 9):
            x = torch.randn(2, 2, n, n + 1, dtype=torch.float64)
            a, b = (torch.autograd.grad(f(x).square().mean(), list(model.parameters())) for f in (run, model))
            for p, q in zip(a, b):
                self.same(p, q)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_sizes_divided_by_what_is_below_0(self):
        for f in (lambda x, n: x * (x.shape[0] // n), lambda x, n: x * (x.shape[0] % n)):
            torch._dynamo.reset()
            run = torch.compile(f, backend="reprise", dynamic=True)
            for rows, n in ((4, 3), (5, -3), (7, 2), (6, -4)):
                x = torch.randn(rows, 5)
                self.same(run(x, n), f(x, n))

    def test_nested_tensors(self):
        """Ragged sizes are names, no numbers: programs get nothing for them."""
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
        run = torch.compile(model, backend="reprise")
        ragged = torch.nested.nested_tensor([torch.randn(n, 3) for n in (2, 4, 1)], layout=torch.jagged)
        for _ in range(3):
            found = []
            for f in (run, model):
                model.zero_grad()
                y = f(ragged)
                y.values().sum().backward()
                found.append([y.values(), *(p.grad for p in model.parameters())])
            for a, b in zip(*found):
                self.same(a, b)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_a_size_beside_a_tensor(self):
        run = torch.compile(lambda x, n: (x.shape[0] - n, x.shape[0] - x, (x.shape[0] / 3) / n), backend="reprise", dynamic=True)
        for size in (3, 5):
            x, n = torch.randn(size, 2), torch.tensor([2, 7])
            for a, b in zip(run(x, n), (size - n, size - x, (size / 3) / n)):
                self.same(a, b)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_second_names(self):
        a = torch.ops.aten
        x, y = torch.rand(4, 4, dtype=torch.float64) * 0.5 + 0.25, torch.rand(4, 4, dtype=torch.float64) + 1
        calls = ((a.true_divide.Tensor, (x, y)), (a.divide.Tensor_mode, (y, x), {"rounding_mode": "floor"}), (a.multiply.Scalar, (x, 3)),
                 (a.subtract.Tensor, (x, y), {"alpha": 2}), (a.clip, (x, 0.3, 0.6)), (a.clip.Tensor, (x, None, y)), (a.greater.Scalar, (x, 0.5)),
                 (a.not_equal.Tensor, (x, y)), (a.arctan2, (x, y)), (a.concat, ([x, y], 1)), (a.swapdims, (x, 0, 1)), (a.row_stack, ([x, y],)),
                 (a.special_logsumexp, (x, [1])), (a.special_polygamma, (1, x)), (a.special_xlogy.other_scalar, (x, 2)), (a.special_round, (y,)),
                 (a.matrix_power, (x, 2)), (a.__lshift__.Scalar, (torch.arange(4), 2)), (a.__rshift__.Tensor, (torch.arange(4), torch.arange(4))), (a.ger, (x[0], y[0])), (a.fix, (y,)))
        for name, args, *kwargs in calls:
            with self.subTest(str(name)):
                graph = torch.fx.Graph()
                tensors = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
                left = iter([graph.placeholder(f"x{i}") for i in range(len(tensors))])
                op = name if isinstance(name, torch._ops.OpOverload) else name.default
                graph.output((graph.call_function(op, torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: next(left), args), *kwargs),))
                module = torch.fx.GraphModule({}, graph)
                FakeTensorProp(module).propagate(*tensors)
                reprise.reset()
                got = compile_graph("forward", {"strict": True}, module, tensors)(list(tensors))
                self.same(got[0], op(*args, **dict(*kwargs)))

    def test_a_number_that_changes(self):
        run = torch.compile(lambda x, n: x.repeat(n, 1) * n, backend="reprise")
        for n in (3, 4, 5, 9):
            x = torch.randn(2, 3)
            self.same(run(x, n), x.repeat(n, 1) * n)

    def test_a_marked_size_is_traced_once(self):
        run = torch.compile(lambda x, w: (x @ w).softmax(-1)[:, : x.shape[0] // 2], backend="reprise")
        w = torch.randn(4, 64)
        for n in (4, 6, 10, 32, 7):
            x = torch.randn(n, 4)
            torch._dynamo.mark_dynamic(x, 0)
            self.same(run(x, w), (x @ w).softmax(-1)[:, : n // 2])
        self.assertEqual([g.kind for g in reprise.explain().graphs], ["inference"])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_views_that_begin_at_a_number(self):
        def f(x, n):
            y = x * 2
            return x[n:], y, y[n:, 1:], y.t()[1:], x.split([n, x.shape[0] - n])[1].exp()
        run = torch.compile(f, backend="reprise", dynamic=True)
        for rows, n in ((4, 1), (6, 2), (5, 3), (9, 8)):
            x = torch.randn(rows, 3)
            got, want = run(x, n), f(x, n)
            for a, b in zip(got, want):
                self.same(a, b)
                self.assertEqual((a.stride(), a.storage_offset()), (b.stride(), b.storage_offset()))
            got[0].zero_()
            self.assertFalse(x[n:].any())
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_a_number_that_becomes_negative(self):
        run = torch.compile(lambda x, n: (x * n).roll(n, 0) + n, backend="reprise")
        x = torch.randn(7)
        for n in (2, 3, -4, 5, 0, -1):
            self.same(run(x, n), (x * n).roll(n, 0) + n)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_numbers_calculated_of_sizes(self):
        def attention(q, k):
            return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5).softmax(-1) / math.sqrt(k.shape[0]) + q.shape[0] / (k.shape[0] + 1)
        run = torch.compile(attention, backend="reprise", dynamic=True)
        for n, m, d in ((3, 4, 8), (5, 7, 16), (6, 2, 9), (4, 9, 3)):
            q, k = torch.randn(n, d), torch.randn(m, d)
            self.same(run(q, k), attention(q, k))
        self.assertEqual([g.kind for g in reprise.explain().graphs], ["inference"])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_a_size_where_the_library_wants_a_number(self):
        f = lambda x: F.pad(x * 2, (0, 8 - x.shape[1]), value=3.0)
        run = torch.compile(f, backend="reprise")
        for n in (4, 6, 3):
            x = torch.randn(2, n)
            self.same(run(x), f(x))

    def test_two_sizes_and_a_gradient(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        twin = copy.deepcopy(model)
        run = torch.compile(model, backend="reprise", dynamic=True)
        for b, t in ((3, 5), (4, 7), (2, 9)):
            x = torch.randn(b, t, 8)
            run(x).square().sum().backward()
            twin(x).square().sum().backward()
            for p, q in zip(model.parameters(), twin.parameters()):
                self.same(p.grad, q.grad, 1e-4)


class Training(Door):
    def test_mlp(self):
        self.trained(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), [torch.randn(5, 8)])
        self.assertEqual({g.kind for g in reprise.explain().graphs}, {"forward", "backward"})
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_buffers_are_written(self):
        self.trained(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten()), [torch.randn(4, 3, 12, 12)])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_a_buffer_that_the_gradient_needs_is_written(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))
                self.weight = nn.Parameter(torch.randn(4))

            def forward(self, x):
                self.calls += 1
                return x * self.weight / self.calls
        self.trained(Net(), [torch.randn(3, 4)])

    def test_norms_embeddings_losses(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.e, self.n, self.g, self.h = nn.Embedding(20, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 20)

            def forward(self, i):
                x = self.g(self.n(self.e(i)).transpose(1, 2)).transpose(1, 2)
                return F.cross_entropy(self.h(F.silu(x)).flatten(0, 1), i.flatten())
        self.trained(Net(), [torch.randint(0, 20, (3, 5))], loss=lambda y: y)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_weight_norm(self):
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 4, 2), dim=2))
        self.trained(model, [torch.randn(3, 2, 4)])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_gradients_of_arguments(self):
        x = torch.randn(4, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        f = lambda x: (x.sin() * x).cumsum(1)
        torch.compile(f, backend="reprise")(x).sum().backward()
        f(y).sum().backward()
        self.same(x.grad, y.grad)

    def test_in_place_and_aliased_results(self):
        def f(x, buffer):
            buffer.add_(x.detach())
            y = x * 2
            z = y.view(-1)
            y.mul_(3)
            return y, z, buffer
        x = torch.randn(3, 4)
        b1, b2 = torch.zeros(3, 4), torch.zeros(3, 4)
        run = torch.compile(f, backend="reprise")
        for _ in range(3):
            for a, b in zip(run(x, b1), f(x, b2)):
                self.same(a, b)
        self.same(b1, b2)
        self.assertEqual(b1._version, b2._version)

    def test_results_that_share_memory(self):
        def f(x, w):
            y = (x * w).sin()
            return y, y[1:], y.t(), y.detach(), x, x[:2]
        x, w = torch.randn(4, 3), torch.randn(3, requires_grad=True)
        v = w.detach().clone().requires_grad_()
        run = torch.compile(f, backend="reprise")
        for _ in range(3):
            got, want = run(x, w), f(x, v)
            for a, b in zip(got, want):
                self.same(a, b)
                self.assertEqual((a.stride(), a.requires_grad, a.storage_offset()), (b.stride(), b.requires_grad, b.storage_offset()))
            self.assertEqual([a.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr() for a in got[1:4]], [True, True, True])
            self.assertEqual([a.data_ptr() for a in got[4:]], [x.data_ptr()] * 2)
            (got[1].sum() + 2 * got[2].sum()).backward(), (want[1].sum() + 2 * want[2].sum()).backward()
        self.same(w.grad, v.grad)

    def test_an_argument_with_a_gradient_is_written(self):
        def f(x, w):
            x = x.clone()
            x.mul_(w)
            x[1].add_(1)
            w = w * 2
            w.exp_()
            return x.sum() * w.sum()
        w = torch.randn(3, requires_grad=True)
        v = w.detach().clone().requires_grad_()
        run = torch.compile(f, backend="reprise")
        for _ in range(2):
            x = torch.randn(4, 3)
            run(x, w).backward(), f(x, v).backward()
        self.same(w.grad, v.grad)

    def test_an_argument_that_is_a_view_is_written(self):
        base1, base2 = torch.zeros(6, 4), torch.zeros(6, 4)
        f = lambda v, x: v.copy_(x * 2)
        run = torch.compile(f, backend="reprise")
        for k in range(3):
            x = torch.randn(4, 3)
            run(base1[1:4].t(), x), f(base2[1:4].t(), x)
            self.same(base1, base2)

    def test_a_retained_graph_goes_backward_twice(self):
        model = nn.Linear(4, 4)
        run = torch.compile(model, backend="reprise")
        y = run(torch.randn(3, 4)).square().sum()
        y.backward(retain_graph=True)
        first = model.weight.grad.clone()
        y.backward()
        self.same(model.weight.grad, 2 * first)

    def test_two_forwards_before_their_backwards(self):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        twin = copy.deepcopy(model)
        run = torch.compile(model, backend="reprise")
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        for call in (run, twin):
            y, z = call(a), call(b)
            z.square().sum().backward()
            y.square().sum().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            self.same(p.grad, q.grad)

    def test_half_types(self):
        self.trained(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(torch.bfloat16), [torch.randn(4, 8).to(torch.bfloat16)], tolerance=1e-2)


    @unittest.skipUnless(hasattr(torch._dynamo.config, "trace_autograd_ops"), "this PyTorch leaves torch.autograd.grad out of graphs")
    def test_a_whole_step_is_one_graph(self):
        """Forward, gradients and update traced together: one program, which writes the parameters."""
        from torch.optim.adam import adam

        def steps(compiled):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4)).double()
            params = list(model.parameters())
            means, squares, counts = ([torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params],
                                      [torch.zeros((), dtype=torch.float64) for _ in params])

            def step(x, t):
                loss = F.cross_entropy(model(x), t)
                grads = torch.autograd.grad(loss, params)
                with torch.no_grad():
                    adam(params, list(grads), means, squares, [], counts, foreach=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=0.01, weight_decay=0.0, capturable=DEVICE != "cpu",
                         eps=1e-8, maximize=False)
                return loss.detach()
            run = torch.compile(step, backend="reprise", fullgraph=True) if compiled else step
            return [run(torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 4) for _ in range(5)] + params + squares
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            got = steps(True)
        for a, b in zip(got, steps(False), strict=True):
            self.same(a.detach(), b.detach(), 1e-6)  # TorchDynamo calculates the corrections of Adam in tensors
        graphs = reprise.explain().graphs
        self.assertEqual([(g.kind, g.parts, g.eager) for g in graphs], [("inference", 1, [])])


class Random(Door):
    def test_the_seed_is_torchs(self):
        run = torch.compile(lambda x: F.dropout(x, 0.4), backend="reprise")
        x = torch.ones(2000)
        torch.manual_seed(5)
        a, b = run(x), run(x)
        torch.manual_seed(5)
        c, d = run(x), run(x)
        self.same(a, c)
        self.same(b, d)
        self.assertFalse(torch.equal(a, b))
        self.assertAlmostEqual((a == 0).float().mean().item(), 0.4, delta=0.05)
        self.same(a[a != 0], torch.full_like(a[a != 0], 1 / 0.6))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_backward_has_the_masks_of_forward(self):
        run = torch.compile(lambda x: F.dropout(x, 0.5) * 3, backend="reprise")
        x = torch.ones(500, requires_grad=True)
        y = run(x)
        y.sum().backward()
        self.same(x.grad, y.detach())

    def test_dropout_in_training(self):
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 1))
        run = torch.compile(model, backend="reprise")
        x, grads = torch.randn(16, 8), []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            model.zero_grad()
            run(x).sum().backward()
            grads.append(model[0].weight.grad.clone())
        self.same(grads[0], grads[1])
        self.assertFalse(torch.equal(grads[0], grads[2]))
        with torch.random.fork_rng():
            state = torch.get_rng_state if DEVICE == "cpu" else torch.cuda.get_rng_state
            before = state()
            run(x)
            self.assertFalse(torch.equal(before, state()))
        model.eval()
        self.same(run(x), model(x))

    @ON_CPU
    def test_what_a_graph_of_the_users_records_begins_where_pytorch_draws(self):
        """Two numbers of PyTorch's generator are what each replay begins from. Here a call is told that it is recorded."""
        run, x = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5)), backend="reprise"), torch.randn(6, 8)
        run(x)
        calls, follow = [], _c.follow_generator

        def seen(kind, index, address):
            calls.append((kind, index, (ctypes.c_int64 * 2).from_address(address)[:] if address else None))
            follow(kind, index, address)

        with mock.patch("reprise.dynamo.recorded", lambda device: True), mock.patch("reprise._c.follow_generator", seen):
            torch.manual_seed(3)
            self.assertEqual(run(x).shape, (6, 16))
            torch.manual_seed(3)
            want = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64).tolist()
        self.assertEqual(calls, [(0, 0, want), (0, 0, None)])
        with self.assertRaisesRegex(reprise.Error, "two words"):
            follow(0, 0, 4)

    def test_products_of_groups(self):
        """Of rows, of columns, and of what is summed over; some groups are empty, and some rows belong to none."""
        for dtype, tolerance in ((torch.bfloat16, 0.02), (torch.float32, 1e-5)):
            a, b, c, d = (torch.randn(*size, dtype=dtype) for size in ((16, 24), (4, 24, 32), (4, 8, 24), (24, 16)))
            for cuts in ((3, 3, 10, 16), (0, 0, 0, 16), (16, 16, 16, 16), (5, 6, 7, 12)):
                offs = torch.tensor(cuts, dtype=torch.int32)
                for f in (lambda offs: F.grouped_mm(a, b, offs=offs)[:cuts[-1]], lambda offs: F.grouped_mm(c, d, offs=offs)[:, :cuts[-1]],
                          lambda offs: F.grouped_mm(a.t(), torch.tanh(a), offs=offs), lambda offs: F.grouped_mm(b, b.transpose(1, 2))):
                    torch._dynamo.reset()
                    self.same(torch.compile(f, backend="reprise", fullgraph=True)(offs), f(offs), tolerance)
        run, offs = torch.compile(lambda x, y, offs: F.grouped_mm(x, y, offs=offs).sin(), backend="reprise", dynamic=True, fullgraph=True), offs.fill_(16)
        for rows in (16, 24, 40):
            x, y = torch.randn(rows, 24, requires_grad=True), torch.randn(4, 24, 32, requires_grad=True)
            offs = torch.tensor([0, 5, 13, rows], dtype=torch.int32)
            got, want = (torch.autograd.grad(f(x, y, offs).square().sum(), (x, y)) for f in (run, lambda x, y, offs: F.grouped_mm(x, y, offs=offs).sin()))
            for p, q in zip(got, want):
                self.same(p, q, 1e-4)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "without transformers")
    def test_products_of_groups_of_transformers(self):
        from transformers.integrations import moe  # noqa: F401: makes the op
        f, offs = lambda x, y, offs: torch.ops.transformers.grouped_mm_fallback(x, y, offs).sin(), torch.tensor([3, 3, 10, 16], dtype=torch.int32)
        x, y = torch.randn(16, 24, requires_grad=True), torch.randn(4, 24, 32, requires_grad=True)
        run = torch.compile(f, backend="reprise", fullgraph=True)
        self.same(run(x, y, offs), f(x, y, offs))
        for a, b in zip(*(torch.autograd.grad(g(x, y, offs).square().sum(), (x, y)) for g in (run, f))):
            self.same(a, b, 1e-5)

    def test_views_of_another_type(self):
        f = lambda x: (x.view(torch.int32) & 0x7fffff, (x * 2).view(torch.uint8), x.to(torch.bfloat16).view(torch.float32), x.abs().view(torch.int64).view(torch.float64))
        x = torch.randn(3, 8)
        self.check(f, x)
        self.check(lambda x: (x.int() + (127 << 23)).view(torch.float32), torch.randint(-9, 9, (4,)) << 20)

        def writes(x):
            x.view(torch.int32).bitwise_and_(-65536)
            return x + 1
        a, b = torch.randn(5), None
        b = a.clone()
        self.same(torch.compile(writes, backend="reprise")(a), writes(b))
        self.same(a, b)

    def test_random_integers_like_a_tensor(self):
        x = torch.empty(400, dtype=torch.int32)
        a, b = torch.compile(lambda x: (torch.randint_like(x, 3), torch.randint_like(x, 4, 7, dtype=torch.int64)), backend="reprise")(x)
        self.assertEqual((a.dtype, a.unique().tolist(), b.dtype, b.unique().tolist()), (torch.int32, [0, 1, 2], torch.int64, [4, 5, 6]))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_random_factories(self):
        run = torch.compile(lambda x: (torch.rand_like(x), torch.randn(4000), torch.bernoulli(torch.full((4000,), 0.25))), backend="reprise")
        u, n, b = run(torch.ones(4000))
        more = torch.compile(lambda x: (torch.normal(x, 2.0), torch.normal(1.0, x), torch.normal(x, x), torch._standard_gamma(x * 3), torch._sample_dirichlet(x.view(-1, 2)),
                                        F.rrelu(-x, 0.2, 0.4, training=True)), backend="reprise")(torch.ones(4000))
        self.assertEqual(dict(reprise.explain().reasons), {})
        for y, mean, std in zip(more, (1, 1, 1, 3, 0.5, -0.3), (2, 1, 1, 3 ** 0.5, 12 ** -0.5, 0.2 / 12 ** 0.5)):
            self.assertAlmostEqual(y.mean().item(), mean, delta=0.15 * std + 1e-3)
            self.assertAlmostEqual(y.std().item(), std, delta=0.15 * std)
        self.assertTrue(0.2 <= -more[-1].max() and -more[-1].min() <= 0.4)
        x = torch.linspace(-1, 1, 400, requires_grad=True)
        y = torch.compile(lambda x: F.rrelu(x, 0.2, 0.4, training=True), backend="reprise")(x)
        self.same(torch.autograd.grad(y.sum(), x)[0], torch.where(x <= 0, y / x, 1).detach())
        self.assertTrue(0 <= u.min() and u.max() < 1)
        self.assertAlmostEqual(u.mean().item(), 0.5, delta=0.05)
        self.assertAlmostEqual(n.std().item(), 1, delta=0.1)
        self.assertAlmostEqual(b.mean().item(), 0.25, delta=0.05)


class Flow(Door):
    """Branches and loops, which are graphs within a graph."""

    def whole(self, f, *calls, **options):
        """Every call gives what f gives, and nothing of it ran in PyTorch."""
        run = torch.compile(f, backend="reprise", **options)
        for args in calls:
            for a, b in zip(torch.utils._pytree.tree_leaves(run(*args)), torch.utils._pytree.tree_leaves(f(*args)), strict=True):
                self.same(a, b)
        self.assertEqual(dict(reprise.explain().reasons), {})
        self.assertTrue(reprise.explain().graphs)

    def test_branches(self):
        def f(x):
            a, b = torch.cond(x.sum() > 0, lambda x: (x * 2 + torch.tensor([1.0, 2.0, 3.0]), x.sum()), lambda x: (x.cos(), x.prod()), (x,))
            return a, torch.cond(b > 4, lambda a: torch.cond(a.max() > 9, lambda a: a * 3, lambda a: a - 1, (a,)), lambda a: a.sin(), (a,))
        self.whole(f, *([torch.full((3,), v)] for v in (1.0, -1.0, 2.0, 5.0)))

    def test_branches_over_sizes_and_numbers_that_change(self):
        f = lambda x, y, k: torch.cond(x.sum() > 0, lambda x, y: x @ y.T * x.shape[0] + k, lambda x, y: (x * 2) @ y.T * k + y.shape[0], (x, y))
        self.whole(f, *([torch.randn(a, 3) + s, torch.randn(b, 3), k] for a, b, s, k in ((2, 3, 9, 2), (4, 5, -9, -3), (6, 2, 9, -4), (2, 4, -9, 5))), dynamic=True)

    def test_branches_train(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))

            def forward(self, x):
                return torch.cond(x.sum() > 0, self.a, self.b, (x,)) * 2
        for sign in (1, -1):
            torch._dynamo.reset()
            self.trained(Net().double(), [sign * torch.rand(3, 4, dtype=torch.float64)])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_loops(self):
        w = torch.randn(3, 3) * 0.3
        one = torch.ones(2, 3)
        start = lambda: torch.zeros((), dtype=torch.int64)
        f = lambda x: while_loop(lambda i, x: (i < 5) & (x.abs().sum() < 100), lambda i, x: (i + 1, x @ w + x), (start(), x))
        self.whole(f, [one], [one * 50], [one * 0.1])
        swap = lambda a, b, i: while_loop(lambda a, b, i: i > 0, lambda a, b, i: (b.clone(), a.clone(), i - 1), (a, b, i))
        self.whole(swap, *([one, one * 2, torch.tensor(k)] for k in range(4)))

        def inner(i, x):
            j, y = while_loop(lambda j, y: j < 3, lambda j, y: (j + 1, torch.cond(j % 2 == 0, lambda y: y * 2, lambda y: y - 1, (y,))), (start(), x))
            return i + 1, y * x.shape[0]
        self.whole(lambda x: while_loop(lambda i, x: i < x.shape[0], inner, (start(), x)), [one], [torch.ones(3, 3)], [torch.ones(4, 3)], dynamic=True)

    def test_loops_over_rows(self):
        x = torch.randn(4, 3)
        self.whole(lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(3), x, dim=0), [x])
        self.whole(lambda x: map_rows(lambda a, k: (a.sin() * k, a.sum()), x, torch.tensor(2.0)), [x])

    def test_branches_that_go_by_sizes(self):
        asks = lambda x, y: torch.cond(x.shape[0] > y.shape[0], lambda x: x.sin(), lambda x: x * 3, (x,))
        both = lambda x, y: torch.cond((x.shape[0] >= 4) & (y.shape[0] != 3) | (x.shape[0] == y.shape[0]), lambda x: x.sin(), lambda x: x * 3, (x,))
        for f in (asks, both):
            torch._dynamo.reset()
            reprise.reset()
            run = torch.compile(f, backend="reprise", dynamic=True)
            for n, m in ((5, 4), (4, 5), (4, 4), (7, 3), (3, 3), (2, 3)):
                x, y = torch.randn(n), torch.randn(m)
                self.same(run(x, y), f(x, y))
            self.assertEqual(dict(reprise.explain().reasons), {})

    def test_associative_scans(self):
        def affine(a, b):
            return a[0] * b[0], b[0] * a[1] + b[1]

        pairs = torch.rand(37, 4), torch.randn(37, 4)
        scaled = lambda a, b: a * b * weight
        weight = torch.rand(4) + 0.5
        for combine, xs, dim, reverse in ((torch.add, torch.randn(3, 17), 1, False), (affine, pairs, 0, False), (affine, pairs, 0, True),
                                          (torch.maximum, torch.randn(1, 5), 0, False), (scaled, torch.rand(9, 4) + 0.5, 0, False)):
            torch._dynamo.reset()
            reprise.reset()
            f = lambda xs: associative_scan(combine, xs, dim, reverse=reverse, combine_mode="pointwise")
            got, want = (tree_leaves(g(xs)) for g in (torch.compile(f, backend="reprise", fullgraph=True), f))
            for a, b in zip(got, want):
                self.same(a, b, 1e-4)
        x = torch.rand(6, 3, requires_grad=True)
        f = lambda x: associative_scan(torch.mul, x, 0, combine_mode="pointwise")
        a, b = (torch.autograd.grad(g(x).square().sum(), x) for g in (torch.compile(f, backend="reprise"), lambda x: x.cumprod(0)))
        self.same(a[0], b[0])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_loops_over_nothing(self):
        low = Lowering(torch.fx.Graph(), torch.device("cpu"))
        low.graph_of = lambda node: torch.fx.Graph()
        for name, args in (("scan", (None, [], [], [])), ("map_impl", (None, [], [])), ("associative_scan", (None, [], []))):
            with self.assertRaisesRegex(Unsupported, "over nothing"):
                FLOW[name](low, types.SimpleNamespace(args=args), [])

    def test_a_region_that_is_compiled_once(self):
        blk = torch.compiler.nested_compile_region(lambda x, w: (x @ w).sin() + x.shape[0])
        w = torch.randn(4, 4, requires_grad=True)
        f = lambda x: blk(blk(x, w), w)
        x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
        a, b = (torch.autograd.grad(g(x).mul(y).sum(), (x, w)) for g in (torch.compile(f, backend="reprise"), f))
        for p, q in zip(a, b):
            self.same(p, q)
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_what_stays_with_pytorch_says_why(self):
        draws = lambda x: torch.cond(x.sum() > 0, lambda x: x + torch.rand(3) * 0, lambda x: x * 2, (x,))
        counts = lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x + i), (0, x))
        long = lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(3), x.expand(3000, 3), dim=0)[0]
        for f, why in ((draws, "random numbers in a branch or a loop"), (counts, "SymInt"), (long, "3000 rows")):
            torch._dynamo.reset()
            reprise.reset()
            self.check(f, torch.ones(3), whole=False)
            self.assertTrue(any(why in reason for _, reason in reprise.explain().reasons), reprise.explain())

    def test_constants_of_a_part_are_those_of_its_branches(self):
        def f(x):
            y = x.to(torch.float8_e4m3fn).float()  # which splits the graph
            return torch.cond(y.sum() > 0, lambda x: x * 2 + torch.tensor([1.0, 2.0, 3.0]), lambda x: x.sin(), (y,)) + 1
        self.check(f, torch.ones(3), whole=False)
        self.assertFalse(any("cond" in op for op, _ in reprise.explain().reasons))


class Splits(Door):
    def test_what_the_library_lacks_runs_in_pytorch(self):
        def f(x):
            y = (x * 2).relu()
            z = torch.fft.rfft(y).abs()
            return z.sum(-1) + y.mean(-1)
        self.check(f, torch.randn(3, 97), whole=False)
        (graph,) = reprise.explain().graphs
        self.assertTrue(graph.parts)
        self.assertTrue(any("fft" in op for _, op, _, _ in graph.eager))
        self.assertIn("fft", str(reprise.explain()))

    def test_a_split_with_gradients_and_sizes(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 97), nn.Linear(49, 3)

            def forward(self, x):
                return self.b(torch.fft.rfft(self.a(x).relu()).abs())
        self.trained(Net().double(), [torch.randn(4, 8, dtype=torch.float64)])
        self.assertTrue(reprise.explain().reasons)

    def test_assertions_about_tensors(self):
        """They split nothing, and say what PyTorch says."""
        def f(x):
            y = x.exp()
            torch._assert_async(torch.isfinite(y).all(), "not finite")
            torch._assert_async(y.sum() > 0, "nothing is left")
            return y * 2
        x = torch.randn(8)
        run = self.check(f, x)
        self.assertEqual([g.parts for g in reprise.explain().graphs], [1])
        if DEVICE == "cpu":  # on a GPU the process could not go on
            with self.assertRaisesRegex(RuntimeError, "not finite"):
                run(x + math.inf)
            self.same(run(x), f(x))
            with self.assertRaisesRegex(RuntimeError, "nothing is left"):
                run(x - math.inf)
        torch._dynamo.reset()
        reprise.reset()
        x = torch.randn(8, requires_grad=True)
        for _ in range(3):
            (a,), (b,) = (torch.autograd.grad(g(x).sum(), x) for g in (torch.compile(f, backend="reprise", fullgraph=True), f))
            self.same(a, b)
        self.assertEqual(dict(reprise.explain().reasons), {})

    @ON_CPU
    def test_assertions_about_arguments_and_views(self):
        def f(ok, x):
            torch._assert_async(ok, "not so")
            torch._assert_async(x[0] > 0, "below")
            return x + 1, x[0]
        run = self.check(f, torch.tensor(True), torch.ones(3))
        for arguments, said in (((torch.tensor(False), torch.ones(3)), "not so"), ((torch.tensor(True), -torch.ones(3)), "below")):
            with self.assertRaisesRegex(RuntimeError, said):
                run(*arguments)
        self.same(run(torch.tensor(True), torch.ones(3))[0], torch.full((3,), 2.0))
        with self.assertRaisesRegex(RuntimeError, "not so"):  # the first of those that fail
            run(torch.tensor(False), -torch.ones(3))

    @ON_CPU
    def test_an_assertion_may_be_all_of_a_part(self):
        def f(x):
            c = torch.fft.rfft(x)
            torch._assert_async(torch.eq(c[0], c[0]), "no number")
            torch._assert_async((c.abs() >= 0).all(), "no size")
            return x + 1
        run = self.check(f, torch.randn(8), whole=False)
        self.assertFalse(any("assert" in op for op, _ in reprise.explain().reasons))
        with self.assertRaisesRegex(RuntimeError, "no number|no size"):
            run(torch.full((8,), math.nan))

    @ON_CPU
    def test_an_assertion_about_what_is_written_comes_before_the_write(self):
        def f(ok, x):
            torch._assert_async(ok, "not so")
            ok.logical_not_()
            return x + 1
        run = torch.compile(f, backend="reprise")
        for _ in range(3):
            ok = torch.tensor(True)
            self.same(run(ok, torch.ones(3)), torch.full((3,), 2.0))
            self.assertFalse(ok)
        with self.assertRaisesRegex(RuntimeError, "not so"):
            run(torch.tensor(False), torch.ones(3))

    @ON_CPU
    def test_nothing_is_written_behind_an_assertion_that_fails(self):
        def f(x, b):
            y = x.exp()
            torch._assert_async(torch.isfinite(y).all(), "not finite")
            b.mul_(3)
            return y * 2
        with torch.no_grad():
            run = torch.compile(f, backend="reprise")
            for _ in range(2):
                b, x = torch.ones(3), torch.randn(4)
                self.same(run(x, b), x.exp() * 2)
                self.same(b, torch.full((3,), 3.0))
            with self.assertRaisesRegex(RuntimeError, "not finite"):
                run(torch.full((4,), math.inf), b)
            self.same(b, torch.full((3,), 3.0))
        (graph,) = reprise.explain().graphs
        self.assertTrue(graph.parts)
        self.assertTrue(all("assert" in op for _, op, _, _ in graph.eager), graph.eager)

    @ON_CPU
    def test_an_assertion_behind_a_write_splits_nothing(self):
        """As tracers write them; the assertion is about what was written."""
        graph = torch.fx.Graph()
        a, ok = graph.placeholder("a"), graph.placeholder("ok")
        y = graph.call_function(torch.ops.aten.mul.Tensor, (a, a))
        good = graph.call_function(torch.ops.aten.logical_not.default, (ok,))
        written = graph.call_function(torch.ops.aten.copy_.default, (ok, good))
        graph.call_function(torch.ops.aten._assert_async.msg, (ok, "not so"))
        graph.output((y,))
        with FakeTensorMode() as mode:
            x, b = torch.ones(3), torch.tensor(False)
        for n, val in ((a, x), (ok, b), (y, x), (good, b), (written, b)):
            n.meta["val"] = val
        call = compile_graph("inference", {"strict": True}, torch.fx.GraphModule({}, graph), [x, b])
        for _ in range(2):
            b = torch.tensor(False)
            self.same(call([torch.full((3,), 3.0), b])[0], torch.full((3,), 9.0))
            self.assertTrue(b)
        with self.assertRaisesRegex(RuntimeError, "not so"):
            call([torch.ones(3), b])
        self.assertFalse(b)

    def test_numbers_that_depend_on_data(self):
        """What is said and given of them is PyTorch's, and the rest the library's."""
        def f(x, n):
            y = (x * 2).relu()
            u = n.sum().item()
            torch._check(u >= 2)
            torch._check(u < 40)
            return y.sum(0) + y.amax(0), u, u + 1
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            run = self.check(f, torch.randn(5, 4), torch.tensor([3, 4]), whole=False)
            for n in (2, 39):
                self.assertEqual(run(torch.randn(5, 4), torch.tensor([n - 1, 1]))[1:], (n, n + 1))
            with self.assertRaisesRegex(RuntimeError, "assertion failed"):
                run(torch.randn(5, 4), torch.tensor([39, 1]))
        (graph,) = reprise.explain().graphs
        self.assertTrue(graph.parts)
        self.assertFalse([op for _, op, _, _ in graph.eager if any(w in op for w in ("mul", "relu", "sum", "amax"))])

    def test_assertions_about_sizes(self):
        def f(x, n):
            torch._check(x.shape[0] < 30)
            torch._check(n * 2 != x.shape[0] and (n > 1 or x.shape[0] > 5))
            return x.sum(0) * n
        for n in (3, 4, 7, 11, 5):
            self.same(torch.compile(f, backend="reprise", dynamic=True)(torch.ones(n, 2), n), f(torch.ones(n, 2), n))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_nodes_of_assertions(self):
        """As tracers write them, whatever Dynamo does with them first."""
        traced = make_fx(lambda a: a * a, tracing_mode="symbolic")(torch.ones(6, 2))
        x = next(iter(traced.graph.nodes)).meta["val"]
        graph = torch.fx.Graph()
        a = graph.placeholder("a")
        size = graph.call_function(torch.ops.aten.sym_size.int, (a, 0))
        holds = graph.call_function(operator.lt, (size, 30))
        graph.call_function(torch.ops.aten._assert_scalar.default, (holds, "as long as a month"))
        graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (size,), {"min": 0, "max": 100})
        graph.call_function(torch.ops.aten._assert_tensor_metadata.default, (a,), {"dtype": torch.float32})
        y = graph.call_function(torch.ops.aten.mul.Tensor, (a, a))
        graph.output((y, holds))
        for n, val in ((a, x), (size, x.shape[0]), (holds, x.shape[0] < 30), (y, x)):
            n.meta["val"] = val
        call = compile_graph("inference", {"strict": True}, torch.fx.GraphModule({}, graph), [x])
        for n in (6, 29, 9):
            got = call([torch.full((n, 2), 3.0)])
            self.same(got[0], torch.full((n, 2), 9.0))
            self.assertIs(got[1], True)
        with self.assertRaisesRegex(RuntimeError, "as long as a month"):
            call([torch.ones(30, 2)])

    def test_parts_in_order(self):
        def f(x, b):
            z = torch.fft.rfft(b).abs()  # of what b holds before it is written
            y = (x * 2).relu()
            w = torch.fft.rfft(y).abs()
            b.mul_(3)
            return y, w + b.sum(), z
        run = torch.compile(f, backend="reprise")
        b, c = torch.ones(5), torch.ones(5)
        for _ in range(3):
            x = torch.randn(3, 4)
            for got, want in zip(run(x, b), f(x, c)):
                self.same(got, want)
            self.same(b, c)

    def test_strict_names_the_node(self):
        run = torch.compile(lambda x: torch.fft.rfft(x).abs(), backend="reprise", options={"strict": True})
        with self.assertRaisesRegex(Exception, "fft.*" + SITE):
            run(torch.randn(97))

    def test_fullgraph_names_the_node(self):
        f = lambda x: torch.fft.rfft(x * 2).abs()
        with self.assertRaisesRegex(Exception, "fft.*" + SITE):
            torch.compile(f, backend="reprise", fullgraph=True)(torch.randn(97))
        torch._dynamo.reset()
        x = torch.randn(97)
        self.same(torch.compile(f, backend="reprise", fullgraph=True, options={"strict": False})(x), f(x))
        torch._dynamo.reset()
        reprise.reset()
        self.check(lambda x: (x * 2).relu().softmax(0), x, fullgraph=True)

    def test_data_dependent_sizes(self):
        torch._dynamo.config.capture_dynamic_output_shape_ops = True
        try:
            self.check(lambda x: x[x > 0].sum() + x.sum(), torch.randn(20), whole=False)
        finally:
            torch._dynamo.config.capture_dynamic_output_shape_ops = False

    @ON_CPU  # on a GPU matrices travel to the host, and the graph is split
    def test_linear_algebra_is_in_the_graph(self):
        spd = lambda a: a @ a.mT + torch.eye(4)
        ops = {"cholesky": lambda a: torch.linalg.cholesky(spd(a)), "solve": lambda a: torch.linalg.solve(a, a @ a), "right": lambda a: torch.linalg.solve(a, a @ a, left=False),
               "det": lambda a: torch.linalg.det(a), "slogdet": lambda a: torch.linalg.slogdet(a)[1], "inv": lambda a: torch.linalg.inv(a), "values": lambda a: torch.linalg.eigvalsh(spd(a)),
               "singular": lambda a: torch.linalg.svdvals(a), "pinv": lambda a: torch.linalg.pinv(a), "lu": lambda a: torch.linalg.lu(a), "qr": lambda a: torch.linalg.qr(a),
               "exp": lambda a: torch.matrix_exp(a),
               "lu_solve": lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a @ a), "power": lambda a: torch.linalg.matrix_power(a, -2),
               "triangular": lambda a: torch.linalg.solve_triangular(a, a, upper=True), "cholesky_solve": lambda a: torch.cholesky_solve(a, torch.linalg.cholesky(spd(a))),
               "vectors": lambda a: (lambda l, v: (v * l.sqrt().unsqueeze(-2)) @ v.mT)(*torch.linalg.eigh(spd(a))), "nuclear": lambda a: torch.linalg.norm(a, "nuc"),
               "likelihood": lambda a: torch.distributions.MultivariateNormal(torch.zeros(4), spd(a), validate_args=False).log_prob(a[0])}
        for name, f in ops.items():
            for shape in ((4, 4), (2, 4, 4)) if name not in ("nuclear", "likelihood") else ((4, 4),):
                for turned in (False, True):
                    with self.subTest(name, shape=shape, turned=turned):
                        self.setUp()
                        a = (torch.randn(shape, dtype=torch.float64) + 3 * torch.eye(4)).requires_grad_()
                        b = a.detach().clone().requires_grad_()
                        run = torch.compile(f, backend="reprise")
                        for g, x in ((run, a), (f, b)):
                            out = g(x.mT if turned else x)
                            sum(t.cos().sum() for t in ([out] if isinstance(out, torch.Tensor) else out) if t.requires_grad).backward()
                        self.same(a.grad, b.grad)
                        with torch.no_grad():
                            for got, want in zip(torch.utils._pytree.tree_leaves(run(a)), torch.utils._pytree.tree_leaves(f(b)), strict=True):
                                self.same(got, want)
                        self.assertEqual(dict(reprise.explain().reasons), {})
                        self.assertTrue(reprise.explain().graphs)

    @ON_CPU
    def test_matrices_without_an_answer_are_pytorchs_errors(self):
        for f, said in ((lambda a: torch.linalg.cholesky(a) + 1, "not positive-definite"), (lambda a: torch.linalg.inv(a) + 1, "singular"),
                        (lambda a: torch.linalg.solve(a, a) + 1, "singular")):
            self.setUp()
            run = torch.compile(f, backend="reprise")
            self.same(run(torch.eye(3)), f(torch.eye(3)))
            for g in (run, f):
                with self.assertRaisesRegex(torch.linalg.LinAlgError, said):
                    g(torch.zeros(3, 3))
            self.same(run(torch.eye(3)), f(torch.eye(3)))
            self.assertEqual(dict(reprise.explain().reasons), {})

    def test_dropout_in_a_checkpoint(self):
        """What was drawn is kept: the backward has the forward's mask, and no generator's state is saved and set in between."""
        f = lambda x: torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y, 0.5) * y, x, use_reentrant=False)
        x = torch.randn(1000, requires_grad=True)
        y = torch.compile(f, backend="reprise")(x)
        y.sum().backward()
        self.same(x.grad, torch.where(y.detach() != 0, 4 * x.detach(), 0))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_complex_numbers(self):
        """Pairs of real tensors inside of a graph, and what they are outside of it; transforms are products."""
        c = lambda *size: torch.randn(*size, dtype=torch.complex64)
        rotary = lambda x, f: torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * f).flatten(3)
        for name, f, *args in (
                ("arithmetic", lambda a, b: ((a * b + 1j * a - 2).exp() @ b.conj(), 1j * a.abs() + a, (a / 2).angle(), a.sgn()), c(3, 3), c(3, 3)),
                ("results", lambda a: (a * 2, a.T + 0, a.real + 1, a.conj() * a), c(3, 4)), ("rotary", rotary, torch.randn(2, 6, 3, 8), c(6, 1, 4)),
                ("two dims", lambda x: torch.fft.fft2(x).real, torch.randn(2, 8, 40)), ("large", lambda x: torch.fft.rfft(x).abs(), torch.randn(3, 400)),
                ("odd", lambda x: torch.fft.irfft(torch.fft.rfft(x), n=9), torch.randn(2, 9)),
                ("scaled", lambda x: (torch.fft.fft(x, norm="ortho").abs(), torch.fft.ifft(x, norm="forward").imag), torch.randn(2, 30)),
                ("filter", lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=1) * w, n=x.shape[1], dim=1), torch.randn(2, 24, 4), c(13, 4)),
                ("windows", lambda x: torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True).abs(), torch.randn(2, 256)),
                ("convolution", lambda x, w: torch.fft.irfftn(torch.fft.rfftn(x, dim=(-2, -1)) * torch.fft.rfftn(w, s=x.shape[-2:], dim=(-2, -1))),
                 torch.randn(2, 8, 12), torch.randn(2, 3, 3))):
            with self.subTest(name):
                self.setUp()
                self.check(f, *args, fullgraph=True)
                mine, theirs = ([x.clone().requires_grad_() for x in args] for _ in range(2))
                for g, xs in ((torch.compile(f, backend="reprise"), mine), (f, theirs)):
                    sum((t.abs() if t.is_complex() else t).cos().sum() for t in torch.utils._pytree.tree_leaves(g(*xs))).backward()
                for a, b in zip(mine, theirs):
                    self.same(a.grad, b.grad, 1e-4)
                self.assertEqual(dict(reprise.explain().reasons), {})

    def test_complex_numbers_beside_others(self):
        """Real tensors, integers and numbers beside complex ones: types are promoted, and a fraction of an integer is one."""
        c = lambda *size, dtype=torch.complex64: torch.randn(*size, dtype=dtype)
        places = torch.arange(4)
        for name, f, *args in (
                ("integers", lambda n: (n * 0.5j, n + 0.5j, n - 0.25j, n / 0.5j), places), ("wider", lambda a, b: (a * b, a + b, b - a), c(3, 4), c(3, 4, dtype=torch.complex128)),
                ("alpha", lambda a, b: (torch.add(a, b, alpha=2j), torch.add(b, a, alpha=2j), torch.sub(b, a, alpha=0.5)), c(3, 4), torch.randn(3, 4)),
                ("equal", lambda a, b: (b == a, a != b, a == b, b == 1j), c(4).real + 0j, torch.randn(4)), ("expanded", lambda a: (a * 2)[:1].expand(5, 4), c(3, 4)),
                ("chosen", lambda a, m: (torch.where(m, a, places), torch.where(m, a, 1), torch.where(m, a, 2j)), c(3, 4), torch.randn(3, 4) > 0),
                ("joined", lambda a, n: (torch.cat([a, n]), torch.slice_scatter(a, n[:2], 0, 1, 3), a.clone().fill_(3)), c(4), places),
                ("divided", lambda a, b: (a / b, 1 / a, b.real / a, a / 3j, a.reciprocal(), a / b.imag), c(3, 4), c(3, 4)), ("powers", lambda a: (a ** 2, a ** 3), c(3)),
                ("constant", lambda a: a * torch.tensor([1j, 2, 3 - 1j]), c(3)), ("real part", lambda a: (a.to(torch.float32), torch.zeros_like(a, dtype=torch.float32)), c(3))):
            with self.subTest(name):
                self.setUp()
                self.check(f, *args, fullgraph=True)

    def test_complex_numbers_with_a_conjugate_of_an_argument_written(self):
        """An argument that is a negative view is written where it lies."""
        def f(a, b):
            a.add_(1)
            return a * b
        for g in (torch.compile(f, backend="reprise"), f):
            torch.manual_seed(0)
            z, b = (torch.randn(3, dtype=torch.complex64) for _ in range(2))
            before = z.imag.clone()
            self.same(g(z.conj().imag, b), (1 - before) * b)
            self.same(z.imag, before - 1)

    def test_complex_numbers_at_their_limits(self):
        """Infinities and NaN go where they go in eager PyTorch, whose sums and products take real operands as complex ones."""
        some = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan)
        z = torch.tensor([complex(a, b) for a in some for b in some])
        x = z.flip(0).real.contiguous()
        for name, f in {"add": torch.add, "subtract": torch.sub, "multiply": torch.mul}.items():
            with self.subTest(name):
                self.setUp()
                self.check(lambda a, b, x: (f(a, b), f(a, x), f(x, a), f(a, 2.0)), z, z.flip(0), x)
        self.setUp()
        self.check(lambda z: torch.exp(z), torch.cat([z, torch.tensor([100 + 0j, 89 + 1j, 90 - 2j, -200 + 3j])]))
        self.setUp()
        finite = torch.tensor([0j, 1e30 + 1e30j, 1e-30 - 1e-30j, 3 - 4j, 1e30 - 1e-30j, 5, 2j])
        self.check(lambda a, b: (a / b, b / a, a / b.real), finite, finite.flip(0))

    def test_complex_numbers_of_sizes_that_change(self):
        turns = torch.polar(torch.ones(32, 4), torch.outer(torch.arange(32.0), torch.tensor([1.0, 0.5, 0.2, 0.1])))

        def turned(x):
            z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(z * turns[:x.shape[1], None]).flatten(3)
        run = torch.compile(turned, backend="reprise", dynamic=True)
        for b, n in ((2, 5), (3, 7), (2, 32), (4, 6)):
            x = torch.randn(b, n, 2, 8, requires_grad=True)
            found = []
            for f in (run, turned):
                y = f(x)
                found.append((y, *torch.autograd.grad((y * y.detach().cos()).sum(), x)))
            for a, b in zip(*found):
                self.same(a, b)
        f = lambda z: (z.T * 2, (z * z.conj()).real, z.unsqueeze(1).expand(-1, 3, -1) * z.shape[0], z.sum(0).abs() + z.shape[1], torch.cat([z, z], 1).exp(), z.imag,
                       z.reshape(-1, 2) / 3)
        run = torch.compile(f, backend="reprise", dynamic=True)
        for n, m in ((3, 4), (5, 2), (8, 6), (4, 3)):
            z = torch.randn(n, m, dtype=torch.complex64)
            for a, b in zip(run(z), f(z)):
                self.same(a, b)
                self.assertEqual(a.stride(), b.stride())
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_views_of_complex_numbers_of_sizes_that_change(self):
        """Autograd makes them again of strides and offsets: those stay with PyTorch."""
        f = lambda z: (lambda y: (z[1:], z.conj(), z.view(z.shape[0] * z.shape[1]), y, y.real, y.imag, y[1:], y.T))(z * 2)
        run = torch.compile(f, backend="reprise", dynamic=True)
        for n, m in ((3, 4), (5, 2), (8, 6)):
            z = torch.randn(n, m, dtype=torch.complex64)
            for a, b in zip(run(z), f(z)):
                self.same(a, b)

    def test_complex_numbers_that_stay(self):
        """A size with a large prime factor, one that changes, and an op that is not written down."""
        self.check(lambda x: torch.fft.rfft(x).abs() + 1, torch.randn(97), whole=False)
        self.assertIn("complex64", str(reprise.explain()))
        self.setUp()
        run = torch.compile(lambda x: torch.fft.rfft(x).abs() + 1, backend="reprise", dynamic=True)
        for n in (8, 12):
            x = torch.randn(n)
            self.same(run(x), torch.fft.rfft(x).abs() + 1)
        self.setUp()
        x = torch.randn(4, 4)
        self.check(lambda x: torch.linalg.eigvals(x).abs().sum() + 1, x, whole=False)
        self.setUp()
        self.check(lambda x: x.to(torch.complex32) + 0, torch.randn(4, dtype=torch.complex64), whole=False)

    def test_unknown_options(self):
        for options, message in (({"speed": 1}, "no option 'speed'"), ({"engine": "steam"}, "no engine 'steam'"), ({"engine_options": 3}, "dict"),
                                 ({"numbers": "quick"}, "no numbers 'quick'"), ({"engine_options": {"pressure": 3}}, "takes no engine_options")):
            with self.subTest(options), self.assertRaisesRegex(Exception, message):
                torch.compile(lambda x: x + 1, backend="reprise", options=options)(torch.randn(2))
        with self.assertRaisesRegex(Exception, "no mode 'max-autotune'"):
            torch.compile(lambda x: x + 1, backend="reprise", mode="max-autotune")(torch.randn(2))

    def test_an_engine_that_is_absent_or_refuses(self):
        for engine in set(reprise.backends()) & {"onnxrt", "xla", "tensorrt", "tvm", "aot_eager", "eager", "ipex", "cudagraphs"}:
            with self.subTest(engine):
                torch._dynamo.reset()
                reprise.reset()
                self.check(lambda x: (x.sin() * 2).sum(1), torch.randn(3, 4), options={"engine": engine})

    def test_fast_numbers(self):
        x = torch.randn(64, 200, dtype=torch.bfloat16)
        for numbers, told in (("default", False), ("fast", True)):
            torch._dynamo.reset()
            reprise.reset()
            run = torch.compile(lambda x: (x * 1.5 + 2).tanh() * x, backend="reprise", options={"numbers": numbers, "tune": True})
            for _ in range(3):
                torch.testing.assert_close(run(x), (x * 1.5 + 2).tanh() * x, rtol=2e-2, atol=2e-2)
            facts = reprise.explain().graphs[0].facts()
            self.assertEqual(any(f[0] == "numbers" for f in facts), told, facts)

    def test_float32_is_as_exact_as_in_pytorch(self):
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        try:
            for precision in ("high", "highest"):
                torch.set_float32_matmul_precision(precision)
                torch.backends.cudnn.allow_tf32 = precision == "high"
                torch._dynamo.reset()
                torch.compile(lambda x: x @ x, backend="reprise")(torch.randn(4, 4))
                self.assertEqual(reprise._c.precision(), (precision, precision))
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def test_an_index_out_of_bounds(self):
        run = torch.compile(lambda x, i: x[i] * 2, backend="reprise")
        with self.assertRaisesRegex(Exception, "(?i)index"):
            for _ in range(2):  # a GPU is not waited for: what it found is told by a later call
                run(torch.randn(3), torch.tensor([5]))
                torch.cuda.synchronize() if DEVICE != "cpu" else None
        self.same(run(torch.ones(3), torch.tensor([1])), torch.tensor([2.0]))


@unittest.skipIf(DEVICE == "cpu", "graphs of a GPU")
class Graphs(Door):
    """Calls within graphs that the user records."""

    def test_a_call_in_a_graph_is_played_back_over_its_memory(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
        run, x = torch.compile(model, backend="reprise"), torch.randn(4, 8)
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    run(x)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = run(x) + 1
            for _ in range(3):
                x.copy_(torch.randn(4, 8))
                graph.replay()
                self.same(y, model(x) + 1)
                self.same(run(x), model(x))  # calls beside the graph have memory of their own
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_random_numbers_go_on_in_replays(self):
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
        run, x = torch.compile(model, backend="reprise"), torch.randn(4, 8)
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    run(x)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = run(x)
            seen = []
            for seed in (None, None, 5, 5):
                if seed is not None:
                    torch.manual_seed(seed)
                graph.replay()
                seen.append(y.clone())
        self.assertFalse(torch.equal(seen[0], seen[1]))
        self.assertFalse(torch.equal(seen[1], seen[2]))
        self.assertTrue(torch.equal(seen[2], seen[3]))
        for t in seen:
            kept = t != 0
            self.same(t[kept], (model[0](x) * 2)[kept])
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_random_numbers_of_graphed_callables_train(self):
        """Each step has a mask of its own, which its backward goes by."""
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
        run = torch.cuda.make_graphed_callables(torch.compile(model, backend="reprise"), (torch.randn(4, 8, requires_grad=True),))
        masks = []
        for _ in range(3):
            x = torch.randn(4, 8, requires_grad=True)
            model.zero_grad()
            y = run(x)
            masks.append(y != 0)
            found = torch.autograd.grad(y.square().sum(), (x, *model.parameters()))
            want = (F.linear(x, model[0].weight, model[0].bias) * masks[-1] * 2).square().sum()
            for a, b in zip(found, torch.autograd.grad(want, (x, *model.parameters()))):
                self.same(a, b)
        self.assertFalse(torch.equal(masks[0], masks[1]) or torch.equal(masks[1], masks[2]))
        self.assertEqual(dict(reprise.explain().reasons), {})

    def test_graphed_callables_train(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        twin = copy.deepcopy(model)
        run = torch.cuda.make_graphed_callables(torch.compile(model, backend="reprise"), (torch.randn(4, 8),))
        for _ in range(3):
            x = torch.randn(4, 8)
            for m, call in ((model, run), (twin, twin)):
                m.zero_grad()
                call(x).square().mean().backward()
                with torch.no_grad():
                    for p in m.parameters():
                        p -= 0.1 * p.grad
            for a, b in zip(model.parameters(), twin.parameters()):
                self.same(a.grad, b.grad)
                self.same(a, b)


class Around(Door):
    """What the door does to graphs, and what it leaves behind."""

    @ON_CPU
    def test_what_is_made_for_the_device_is_made_there(self):
        def f(x):
            mask = (~torch.zeros(4, dtype=torch.bool)).to("cuda")
            kept = torch.ones(3)  # is a result, too
            drawn = torch.rand(4)  # of the CPU's generator
            return x * mask + torch.arange(4.0).cumsum(0).to("cuda") + drawn.to("cuda"), kept, kept.to("cuda")

        with FakeTensorMode(allow_non_fake_inputs=True):
            gm = move(make_fx(f, tracing_mode="fake")(torch.empty(4, device="cuda")), torch.device("cuda", 0))
        where = {str(n.target).split(".")[1]: n.meta["val"].device.type for n in gm.graph.nodes if n.op == "call_function" and n.target is not torch.ops.aten._to_copy.default}
        self.assertEqual({k: where[k] for k in ("zeros", "bitwise_not", "arange", "cumsum", "ones", "rand")},
                         {"zeros": "cuda", "bitwise_not": "cuda", "arange": "cuda", "cumsum": "cuda", "ones": "cpu", "rand": "cpu"})
        self.assertEqual(next(n for n in gm.graph.nodes if "zeros" in n.name).kwargs["device"].type, "cuda")

    def test_a_step_leaves_no_cycle_that_holds_its_graph(self):
        run = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)), backend="reprise")
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                y = run(torch.randn(4, 8))
                held = weakref.ref(y.grad_fn)
                y.square().mean().backward()
                del y
                self.assertIsNone(held())
        finally:
            gc.enable()

    def test_ops_of_pytorch_read_what_is_saved_as_it_was_traced(self):
        graph = torch.fx.Graph()
        saved, other = graph.placeholder("saved"), graph.placeholder("other")
        graph.output((saved, other))
        for n in (saved, other):
            n.meta["val"] = torch.empty(2, 3, 4, 1)
        saved.meta[SAVED] = True
        given = [torch.randn(2, 3, 4, 1).to(memory_format=torch.channels_last) for _ in range(2)]
        got = as_traced(torch.fx.GraphModule({}, graph), list)(list(given))
        self.assertEqual([t.is_contiguous() for t in got], [True, False])
        for a, b in zip(got, given):
            self.same(a, b)

    @ON_CPU
    def test_what_is_saved_may_have_sizes_of_data(self):
        def net(x, m, w):
            y = (x @ w)[:, torch.nonzero(m).squeeze(1)].exp()
            return _scaled(y).sum() + y.sum()

        self.addCleanup(setattr, torch._dynamo.config, "capture_dynamic_output_shape_ops", torch._dynamo.config.capture_dynamic_output_shape_ops)
        torch._dynamo.config.capture_dynamic_output_shape_ops = True
        run, x, w = torch.compile(net, backend="reprise"), torch.randn(3, 8), torch.randn(8, 8)
        for m in (torch.tensor([1, 0, 1, 1, 0, 1, 0, 0]), torch.tensor([1, 1, 1, 1, 0, 1, 0, 0])):
            got, want = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
            run(got[0], m, got[1]).backward()
            net(want[0], m, want[1]).backward()
            for a, b in zip(got, want):
                self.same(a.grad, b.grad)

    def test_what_was_tried_of_sizes_leaves_no_guard(self):
        env, source = ShapeEnv(), ConstantSource("n")
        n = env.create_symintnode(env.create_symbol(7, source, DimDynamic.DYNAMIC), hint=7, source=source)
        expression = n.node.expr

        def tried(ask, error=None):
            with for_all_sizes(env):
                self.assertTrue(ask())
                if error:
                    raise error

        for ask, error in ((lambda: n > 4, Absent("an op")), (lambda: n > 4, TypeError("a size")), (lambda: n == 7, None)):
            with self.assertRaises(Absent):
                tried(ask, error)
            self.assertEqual((env.guards, n.node.expr, env.bound_sympy(expression).lower), ([], expression, 2))
        tried(lambda: n > 4)
        self.assertEqual(len(env.guards), 1)

    def test_complex_numbers_like_real_ones(self):
        def f(x):
            return torch.view_as_real(torch.ones_like(x, dtype=torch.complex64) * x + torch.full_like(x, 1j, dtype=torch.complex64))

        self.check(f, torch.randn(3, 4), whole=False)

    def test_what_is_saved_may_lie_otherwise(self):
        forward, backward = torch.fx.Graph(), torch.fx.Graph()
        x = forward.placeholder("x")
        y = forward.call_function(torch.sin, (x,))
        z = forward.call_function(torch.cos, (y,))
        for n in (x, y, z):
            n.meta["val"] = torch.empty(2)
            backward.placeholder(n.name)
        forward.output((z, x, y, z))  # z is a result of the user's, x an argument
        graphs = [types.SimpleNamespace(graph=g) for g in (forward, backward)]
        mark_saved(*graphs, 1)
        for g in (forward, backward):
            self.assertEqual([n.name for n in g.nodes if SAVED in n.meta], ["sin"])
        for n in (*forward.nodes, *backward.nodes):
            n.meta.pop(SAVED, None)
        backward.call_function(torch.ops.aten.as_strided.default, (next(iter(backward.nodes)), (2,), (1,)))
        mark_saved(*graphs, 1)  # which goes by what lies in memory
        self.assertEqual([n for n in forward.nodes if SAVED in n.meta], [])


class Capsules(Door):
    """The same without torch's table of C functions, which older versions lack."""

    def setUp(self):
        super().setUp()
        bind(False)

    def tearDown(self):
        bind()

    def test_inference(self):
        self.check(lambda x, y: (x @ y, x > 0, x.t()), torch.randn(4, 4), torch.randn(4, 4))

    def test_training(self):
        self.trained(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), [torch.randn(6, 8)])


if __name__ == "__main__":
    unittest.main()
