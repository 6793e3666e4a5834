"""Models of different kinds, small, with random weights: what models.py runs. A maker gives (model, keyword arguments,
loss): the loss is a function of the model's result."""
import math

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
        if type(m).__name__ == "DropPath":
            m.drop_prob = 0.0
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
        return without_drop(timm.create_model(name, num_classes=10, **options)), {"x": picture(2, size)}, classes
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
         text_config=dict(small, eos_token_id=2), vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
                                                                     patch_size=8),
         projection_dim=16, batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("segformer", "segmentation", "SegformerForSemanticSegmentation", "SegformerConfig", loss=square, num_labels=4, depths=[1, 1, 1, 1],
         hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
         classifier_dropout_prob=0.0, drop_path_rate=0.0, batch=lambda: {"pixel_values": picture(2, 64)})


# ---------------------------------------------------------------- more of each kind


@entry("vgg", "convolution")
def _():
    from torchvision.models.vgg import VGG, make_layers
    model = VGG(make_layers([8, "M", 16, "M", 32, 32, "M"], batch_norm=True))
    model.classifier = nn.Sequential(nn.Linear(32 * 49, 64), nn.ReLU(True), nn.Linear(64, 10))
    return model, {"x": picture(2, 56)}, classes


@entry("inception", "convolution")
def _():
    import torchvision
    model = torchvision.models.inception_v3(num_classes=10, init_weights=False, aux_logits=False, dropout=0.0)
    return model, {"x": picture(2, 75)}, classes


@entry("googlenet", "convolution")
def _():
    import torchvision
    model = torchvision.models.googlenet(num_classes=10, init_weights=False, aux_logits=False, dropout=0.0)
    return model, {"x": picture(2, 64)}, classes


@entry("swin_v2", "transformer")
def _():
    import torchvision
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2
    return (torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10, stochastic_depth_prob=0.0, block=SwinTransformerBlockV2,
                                               downsample_layer=PatchMergingV2), {"x": picture(2, 32)}, classes)


@entry("maxvit", "hybrid")
def _():
    import torchvision
    model = torchvision.models.MaxVit((64, 64), 16, 4, [16, 32], [1, 2], 8, 0.0, num_classes=10)
    return model, {"x": picture(2, 64)}, classes


@entry("fcn", "segmentation")
def _():
    import torchvision
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead
    backbone = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    return without_drop(FCN(IntermediateLayerGetter(backbone, {"layer3": "out"}), FCNHead(256, 4))), {"x": picture(2, 48)}, lambda y: square(y["out"])


@entry("lraspp", "segmentation")
def _():
    import torchvision
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return model, {"input": picture(2, 64)}, lambda y: square(y["out"])


class Detector(nn.Module):
    """What of a detector is not boxes chosen by data: a pyramid of features, its heads, and anchors decoded from them."""

    def __init__(self):
        super().__init__()
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
        from torchvision.models.detection.retinanet import RetinaNetHead
        from torchvision.models.detection.anchor_utils import AnchorGenerator
        self.backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
        self.head = RetinaNetHead(self.backbone.out_channels, 3, 4)
        self.anchors = AnchorGenerator(((16, 24, 32),) * 5, ((1.0,),) * 5)

    def forward(self, x):
        from torchvision.models.detection.image_list import ImageList
        features = list(self.backbone(x).values())
        found = self.head(features)
        anchors = torch.stack(self.anchors(ImageList(x, [tuple(x.shape[-2:])] * x.shape[0]), features))
        size = anchors[..., 2:] - anchors[..., :2]
        middle = anchors[..., :2] + size / 2 + found["bbox_regression"][..., :2] * size
        half = size * found["bbox_regression"][..., 2:].clamp(max=4).exp() / 2
        return torch.cat([middle - half, middle + half], -1) / 64, found["cls_logits"].sigmoid()


@entry("retinanet", "detection")
def _():
    return Detector(), {"x": picture(2, 64)}, lambda y: square(y[0]) + square(y[1])


for _name, _label, _options in (
        ("mobilenetv3_small_050", "mobilenetv3", {}), ("mobilenetv4_conv_small_035", "mobilenetv4", {}), ("test_byobnet", "byobnet", {}),
        ("test_efficientnet_evos", "evonorm", {}), ("test_efficientnet_gn", "efficientnet_gn", {}), ("test_nfnet", "nfnet", {}),
        ("hrnet_w18_small", "hrnet", {}), ("repvgg_a0", "repvgg", {}), ("mobileone_s0", "mobileone", {}), ("ese_vovnet19b_slim", "vovnet", {}),
        ("dla46_c", "dla", {}), ("resnest14d", "resnest", {}), ("skresnet18", "skresnet", {}), ("starnet_s050", "starnet", {}),
        ("lcnet_035", "lcnet", {}), ("hgnetv2_b0", "hgnet", {}), ("repvit_m0_9", "repvit", {}), ("inception_next_atto", "inception_next", {}),
        ("regnetz_005", "regnetz", {}), ("res2net50_48w_2s", "res2net", {"layers": (1, 1, 1, 1)}), ("lambda_resnet26t", "lambda", {}),
        ("resnetblur18", "resnet_blur", {}), ("selecsls42", "selecsls", {}), ("dpn48b", "dpn", {}),
        ("cs3darknet_focus_s", "darknet", {}), ("gernet_s", "gernet", {})):
    timm_model(_name, "convolution", _label, **_options)

for _name, _label, _size, _options in (
        ("test_vit", "vit_test", 160, {}), ("test_vit4", "vit_rope", 160, {}), ("test_vit_relpos", "vit_relpos", 160, {}),
        ("deit_tiny_distilled_patch16_224", "deit", 64, dict(img_size=64, depth=2)), ("deit3_small_patch16_224", "deit3", 64, dict(img_size=64, depth=2)),
        ("cait_xxs24_224", "cait", 64, dict(img_size=64, depth=2, depth_token_only=1)),
        ("beit_base_patch16_224", "beit", 64, dict(img_size=64, depth=2, embed_dim=96, num_heads=3)),
        ("eva02_tiny_patch14_224", "eva02", 56, dict(img_size=56, depth=2)),
        ("swinv2_cr_tiny_224", "swin_v2_cr", 64, dict(img_size=64, window_size=2, depths=(1, 1, 1, 1), embed_dim=24, num_heads=(1, 2, 3, 4))),
        ("swin_tiny_patch4_window7_224", "swin_timm", 64, dict(img_size=64, window_size=4, depths=(2, 1, 1, 1), embed_dim=24, num_heads=(1, 2, 3, 4))),
        ("swinv2_tiny_window8_256", "swin_v2_timm", 64, dict(img_size=64, window_size=4, depths=(2, 1, 1, 1), embed_dim=24, num_heads=(1, 2, 3, 4))),
        ("coat_lite_tiny", "coat", 64, dict(img_size=64, serial_depths=(1, 1, 1, 1))),
        ("convit_tiny", "convit", 64, dict(img_size=64, depth=3, local_up_to_layer=2)),
        ("crossvit_9_240", "crossvit", 240, {}), ("twins_svt_small", "twins", 64, dict(img_size=64, depths=(1, 1, 2, 1))),
        ("pvt_v2_b0", "pvt", 64, {}), ("edgenext_xx_small", "edgenext", 64, {}), ("efficientformerv2_s0", "efficientformer", 224, {}),
        ("efficientvit_b0", "efficientvit", 64, {}), ("fastvit_t8", "fastvit", 64, {}),
        ("pit_ti_224", "pit", 224, dict(depth=(1, 1, 1))),
        ("sequencer2d_s", "sequencer", 64, dict(layers=(1, 1, 1, 1))),
        ("tnt_s_patch16_224", "tnt", 64, dict(img_size=64, depth=2)), ("visformer_tiny", "visformer", 64, dict(img_size=64, depth=(1, 1, 1))),
        ("davit_tiny", "davit", 64, dict(depths=(1, 1, 1, 1))), ("tiny_vit_5m_224", "tiny_vit", 224, dict(depths=(1, 1, 1, 1))),
        ("hiera_tiny_224", "hiera", 64, dict(img_size=64, stages=(1, 1, 1, 1))),
        ("swiftformer_xs", "swiftformer", 64, {}), ("shvit_s1", "shvit", 64, {}), ("test_mambaout", "mambaout", 64, {}), ("mobilevitv2_050", "mobilevitv2", 64, {}),
        ("halonet26t", "halonet", 256, {}),
        ("samvit_base_patch16", "samvit", 64, dict(img_size=64, depth=2, embed_dim=96, num_heads=3, global_attn_indexes=(1,), window_size=2)),
        ("naflexvit_base_patch16_gap", "naflexvit", 64, dict(depth=2, embed_dim=96, num_heads=3))):
    timm_model(_name, "transformer", _label, size=_size, **_options)


def timm_class(label, module, cls, kind="transformer", size=64, parts=None, **options):
    def make():
        import importlib
        m = importlib.import_module("timm.models." + module)
        return without_drop(getattr(m, cls)(num_classes=10, **options, **{k: getattr(m, v) for k, v in (parts or {}).items()})), {"x": picture(2, size)}, classes
    ZOO[label] = (kind, make)


timm_class("resmlp", "mlp_mixer", "MlpMixer", "mlp", 32, {"block_layer": "ResBlock"}, img_size=32, patch_size=8, num_blocks=2, embed_dim=32, mlp_ratio=4)
timm_class("gmlp", "mlp_mixer", "MlpMixer", "mlp", 32, {"block_layer": "SpatialGatingBlock", "mlp_layer": "GatedMlp"}, img_size=32, patch_size=8, num_blocks=2,
           embed_dim=32, mlp_ratio=4)
timm_class("volo", "volo", "VOLO", img_size=64, layers=(1, 1), embed_dims=(32, 48), num_heads=(2, 4), downsamples=(True, False), outlook_attention=(True, False),
           mlp_ratio=2.0, use_aux_head=False)
timm_class("focalnet", "focalnet", "FocalNet", embed_dim=16, depths=(1, 1, 1, 1))
timm_class("caformer", "metaformer", "MetaFormer", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))
timm_class("gcvit", "gcvit", "GlobalContextVit", size=128, img_size=128, window_ratio=(32, 32, 16, 32), depths=(1, 1, 1, 1), embed_dim=16, num_heads=(1, 2, 2, 4))
timm_class("nest", "nest", "Nest", img_size=64, num_levels=2, embed_dims=(16, 32), num_heads=(1, 2), depths=(1, 1))


still = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
language("roberta", "transformer", "RobertaForMaskedLM", "RobertaConfig", **small, **still)
language("albert", "transformer", "AlbertForMaskedLM", "AlbertConfig", **small, embedding_size=16)
language("electra", "transformer", "ElectraForMaskedLM", "ElectraConfig", loss=classes, **small, **still, embedding_size=16)
language("mobilebert", "transformer", "MobileBertForMaskedLM", "MobileBertConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
         intermediate_size=48, intra_bottleneck_size=16, embedding_size=16, max_position_embeddings=32, attention_probs_dropout_prob=0.0)
language("modernbert", "transformer", "ModernBertForMaskedLM", "ModernBertConfig", **small, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
         sep_token_id=2)
language("gpt_neo", "transformer", "GPTNeoForCausalLM", "GPTNeoConfig", vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
         attention_types=[[["global", "local"], 1]], window_size=4, max_position_embeddings=32, use_cache=False)
language("gpt_neox", "transformer", "GPTNeoXForCausalLM", "GPTNeoXConfig", **small, use_cache=False)
language("gptj", "transformer", "GPTJForCausalLM", "GPTJConfig", vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, use_cache=False)
language("opt", "transformer", "OPTForCausalLM", "OPTConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, ffn_dim=48, num_attention_heads=4,
         max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0, use_cache=False)
language("bloom", "transformer", "BloomForCausalLM", "BloomConfig", vocab_size=64, hidden_size=32, n_layer=2, n_head=4, use_cache=False)
language("falcon", "transformer", "FalconForCausalLM", "FalconConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, use_cache=False)
language("mpt", "transformer", "MptForCausalLM", "MptConfig", vocab_size=64, d_model=32, n_heads=4, n_layers=2, max_seq_len=32, use_cache=False)
language("mistral", "transformer", "MistralForCausalLM", "MistralConfig", **small, num_key_value_heads=2, sliding_window=4, use_cache=False)
language("gemma", "transformer", "GemmaForCausalLM", "GemmaConfig", **small, num_key_value_heads=1, head_dim=8, use_cache=False)
language("gemma2", "transformer", "Gemma2ForCausalLM", "Gemma2Config", **small, num_key_value_heads=2, head_dim=8, sliding_window=4, use_cache=False)
language("phi", "transformer", "PhiForCausalLM", "PhiConfig", **small, use_cache=False)
language("qwen3_moe", "mixture", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **small, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
         moe_intermediate_size=24, use_cache=False, experts_implementation="batched_mm")
language("deepseek", "mixture", "DeepseekV3ForCausalLM", "DeepseekV3Config", **small, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
         topk_group=1, moe_intermediate_size=24, kv_lora_rank=8, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
         use_cache=False, experts_implementation="batched_mm")
language("gpt_oss", "mixture", "GptOssForCausalLM", "GptOssConfig", **small, num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
         sliding_window=4, use_cache=False, experts_implementation="batched_mm")
language("bart", "transformer", "BartForConditionalGeneration", "BartConfig", loss=classes, vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, dropout=0.0, use_cache=False,
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "decoder_input_ids": torch.randint(3, 60, (2, 6))})
language("pegasus", "transformer", "PegasusForConditionalGeneration", "PegasusConfig", loss=classes, vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, dropout=0.0, use_cache=False,
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "decoder_input_ids": torch.randint(3, 60, (2, 6))})
language("mamba2", "recurrent", "Mamba2ForCausalLM", "Mamba2Config", vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=8,
         n_groups=1, chunk_size=4, use_cache=False)
language("xlnet", "transformer", "XLNetLMHeadModel", "XLNetConfig", vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=48, dropout=0.0, use_mems_eval=False,
         use_mems_train=False)
language("funnel", "transformer", "FunnelForMaskedLM", "FunnelConfig", vocab_size=64, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48,
         hidden_dropout=0.0, attention_dropout=0.0)
language("longformer", "transformer", "LongformerForMaskedLM", "LongformerConfig", **{**small, **still}, attention_window=[4, 4],
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8))})
language("bigbird", "transformer", "BigBirdForMaskedLM", "BigBirdConfig", **{**small, **still}, attention_type="original_full")
language("fnet", "transformer", "FNetForMaskedLM", "FNetConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=48, hidden_dropout_prob=0.0)
language("reformer", "transformer", "ReformerModelWithLMHead", "ReformerConfig", loss=classes, vocab_size=64, hidden_size=32, attention_head_size=8,
         attn_layers=["local", "local"],
         axial_pos_embds=False, feed_forward_size=48, num_attention_heads=4, is_decoder=True, local_attn_chunk_length=4, max_position_embeddings=32,
         hidden_dropout_prob=0.0,
         local_attention_probs_dropout_prob=0.0, use_cache=False)
language("layoutlm", "transformer", "LayoutLMModel", "LayoutLMConfig", **small, **still, batch=lambda: {
    "input_ids": torch.randint(0, 60, (2, 8)), "bbox": torch.arange(64).reshape(2, 8, 4) % 32})
language("tapas", "transformer", "TapasModel", "TapasConfig", **small, **still, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4], batch=lambda: {
    "input_ids": torch.randint(0, 60, (2, 8)), "token_type_ids": torch.randint(0, 2, (2, 8, 7))})
language("vit_mae", "transformer", "ViTMAEModel", "ViTMAEConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
         patch_size=8,
         **still, batch=lambda: {"pixel_values": picture(2, 32), "noise": torch.rand(2, 16)})
language("dinov2", "transformer", "Dinov2Model", "Dinov2Config", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=7, **still,
         batch=lambda: {"pixel_values": picture(2, 28)})
language("siglip", "transformer", "SiglipModel", "SiglipConfig", loss=square,
         text_config=dict(small, projection_size=32),
         vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8),
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("convnextv2", "convolution", "ConvNextV2Model", "ConvNextV2Config", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
         batch=lambda: {"pixel_values": picture(2, 64)})
language("hubert", "audio", "HubertModel", "HubertConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
         conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0,
         attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False,
         batch=lambda: {"input_values": torch.randn(2, 400)})
language("conformer", "audio", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
         conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0,
         attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False,
         conv_depthwise_kernel_size=7,
         conformer_conv_dropout=0.0, batch=lambda: {"input_values": torch.randn(2, 400)})
language("detr", "detection", "DetrForObjectDetection", "DetrConfig", loss=lambda y: square(y[0]) + square(y[1]), use_timm_backbone=False,
         use_pretrained_backbone=False, backbone=None,
         backbone_config={"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "out_features": ["stage4"],
                          "layer_type": "basic"},
         d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=5,
         dropout=0.0, batch=lambda: {"pixel_values": picture(2, 64)})
language("time_series", "transformer", "PatchTSTModel", "PatchTSTConfig", num_input_channels=2, context_length=32, patch_length=8, patch_stride=8,
         num_hidden_layers=2, d_model=32,
         num_attention_heads=4, ffn_dim=48, scaling="std", batch=lambda: {"past_values": torch.randn(2, 32, 2)})
language("encodec", "audio", "EncodecModel", "EncodecConfig", loss=lambda y: square(y[-1]), num_filters=4, hidden_size=8, codebook_size=16, codebook_dim=8,
         upsampling_ratios=[4, 2],
         num_lstm_layers=1, target_bandwidths=[6.0], sampling_rate=800, batch=lambda: {"input_values": torch.randn(1, 1, 160)})


# ---------------------------------------------------------------- plain programs


class Packed(nn.Module):
    """A bidirectional layer over sequences of different lengths, packed."""

    def __init__(self, kind):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, 16), kind(16, 24, batch_first=True, bidirectional=True), nn.Linear(48, 5)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        y, _ = self.rnn(packed)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        return self.head(y.mean(1))


for _kind in (nn.LSTM, nn.GRU):
    ZOO[_kind.__name__.lower() + "_packed"] = ("recurrent",
        lambda kind=_kind: (Packed(kind), {"tokens": torch.randint(0, 50, (3, 7)), "lengths": torch.tensor([5, 7, 2])}, classes))


@entry("seq2seq", "transformer")
def _():
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(40, 32), nn.Embedding(40, 32)
            self.both, self.head = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True), nn.Linear(32, 40)
            self.both.encoder.enable_nested_tensor = False

        def forward(self, source, target):
            later = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device, dtype=self.head.weight.dtype)
            return self.head(self.both(self.source(source), self.target(target), tgt_mask=later, tgt_is_causal=True, src_key_padding_mask=source == 0))
    return Translator(), {"source": torch.randint(1, 40, (2, 9)), "target": torch.randint(0, 40, (2, 7))}, classes


@entry("autoencoder", "convolution")
def _():
    class Auto(nn.Module):
        """A variational one, whose noise is given."""

        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(16 * 49, 20))
            self.up = nn.Sequential(nn.Linear(10, 16 * 49), nn.Unflatten(1, (16, 7, 7)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ELU(),
                                    nn.ConvTranspose2d(8, 1, 4, 2, 1))

        def forward(self, x, noise):
            mean, log = self.down(x).chunk(2, 1)
            logits = self.up(mean + noise * (log / 2).exp())
            return F.binary_cross_entropy_with_logits(logits, x.sigmoid(), reduction="none").sum((1, 2, 3)) - 0.5 * (1 + log - mean ** 2 - log.exp()).sum(1)
    return Auto(), {"x": torch.randn(3, 1, 28, 28), "noise": torch.randn(3, 10)}, lambda y: y.mean() / 1000


@entry("gan", "convolution")
def _():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            sn = nn.utils.parametrizations.spectral_norm
            self.make = nn.Sequential(nn.ConvTranspose2d(16, 16, 4, 1, 0), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 3, 4, 4, 0), nn.Tanh())
            self.judge = nn.Sequential(sn(nn.Conv2d(3, 16, 4, 2, 1)), nn.LeakyReLU(0.2, True), nn.InstanceNorm2d(16, affine=True), sn(nn.Conv2d(16, 1, 8)))

        def forward(self, noise, real):
            fake = self.make(noise)
            return F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake.detach())).mean(), F.softplus(-self.judge(fake)).mean()
    return Pair(), {"noise": torch.randn(2, 16, 1, 1), "real": picture(2, 16)}, lambda y: y[0] + y[1]


@entry("actor_critic", "reinforcement")
def _():
    class Actor(nn.Module):
        """PPO's loss, of actions that are numbers and of ones that are choices."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
            self.choice, self.mean, self.value, self.log = nn.Linear(32, 4), nn.Linear(32, 2), nn.Linear(32, 1), nn.Parameter(torch.zeros(2))

        def forward(self, state, choice, move, before, gain, returns):
            from torch.distributions import Categorical, Independent, Normal
            y = self.body(state)
            a, b = Categorical(logits=self.choice(y)), Independent(Normal(self.mean(y), self.log.exp()), 1)
            ratio = (a.log_prob(choice) + b.log_prob(move) - before).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            return -clipped.mean() + 0.5 * F.smooth_l1_loss(self.value(y).squeeze(-1), returns) - 0.01 * (a.entropy() + b.entropy()).mean()
    n = 16
    return Actor(), {"state": torch.randn(n, 6), "choice": torch.randint(0, 4, (n,)), "move": torch.randn(n, 2), "before": torch.randn(n) - 3,
                     "gain": torch.randn(n),
                     "returns": torch.randn(n)}, lambda y: y


@entry("distributions", "reinforcement")
def _():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(5, 12)

        def forward(self, x):
            import torch.distributions as d
            a, b, c = (F.softplus(t) + 0.1 for t in self.w(x).chunk(3, -1))
            u = torch.sigmoid(self.w(x))[..., :4] * 0.98 + 0.01
            found = [d.Beta(a, b).log_prob(u), d.Gamma(a, b).log_prob(c), d.Dirichlet(a).log_prob(b / b.sum(-1, keepdim=True)), d.Laplace(a, b).log_prob(c),
                     d.StudentT(a + 2).log_prob(b),
                     d.Poisson(a).log_prob(torch.full_like(a, 3)), d.LogNormal(a, b).log_prob(c), d.Gumbel(a, b).log_prob(c), d.Bernoulli(u).entropy(),
                     d.Cauchy(a, b).log_prob(c),
                     d.kl_divergence(d.Normal(a, b), d.Normal(b, c)), d.kl_divergence(d.Beta(a, b), d.Beta(b, c)),
                     d.MultivariateNormal(a, torch.diag_embed(b)).log_prob(c),
                     d.VonMises(a, b).log_prob(c), d.Weibull(a, b).log_prob(c), d.ContinuousBernoulli(u).log_prob(u),
                     d.Binomial(5, u).log_prob(torch.full_like(a, 2)),
                     d.TransformedDistribution(d.Normal(a, b), [d.TanhTransform()]).log_prob(u * 0.9)]
            return sum(t.sum() for t in found)
    return Many(), {"x": torch.randn(3, 5)}, lambda y: y / 100


@entry("diffusion", "U-Net")
def _():
    class Step(nn.Module):
        """The loss of one step: noise at a time that is looked up, and a U-Net that is told of it by sines."""

        def __init__(self):
            super().__init__()
            self.net, self.time = UNet(), nn.Linear(16, 3)
            self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

        def forward(self, x, t, noise):
            a = self.kept[t][:, None, None, None]
            angle = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(8, device=x.device, dtype=x.dtype) / 8)
            told = self.time(torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype))[:, :, None, None]
            return F.mse_loss(self.net(a.sqrt() * x + (1 - a).sqrt() * noise + told), noise[:, :2])
    return Step(), {"x": picture(2, 32), "t": torch.tensor([3, 70]), "noise": picture(2, 32)}, lambda y: y


@entry("graph_network", "graph")
def _():
    class Messages(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.score = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(32, 1)

        def forward(self, x, edges):
            source, target = edges
            y = self.a(x)
            score = F.leaky_relu(self.score(torch.cat([y[source], y[target]], -1)).squeeze(-1))
            high = torch.full((x.shape[0],), -torch.inf, dtype=x.dtype, device=x.device).scatter_reduce(0, target, score.detach(), "amax")
            weight = (score - high[target]).exp()
            weight = weight / torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).index_add(0, target, weight)[target]
            y = torch.zeros_like(y).index_add(0, target, weight[:, None] * y[source])
            return self.b(F.elu(y))
    return Messages(), {"x": torch.randn(10, 8), "edges": torch.cat([torch.arange(10).repeat(2, 1), torch.randint(0, 10, (2, 30))], 1)}, classes


@entry("recommender", "mlp")
def _():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode=m) for m in ("sum", "mean"))
            self.low, self.high = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Sequential(nn.Linear(8 + 3, 16), nn.PReLU(), nn.Linear(16, 1))

        def forward(self, numbers, ids):
            parts = [self.low(numbers), *(bag(ids) for bag in self.bags)]
            t = torch.stack(parts, 1)
            i, j = torch.tril_indices(3, 3, offset=-1, device=t.device)
            return self.high(torch.cat([parts[0], (t @ t.mT)[:, i, j]], 1)).squeeze(-1)
    return Wide(), {"numbers": torch.randn(4, 5), "ids": torch.randint(0, 20, (4, 3))}, lambda y: F.binary_cross_entropy_with_logits(y, torch.ones_like(y))


@entry("tagger", "recurrent")
def _():
    class Tagger(nn.Module):
        """Convolutions over letters, a recurrence, and a CTC loss."""

        def __init__(self):
            super().__init__()
            self.conv, self.rnn, self.head = nn.Conv1d(6, 16, 5, 2, 2), nn.RNN(16, 16, nonlinearity="relu", bidirectional=True), nn.Linear(32, 7)

        def forward(self, x, labels):
            y, _ = self.rnn(F.silu(self.conv(x)).permute(2, 0, 1))
            y = self.head(y).log_softmax(-1)
            n = torch.full((x.shape[0],), y.shape[0])
            return F.ctc_loss(y, labels, n, torch.full_like(n, labels.shape[1]))
    return Tagger(), {"x": torch.randn(2, 6, 24), "labels": torch.randint(1, 7, (2, 4))}, lambda y: y


@entry("losses", "mlp")
def _():
    class Losses(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(8, 8)

        def forward(self, x, t):
            y, z = self.w(x), self.w(x.flip(0))
            sign = (t % 2 * 2 - 1).to(x.dtype)
            return sum((F.cross_entropy(y, t, label_smoothing=0.1), F.cross_entropy(y, y.detach().softmax(-1)), F.multi_margin_loss(y, t),
                        F.kl_div(y.log_softmax(-1), z.softmax(-1), reduction="batchmean"),
                        F.huber_loss(y, z), F.smooth_l1_loss(y, z), F.cosine_embedding_loss(y, z, sign), F.triplet_margin_loss(y, z, x),
                        F.margin_ranking_loss(y[:, 0], z[:, 0], sign),
                        F.hinge_embedding_loss(y, sign[:, None].expand_as(y)), F.soft_margin_loss(y, sign[:, None].expand_as(y)),
                        F.poisson_nll_loss(y, z.abs()), F.gaussian_nll_loss(y, z, x.abs() + 0.1),
                        F.multilabel_soft_margin_loss(y, (x > 0).to(x.dtype)), F.multilabel_margin_loss(y, t[:, None].expand(-1, 8).contiguous()),
                        F.pairwise_distance(y, z).mean(), torch.cdist(y, z).mean(),
                        F.logsigmoid(y).mean(), F.gumbel_softmax(y, hard=False).detach().sum() * 0))
    return Losses(), {"x": torch.randn(6, 8), "t": torch.randint(0, 8, (6,))}, lambda y: y


@entry("layers", "convolution")
def _():
    class Layers(nn.Module):
        """Layers that few models have."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.CELU(), nn.LocalResponseNorm(3), nn.ReplicationPad2d(2), nn.LPPool2d(2, 2),
                                      nn.Softshrink(0.1), nn.ZeroPad2d(1),
                                      nn.FractionalMaxPool2d(2, output_ratio=0.8, _random_samples=torch.full((2, 8, 2), 0.3)), nn.PixelShuffle(2),
                                      nn.Hardshrink(0.05), nn.ChannelShuffle(2), nn.CircularPad2d(1),
                                      nn.Conv2d(2, 8, 3, padding_mode="circular", padding=1), nn.Softplus(), nn.AdaptiveMaxPool2d((5, 7)), nn.GroupNorm(2, 8),
                                      nn.Upsample(scale_factor=1.5, mode="bicubic"), nn.Softsign(),
                                      nn.AdaptiveAvgPool2d((4, 3)), nn.Flatten(), nn.Linear(96, 6), nn.Tanhshrink(), nn.Softmin(-1))
            self.pair, self.unpool = nn.Bilinear(6, 6, 5), nn.MaxUnpool2d(2)
            self.shift = nn.Parameter(torch.tensor([[1.0, 0.1, 0.0], [-0.1, 0.9, 0.2]]))

        def forward(self, x):
            y = self.body(x)
            p, i = F.max_pool2d(x, 2, return_indices=True)
            grid = F.affine_grid(self.shift.expand(x.shape[0], 2, 3), x.shape, align_corners=False)
            z = F.grid_sample(self.unpool(p, i) + x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
            z = F.fold(F.unfold(z, 3, padding=1, stride=2), x.shape[-2:], 3, padding=1, stride=2)
            return self.pair(y, y) + z.mean((1, 2, 3))[:, None] + F.interpolate(x, size=(9, 11), mode="area").mean()
    return Layers(), {"x": picture(2, 16)}, square


@entry("linalg", "mlp")
def _():
    class Process(nn.Module):
        """A Gaussian process's likelihood, a whitening by eigenvectors, a flow's determinant."""

        def __init__(self):
            super().__init__()
            self.log, self.w = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))

        def forward(self, x, y):
            scale, size, noise = self.log.exp()
            k = size * torch.exp(-0.5 * torch.cdist(x / scale, x / scale) ** 2) + (noise + 0.1) * torch.eye(x.shape[0], dtype=x.dtype, device=x.device)
            low = torch.linalg.cholesky(k)
            fit = torch.cholesky_solve(y[:, None], low).squeeze(-1)
            z = x @ self.w
            cov = z.T @ z / len(z) + 0.1 * torch.eye(4, dtype=x.dtype, device=x.device)
            values, _ = torch.linalg.eigh(cov)
            q, r = torch.linalg.qr(self.w)
            return 0.5 * y @ fit + low.diagonal().log().sum() - torch.linalg.slogdet(self.w)[1] + values.log().sum() + torch.linalg.solve(cov, z.T).square().mean() \
                + torch.linalg.svdvals(self.w).sum() + r.diagonal().abs().log().sum() + torch.linalg.inv(cov).trace() + torch.matrix_exp(self.w * 0.1).sum()
    return Process(), {"x": torch.randn(7, 4), "y": torch.randn(7)}, lambda y: y


@entry("spectral", "mlp")
def _():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.real, self.imaginary, self.out = nn.Parameter(torch.randn(4, 4, 5) * 0.1), nn.Parameter(torch.randn(4, 4, 5) * 0.1), nn.Linear(4, 2)

        def forward(self, x):
            f = torch.fft.rfft(x, dim=1)[:, :5]
            y = torch.einsum("bkc,cdk->bkd", f, torch.complex(self.real, self.imaginary))
            return self.out(F.gelu(torch.fft.irfft(y, n=x.shape[1], dim=1) + x))
    return Fourier(), {"x": torch.randn(2, 16, 4)}, square
