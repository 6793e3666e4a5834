"""Models of kinds that zoo.py and families.py have few of, in the same ZOO: mixtures by products of groups, state spaces, diffusion, speech, detectors and
masks by queries, graphs, tables, series, fields and points; small and with random weights."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from families import all_of, causal, chosen, coder, low_rank, scanned, shared
from zoo import classes, entry, language, picture, square, still

# Those that compute norms, softmax or positions in float32 whatever they are given.
SINGLE_INSIDE = {"deepseek_v3", "ernie_moe", "granite_hybrid", "zamba2", "xlstm", "qwen2_vl", "nllb_moe"}

# ---------------------------------------------------------------- mixtures and state spaces

experts = dict(num_key_value_heads=2, experts_implementation="batched_mm")
for _label, _kind, _cls, _options in (
        ("deepseek_v3", "mixture", "DeepseekV3", dict(**chosen, **shared, **low_rank, num_key_value_heads=4)),
        ("ernie_moe", "mixture", "Ernie4_5_Moe", dict(**experts, moe_num_experts=4, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=1, moe_layer_start_index=1)),
        ("granite_hybrid", "mixture", "GraniteMoeHybrid", dict(**experts, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24,
                                                               layer_types=["mamba", "attention"], mamba_expand=1, **scanned)),
        ("zamba2", "recurrent", "Zamba2", dict(num_key_value_heads=4, layers_block_type=["mamba", "hybrid"], n_mamba_heads=4, mamba_headdim=16, mamba_d_state=4, mamba_ngroups=1,
                                               chunk_size=4, num_mem_blocks=1, use_mamba_kernels=False)),
        ("xlstm", "recurrent", "xLSTM", dict(num_heads=2, num_blocks=2, chunk_size=4, embedding_dim=32))):
    language(_label, _kind, _cls + "ForCausalLM", _cls + "Config", **{**causal, **_options})
language("nllb_moe", "mixture", "NllbMoeForConditionalGeneration", "NllbMoeConfig", loss=classes, **coder, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2,
         encoder_layerdrop=0.0, decoder_layerdrop=0.0, moe_token_dropout=0.0, router_jitter_noise=0.0,
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "decoder_input_ids": torch.randint(3, 60, (2, 6))})


@entry("s4", "recurrent")
def _():
    class StateSpace(nn.Module):
        """Diagonal state spaces: a convolution as long as the sequence, by its kernel's transform."""

        def __init__(self, width=8, states=4):
            super().__init__()
            self.rate, self.turn = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.randn(width, states))
            self.mix, self.step, self.skip = nn.Parameter(torch.randn(width, states, 2)), nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width))
            self.out = nn.Linear(width, 2 * width)

        def forward(self, x):
            n = x.shape[-1]
            a = torch.complex(-self.rate.exp(), self.turn) * self.step.exp().unsqueeze(-1)
            kernel = (torch.view_as_complex(self.mix).unsqueeze(-1) * (a.unsqueeze(-1) * torch.arange(n, device=x.device)).exp()).sum(1).real
            y = torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(kernel, n=2 * n), n=2 * n)[..., :n] + self.skip.unsqueeze(-1) * x
            return x + F.glu(self.out(F.gelu(y).transpose(-1, -2)), -1).transpose(-1, -2)
    return nn.Sequential(StateSpace(), StateSpace()), {"input": torch.randn(2, 8, 12)}, square


# ---------------------------------------------------------------- diffusion


def waves(t, width):
    """What says a step of time to a network."""
    angle = t.unsqueeze(-1) * torch.exp(-math.log(1e4) * torch.arange(width // 2, device=t.device, dtype=t.dtype) / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], -1)


@entry("latent_diffusion", "diffusion")
def _():
    class Block(nn.Module):
        def __init__(self, n, m, time, words):
            super().__init__()
            self.first, self.second, self.time = nn.Conv2d(n, m, 3, padding=1), nn.Conv2d(m, m, 3, padding=1), nn.Linear(time, 2 * m)
            self.norm, self.around, self.skip = nn.GroupNorm(4, n), nn.GroupNorm(4, m), nn.Conv2d(n, m, 1)
            self.cross, self.norm3 = nn.MultiheadAttention(m, 2, kdim=words, vdim=words, batch_first=True), nn.LayerNorm(m)

        def forward(self, x, t, words):
            scale, shift = self.time(F.silu(t))[..., None, None].chunk(2, 1)
            y = self.first(F.silu(self.norm(x)))
            y = self.skip(x) + self.second(F.silu(self.around(y) * (1 + scale) + shift))
            rows = y.flatten(2).transpose(1, 2)
            return y + self.cross(self.norm3(rows), words, words, need_weights=False)[0].transpose(1, 2).view(y.shape)

    class Net(nn.Module):
        """Noise of a picture at a step, given words."""

        def __init__(self):
            super().__init__()
            self.into, self.time = nn.Conv2d(4, 8, 3, padding=1), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.down, self.middle, self.up = Block(8, 16, 32, 12), Block(16, 16, 32, 12), Block(24, 8, 32, 12)
            self.smaller, self.out = nn.Conv2d(8, 8, 3, 2, 1), nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 4, 3, padding=1))

        def forward(self, x, t, words):
            t, x = self.time(waves(t, 16)), self.into(x)
            y = self.middle(self.down(self.smaller(x), t, words), t, words)
            return self.out(self.up(torch.cat([F.interpolate(y, scale_factor=2.0), x], 1), t, words))
    return Net(), {"x": torch.randn(2, 4, 16, 16), "t": torch.tensor([3.0, 700.0]), "words": torch.randn(2, 5, 12)}, square


@entry("diffusion_transformer", "diffusion")
def _():
    class Block(nn.Module):
        def __init__(self, width, n):
            super().__init__()
            self.norm, self.say, self.qkv, self.out, self.n = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 6 * width), nn.Linear(width, 3 * width), nn.Linear(width, width), n
            self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))

        def forward(self, x, c):
            a, b, g, d, e, h = self.say(F.silu(c)).unsqueeze(1).chunk(6, -1)
            q, k, v = self.qkv(self.norm(x) * (1 + a) + b).unflatten(-1, (3, self.n, -1)).permute(2, 0, 3, 1, 4)
            x = x + g * self.out(F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v).transpose(1, 2).flatten(2))
            return x + h * self.feed(self.norm(x) * (1 + d) + e)

    class Net(nn.Module):
        """Patches, normalised by time and label; the loss of a flow from noise to the picture."""

        def __init__(self, width=32):
            super().__init__()
            self.patch, self.label, self.time = nn.Conv2d(3, width, 4, 4), nn.Embedding(10, width), nn.Linear(16, width)
            self.blocks, self.out = nn.ModuleList(Block(width, 4) for _ in range(2)), nn.Linear(width, 48)

        def forward(self, x, noise, t, label):
            mixed = torch.lerp(noise, x, t[:, None, None, None])
            h, c = self.patch(mixed).flatten(2).transpose(1, 2), self.label(label) + self.time(waves(t * 1000, 16))
            for b in self.blocks:
                h = b(h, c)
            velocity = F.fold(self.out(h).transpose(1, 2), x.shape[-2:], 4, stride=4)
            return velocity, F.mse_loss(velocity, x - noise)
    return Net(), {"x": picture(2, 16), "noise": picture(2, 16), "t": torch.rand(2), "label": torch.randint(0, 10, (2,))}, lambda y: y[1]


# ---------------------------------------------------------------- speech

language("speecht5", "audio", "SpeechT5ForTextToSpeech", "SpeechT5Config", loss=all_of, vocab_size=64, hidden_size=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48,
         decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, num_mel_bins=8, speech_decoder_prenet_units=16, speech_decoder_prenet_dropout=0.0, speech_decoder_postnet_units=8,
         speech_decoder_postnet_dropout=0.0, speech_decoder_postnet_layers=2, speaker_embedding_dim=6, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
         positional_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0, use_cache=False,
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "decoder_input_values": torch.randn(2, 6, 8), "speaker_embeddings": torch.randn(2, 6)})
language("parakeet", "audio", "ParakeetForCTC", "ParakeetCTCConfig", loss=classes, vocab_size=16, pad_token_id=15,
         encoder_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_kernel_size=3, subsampling_conv_channels=8, num_mel_bins=16,
                             dropout=0.0, dropout_positions=0.0, layerdrop=0.0, activation_dropout=0.0, attention_dropout=0.0),
         batch=lambda: {"input_features": torch.randn(2, 32, 16)})

# ---------------------------------------------------------------- detection and segmentation by queries

resnet = dict(model_type="resnet", embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"], layer_type="basic")
queries = dict(d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=6,
               dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
language("conditional_detr", "detection", "ConditionalDetrModel", "ConditionalDetrConfig", loss=all_of, **queries, use_timm_backbone=False, use_pretrained_backbone=False,
         backbone_config=dict(resnet, out_features=["stage4"]), batch=lambda: {"pixel_values": picture(2, 64)})
language("deformable_detr", "detection", "DeformableDetrModel", "DeformableDetrConfig", loss=all_of, **queries, use_timm_backbone=False, use_pretrained_backbone=False,
         backbone_config=resnet, num_feature_levels=4, batch=lambda: {"pixel_values": picture(2, 64)})
language("mask2former", "segmentation", "Mask2FormerModel", "Mask2FormerConfig", loss=all_of, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=24, encoder_layers=1,
         decoder_layers=2, num_attention_heads=2, dim_feedforward=24, num_queries=4, dropout=0.0,
         backbone_config=dict(model_type="swin", image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, drop_path_rate=0.0,
                              out_features=["stage1", "stage2", "stage3", "stage4"]),
         batch=lambda: {"pixel_values": picture(1, 64)})
language("upernet", "segmentation", "UperNetForSemanticSegmentation", "UperNetConfig", loss=all_of, hidden_size=16, pool_scales=[1, 2], num_labels=4, auxiliary_channels=16,
         auxiliary_in_channels=16, backbone_config=dict(model_type="convnext", hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"], drop_path_rate=0.0),
         batch=lambda: {"pixel_values": picture(2, 64)})
language("vitpose", "detection", "VitPoseForPoseEstimation", "VitPoseConfig", loss=all_of, num_labels=5, scale_factor=2, use_simple_decoder=False,
         backbone_config=dict(model_type="vitpose_backbone", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=[32, 32], patch_size=[8, 8], out_features=["stage2"],
                              **still), batch=lambda: {"pixel_values": picture(2, 32)})

# ---------------------------------------------------------------- pictures and words

language("qwen2_vl", "transformer", "Qwen2VLModel", "Qwen2VLConfig", loss=all_of, image_token_id=63, video_token_id=62, vision_start_token_id=61, vision_end_token_id=60,
         text_config=dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64, use_cache=False,
                          rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])),
         vision_config=dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, mlp_ratio=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2),
         batch=lambda: {"input_ids": torch.randint(3, 50, (2, 8))})
language("canine", "transformer", "CanineModel", "CanineConfig", loss=all_of, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=64,
         downsampling_rate=2, upsampling_kernel_size=2, num_hash_functions=2, num_hash_buckets=32, local_transformer_stride=4, **still, batch=lambda: {"input_ids": torch.randint(3, 600, (2, 16))})

# ---------------------------------------------------------------- series


@entry("n_beats", "series")
def _():
    class Stack(nn.Module):
        def __init__(self, back, ahead, kind):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(back, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            grid = torch.linspace(-1, 1, back + ahead)
            self.register_buffer("basis", torch.stack([grid ** k for k in range(4)] if kind == "trend" else [f(math.pi * k * grid) for k in (1, 2) for f in (torch.cos, torch.sin)]))
            self.weight, self.back = nn.Linear(32, 4), back

        def forward(self, x):
            y = self.weight(self.body(x)) @ self.basis
            return x - y[:, :self.back], y[:, self.back:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stacks = nn.ModuleList(Stack(24, 8, kind) for kind in ("trend", "season", "trend"))

        def forward(self, x):
            scale = x.abs().amax(1, keepdim=True).clamp(min=1e-3)
            x, total = x / scale, 0
            for s in self.stacks:
                x, y = s(x)
                total = total + y
            return total * scale
    return Net(), {"x": torch.randn(4, 24)}, square


@entry("temporal_convolution", "series")
def _():
    def block(n, m, k):
        norm = nn.utils.parametrizations.weight_norm
        return nn.Sequential(nn.ConstantPad1d((2 * 2 ** k, 0), 0.0), norm(nn.Conv1d(n, m, 3, dilation=2 ** k)), nn.PReLU(m), nn.ConstantPad1d((2 * 2 ** k, 0), 0.0),
                             norm(nn.Conv1d(m, m, 3, dilation=2 ** k)), nn.PReLU(m))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.skips, self.quantiles = nn.ModuleList(block(3 if k == 0 else 12, 12, k) for k in range(3)), nn.ModuleList(nn.Conv1d(3 if k == 0 else 12, 12, 1) for k in range(3)), nn.Linear(12, 3)

        def forward(self, x, y):
            for b, s in zip(self.blocks, self.skips):
                x = F.relu(b(x) + s(x))
            q = self.quantiles(x[..., -1])
            error = y.unsqueeze(-1) - q
            at = torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype, device=x.device)
            return q, torch.maximum(at * error, (at - 1) * error).mean()
    return Net(), {"x": torch.randn(4, 3, 20), "y": torch.randn(4)}, lambda y: y[1]


# ---------------------------------------------------------------- tables


@entry("table_transformer", "table")
def _():
    class Net(nn.Module):
        """Columns as tokens: numbers in bins that overlap, classes by embeddings; one token more that is read."""

        def __init__(self, width=16, sizes=(3, 5, 7), numbers=4):
            super().__init__()
            self.register_buffer("begins", torch.tensor([0, *sizes[:-1]]).cumsum(0))
            self.register_buffer("edges", torch.randn(numbers, 6).sort(1)[0])
            self.kinds, self.bins, self.place = nn.Embedding(sum(sizes), width), nn.Parameter(torch.randn(numbers, 5, width) * 0.1), nn.Parameter(torch.randn(numbers, width))
            self.read = nn.Parameter(torch.randn(1, 1, width))
            layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 2)

        def forward(self, numbers, kinds):
            numbers = torch.where(numbers.isnan(), torch.nanmedian(numbers, 0)[0], numbers)
            low, high = self.edges[:, :-1], self.edges[:, 1:]
            within = ((numbers.unsqueeze(-1) - low) / (high - low)).clamp(0, 1)
            tokens = torch.einsum("bnk,nkw->bnw", within, self.bins) + self.place
            x = torch.cat([self.read.expand(len(numbers), -1, -1), tokens, self.kinds(kinds + self.begins)], 1)
            return self.head(self.body(x)[:, 0])
    numbers = torch.randn(8, 4)
    numbers[1, 2] = math.nan
    return Net(), {"numbers": numbers, "kinds": torch.randint(0, 3, (8, 3))}, classes


@entry("tab_net", "table")
def _():
    def sparsemax(x):
        sorted_, k = x.sort(-1, descending=True)[0], torch.arange(1, x.shape[-1] + 1, device=x.device)
        sums = sorted_.cumsum(-1) - 1
        support = (sorted_ * k > sums).sum(-1, keepdim=True)
        return (x - sums.gather(-1, support - 1) / support).clamp(min=0)

    class Ghost(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.norm = nn.BatchNorm1d(n)

        def forward(self, x):
            return torch.cat([self.norm(part) for part in x.chunk(2)])

    class Net(nn.Module):
        """Steps that choose columns by a sparse softmax, of what others have left."""

        def __init__(self, n=8, width=12, steps=3):
            super().__init__()
            self.norm = nn.BatchNorm1d(n)
            self.masks = nn.ModuleList(nn.Sequential(nn.Linear(width, n), Ghost(n)) for _ in range(steps))
            self.steps = nn.ModuleList(nn.Sequential(nn.Linear(n, 4 * width), Ghost(4 * width), nn.GLU()) for _ in range(steps + 1))
            self.head = nn.Linear(width, 3)

        def forward(self, x):
            x, left, total = self.norm(x), 1.0, 0.0
            a = self.steps[0](x)[:, 12:]
            for mask, step in zip(self.masks, self.steps[1:]):
                m = sparsemax(mask(a) * left)
                left = left * (1.3 - m)
                d, a = step(m * x).chunk(2, 1)
                total = total + F.relu(d)
            return self.head(total)
    return Net(), {"x": torch.randn(16, 8)}, classes


# ---------------------------------------------------------------- graphs, points and fields

edges = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 6, 7, 0, 2, 4], [1, 0, 2, 3, 4, 5, 6, 7, 0, 4, 6, 1]])


@entry("graph_attention", "graph")
def _():
    class Layer(nn.Module):
        def __init__(self, n, m, heads=2):
            super().__init__()
            self.of, self.into, self.heads = nn.Linear(n, m), nn.Linear(n, m), heads
            self.score = nn.Parameter(torch.randn(heads, m // heads))

        def forward(self, x, edges):
            source, target = edges
            a, b = self.of(x).unflatten(-1, (self.heads, -1)), self.into(x).unflatten(-1, (self.heads, -1))
            score = (F.leaky_relu(a[source] + b[target], 0.2) * self.score).sum(-1)
            at = target.unsqueeze(-1).expand_as(score)
            most = score.new_full((len(x), self.heads), -math.inf).scatter_reduce(0, at, score, "amax").detach()
            weight = (score - most[target]).exp()
            total = torch.zeros_like(most).index_add(0, target, weight)
            return torch.zeros_like(a).index_add(0, target, a[source] * (weight / total[target]).unsqueeze(-1)).flatten(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = Layer(6, 16), Layer(16, 16), nn.Linear(16, 3)

        def forward(self, x, edges, graph):
            x = F.elu(self.second(F.elu(self.first(x, edges)), edges))
            size = torch.bincount(graph, minlength=2).to(x.dtype).unsqueeze(-1)
            return self.head(x.new_zeros(2, 16).index_add(0, graph, x) / size)
    return Net(), {"x": torch.randn(8, 6), "edges": edges, "graph": torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])}, classes


@entry("equivariant_graph", "graph")
def _():
    class Net(nn.Module):
        """Energies of atoms by distances, and forces as their gradient."""

        def __init__(self, width=12):
            super().__init__()
            self.kinds, self.message = nn.Embedding(4, width), nn.Sequential(nn.Linear(2 * width + 8, width), nn.SiLU(), nn.Linear(width, width))
            self.update, self.energy = nn.GRUCell(width, width), nn.Linear(width, 1)

        def forward(self, kinds, place, edges):
            source, target = edges
            apart = (place[source] - place[target]).square().sum(-1).add(1e-6).sqrt()
            radial = torch.exp(-(apart.unsqueeze(-1) - torch.linspace(0, 3, 8, device=place.device, dtype=place.dtype)) ** 2) * (0.5 * (torch.cos(apart * 0.5) + 1)).unsqueeze(-1)
            h = self.kinds(kinds)
            for _ in range(2):
                m = self.message(torch.cat([h[source], h[target], radial], -1))
                h = self.update(torch.zeros_like(h).index_add(0, target, m), h)
            return self.energy(h).sum()
    return Net(), {"kinds": torch.randint(0, 4, (8,)), "place": torch.randn(8, 3), "edges": edges}, lambda y: y.square()


@entry("points", "graph")
def _():
    class Net(nn.Module):
        """Points by their neighbours: the nearest ones, the largest of what edges say."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU()), nn.Sequential(nn.Linear(32, 24), nn.LayerNorm(24), nn.ReLU())
            self.head = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))

        @staticmethod
        def neighbours(x, k=4):
            near = torch.cdist(x, x).topk(k, largest=False)[1]
            there = x.unsqueeze(1).expand(-1, x.shape[1], -1, -1).gather(2, near.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))
            here = x.unsqueeze(2).expand_as(there)
            return torch.cat([here, there - here], -1)

        def forward(self, x):
            x = self.first(self.neighbours(x)).amax(2)
            x = self.second(self.neighbours(x.detach())[..., :32] + torch.cat([x, x], -1).unsqueeze(2)).amax(2)
            return self.head(torch.cat([x.amax(1), x.mean(1)], -1))
    return Net(), {"x": torch.randn(2, 24, 3)}, classes


@entry("radiance_field", "field")
def _():
    class Net(nn.Module):
        """Colours along rays, by how much light is left at each place."""

        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(30, 32), nn.Softplus(), nn.Linear(32, 32), nn.Softplus()), nn.Linear(32, 4)

        def forward(self, origin, direction):
            along = torch.linspace(0.5, 3, 12, device=origin.device, dtype=origin.dtype)
            place = origin.unsqueeze(1) + direction.unsqueeze(1) * along[:, None]
            angle = (place.unsqueeze(-1) * 2.0 ** torch.arange(5, device=origin.device)).flatten(-2)
            density, colour = self.head(self.body(torch.cat([angle.sin(), angle.cos()], -1))).split([1, 3], -1)
            solid = 1 - torch.exp(-F.relu(density.squeeze(-1)) * torch.diff(along, append=along[-1:] + 1))
            left = torch.cumprod(torch.cat([torch.ones_like(solid[:, :1]), 1 - solid + 1e-9], 1), 1)[:, :-1]
            return ((solid * left).unsqueeze(-1) * colour.sigmoid()).sum(1)
    return Net(), {"origin": torch.randn(6, 3), "direction": F.normalize(torch.randn(6, 3), dim=-1)}, square


@entry("splines", "field")
def _():
    class Layer(nn.Module):
        """Sums of functions of one number each, which are splines."""

        def __init__(self, n, m, grid=5, order=3):
            super().__init__()
            self.register_buffer("knots", (torch.arange(-order, grid + order + 1) * 2 / grid - 1).to(torch.float32))
            self.base, self.weight, self.order = nn.Linear(n, m), nn.Parameter(torch.randn(m, n, grid + order) * 0.1), order

        def forward(self, x):
            t, at = self.knots.to(x.dtype), x.unsqueeze(-1)
            b = ((at >= t[:-1]) & (at < t[1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                b = (at - t[:-k - 1]) / (t[k:-1] - t[:-k - 1]) * b[..., :-1] + (t[k + 1:] - at) / (t[k + 1:] - t[1:-k]) * b[..., 1:]
            return self.base(F.silu(x)) + torch.einsum("bnk,mnk->bm", b, self.weight)
    return nn.Sequential(Layer(4, 8), Layer(8, 3)), {"input": torch.randn(8, 4).tanh()}, classes
