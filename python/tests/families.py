"""Further families of models than zoo.py has, in its ZOO: detectors that choose boxes by data, video, optical flow, speech, mixtures and state
spaces, small and with random weights."""
import torch

from zoo import classes, entry, language, picture, small, square, still, timm_model, vision


# Those that compute norms, softmax or positions in float32 whatever they are given.
SINGLE_INSIDE = {"cohere", "olmo", "olmo2", "starcoder2", "stablelm", "persimmon", "nemotron", "granite", "glm", "phi3", "qwen3", "gemma3", "smollm3", "exaone4",
                 "ernie45", "helium", "falcon_mamba", "recurrent_gemma", "diffllama", "lfm2", "apertus", "arcee", "olmoe", "granite_moe", "qwen2_moe",
                 "minimax", "jetmoe", "qwen3_next", "jamba", "bamba", "led", "prophetnet", "xlm", "umt5", "llava", "esm"}


def all_of(y):
    """The sum of squares of what a model gives, of floats."""
    found = [t for t in torch.utils._pytree.tree_leaves(y) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return sum(square(t) for t in found)


# ---------------------------------------------------------------- torchvision


def detector(make, **options):
    """Boxes by data: without targets a detector gives those that it keeps, with them its losses."""
    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make(weights=None, weights_backbone=None, num_classes=4, **options)

        def forward(self, x):
            if self.training:
                boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0]], dtype=x.dtype, device=x.device)
                return self.net(list(x), [{"boxes": boxes, "labels": torch.ones(1, dtype=torch.int64, device=x.device)} for _ in x])
            return self.net(list(x))
    return Detector(), {"x": picture(2, 64).sigmoid()}, lambda y: sum(y.values())


@entry("fasterrcnn", "detection")
def _():
    import torchvision
    return detector(torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn, min_size=64, max_size=64, rpn_pre_nms_top_n_test=20,
                    rpn_post_nms_top_n_test=10, box_detections_per_img=5, rpn_batch_size_per_image=1000000, box_batch_size_per_image=1000000)


@entry("ssdlite", "detection")
def _():
    import torchvision
    return detector(torchvision.models.detection.ssdlite320_mobilenet_v3_large, topk_candidates=10, detections_per_img=5)


def video(make):
    return make(), {"x": torch.randn(1, 3, 8, 64, 64)}, classes


@entry("r2plus1d", "video")
def _():
    from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet
    return video(lambda: VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], R2Plus1dStem, num_classes=10))


@entry("mvit", "video")
def _():
    from torchvision.models.video.mvit import MSBlockConfig, MViT
    block = lambda heads, i, o, q, kv: MSBlockConfig(num_heads=heads, input_channels=i, output_channels=o, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3],
                                                     stride_q=q, stride_kv=kv)
    return video(lambda: MViT((64, 64), 8, [block(1, 16, 32, [1, 2, 2], [1, 4, 4]), block(2, 32, 32, [1, 1, 1], [1, 2, 2])], residual_pool=True,
                              residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True, dropout=0.0, num_classes=10, stochastic_depth_prob=0.0))


@entry("swin3d", "video")
def _():
    from torchvision.models.video.swin_transformer import SwinTransformer3d
    return video(lambda: SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4], num_classes=10, stochastic_depth_prob=0.0))


vision("alexnet", size=96, dropout=0.0)


@entry("efficientnet_v2", "convolution")
def _():
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig
    return EfficientNet([FusedMBConvConfig(1, 3, 1, 8, 8, 1), FusedMBConvConfig(4, 3, 2, 8, 16, 1), MBConvConfig(4, 3, 2, 16, 24, 2)], 0.0, 0.0, num_classes=10,
                        last_channel=64), {"x": picture(2, 64)}, classes


# ---------------------------------------------------------------- timm

for _name, _label, _options in (
        ("rexnet_100", "rexnet", {}), ("mixnet_s", "mixnet", {}), ("tf_efficientnetv2_b0", "efficientnet_v2_timm", {}),
        ("ghostnetv2_100", "ghostnet_v2", dict(drop_rate=0.0)), ("fasternet_t0", "fasternet", {}),
        ("rdnet_tiny", "rdnet", dict(num_init_features=16, growth_rates=(8, 8, 8, 8, 8, 8, 8))), ("legacy_seresnet18", "senet", {}),
        ("tresnet_m", "tresnet", dict(layers=(1, 1, 1, 1), width_factor=0.25)), ("hardcorenas_a", "hardcorenas", {}), ("xception41", "xception", {}),
        ("gcresnext26ts", "gcresnext", {}),
        ("eca_botnext26ts_256", "botnet", dict(img_size=64)), ("cspresnet50", "cspnet", {}), ("repghostnet_050", "repghost", dict(drop_rate=0.0)),
        ("tinynet_e", "tinynet", {}), ("spnasnet_100", "spnas", {}), ("resnetv2_18", "resnet_v2", {})):
    timm_model(_name, "convolution", _label, **_options)

for _name, _label, _size, _options in (
        ("mvitv2_tiny", "mvit_v2", 64, dict(img_size=64)), ("vitamin_small_224", "vitamin", 64, dict(img_size=64)),
        ("eva_giant_patch14_224", "eva", 56, dict(img_size=56, depth=2, embed_dim=96, num_heads=3)),
        ("efficientformer_l1", "efficientformer_v1", 224, {}), ("swin_s3_tiny_224", "swin_s3", 64, dict(img_size=64, window_size=(4, 4, 2, 2), depths=(1, 1, 1, 1), embed_dim=24, num_heads=(1, 2, 3, 4))),
        ("efficientvit_m0", "efficientvit_msra", 224, {}), ("coat_tiny", "coat_parallel", 64, dict(img_size=64, serial_depths=(1, 1, 1, 1), parallel_depth=1))):
    timm_model(_name, "transformer", _label, size=_size, **_options)


# ---------------------------------------------------------------- transformers: language

causal = dict(**small, use_cache=False)
both = lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "decoder_input_ids": torch.randint(3, 60, (2, 6))}
coder = dict(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
             decoder_ffn_dim=48, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, use_cache=False)
experts = dict(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)

for _label, _cls, _options in (
        ("cohere", "Cohere", dict(num_key_value_heads=2)), ("olmo", "Olmo", {}), ("olmo2", "Olmo2", {}), ("starcoder2", "Starcoder2", dict(num_key_value_heads=2)),
        ("stablelm", "StableLm", dict(num_key_value_heads=4)), ("persimmon", "Persimmon", {}), ("nemotron", "Nemotron", dict(num_key_value_heads=2)), ("granite", "Granite", {}), ("glm", "Glm", dict(head_dim=8, num_key_value_heads=2, pad_token_id=0)),
        ("phi3", "Phi3", dict(pad_token_id=0)), ("qwen3", "Qwen3", dict(head_dim=8, num_key_value_heads=2)),
        ("gemma3", "Gemma3", dict(head_dim=8, num_key_value_heads=2, sliding_window=4)), ("smollm3", "SmolLM3", dict(num_key_value_heads=2, pad_token_id=0)),
        ("exaone4", "Exaone4", dict(num_key_value_heads=2, sliding_window=4)), ("ernie45", "Ernie4_5", dict(num_key_value_heads=2)), ("helium", "Helium", dict(head_dim=8, num_key_value_heads=2)),
        ("falcon_mamba", "FalconMamba", dict(state_size=4)), ("recurrent_gemma", "RecurrentGemma", dict(num_key_value_heads=1, lru_width=32, attention_window_size=8, block_types=("recurrent", "attention"))),
        ("diffllama", "DiffLlama", dict(num_key_value_heads=2)), ("lfm2", "Lfm2", dict(num_key_value_heads=2, layer_types=["conv", "full_attention"], conv_L_cache=3)),
        ("apertus", "Apertus", dict(num_key_value_heads=2)), ("arcee", "Arcee", dict(num_key_value_heads=2))):
    _of = {"Gemma3": "Gemma3Text"}.get(_cls, _cls)
    language(_label, "recurrent" if "mamba" in _label or "recurrent" in _label else "transformer", _cls + "ForCausalLM", _of + "Config",
             **{**causal, **_options})

for _label, _cls, _options in (
        ("olmoe", "Olmoe", dict(num_experts=4, num_experts_per_tok=2)), ("granite_moe", "GraniteMoe", experts),
        ("qwen2_moe", "Qwen2Moe", dict(num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24)),
        ("minimax", "MiniMax", dict(**experts, head_dim=8, block_size=4, layer_types=["linear_attention", "full_attention"])),
        ("jetmoe", "JetMoe", dict(num_key_value_heads=2, kv_channels=8, num_local_experts=4, num_experts_per_tok=2)),
        ("qwen3_next", "Qwen3Next", dict(num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
                                         linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"])),
        ("jamba", "Jamba", dict(num_key_value_heads=2, num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
                                mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False)),
        ("bamba", "Bamba", dict(num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4))):
    language(_label, "mixture" if _label != "bamba" else "recurrent", _cls + "ForCausalLM", _cls + "Config",
             **{**causal, **_options, **({"experts_implementation": "batched_mm"} if _label != "bamba" else {})})

for _label, _cls, _options in (
        ("roformer", "RoFormer", dict(embedding_size=32)), ("convbert", "ConvBert", dict(embedding_size=32, head_ratio=2)), ("squeezebert", "SqueezeBert", dict(embedding_size=32)),
        ("megatron_bert", "MegatronBert", {}),
        ("yoso", "Yoso", dict(use_expectation=True, use_fast_hash=False)), ("rembert", "RemBert", dict(input_embedding_size=16, output_embedding_size=32)), ("ernie", "Ernie", {}),
        ("mpnet", "MPNet", {}), ("camembert", "Camembert", {}), ("esm", "Esm", dict(mask_token_id=4, pad_token_id=1, position_embedding_type="rotary")),
        ("roc_bert", "RoCBert", dict(enable_pronunciation=False, enable_shape=False)), ("data2vec_text", "Data2VecText", {})):
    language(_label, "transformer", _cls + "ForMaskedLM", _cls + "Config", loss=all_of, **{**small, **still, **_options},
             batch=lambda: {"input_ids": torch.randint(5, 60, (2, 8))})

language("codegen", "transformer", "CodeGenForCausalLM", "CodeGenConfig", vocab_size=64, n_positions=32, n_ctx=32, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, use_cache=False)
language("gpt_bigcode", "transformer", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
         embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
language("biogpt", "transformer", "BioGptForCausalLM", "BioGptConfig", **causal, **still, layerdrop=0.0, activation_dropout=0.0)
language("ctrl", "transformer", "CTRLLMHeadModel", "CTRLConfig", vocab_size=64, n_positions=32, n_embd=32, dff=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
         use_cache=False)
language("openai_gpt", "transformer", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
         attn_pdrop=0.0)
language("xlm", "transformer", "XLMWithLMHeadModel", "XLMConfig", loss=classes, vocab_size=64, emb_dim=32, n_layers=2, n_heads=4, dropout=0.0, attention_dropout=0.0,
         max_position_embeddings=32, n_langs=1, gelu_activation=True)
language("marian", "transformer", "MarianMTModel", "MarianConfig", loss=classes, **coder, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, batch=both)
language("blenderbot", "transformer", "BlenderbotForConditionalGeneration", "BlenderbotConfig", loss=classes, **coder, batch=both)
language("led", "transformer", "LEDForConditionalGeneration", "LEDConfig", loss=classes, vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_encoder_position_embeddings=32,
         max_decoder_position_embeddings=32, attention_window=4, dropout=0.0, use_cache=False, batch=both)
language("m2m100", "transformer", "M2M100ForConditionalGeneration", "M2M100Config", loss=classes, **coder, encoder_layerdrop=0.0, decoder_layerdrop=0.0, batch=both)
language("prophetnet", "transformer", "ProphetNetForConditionalGeneration", "ProphetNetConfig", loss=classes, vocab_size=64, hidden_size=32, encoder_ffn_dim=48,
         decoder_ffn_dim=48, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, max_position_embeddings=32, ngram=2,
         num_buckets=8, relative_max_distance=16, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, use_cache=False, batch=both)
for _label, _cls, _options in (("umt5", "UMT5", {}),):
    language(_label, "transformer", _cls + "ForConditionalGeneration", _cls + "Config", loss=classes, vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
             use_cache=False, dropout_rate=0.0, batch=both, **_options)

# ---------------------------------------------------------------- transformers: pictures, sound and both

eye = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8)
seen = lambda: {"pixel_values": picture(2, 32)}
larger = lambda: {"pixel_values": picture(2, 64)}
stages = dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
for _label, _cls, _options, _batch in (
        ("yolos", "Yolos", dict(eye, image_size=[32, 32], num_detection_tokens=5), seen), ("ijepa", "IJepa", eye, seen), ("vit_msn", "ViTMSN", eye, seen),
        ("dinov3", "DINOv3ViT", dict(eye, pos_embed_rescale=None), seen),
        ("pvt_v1", "Pvt", dict(image_size=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4], drop_path_rate=0.0), larger),
        ("glpn", "GLPN", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], drop_path_rate=0.0), larger),
        ("swin2sr", "Swin2SR", dict(image_size=16, patch_size=1, embed_dim=16, depths=[2], num_heads=[2], window_size=4, drop_path_rate=0.0), lambda: {"pixel_values": picture(1, 16)}),
        ("donut_swin", "DonutSwin", dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0), seen),
        ("videomae", "VideoMAE", dict(eye, num_frames=4), lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)}),
        ("vivit", "Vivit", dict(eye, num_frames=4, tubelet_size=[2, 8, 8]), lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)}),
        ("timesformer", "Timesformer", dict(eye, num_frames=4), lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)})):
    language(_label, "video" if "video" in _label or _label in ("vivit", "timesformer") else "transformer", _cls + "Model", _cls + "Config", loss=all_of, **{**still, **_options}, batch=_batch)

language("dpt", "segmentation", "DPTForDepthEstimation", "DPTConfig", loss=all_of, **{**eye, **still, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
         neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, is_hybrid=False, batch=seen)
language("sam", "segmentation", "SamModel", "SamConfig", loss=all_of,
         vision_config=dict(hidden_size=32, output_channels=16, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8, mlp_dim=48, window_size=4,
                            global_attn_indexes=[1], num_pos_feats=8),
         prompt_encoder_config=dict(hidden_size=16, image_size=64, patch_size=8, mask_input_channels=4),
         mask_decoder_config=dict(hidden_size=16, mlp_dim=32, num_attention_heads=2, iou_head_hidden_dim=16, num_hidden_layers=2),
         batch=lambda: {"pixel_values": picture(1, 64), "input_points": torch.tensor([[[[10.0, 20.0]]]])})
language("blip", "transformer", "BlipModel", "BlipConfig", loss=all_of, projection_dim=16,
         text_config=dict(**small, encoder_hidden_size=32, projection_dim=16, **still), vision_config=dict(eye),
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("llava", "transformer", "LlavaForConditionalGeneration", "LlavaConfig", loss=classes, image_token_id=63, image_seq_length=16,
         text_config=dict(model_type="llama", **small, num_key_value_heads=2, use_cache=False), vision_config=dict(model_type="clip_vision_model", **eye),
         batch=lambda: {"input_ids": torch.cat([torch.full((1, 16), 63), torch.randint(3, 60, (1, 5))], 1), "pixel_values": picture(1, 32)})

waves = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
             num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0,
             layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False)
for _label, _cls, _options in (("wavlm", "WavLM", {}), ("unispeech", "UniSpeech", {}), ("sew", "SEW", dict(squeeze_factor=2)),
                               ("data2vec_audio", "Data2VecAudio", dict(conv_pos_kernel_size=3, num_conv_pos_embeddings=2))):
    language(_label, "audio", _cls + "Model", _cls + "Config", **{**waves, **_options}, batch=lambda: {"input_values": torch.randn(2, 400)})
language("speech_to_text", "audio", "Speech2TextForConditionalGeneration", "Speech2TextConfig", loss=classes, **{k: v for k, v in coder.items() if k != "max_position_embeddings"},
         encoder_layerdrop=0.0, decoder_layerdrop=0.0, num_conv_layers=2, conv_kernel_sizes=[3, 3], conv_channels=32, input_feat_per_channel=8, max_source_positions=40,
         max_target_positions=16, batch=lambda: {"input_features": torch.randn(2, 24, 8), "decoder_input_ids": torch.randint(3, 60, (2, 6))})
language("spectrogram", "audio", "ASTModel", "ASTConfig", **{k: v for k, v in eye.items() if k != "image_size"}, **still, max_length=32, num_mel_bins=16, frequency_stride=4,
         time_stride=4, batch=lambda: {"input_values": torch.randn(2, 32, 16)})
language("univnet", "audio", "UnivNetModel", "UnivNetConfig", loss=all_of, model_in_channels=8, model_hidden_channels=8, num_mel_bins=8, resblock_kernel_sizes=[3], resblock_stride_sizes=[4],
         resblock_dilation_sizes=[[1, 3]], kernel_predictor_num_blocks=1, kernel_predictor_hidden_channels=8, kernel_predictor_dropout=0.0,
         batch=lambda: {"input_features": torch.randn(2, 12, 8), "noise_sequence": torch.randn(2, 12, 8)})
language("dac", "audio", "DacModel", "DacConfig", loss=lambda y: square(y[1]), encoder_hidden_size=8, decoder_hidden_size=32, downsampling_ratios=[2, 4], upsampling_ratios=[4, 2], n_codebooks=2,
         codebook_size=16, codebook_dim=4, hidden_size=32, quantizer_dropout=0.0, batch=lambda: {"input_values": torch.randn(1, 1, 160)})
language("mixer_series", "mlp", "PatchTSMixerModel", "PatchTSMixerConfig", num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16, num_layers=2,
         dropout=0.0, head_dropout=0.0, batch=lambda: {"past_values": torch.randn(2, 32, 2)})

# ---------------------------------------------------------------- transformers: hybrids, mixtures of many kinds, series, and what reads several kinds of things

heads = dict(num_key_value_heads=2, head_dim=8)
scanned = dict(mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4)
chosen = dict(num_experts_per_tok=2, moe_intermediate_size=24, experts_implementation="batched_mm")
shared = dict(n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1)
low_rank = dict(q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
for _label, _kind, _cls, _options in (
        ("falcon_h1", "recurrent", "FalconH1", dict(**heads, mamba_d_ssm=32, **scanned)),
        ("nemotron_h", "recurrent", "NemotronH", dict(**heads, layers_block_type=["mamba", "attention"], mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=4, n_groups=1, chunk_size=4)),
        ("glm4_moe", "mixture", "Glm4Moe", dict(**heads, **chosen, **shared)), ("dots1", "mixture", "Dots1", dict(num_key_value_heads=2, **chosen, **shared)),
        ("minimax_m2", "mixture", "MiniMaxM2", dict(**heads, **chosen, num_local_experts=4, rotary_dim=8)),
        ("lfm2_moe", "mixture", "Lfm2Moe", dict(num_key_value_heads=2, **chosen, num_experts=4, num_dense_layers=1, layer_types=["conv", "full_attention"], conv_L_cache=3)),
        ("minicpm3", "transformer", "MiniCPM3", low_rank), ("vaultgemma", "transformer", "VaultGemma", dict(**heads, sliding_window=4)),
        ("bitnet", "transformer", "BitNet", dict(num_key_value_heads=2)), ("doge", "transformer", "Doge", dict(num_key_value_heads=2))):
    language(_label, _kind, _cls + "ForCausalLM", _cls + "Config", **{**causal, **_options})
SINGLE_INSIDE |= {"falcon_h1", "nemotron_h", "glm4_moe", "dots1", "minimax_m2", "lfm2_moe", "minicpm3", "vaultgemma", "bitnet", "doge", "longt5", "git", "moonshine"}

for _label, _cls, _options in (("modernbert", "ModernBert", dict(local_attention=4, pad_token_id=0)), ("mobilebert", "MobileBert", dict(embedding_size=16, intra_bottleneck_size=32, true_hidden_size=32))):
    language(_label, "transformer", _cls + "ForMaskedLM", _cls + "Config", loss=all_of, **{**small, **still, **_options}, batch=lambda: {"input_ids": torch.randint(5, 60, (2, 8))})
language("pegasus_x", "transformer", "PegasusXForConditionalGeneration", "PegasusXConfig", loss=classes, **coder, block_size=4, num_global_tokens=2, batch=both)
language("longt5", "transformer", "LongT5ForConditionalGeneration", "LongT5Config", loss=classes, vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
         local_radius=3, use_cache=False, dropout_rate=0.0, batch=both)
language("reformer", "transformer", "ReformerModel", "ReformerConfig", loss=all_of, vocab_size=64, hidden_size=32, attn_layers=["local", "local"], attention_head_size=8,
         num_attention_heads=4, feed_forward_size=48, axial_pos_shape=[2, 4], axial_pos_embds_dim=[16, 16], local_attn_chunk_length=4, hidden_dropout_prob=0.0,
         local_attention_probs_dropout_prob=0.0, max_position_embeddings=8, use_cache=False, is_decoder=False, batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8))})

language("hiera", "transformer", "HieraModel", "HieraConfig", loss=all_of, image_size=[32, 32], patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=16, depths=[1, 1],
         num_heads=[1, 2], mlp_ratio=2.0, query_stride=[2, 2], masked_unit_size=[2, 2], masked_unit_attention=[True, False], num_query_pool=1, drop_path_rate=0.0, batch=seen)
language("swiftformer", "convolution", "SwiftFormerModel", "SwiftFormerConfig", loss=all_of, image_size=32, depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32], mlp_ratio=2,
         drop_path_rate=0.0, batch=seen)
language("vitdet", "transformer", "VitDetModel", "VitDetConfig", loss=all_of, **eye, **still, window_size=2, residual_block_indices=[1], window_block_indices=[0], batch=seen)
language("siglip", "transformer", "SiglipModel", "SiglipConfig", loss=all_of, text_config=dict(**small), vision_config=dict(eye),
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("git", "transformer", "GitForCausalLM", "GitConfig", loss=all_of, **{**small, **still}, vision_config=dict(eye),
         batch=lambda: {"input_ids": torch.randint(3, 60, (2, 8)), "pixel_values": picture(2, 32)})
language("perceiver", "transformer", "PerceiverModel", "PerceiverConfig", loss=all_of, num_latents=8, d_latents=32, d_model=16, num_blocks=1, num_self_attends_per_block=2,
         num_self_attention_heads=4, num_cross_attention_heads=4, attention_probs_dropout_prob=0.0, batch=lambda: {"inputs": torch.randn(2, 10, 16)})

language("wav2vec2_bert", "audio", "Wav2Vec2BertModel", "Wav2Vec2BertConfig", **{k: v for k, v in waves.items() if not k.startswith("conv")}, feature_projection_input_dim=16,
         conv_depthwise_kernel_size=3, conformer_conv_dropout=0.0, batch=lambda: {"input_features": torch.randn(2, 12, 16)})
language("encodec", "audio", "EncodecModel", "EncodecConfig", loss=lambda y: square(y[1]), num_filters=4, hidden_size=8, codebook_size=16, codebook_dim=8, upsampling_ratios=[4, 2],
         num_lstm_layers=1, target_bandwidths=[24.0], batch=lambda: {"input_values": torch.randn(1, 1, 160)})
language("moonshine", "audio", "MoonshineForConditionalGeneration", "MoonshineConfig", loss=classes, vocab_size=64, hidden_size=32, intermediate_size=48,
         encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, encoder_num_attention_heads=4, decoder_num_attention_heads=4, use_cache=False,
         batch=lambda: {"input_values": torch.randn(1, 4000), "decoder_input_ids": torch.randint(3, 60, (1, 6))})

language("patchtst", "transformer", "PatchTSTModel", "PatchTSTConfig", loss=all_of, num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16,
         num_hidden_layers=2, num_attention_heads=4, ffn_dim=24, attention_dropout=0.0, ff_dropout=0.0, path_dropout=0.0, positional_dropout=0.0,
         batch=lambda: {"past_values": torch.randn(2, 32, 2)})
language("informer", "transformer", "InformerModel", "InformerConfig", loss=all_of, prediction_length=4, context_length=8, input_size=1, lags_sequence=[1, 2], num_time_features=1,
         d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0,
         attention_dropout=0.0, activation_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0, use_cache=False,
         batch=lambda: {"past_values": torch.rand(2, 10), "past_time_features": torch.rand(2, 10, 1), "past_observed_mask": torch.ones(2, 10), "future_values": torch.rand(2, 4),
                        "future_time_features": torch.rand(2, 4, 1)})
language("decision", "reinforcement", "DecisionTransformerModel", "DecisionTransformerConfig", loss=all_of, state_dim=5, act_dim=3, hidden_size=32, max_ep_len=20, n_layer=2, n_head=4,
         n_positions=64, vocab_size=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
         batch=lambda: {"states": torch.randn(2, 4, 5), "actions": torch.randn(2, 4, 3), "rewards": torch.randn(2, 4, 1), "returns_to_go": torch.randn(2, 4, 1),
                        "timesteps": torch.arange(4).expand(2, 4), "attention_mask": torch.ones(2, 4, dtype=torch.int64)})
