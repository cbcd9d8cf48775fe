#!/usr/bin/env python3
"""Makes the DeepSeek-V4 golden folders: a small random model in the vendor's format, and what
transformers' DeepseekV4ForCausalLM (eager attention, float32) computes from exactly those weights.

    python make_v4.py --self-test           number formats only
    python make_v4.py v4-flash-fp8          one case (or --all), into tests/golden; ids and weights follow from --seed

tests/golden/README-v4.md describes the files. Needs torch, transformers 5.24.0, safetensors, numpy; accelerate for the load check.
"""
import argparse
import contextlib
import copy
import hashlib
import json
import os
import zlib

import numpy as np
import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

GOLDEN = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden"))

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.set_grad_enabled(False)

# ---------------------------------------------------------------------------------------------------
# Number formats. Codes of non-negative values ascend with the value, so "nearest" is a binary search
# among midpoints, and "ties to even" means: to the even code.

E4M3 = np.array([m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
                 for e in range(16) for m in range(8)][:127], np.float32)       # code 127 is NaN
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)


def nearest_code(x, table):
    """Code of the table value nearest to |x| (saturating), plus the sign bit above the table's bits."""
    mid = (table[:-1].astype(np.float64) + table[1:]) / 2
    a = np.abs(x).astype(np.float64)
    code = np.searchsorted(mid, a, side="left")
    tie = (code < len(mid)) & (a == mid[np.minimum(code, len(mid) - 1)])
    code = code + (tie & (code % 2 == 1))
    sign_bit = 128 if table is E4M3 else 8
    return (code + sign_bit * np.signbit(x)).astype(np.uint8)


def e4m3_value(code):
    value = np.append(E4M3, np.float32(np.nan))[code & 127]
    return np.where(code & 128, -value, value)


def e2m1_value(code):
    return np.where(code & 8, -E2M1[code & 7], E2M1[code & 7])


def e8m0_value(byte):
    exponent = np.minimum(byte, 254).astype(np.float64) - 127
    return np.where(byte == 255, np.nan, np.exp2(exponent)).astype(np.float32)


def scale_byte(amax, top):
    """Smallest power of two s with amax/s <= top, as an E8M0 byte."""
    m, e = np.frexp(np.maximum(amax, 1e-30).astype(np.float64) / top)
    return (e - (m == 0.5) + 127).astype(np.uint8)


def blocks(grid, rows, cols, shape):
    """Spread one number per rows x cols block over the elements; edge blocks may be partial."""
    return np.repeat(np.repeat(grid, rows, 0), cols, 1)[: shape[0], : shape[1]]


def block_amax(w, rows, cols):
    n_out, n_in = -(-w.shape[0] // rows), -(-w.shape[1] // cols)
    padded = np.zeros((n_out * rows, n_in * cols), np.float32)
    padded[: w.shape[0], : w.shape[1]] = np.abs(w)
    return padded.reshape(n_out, rows, n_in, cols).max((1, 3))


def fp8_encode(w):
    scale = scale_byte(block_amax(w, 128, 128), 448)
    return nearest_code(w / blocks(e8m0_value(scale), 128, 128, w.shape), E4M3), scale


def fp8_decode(code, scale):
    return e4m3_value(code) * blocks(e8m0_value(scale), 128, 128, code.shape)


def fp4_encode(w):
    """Byte c of a row: low nibble column 2c, high nibble column 2c+1. One scale per row and 32 columns."""
    scale = scale_byte(block_amax(w, 1, 32), 6)
    code = nearest_code(w / blocks(e8m0_value(scale), 1, 32, w.shape), E2M1)
    return code[:, 0::2] | code[:, 1::2] << 4, scale


def fp4_decode(packed, scale):
    code = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return e2m1_value(code) * blocks(e8m0_value(scale), 1, 32, code.shape)


def bf16(x):
    """Round to bf16 (nearest even, torch's), keep as float32."""
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().float().numpy()


def self_test():
    """The formats above against torch's own types, over all codes and over random and halfway values."""
    every = np.arange(256, dtype=np.uint8)
    as_torch = lambda dtype: torch.from_numpy(every.copy()).view(dtype).float().numpy()
    np.testing.assert_array_equal(e4m3_value(every), as_torch(torch.float8_e4m3fn))
    np.testing.assert_array_equal(e8m0_value(every), as_torch(torch.float8_e8m0fnu))
    finite = every[~np.isnan(e4m3_value(every))]
    np.testing.assert_array_equal(nearest_code(e4m3_value(finite), E4M3), finite)
    np.testing.assert_array_equal(nearest_code(e2m1_value(every[:16]), E2M1), every[:16])
    rng = np.random.default_rng(1)
    halfway = (E4M3[:-1] + E4M3[1:]) / 2                              # exact in float32
    x = np.concatenate([rng.normal(0, s, 20000) for s in (1e-3, 1, 100)] + [halfway, -halfway])
    x = np.clip(x, -448, 448).astype(np.float32)
    torch_code = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(nearest_code(x, E4M3), torch_code)
    ties = np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5, 7, -.25], np.float32)
    np.testing.assert_array_equal(e2m1_value(nearest_code(ties, E2M1)), [0, 1, 1, 2, 2, 4, 4, 6, 0])
    w = rng.normal(0, 1, (130, 96)).astype(np.float32)                # a partial edge block in both directions
    for encode, decode in ((fp8_encode, fp8_decode), (fp4_encode, fp4_decode)):
        once = decode(*encode(w))
        np.testing.assert_array_equal(decode(*encode(once)), once)    # representable values survive
    assert fp8_encode(w)[1].shape == (2, 1) and fp4_encode(w)[1].shape == (130, 3)
    print("self test: 256 e4m3 and e8m0 codes, 16 e2m1 codes, ties, round trips: ok")


# ---------------------------------------------------------------------------------------------------
# Cases. `prompt` leaves a residue modulo 4 and 128, so that decode starts inside open windows.
# With fewer index heads a row whose dots are all negative is common; such rows tie at score 0 exactly.

FLASH = dict(
    vocab_size=240, hidden_size=96, moe_intermediate_size=32, num_hidden_layers=5, num_attention_heads=4,
    head_dim=64, qk_rope_head_dim=16, q_lora_rank=64, o_groups=2, o_lora_rank=32, sliding_window=16,
    compress_ratios=[0, 0, 4, 128, 4, 0], num_hash_layers=3, index_n_heads=8, index_head_dim=32, index_topk=8,
    n_routed_experts=8, num_experts_per_tok=2, routed_scaling_factor=1.5, swiglu_limit=1.0,
    yarn_factor=4, yarn_original=256, prompt=603, decode=40)
PRO = dict(
    FLASH, hidden_size=160, num_attention_heads=6, head_dim=48, q_lora_rank=136, o_groups=3, o_lora_rank=48,
    sliding_window=24, compress_ratios=[128, 128, 4, 128, 4, 0], num_hash_layers=2,
    index_topk=12, n_routed_experts=6, num_experts_per_tok=3, routed_scaling_factor=2.5, swiglu_limit=0.75,
    vocab_size=180, yarn_factor=8, yarn_original=128, prompt=610)
# Dimensions that the vendor's own kernels accept: inputs of FP8 layers in whole blocks of 128, 64 channels without RoPE.
OFFICIAL = dict(
    FLASH, vocab_size=128, hidden_size=256, moe_intermediate_size=128, num_hidden_layers=3, head_dim=128,
    qk_rope_head_dim=64, q_lora_rank=128, o_lora_rank=64, sliding_window=80, compress_ratios=[0, 4, 128, 0],
    num_hash_layers=2, index_head_dim=128, index_topk=24, n_routed_experts=4, yarn_original=128, prompt=363)
CASES = {
    "v4-flash-bf16": dict(FLASH, quantised=False, mtp=False, shards=1, seed=11),
    "v4-flash-fp8": dict(FLASH, quantised=True, mtp=True, shards=3, seed=11),
    "v4-pro-fp8": dict(PRO, quantised=True, mtp=False, shards=1, seed=12),
    "v4-official": dict(OFFICIAL, quantised=True, mtp=False, shards=1, seed=13),
}


def vendor_config(c):
    """config.json with the spelling of the official folders."""
    copied = ("vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads head_dim "
              "qk_rope_head_dim q_lora_rank o_groups o_lora_rank sliding_window compress_ratios num_hash_layers "
              "index_n_heads index_head_dim index_topk n_routed_experts num_experts_per_tok "
              "routed_scaling_factor swiglu_limit").split()
    config = dict(
        architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", attention_bias=False,
        attention_dropout=0.0, bos_token_id=0, eos_token_id=1, hc_eps=1e-6, hc_mult=4, hc_sinkhorn_iters=20,
        hidden_act="silu", initializer_range=0.02, max_position_embeddings=c["yarn_factor"] * c["yarn_original"],
        n_shared_experts=1, norm_topk_prob=True, num_key_value_heads=1, num_nextn_predict_layers=1,
        rms_norm_eps=1e-6, rope_theta=10000, compress_rope_theta=160000,
        rope_scaling=dict(type="yarn", factor=c["yarn_factor"], beta_fast=32, beta_slow=1,
                          original_max_position_embeddings=c["yarn_original"]),
        scoring_func="sqrtsoftplus", topk_method="noaux_tc", tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.57.1", use_cache=True)
    config.update({key: c[key] for key in copied})
    if c["quantised"]:
        config["expert_dtype"] = "fp4"
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                             weight_block_size=[128, 128], scale_fmt="ue8m0")
    return dict(sorted(config.items()))


# ---------------------------------------------------------------------------------------------------
# Weights, under their official names. Kinds: linear (FP8 in a quantised case), expert (FP4 in a
# quantised case), bf16 (matrix), norm, embed, and float32 vectors/matrices with a rule each.

def block_tensors(c, prefix, ratio, hashed):
    H, nh, hd, ql = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    I, E, groups, rank = c["moe_intermediate_size"], c["n_routed_experts"], c["o_groups"], c["o_lora_rank"]
    ih, idim, coff = c["index_n_heads"], c["index_head_dim"], 2 if ratio == 4 else 1
    rows = [("attn_norm.weight", "norm", (H,)), ("ffn_norm.weight", "norm", (H,))]
    for site in ("attn", "ffn"):
        rows += [(f"hc_{site}_fn", "hc_fn", (24, 4 * H)), (f"hc_{site}_base", "normal", (24,)),
                 (f"hc_{site}_scale", "hc_scale", (3,))]
    rows += [("attn.wq_a.weight", "linear", (ql, H)), ("attn.q_norm.weight", "norm", (ql,)),
             ("attn.wq_b.weight", "linear", (nh * hd, ql)), ("attn.wkv.weight", "linear", (hd, H)),
             ("attn.kv_norm.weight", "norm", (hd,)), ("attn.attn_sink", "normal", (nh,)),
             ("attn.wo_a.weight", "linear", (groups * rank, nh * hd // groups)),
             ("attn.wo_b.weight", "linear", (H, groups * rank))]

    def compressor(name, dim):
        return [(f"{name}.ape", "ape", (ratio, coff * dim)), (f"{name}.wkv.weight", "bf16", (coff * dim, H)),
                (f"{name}.wgate.weight", "bf16", (coff * dim, H)), (f"{name}.norm.weight", "norm", (dim,))]

    if ratio:
        rows += compressor("attn.compressor", hd)
    if ratio == 4:
        rows += [("attn.indexer.wq_b.weight", "linear", (ih * idim, ql)),
                 ("attn.indexer.weights_proj.weight", "bf16", (ih, H))] + compressor("attn.indexer.compressor", idim)
    rows += [("ffn.gate.weight", "bf16", (E, H))]
    rows += [("ffn.gate.tid2eid", "table", (c["vocab_size"], c["num_experts_per_tok"]))] if hashed else \
            [("ffn.gate.bias", "bias", (E,))]
    for where, kind in [("shared_experts", "linear")] + [(f"experts.{e}", "expert") for e in range(E)]:
        rows += [(f"ffn.{where}.w1.weight", kind, (I, H)), (f"ffn.{where}.w2.weight", kind, (H, I)),
                 (f"ffn.{where}.w3.weight", kind, (I, H))]
    return [(f"{prefix}.{name}", kind, shape) for name, kind, shape in rows]


def model_tensors(c):
    H, V = c["hidden_size"], c["vocab_size"]
    hc_head = [("hc_head_fn", "hc_fn", (4, 4 * H)), ("hc_head_base", "normal", (4,)), ("hc_head_scale", "hc_scale", (1,))]
    rows = [("embed.weight", "embed", (V, H))]
    for i in range(c["num_hidden_layers"]):
        rows += block_tensors(c, f"layers.{i}", c["compress_ratios"][i], i < c["num_hash_layers"])
    rows += [("norm.weight", "norm", (H,)), ("head.weight", "bf16", (V, H))] + hc_head
    if c["mtp"]:
        rows += block_tensors(c, "mtp.0", 0, False)
        rows += [("mtp.0.e_proj.weight", "linear", (H, H)), ("mtp.0.h_proj.weight", "linear", (H, H))]
        rows += [(f"mtp.0.{name}.weight", "norm", (H,)) for name in ("enorm", "hnorm", "norm")]
        rows += [(f"mtp.0.{name}", kind, shape) for name, kind, shape in hc_head]
    return rows


def draw(c, seed, name, kind, shape):
    """Strong random values: near-uniform routing and scores near ties would hide mistakes.
    Every tensor has its own stream (seed, crc of the name), so no value depends on any other tensor."""
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    if kind == "table":
        return np.stack([rng.permutation(c["n_routed_experts"])[: shape[1]] for _ in range(shape[0])])
    if kind == "hc_scale":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "norm":
        return 1 + 0.1 * x
    if kind in ("linear", "expert"):
        # block-wise powers of two make neighbouring scales differ, so a wrong scale index shows
        size = (128, 128) if kind == "linear" else (1, 32)
        grid = [-(-n // s) for n, s in zip(shape, size)]
        x *= blocks(np.exp2(rng.integers(-1, 2, grid)).astype(np.float32), *size, shape)
    gain = {"ape": 0.5, "bias": 0.1, "normal": 1, "embed": 1}.get(kind, shape[-1] ** -0.5)
    return x * np.float32(gain)


def make_weights(c, seed):
    """(stored, plain): tensors as they go to disk, and the float32 values that they stand for."""
    stored, plain = {}, {}
    for name, kind, shape in model_tensors(c):
        x = draw(c, seed, name, kind, shape)
        packed = None
        if c["quantised"] and kind == "linear":
            packed, decode, view = fp8_encode(x), fp8_decode, torch.float8_e4m3fn
        elif c["quantised"] and kind == "expert":
            packed, decode, view = fp4_encode(x), fp4_decode, torch.int8
        if packed:
            stored[name] = torch.from_numpy(packed[0]).view(view)
            stored[name.replace(".weight", ".scale")] = torch.from_numpy(packed[1]).view(torch.float8_e8m0fnu)
            x = decode(*packed)
        elif kind == "table":
            stored[name] = torch.from_numpy(x)
        elif kind in ("linear", "expert", "bf16", "norm", "embed"):
            x = bf16(x)
            stored[name] = torch.from_numpy(x).bfloat16()
        else:
            stored[name] = torch.from_numpy(x)
        plain[name] = torch.from_numpy(x)
    return stored, plain


def weights_sha256(stored):
    """Over the names, dtypes, shapes and bytes of all tensors, in the order of the names."""
    h = hashlib.sha256()
    for name in sorted(stored):
        t = stored[name].contiguous()
        h.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
        h.update(t.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


# ---------------------------------------------------------------------------------------------------
# The oracle: transformers' model with these values.

COMPRESSOR = {"ape": "position_bias", "wkv.weight": "kv_proj.weight", "wgate.weight": "gate_proj.weight",
              "norm.weight": "kv_norm.weight"}
HF_NAME = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"hc_{site}_{part}": f"{site}_hc.{part}" for site in ("attn", "ffn") for part in ("fn", "base", "scale")},
    **{f"attn.{ours}.weight": f"self_attn.{theirs}.weight" for ours, theirs in (
        ("wq_a", "q_a_proj"), ("q_norm", "q_a_norm"), ("wq_b", "q_b_proj"), ("wkv", "kv_proj"),
        ("kv_norm", "kv_norm"), ("wo_a", "o_a_proj"), ("wo_b", "o_b_proj"),
        ("indexer.wq_b", "compressor.indexer.q_b_proj"),
        ("indexer.weights_proj", "compressor.indexer.scorer.weights_proj"))},
    "attn.attn_sink": "self_attn.sinks",
    **{f"attn.compressor.{k}": f"self_attn.compressor.{v}" for k, v in COMPRESSOR.items()},
    **{f"attn.indexer.compressor.{k}": f"self_attn.compressor.indexer.{v}" for k, v in COMPRESSOR.items()},
    "ffn.gate.weight": "mlp.gate.weight", "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    **{f"ffn.shared_experts.{w}.weight": f"mlp.shared_experts.{p}.weight"
       for w, p in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))},
}


def hf_state(c, plain):
    state = {"model.embed_tokens.weight": plain["embed.weight"], "lm_head.weight": plain["head.weight"],
             "model.norm.weight": plain["norm.weight"]}
    state.update({f"model.hc_head.hc_{part}": plain[f"hc_head_{part}"] for part in ("fn", "base", "scale")})
    for i in range(c["num_hidden_layers"]):
        expert = lambda w: [plain[f"layers.{i}.ffn.experts.{e}.{w}.weight"] for e in range(c["n_routed_experts"])]
        to = f"model.layers.{i}."
        state[to + "mlp.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(expert("w1"), expert("w3"))])
        state[to + "mlp.experts.down_proj"] = torch.stack(expert("w2"))
        for ours, theirs in HF_NAME.items():
            if f"layers.{i}.{ours}" in plain:
                state[to + theirs] = plain[f"layers.{i}.{ours}"]
    return state


class AllDouble(TorchFunctionMode):
    """Turns the model's explicit float32 steps (norms, softmax, RoPE, indexer) into float64 ones.
    Without it a model.double() would still round to float32 in all those places."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        swap = lambda v: torch.float64 if v is torch.float32 else v
        return func(*map(swap, args), **{k: swap(v) for k, v in (kwargs or {}).items()})


def make_model(c, plain, double=False):
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
    config = vendor_config(c)
    for key in ("quantization_config", "expert_dtype", "torch_dtype"):       # the values are already dequantised
        config.pop(key, None)
    config = DeepseekV4Config.from_dict(config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    assert config.qk_rope_head_dim == c["qk_rope_head_dim"]                   # HF derives it by float arithmetic
    assert config.rope_parameters["compress"]["rope_type"] == "yarn"
    assert config.rope_parameters["compress"]["attention_factor"] == 1.0
    with AllDouble() if double else contextlib.nullcontext():
        model = DeepseekV4ForCausalLM(config)
    model = model.double() if double else model.float()
    model.load_state_dict(hf_state(c, plain), strict=True)
    return model.eval()


class Probe:
    """Hooks that keep, for the last call, what the golden file needs and the selection margins."""

    def __init__(self, c, model):
        self.c, self.model, self.start = c, model, 0
        self.seen, self.margins = {}, []
        for i, layer in enumerate(model.model.layers):
            self.hook(layer.self_attn, i, self.on_attention)
            self.hook(layer.mlp, i, self.on_ffn)
            self.hook(layer, i, lambda i, inp, out: self.keep(i, "hidden", out[0]))
            self.hook(layer.mlp.gate, i, self.on_router)
            if c["compress_ratios"][i] == 4:
                indexer = layer.self_attn.compressor.indexer
                self.hook(indexer, i, lambda i, inp, out: self.keep(i, "topk", out[0]))
                self.hook(indexer.scorer, i, self.on_scores)

    def hook(self, module, i, fn):
        module.register_forward_hook(lambda mod, inp, out: fn(i, inp, out))

    def keep(self, i, name, value):
        self.seen[f"layer.{i}.{name}"] = value

    def on_attention(self, i, inp, out):
        self.keep(i, "attn_in", inp[0][0])
        self.keep(i, "attn_out", out[0][0])

    def on_ffn(self, i, inp, out):
        self.keep(i, "ffn_in", inp[0][0])
        self.keep(i, "ffn_out", out[0])

    def on_router(self, i, inp, out):
        logits, weights, ids = out
        self.keep(i, "experts", ids)
        self.keep(i, "expert_weights", weights)
        if i >= self.c["num_hash_layers"]:
            gate = self.model.model.layers[i].mlp.gate
            self.margin(i, "router", gate.score_fn(logits) + gate.e_score_correction_bias, self.c["num_experts_per_tok"])

    def on_scores(self, i, inp, out):
        scores = out[0].clone()
        visible = (torch.arange(scores.shape[0]) + self.start + 1) // 4
        scores[torch.arange(scores.shape[1])[None] >= visible[:, None]] = float("-inf")
        self.margin(i, "indexer", scores, self.c["index_topk"])

    def margin(self, i, what, scores, k):
        """(k-th minus (k+1)-th score) / largest |score|, per position; infinite where all are selected."""
        gap = torch.full(scores.shape[:1], float("inf"), dtype=scores.dtype)
        if scores.shape[1] > k:
            best = scores.topk(k + 1).values
            size = scores.abs().masked_fill(scores.isinf(), 0).amax(1)
            contested = best[:, k] > float("-inf")
            gap[contested] = ((best[:, k - 1] - best[:, k]) / size)[contested]
        self.margins.append((i, what, gap))

    def run(self, ids, cache, start):
        """Logits of ids, which follow the `start` tokens that the cache holds."""
        self.start, self.margins = start, []
        return self.model(input_ids=torch.as_tensor(ids)[None], cache=cache, use_cache=True).logits[0]

    def gaps(self):
        """Smallest margin of the last call, per position."""
        return torch.stack([gap for _, _, gap in self.margins]).amin(0)


def new_cache(model):
    from transformers import DynamicCache
    return DynamicCache(config=model.config)


MARGIN = 1e-4          # of the largest score: float32 summation order moves scores by about 1e-6 of it
DRAW_MARGIN = 1.05e-4  # asked for while drawing, so that MARGIN still holds under another chunking
TOP1_MARGIN = 1e-3     # of the logits' standard deviation


def decode(probe, cache, logits, start, steps, margin=MARGIN):
    """Greedy: ids, the logits after each of them, and whether every selection on the way was clear."""
    ids, rows, clear = [], [], True
    for i in range(steps + 1):
        best = logits.topk(2).values
        clear &= bool(best[0] - best[1] > TOP1_MARGIN * logits.std())
        if i == steps:
            break
        ids.append(int(logits.argmax()))
        logits = probe.run(ids[-1:], cache, start + i)[0]
        rows.append(logits)
        clear &= bool(probe.gaps().min() > margin)
    return ids, torch.stack(rows), clear


def choose_prompt(c, probe, seed, chunk=32):
    """Random ids without a near tie anywhere. A token decides about its own and later positions only, so
    the first position with too small a margin gets another token and everything before it stays."""
    rng = np.random.Generator(np.random.PCG64([seed, 0x1D5]))
    fresh = lambda n: rng.integers(2, c["vocab_size"], n)                      # 0 and 1 are bos and eos
    ids, cache, redrawn, n = [], new_cache(probe.model), 0, c["prompt"]
    while len(ids) < n:
        last = len(ids) == n - 1
        part = fresh(1 if last else min(chunk, n - 1 - len(ids)))
        if not ids:
            part[0] = 0
        for attempt in range(1000):
            trial = copy.deepcopy(cache)
            logits = probe.run(part, trial, len(ids))
            bad = (probe.gaps() <= DRAW_MARGIN).nonzero()
            clear = not len(bad)
            if clear and last:
                clear = decode(probe, copy.deepcopy(trial), logits[-1], n, c["decode"], DRAW_MARGIN)[2]
            if clear:
                break
            part[int(bad[0]) if len(bad) else 0] = fresh(1)[0]
            redrawn += 1
        else:
            raise SystemExit(f"no clear selection near position {len(ids)}: choose another seed")
        ids, cache = ids + [int(t) for t in part], trial
    print(f"prompt: {n} ids, {redrawn} redrawn because of a selection margin <= {DRAW_MARGIN}")
    return ids


def chunked(probe, ids, size):
    cache = new_cache(probe.model)
    return torch.cat([probe.run(ids[a: a + size], cache, a) for a in range(0, len(ids), size)])


@contextlib.contextmanager
def float32_angles(model):
    """RoPE angles as an engine computes them: float32 position times float32 frequency, rounded once."""
    def forward(module, x, position_ids, layer_type=None):
        f = getattr(module, f"{layer_type}_inv_freq").numpy().astype(np.float32)
        angle = torch.from_numpy((position_ids.numpy().astype(np.float32)[..., None] * f).astype(np.float64))
        return angle.cos(), angle.sin()
    modules = [m for m in model.modules() if type(m).__name__ == "DeepseekV4RotaryEmbedding"]
    for m in modules:
        m.forward = forward.__get__(m)
    yield
    for m in modules:
        del m.forward


def double_differences(c, plain, ids, logits):
    """Largest |logit| difference of the float32 run to a float64 run: with exact RoPE, with float32 angles."""
    model = make_model(c, plain, double=True)
    with AllDouble():
        exact = model(input_ids=torch.as_tensor(ids)[None]).logits[0]
        with float32_angles(model):
            same_angles = model(input_ids=torch.as_tensor(ids)[None]).logits[0]
    assert exact.dtype == torch.float64
    return float((exact - logits).abs().max()), float((same_angles - logits).abs().max())


# ---------------------------------------------------------------------------------------------------

def debug_positions(c):
    n, w = c["prompt"], c["sliding_window"]
    return sorted({0, 1, 3, 4, 7, 8, w - 1, w, 127, 128, 300, n - 1})


def golden_tensors(c, probe, ids, logits, cache):
    """Contents of golden.safetensors for the one-shot prefill whose values the probe still holds."""
    pos = torch.tensor(debug_positions(c))
    out = {"ids": torch.tensor(ids), "logits": logits, "pos": pos}
    for name, value in probe.seen.items():
        out[name] = value[pos].contiguous()
    for i, ratio in enumerate(c["compress_ratios"][: c["num_hidden_layers"]]):
        if ratio:
            out[f"layer.{i}.ckv"] = cache.layers[i].compressed_kv["compressor"][0].clone()
        if ratio == 4:
            out[f"layer.{i}.ikeys"] = cache.layers[i].compressed_kv["indexer"][0].clone()
    return out


def write_model(c, stored, folder):
    """config.json and safetensors; shards are cut by size in name order, so a layer may straddle two files."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(vendor_config(c), f, indent=2)
        f.write("\n")
    shards = c["shards"]
    if shards == 1:
        save_file(stored, os.path.join(folder, "model.safetensors"))
        return
    total = sum(t.nbytes for t in stored.values())
    parts, done = [{} for _ in range(shards)], 0
    for name, t in stored.items():
        parts[min(shards - 1, done * shards // total)][name] = t
        done += t.nbytes
    weight_map = {}
    for k, part in enumerate(parts):
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, os.path.join(folder, file))
        weight_map.update({name: file for name in part})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1)
        f.write("\n")


def load_check(folder, ids, logits):
    """Does transformers itself read the folder? (names, FP8, FP4); the largest logit difference, or why not."""
    from transformers import DeepseekV4ForCausalLM
    try:
        model = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        return float((model(input_ids=torch.as_tensor(ids)[None]).logits[0] - logits).abs().max())
    except Exception as error:                     # transformers' own limits are a finding, not a failure here
        return f"refused: {type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"


def make_case(name, out, seed=None):
    c = dict(CASES[name])
    seed = c["seed"] if seed is None else seed
    print(f"== {name}, seed {seed}")
    stored, plain = make_weights(c, seed)
    model = make_model(c, plain)
    probe = Probe(c, model)
    ids = choose_prompt(c, probe, seed)
    n = len(ids)

    cache = new_cache(model)
    logits = probe.run(ids, cache, 0)
    golden = golden_tensors(c, probe, ids, logits, cache)
    margin = {what: min(float(g.min()) for _, w, g in probe.margins if w == what) for what in ("indexer", "router")}
    greedy_ids, greedy_logits, clear = decode(probe, cache, logits[-1], n, c["decode"])
    assert clear and min(margin.values()) > MARGIN, "a selection is too close: choose another seed"
    golden.update(greedy_ids=torch.tensor(greedy_ids), greedy_logits=greedy_logits)
    print(f"logits: std {float(logits.std()):.3f}, largest {float(logits.abs().max()):.2f}; smallest margins {margin}")

    whole = ids + greedy_ids
    split = {size: float((chunked(probe, ids, size) - logits).abs().max()) for size in (1, 7, 64, 129)}
    split["decode/one-shot"] = float((probe.run(whole, new_cache(model), 0)[n:] - greedy_logits).abs().max())
    print("largest difference of chunked to one-shot logits:", {k: f"{v:.1e}" for k, v in split.items()})
    assert max(split.values()) < 1e-4
    exact, same_angles = double_differences(c, plain, whole, torch.cat([logits, greedy_logits]))
    print(f"float32 to float64: {exact:.1e}; with the same float32 RoPE angles: {same_angles:.1e}")
    assert exact < 1e-3

    folder = os.path.join(out, name)
    write_model(c, stored, folder)
    import transformers
    meta = dict(logits_f64_maxdiff=f"{exact:.3e}", logits_f64_same_angles_maxdiff=f"{same_angles:.3e}",
                logits_chunked_maxdiff=f"{max(split.values()):.3e}", logits_std=f"{float(logits.std()):.4f}",
                margin_indexer=f"{margin['indexer']:.3e}", margin_router=f"{margin['router']:.3e}",
                seed=str(seed), weights_sha256=weights_sha256(stored), torch=torch.__version__.split("+")[0],
                transformers=transformers.__version__)
    save_file({k: v.contiguous() for k, v in golden.items()}, os.path.join(folder, "golden.safetensors"), meta)
    print("transformers reads the folder, largest logit difference:", load_check(folder, ids, logits))
    print("bytes:", sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=list(CASES))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--out", default=GOLDEN, help="folder that holds the case folders (default: tests/golden)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    self_test()
    for name in CASES if args.all else [args.case] if args.case else []:
        make_case(name, args.out, args.seed)


if __name__ == "__main__":
    main()
