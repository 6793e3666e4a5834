"""Models of different kinds, small, with random weights: what tests and the table of models.py run. A maker gives (model, keyword arguments,
loss): the loss is a function of the model's result."""
import torch
from torch import nn
from torch.nn import functional as F

ZOO = {}  # name: (kind, maker)


def entry(name, kind):
    def register(f):
        ZOO[name] = (kind, f)
        return f
    return register


def classes(logits):
    logits = logits[0] if isinstance(logits, tuple) else logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), torch.arange(logits.numel() // logits.shape[-1], device=logits.device) % logits.shape[-1])


def square(y):
    y = y[0] if isinstance(y, (tuple, list)) else y
    return (y.float() ** 2).mean()


def picture(n=2, size=64, channels=3):
    return torch.randn(n, channels, size, size)


# ---------------------------------------------------------------- plain


@entry("mlp", "mlp")
def _():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)), {"input": torch.randn(16, 32)}, classes


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, 16), kind(16, 24, num_layers=2, batch_first=True), nn.Linear(24, 50)

    def forward(self, tokens):
        y, _ = self.rnn(self.embed(tokens))
        return self.head(y)


def recurrent(kind):
    return Recurrent(kind), {"tokens": torch.randint(0, 50, (3, 7))}, classes


ZOO["lstm"] = ("recurrent", lambda: recurrent(nn.LSTM))
ZOO["gru"] = ("recurrent", lambda: recurrent(nn.GRU))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.right2, self.right1, self.out = block(32, 16), block(24, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.avg_pool2d(b, 2))
        b = self.right2(torch.cat([self.up2(c), b], 1))
        return self.out(self.right1(torch.cat([self.up1(b), a], 1)))


@entry("unet", "U-Net")
def _():
    return UNet(), {"x": picture(2, 32)}, square


class Experts(nn.Module):
    """Top-2 of 4 experts, all of them computed."""

    def __init__(self):
        super().__init__()
        self.gate, self.norm = nn.Linear(16, 4), nn.LayerNorm(16)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x):
        weight, index = torch.topk(self.gate(x).softmax(-1), 2)
        mask = torch.zeros(*x.shape[:-1], 4, device=x.device, dtype=x.dtype).scatter(-1, index, weight / weight.sum(-1, keepdim=True))
        return self.norm(x + (torch.stack([e(x) for e in self.experts], -1) * mask.unsqueeze(-2)).sum(-1))


@entry("experts", "mixture")
def _():
    return nn.Sequential(Experts(), Experts()), {"input": torch.randn(4, 6, 16)}, square


@entry("encoder", "transformer")
def _():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), {"src": torch.randn(2, 9, 32)}, square


# ---------------------------------------------------------------- torchvision


def without_drop(model):
    for m in model.modules():
        if isinstance(m, nn.Dropout) or type(m).__name__ == "StochasticDepth":
            m.p = 0.0
    return model


def vision(name, kind="convolution", size=64, **options):
    def make():
        import torchvision
        return without_drop(getattr(torchvision.models, name)(num_classes=10, **options)), {"x": picture(2, size)}, classes
    ZOO[name] = (kind, make)


vision("resnet18")
vision("mobilenet_v3_small")
vision("shufflenet_v2_x0_5")
vision("squeezenet1_1")
vision("mnasnet0_5")
vision("regnet_y_400mf")


@entry("densenet", "convolution")
def _():
    import torchvision
    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=10), {"x": picture(2, 48)}, classes


@entry("convnext", "convolution")
def _():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=10), {"x": picture(2, 48)}, classes


@entry("swin", "transformer")
def _():
    import torchvision
    return (torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10, stochastic_depth_prob=0.0), {"x": picture(2, 32)}, classes)


@entry("vit", "transformer")
def _():
    import torchvision
    return torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10), {"x": picture(2, 32)}, classes


@entry("deeplabv3", "segmentation")
def _():
    import torchvision
    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return without_drop(model), {"x": picture(2, 64)}, lambda y: square(y["out"])


@entry("r3d", "convolution")
def _():
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet
    return VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=10), {"x": torch.randn(2, 3, 4, 32, 32)}, classes


# ---------------------------------------------------------------- timm


def timm_model(name, kind, label=None, size=64, **options):
    def make():
        import timm
        return timm.create_model(name, num_classes=10, **options), {"x": picture(2, size)}, classes
    ZOO[label or name] = (kind, make)


@entry("mixer", "mlp")
def _():
    from timm.models.mlp_mixer import MlpMixer
    return MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32), {"x": picture(2, 32)}, classes


@entry("convmixer", "convolution")
def _():
    from timm.models.convmixer import ConvMixer
    return ConvMixer(32, 2, num_classes=10), {"x": picture(2, 32)}, classes


timm_model("ghostnet_050", "convolution", "ghostnet", drop_rate=0.0)
timm_model("poolformer_s12", "transformer", "poolformer")
timm_model("levit_128s", "transformer", "levit", size=224)
timm_model("coatnet_nano_rw_224", "hybrid", "coatnet", size=64, img_size=64)
timm_model("mobilevit_xxs", "hybrid", "mobilevit")
timm_model("xcit_nano_12_p16_224", "transformer", "xcit", size=64, img_size=64)
timm_model("efficientnet_lite0", "convolution", "efficientnet")


# ---------------------------------------------------------------- transformers


def language(label, kind, cls, config, loss=None, batch=None, **settings):
    def make():
        import transformers
        model = getattr(transformers, cls)(getattr(transformers, config)(**settings))
        given = batch() if batch else {"input_ids": torch.randint(0, 60, (2, 8))}
        return model, {**given, "return_dict": False}, loss or (classes if "LM" in cls else square)
    ZOO[label] = (kind, make)


small = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=32)
language("bert", "transformer", "BertForMaskedLM", "BertConfig", **small, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
language("distilbert", "transformer", "DistilBertModel", "DistilBertConfig", vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
         max_position_embeddings=32, dropout=0.0, attention_dropout=0.0)
language("gpt2", "transformer", "GPT2LMHeadModel", "GPT2Config", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False,
         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
language("llama", "transformer", "LlamaForCausalLM", "LlamaConfig", **small, num_key_value_heads=2, use_cache=False)
language("qwen2", "transformer", "Qwen2ForCausalLM", "Qwen2Config", **small, num_key_value_heads=2, use_cache=False)
language("mixtral", "mixture", "MixtralForCausalLM", "MixtralConfig", **small, num_key_value_heads=2, num_local_experts=4, use_cache=False,
         experts_implementation="batched_mm")
language("t5", "transformer", "T5ForConditionalGeneration", "T5Config", loss=classes, vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
         use_cache=False, dropout_rate=0.0,
         batch=lambda: {"input_ids": torch.randint(0, 60, (2, 8)), "decoder_input_ids": torch.randint(0, 60, (2, 6))})
language("mamba", "recurrent", "MambaForCausalLM", "MambaConfig", vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False)
language("wav2vec2", "audio", "Wav2Vec2Model", "Wav2Vec2Config", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
         conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0,
         attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False,
         batch=lambda: {"input_values": torch.randn(2, 400)})
language("whisper", "audio", "WhisperForConditionalGeneration", "WhisperConfig", loss=classes, vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2,
         decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20,
         max_target_positions=16, dropout=0.0, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
         batch=lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(0, 60, (2, 6))})
language("deberta", "transformer", "DebertaV2ForMaskedLM", "DebertaV2Config", **small, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
         norm_rel_ebd="layer_norm", share_att_key=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
language("rwkv", "recurrent", "RwkvForCausalLM", "RwkvConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32,
         intermediate_size=48, context_length=32, use_cache=False)
language("switch", "mixture", "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", loss=classes, vocab_size=64, d_model=32, d_kv=8,
         d_ff=48, num_layers=2, num_sparse_encoder_layers=1, num_decoder_layers=2, num_sparse_decoder_layers=1, num_heads=4, num_experts=4, use_cache=False,
         dropout_rate=0.0, router_jitter_noise=0.0,
         batch=lambda: {"input_ids": torch.randint(0, 60, (2, 8)), "decoder_input_ids": torch.randint(0, 60, (2, 6))})
language("clip", "transformer", "CLIPModel", "CLIPConfig", loss=square,
         text_config=dict(small, eos_token_id=2), vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8),
         projection_dim=16, batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("segformer", "segmentation", "SegformerForSemanticSegmentation", "SegformerConfig", loss=square, num_labels=4, depths=[1, 1, 1, 1],
         hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
         classifier_dropout_prob=0.0, drop_path_rate=0.0, batch=lambda: {"pixel_values": picture(2, 64)})
