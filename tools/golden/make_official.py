#!/usr/bin/env python3
"""Goldens of the vendor's own arithmetic for DeepSeek-V4: runs the vendor's inference/model.py on a golden folder.

    python make_official.py v4-official --vendor PATH/inference     writes tests/golden/v4-official/golden_official.safetensors
    python make_official.py --self-test

PATH/inference holds the vendor's model.py (none of its code is here). Its GPU kernels are replaced by the plain
functions below, which keep every rounding point and differ from a GPU in the order of float32 sums only.
tests/golden/README-v4-official.md describes the files. Needs torch, safetensors, numpy; transformers for the comparison.
"""
import argparse
import hashlib
import importlib.util
import os
import sys
import types

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_v4 as v4                                                            # noqa: E402

# How sums are formed. "f32": float32; "f32r": float32, summed from the other end; "f64": float64, rounded once.
# All three are legal, and what they differ by is the noise that no engine can be asked to be below.
ORDERS = ("f32", "f32r", "f64")
order = "f32"
without = set()               # rounding points left out, for the table of mistakes only
seen = {}                     # what the stand-ins saw in the last call: kv, scales, scores


def contract(a, b):
    """a [.., m, k] times b [.., n, k] transposed, to float32, exact operands, summed in the current order."""
    if order == "f64":
        return (a.double() @ b.double().mT).float()
    a, b = a.float(), b.float()
    if order == "f32r":
        a, b = a.flip(-1), b.flip(-1)
    return a @ b.mT


# ---------------------------------------------------------------------------------------------------
# Stand-ins for the kernels.

def pow2_ceil(v):
    """Smallest power of two >= v, from the bits of the float32 v."""
    bits = v.contiguous().view(torch.int32)
    exponent = (bits >> 23 & 255) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def e2m1(x):
    """Nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code."""
    code = v4.nearest_code(x.numpy(), v4.E2M1)
    return torch.from_numpy(v4.e2m1_value(code).astype(np.float32))


def round_trip(x, group, floor, top, cast, power_of_two):
    """(values on the grid, scales): per group of channels, everything in float32."""
    g = x.float().unflatten(-1, (-1, group))
    amax = g.abs().amax(-1, keepdim=True).clamp_min(np.float32(floor))
    scale = amax * np.float32(1 / top)
    if power_of_two:
        scale = pow2_ceil(scale)
    return cast((g / scale).clamp(-top, top)), scale


def act_quant(x, block_size=128, scale_fmt=None, scale_dtype=torch.float32, inplace=False):
    power_of_two = scale_fmt is not None and "power-of-two scales" not in without
    q, scale = round_trip(x, block_size, 1e-4, 448, lambda v: v.to(torch.float8_e4m3fn), power_of_two)
    if inplace and "FP8 of cached rows" in without:
        return x
    if not inplace and "FP8 of activations" in without:
        return x.float(), torch.ones_like(scale.squeeze(-1))
    if not power_of_two:
        scale_dtype = torch.float32
    if inplace:
        x.copy_((q.float() * scale).flatten(-2))
        return x
    return q.flatten(-2), scale.squeeze(-1).to(scale_dtype)


def fp4_act_quant(x, block_size=32, inplace=False):
    assert inplace, "the model only simulates FP4"
    q, scale = round_trip(x, block_size, 6 * 2.0**-126, 6, e2m1, True)
    if "FP4 of the indexer" in without:
        return x
    seen["q" if x.dim() == 4 else "k"] = (q.flatten(-2), scale.squeeze(-1))    # queries have a head dimension
    x.copy_((q * scale).flatten(-2))
    return x


def scaled_gemm(a, a_s, b, b_s, k_block, out_block):
    """Per block of k: the sum, times the activation's and the weight's scale, added up in float32, bf16 at the end."""
    m, k = a.reshape(-1, a.size(-1)), a.size(-1)
    a_s, b_s = a_s.float().reshape(m.size(0), -1), b_s.float().repeat_interleave(out_block, 0)[: b.size(0)]
    total = torch.zeros(m.size(0), b.size(0), dtype=torch.float64 if order == "f64" else torch.float32)
    for start in range(0, k, k_block):
        part = slice(start, start + k_block)
        scale = a_s[:, start // 128, None] * b_s[:, start // k_block]
        total += contract(m[:, part], b[:, part]) * scale                      # scales are powers of two: exact
    return total.to(torch.get_default_dtype()).view(*a.shape[:-1], -1)


def fp8_gemm(a, a_s, b, b_s, scale_dtype=torch.float32):
    return scaled_gemm(a, a_s, b, b_s, 128, 128)


def fp4_gemm(a, a_s, b, b_s, scale_dtype=torch.float32):
    packed = b.view(torch.uint8).numpy()
    code = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return scaled_gemm(a, a_s, torch.from_numpy(v4.e2m1_value(code).astype(np.float32)), b_s, 32, 1)


def sparse_attn(q, kv, sink, rows, scale):
    """Blocks of 64 indices in the given order, running maximum, P in bf16 for the values, in float32 for the sum."""
    seen.update(kv=kv[0], rows=rows[0])
    q, kv = q[0], kv[0]                                                         # batch of one
    n, heads, d = q.shape
    top = torch.full((n, heads), -torch.inf, dtype=torch.float32)
    total, out = torch.zeros_like(top), torch.zeros(n, heads, d, dtype=torch.float32)
    for index in rows[0].split(1 << 20 if "blocks of 64" in without else 64, -1):
        some = kv[index.clamp_min(0)]
        score = (contract(q, some) * np.float32(scale)).masked_fill(index[:, None] < 0, -torch.inf)
        before, top = top, torch.maximum(top, score.amax(-1))
        p, shrink = torch.exp(score - top[..., None]), torch.exp(before - top)
        total = total * shrink + p.sum(-1)
        out = out * shrink[..., None] + contract(p if "bf16 of P" in without else p.bfloat16(), some.mT)
    total = total + torch.exp(sink - top)
    return (out / total[..., None]).bfloat16()[None]


def hc_split_sinkhorn(mixes, scale, base, hc=4, iterations=20, eps=1e-6):
    part = lambda i, a, b: mixes[..., a:b] * scale[i] + base[a:b]
    pre = torch.sigmoid(part(0, 0, hc)) + eps
    post = 2 * torch.sigmoid(part(1, hc, 2 * hc))
    comb = part(2, 2 * hc, 2 * hc + hc * hc).unflatten(-1, (hc, hc))
    comb = torch.exp(comb - comb.amax(-1, keepdim=True))
    comb = comb / comb.sum(-1, keepdim=True) + eps
    for dim in [-2] + [-1, -2] * (iterations - 1):
        comb = comb / (comb.sum(dim, keepdim=True) + eps)
    return pre, post, comb


def hadamard_transform(x, scale=1.0):
    """Sylvester order, float32 inside (sums of this many bf16 values are nearly always exact), one rounding."""
    if "Hadamard rotation" in without:
        return x
    h = x.float().unflatten(-1, (-1, 1))
    while h.size(-2) > 1:
        a, b = h[..., 0::2, :], h[..., 1::2, :]
        h = torch.cat([a + b, a - b], -1)
    return (h.squeeze(-2) * np.float32(scale)).to(x.dtype)


class Sums(TorchFunctionMode):
    """The model's own matrix products and reductions: exact operands, one rounding to the result's type, as on a GPU.
    Torch's CPU kernels for bf16 do not promise that."""

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear and args[1].dtype in (torch.bfloat16, torch.float32):
            return contract(args[0], args[1]).to(args[0].dtype)
        if func is torch.Tensor.square and "bf16 steps of the head norm" in without:
            return args[0].float().square()
        if func is torch.functional.einsum or func is torch.einsum:
            spec, a, b = args
            if spec == "bshd,btd->bsht" and "bf16 of index scores" in without:
                return contract(a, b[:, None])
            if spec == "bshd,btd->bsht":
                return contract(a, b[:, None]).to(a.dtype)
            assert spec == "bsgd,grd->bsgr"
            return contract(a.transpose(1, 2), b).transpose(1, 2).to(a.dtype)
        if func in (torch.Tensor.mean, torch.Tensor.sum, torch.sum) and args[0].dtype in (torch.bfloat16, torch.float32):
            x = args[0].double() if order == "f64" else args[0].float()
            return func(x, *args[1:], **kwargs).to(args[0].dtype)
        if func is torch.Tensor.topk:
            seen["router" if args[0].dtype == torch.float32 else "scores"] = args[0].float()
        return func(*args, **kwargs)


def load_vendor(path):
    """The vendor's model.py with the stand-ins in place of its kernel modules."""
    kernels = types.ModuleType("kernel")
    for f in (act_quant, fp4_act_quant, fp8_gemm, fp4_gemm, sparse_attn, hc_split_sinkhorn):
        setattr(kernels, f.__name__, f)
    hadamard = types.ModuleType("fast_hadamard_transform")
    hadamard.hadamard_transform = hadamard_transform
    sys.modules.update(kernel=kernels, fast_hadamard_transform=hadamard)
    spec = importlib.util.spec_from_file_location("vendor_model", os.path.join(path, "model.py"))
    vendor = importlib.util.module_from_spec(spec)
    sys.modules["vendor_model"] = vendor                                        # dataclass looks itself up there
    spec.loader.exec_module(vendor)
    # the vendor computes the last position's logits; the goldens want all
    vendor.ParallelHead.get_logits = lambda self, x: torch.nn.functional.linear(x.float(), self.weight)
    return vendor


# ---------------------------------------------------------------------------------------------------
# The model of one folder.

def vendor_args(vendor, c, length):
    return vendor.ModelArgs(
        max_batch_size=1, max_seq_len=length, dtype="fp8", scale_fmt="ue8m0", expert_dtype="fp4", scale_dtype="fp8",
        vocab_size=c["vocab_size"], dim=c["hidden_size"], moe_inter_dim=c["moe_intermediate_size"],
        n_layers=c["num_hidden_layers"], n_hash_layers=c["num_hash_layers"], n_mtp_layers=0,
        n_heads=c["num_attention_heads"], n_routed_experts=c["n_routed_experts"], n_shared_experts=1,
        n_activated_experts=c["num_experts_per_tok"], score_func="sqrtsoftplus", route_scale=c["routed_scaling_factor"],
        swiglu_limit=c["swiglu_limit"], q_lora_rank=c["q_lora_rank"], head_dim=c["head_dim"],
        rope_head_dim=c["qk_rope_head_dim"], norm_eps=1e-6, o_groups=c["o_groups"], o_lora_rank=c["o_lora_rank"],
        window_size=c["sliding_window"], compress_ratios=tuple(c["compress_ratios"]), compress_rope_theta=160000.0,
        original_seq_len=c["yarn_original"], rope_theta=10000.0, rope_factor=float(c["yarn_factor"]), beta_fast=32,
        beta_slow=1, index_n_heads=c["index_n_heads"], index_head_dim=c["index_head_dim"], index_topk=c["index_topk"],
        hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6)


class Model:
    """The vendor's Transformer with a folder's weights, its debug values, and a state that can be put back."""

    def __init__(self, vendor, c, stored, plain):
        self.c = c
        torch.set_default_dtype(torch.bfloat16)                                 # as the vendor's generate.py does
        self.net = vendor.Transformer(vendor_args(vendor, c, c["prompt"] + c["decode"] + 4)).eval()
        for name, p in self.net.named_parameters():
            value = stored[name]
            if name.endswith("wo_a.weight"):
                value = plain[name].bfloat16()                                  # the vendor's convert.py widens it too
                assert torch.equal(value.float(), plain[name])
            elif value.dtype == torch.int8:
                value = value.view(torch.float4_e2m1fn_x2)
            elif value.dtype == torch.int64:
                value = value.to(p.dtype)
            elif value.element_size() > 1:
                value = value.to(p.dtype)
            assert value.dtype == p.dtype and value.shape == p.shape, name
            p.data = value
        unused = set(stored) - {n for n, _ in self.net.named_parameters()}
        assert all(n.endswith("wo_a.scale") for n in unused), unused
        self.state, self.fresh = {}, None
        self.fresh = self.save()
        for i, layer in enumerate(self.net.layers):
            layer.attn.register_forward_hook(lambda m, inp, out, i=i: self.keep_attention(i, inp[0], out))
            layer.ffn.register_forward_hook(lambda m, inp, out, i=i: self.keep(i, ffn_in=inp[0], ffn_out=out))
            layer.ffn.gate.register_forward_hook(lambda m, inp, out, i=i: self.keep_router(i, out))
            layer.register_forward_hook(lambda m, inp, out, i=i: self.keep(i, hidden=out))
            if layer.attn.compress_ratio == 4:
                layer.attn.indexer.register_forward_hook(lambda m, inp, out, i=i: self.keep_topk(i, inp, out))

    def keep(self, i, **values):
        self.state.update({f"layer.{i}.{k}": v[0].clone() for k, v in values.items()})

    def keep_attention(self, i, x, out):
        self.keep(i, attn_in=x, attn_out=out)
        self.state[f"layer.{i}.kv_seen"] = seen["kv"].clone()

    def keep_router(self, i, out):
        if i >= self.c["num_hash_layers"]:
            self.gap(f"layer.{i}.router", seen["router"], self.c["num_experts_per_tok"])
        self.state[f"layer.{i}.experts"], self.state[f"layer.{i}.expert_weights"] = out[1].long(), out[0]

    def keep_topk(self, i, inp, out):
        offset = inp[3]
        self.state[f"layer.{i}.topk"] = torch.where(out[0] < 0, -1, out[0] - offset)
        self.gap(f"layer.{i}.indexer", seen["scores"][0], self.c["index_topk"])
        self.state[f"layer.{i}.scores"] = seen["scores"][0]
        self.state[f"layer.{i}.iq"], self.state[f"layer.{i}.iq_scale"] = (t[0] for t in seen["q"])
        self.state[f"layer.{i}.ik"], self.state[f"layer.{i}.ik_scale"] = (t[0] for t in seen.get("k", seen["q"]))

    def gap(self, name, scores, k):
        """(k-th minus (k+1)-th score) / largest |score| per position; infinite where all are selected."""
        gap = torch.full(scores.shape[:1], torch.inf, dtype=torch.float32)
        if scores.shape[1] > k:
            best = scores.topk(k + 1).values
            contested = best[:, k] > -torch.inf
            size = scores.abs().masked_fill(scores.isinf(), 0).amax(1)
            gap[contested] = ((best[:, k - 1] - best[:, k]) / size)[contested]
        self.gaps[name] = gap

    def save(self):
        return {n: b.clone() for n, b in self.net.named_buffers()}

    def restore(self, state):
        for n, b in self.net.named_buffers():
            b.copy_(state[n])

    def run(self, ids, start):
        self.gaps = {}
        with Sums():
            logits = self.net(torch.tensor([ids]), start)[0].float()
        return logits.clone()

    def smallest_gap(self, what):
        found = [g for n, g in self.gaps.items() if n.endswith(what)]
        return torch.stack(found).amin(0) if found else torch.full((1,), torch.inf, dtype=torch.float32)


DRAW = dict(indexer=0.015, router=0.05)        # a bf16 score has a step of 0.4 to 0.8 percent; ties there are common


def draw_prompt(model, c, seed):
    """Random ids, one decode step each; a token is drawn again while one of its selections is nearly tied."""
    rng = np.random.Generator(np.random.PCG64([seed, 0x0FF1C1A1]))
    model.restore(model.fresh)
    ids, redrawn, accepted = [], 0, []
    for p in range(c["prompt"]):
        before = model.save()
        for attempt in range(60):
            token = 0 if p == 0 else int(rng.integers(2, c["vocab_size"]))
            model.restore(before)
            model.run([token], p)
            if p == 0 or all(float(model.smallest_gap(w).min()) >= d for w, d in DRAW.items()):
                break
            redrawn += 1
        else:
            accepted.append(p)                                                  # listed as unstable later if it flips
        ids.append(token)
    print(f"prompt: {len(ids)} ids, {redrawn} redrawn, gave up at {accepted}", flush=True)
    return ids


def prefill(model, ids):
    model.restore(model.fresh)
    return model.run(ids, 0)


def decode(model, logits, start, steps, forced=None):
    """Greedy, or over the given ids: ids, logits, and per step the selections."""
    ids, rows, chosen = [], [], []
    for i in range(steps):
        ids.append(int(logits.argmax()) if forced is None else forced[i])
        logits = model.run(ids[-1:], start + i)[0]
        rows.append(logits)
        chosen.append(selections(model, 1))
    return ids, torch.stack(rows), chosen


def selections(model, n):
    """Per position, the chosen rows and experts of all layers as sets."""
    out = []
    for p in range(n):
        out.append(tuple((name, frozenset(r for r in v[p].tolist() if r >= 0)) for name, v in sorted(model.state.items())
                         if name.endswith((".topk", ".experts"))))         # -1 only fills up a prefill's rows
    return out


def golden(model, c, ids, logits):
    n = len(ids)
    pos = torch.tensor(sorted({p for p in v4.debug_positions(c) if p < n} | set(range(0, n, 8))))
    out = dict(ids=torch.tensor(ids), logits=logits, pos=pos)
    for i, ratio in enumerate(c["compress_ratios"][: c["num_hidden_layers"]]):
        s = lambda name: model.state[f"layer.{i}.{name}"]
        for name in ("attn_in", "attn_out"):
            out[f"layer.{i}.{name}"] = s(name)                                  # all positions: a layer can be run alone
        for name in ("ffn_in", "ffn_out", "hidden", "experts", "expert_weights"):
            out[f"layer.{i}.{name}"] = s(name)[pos]
        out[f"layer.{i}.kv"] = s("kv_seen")[:n]
        if ratio:
            out[f"layer.{i}.ckv"] = s("kv_seen")[n:]
        if ratio == 4:
            out[f"layer.{i}.topk"] = s("topk")[pos]
            out[f"layer.{i}.iscores"] = s("scores")[pos].bfloat16()
            out[f"layer.{i}.iq"] = (s("iq") * s("iq_scale").repeat_interleave(32, -1))[pos].bfloat16()
            out[f"layer.{i}.iq_scale"] = s("iq_scale")[pos].to(torch.float8_e8m0fnu)
            out[f"layer.{i}.ikeys"] = (s("ik") * s("ik_scale").repeat_interleave(32, -1)).bfloat16()
            out[f"layer.{i}.ikeys_scale"] = s("ik_scale").to(torch.float8_e8m0fnu)
    return {k: v.clone().contiguous() for k, v in out.items()}


def layer_noise(model, c, ids, tensors):
    """Each attention and each MoE alone, from the stored inputs, in the other orders of summation: per position the
    largest difference of the output, and whether the selections stayed. Far smaller than the noise of the logits."""
    global order
    ffn_in = {i: model.state[f"layer.{i}.ffn_in"].clone() for i in range(c["num_hidden_layers"])}
    base, report = {k: v.clone() for k, v in model.state.items()}, {}

    def changed(name):
        return torch.tensor([set(a) != set(b) for a, b in zip(model.state[name].tolist(), base[name].tolist())])

    for i, layer in enumerate(model.net.layers):
        to = f"layer.{i}."
        noise, ffn_noise = torch.zeros(len(ids), dtype=torch.float32), torch.zeros(len(ids), dtype=torch.float32)
        flips, ffn_flips = torch.zeros(len(ids), dtype=torch.bool), torch.zeros(len(ids), dtype=torch.bool)
        for order in ORDERS:
            model.restore(model.fresh)
            model.gaps = {}
            with Sums(), torch.inference_mode():
                layer.attn(tensors[to + "attn_in"][None], 0)
                layer.ffn(ffn_in[i][None], torch.tensor([ids]))
            spread = lambda name: (model.state[to + name].float() - base[to + name].float()).abs()
            noise = torch.maximum(noise, spread("attn_out").amax(-1))
            ffn_noise = torch.maximum(ffn_noise, spread("ffn_out").amax(-1))
            ffn_flips |= changed(to + "experts")
            if to + "topk" in base:
                flips |= changed(to + "topk")
            if order == "f32":
                assert float(noise.max()) == 0 and float(ffn_noise.max()) == 0, "not the state of the prefill"
            else:
                rows = (model.state[to + "kv_seen"] != base[to + "kv_seen"]).any(-1)
                keys = int((spread("ik").amax(-1) > 0).sum()) if to + "ik" in base else 0
                print(f"layer {i} {order}: attn_out differs in {float((spread('attn_out') > 0).float().mean()):.2e} of the "
                      f"elements, kv rows {int(rows.sum())}, index keys {keys}, ffn_out "
                      f"{float((spread('ffn_out') > 0).float().mean()):.2e}", flush=True)
        order = "f32"
        tensors.update({to + "attn_noise": noise, to + "ffn_noise": ffn_noise[tensors["pos"]],
                        to + "attn_unstable": flips.nonzero()[:, 0]})
        keep, keep_ffn = ~flips, ~ffn_flips
        report[f"layer{i}_noise"] = (
            f"attn max {float(noise[keep].max()):.2e} median {float(noise[keep].median()):.2e} of std "
            f"{float(base[to + 'attn_out'].float().std()):.2f}, {int(flips.sum())} selections changed; ffn max "
            f"{float(ffn_noise[keep_ffn].max()):.2e} median {float(ffn_noise[keep_ffn].median()):.2e} of std "
            f"{float(base[to + 'ffn_out'].float().std()):.2f}, {int(ffn_flips.sum())} selections changed")
        print(f"layer {i}:", report[f"layer{i}_noise"], flush=True)
    return report


def difference(a, b):
    d = (a - b).abs()
    return float(d.max()), float(d.mean()), float((a.argmax(-1) == b.argmax(-1)).float().mean())


def official(c, vendor, seed, meta):
    """(tensors, metadata) for one case."""
    global order
    stored, plain = v4.make_weights(c, seed)
    model = Model(vendor, c, stored, plain)
    order = "f32"
    ids = draw_prompt(model, c, seed)
    n, steps = len(ids), c["decode"]
    logits = prefill(model, ids)
    tensors = golden(model, c, ids, logits)
    ties = (torch.stack(list(model.gaps.values())).amin(0) == 0)
    base = selections(model, n)
    meta = dict(meta, **layer_noise(model, c, ids, tensors))
    prefill(model, ids)
    greedy_ids, greedy_logits, greedy_chosen = decode(model, logits[-1], n, steps)
    tensors.update(greedy_ids=torch.tensor(greedy_ids), greedy_logits=greedy_logits)

    noise, greedy_noise = torch.zeros(n, dtype=torch.float32), torch.zeros(steps, dtype=torch.float32)
    flips, greedy_flips = ties.clone(), torch.zeros(steps, dtype=torch.bool)
    for order in ORDERS[1:]:
        other = prefill(model, ids)
        changed = [[name for (name, x), (_, y) in zip(a, b) if x != y] for a, b in zip(base, selections(model, n))]
        flips |= torch.tensor([bool(names) for names in changed])
        print(order, "selections changed:", {m: sum(m in names for names in changed) for m, _ in base[0]}, "ties", int(ties.sum()))
        print(f"{order} to f32: max %.2e mean %.2e argmax %.4f" % difference(other, logits), flush=True)
        noise = torch.maximum(noise, (other - logits).abs().amax(-1))
        _, rows, chosen = decode(model, other[-1], n, steps, greedy_ids)
        greedy_flips |= torch.tensor([a != b for a, b in zip(chosen, greedy_chosen)])
        greedy_noise = torch.maximum(greedy_noise, (rows - greedy_logits).abs().amax(-1))
    order = "f32"
    # the third check: the same ids one at a time, through the decode branch of the vendor's code
    model.restore(model.fresh)
    _, stepwise, chosen = decode(model, None, 0, n, ids)
    flips |= torch.tensor([a != [b] for a, b in zip(chosen, base)])
    print("stepwise to prefill: max %.2e mean %.2e argmax %.4f" % difference(stepwise, logits), flush=True)
    noise = torch.maximum(noise, (stepwise - logits).abs().amax(-1))

    tensors["unstable_pos"] = flips.nonzero()[:, 0]
    tensors["unstable_step"] = greedy_flips.nonzero()[:, 0]
    tensors["noise"], tensors["greedy_noise"] = noise, greedy_noise
    best = torch.cat([logits[-1:], greedy_logits]).topk(2, -1).values
    torch.set_default_dtype(torch.float32)
    exact = v4.make_model(c, plain)(input_ids=torch.tensor([ids + greedy_ids])).logits[0]
    vs = difference(torch.cat([logits, greedy_logits]), exact)
    print("official to float32 without activation rounding: max %.2e mean %.2e argmax %.4f" % vs)
    meta = dict(meta, noise_max=f"{float(noise.max()):.3e}", noise_mean=f"{float(noise.mean()):.3e}",
                noise_greedy_max=f"{float(greedy_noise.max()):.3e}",
                noise_median=f"{float(noise.median()):.3e}",
                vs_float32_max=f"{vs[0]:.3e}", vs_float32_mean=f"{vs[1]:.3e}", vs_float32_argmax=f"{vs[2]:.4f}",
                logits_std=f"{float(logits.std()):.4f}", unstable=str(int(flips.sum())),
                greedy_smallest_top1_gap=f"{float((best[:, 0] - best[:, 1]).min()):.3e}",
                weights_sha256=v4.weights_sha256(stored), seed=str(seed), torch=torch.__version__.split("+")[0],
                stand_ins="act_quant fp4_act_quant fp8_gemm fp4_gemm sparse_attn hc_split_sinkhorn hadamard_transform; "
                          "get_logits over all positions; linear, einsum, mean, sum with one rounding")
    return tensors, meta


MISTAKES = ("", "FP8 of activations", "power-of-two scales", "FP8 of cached rows", "bf16 of P", "blocks of 64",
            "bf16 steps of the head norm", "Hadamard rotation", "FP4 of the indexer", "bf16 of index scores")


def mistakes(case, vendor, folder):
    """How far each rounding point, left out, moves one attention that is fed with the stored attn_in."""
    c = v4.CASES[case]
    model = Model(vendor, c, *v4.make_weights(c, c["seed"]))
    stored = load_file(os.path.join(folder, case, "golden_official.safetensors"))
    pos = stored["pos"]
    for left_out in MISTAKES:
        without.clear()
        without.update({left_out} - {""})
        row = []
        for i, layer in enumerate(model.net.layers):
            model.restore(model.fresh)
            model.gaps = {}
            with Sums(), torch.inference_mode():
                layer.attn(stored[f"layer.{i}.attn_in"][None], 0)
            d = (model.state[f"layer.{i}.attn_out"].float() - stored[f"layer.{i}.attn_out"].float()).abs()
            row.append(f"{float((d > 0).float().mean()):.3f} {float(d.max()):.1e}")
            if f"layer.{i}.topk" in stored:
                a, b = model.state[f"layer.{i}.topk"][pos].tolist(), stored[f"layer.{i}.topk"].tolist()
                row[-1] += f" {sum(set(x) != set(y) for x, y in zip(a, b))}"
        print(f"| {left_out or 'nothing'} | {' | '.join(row)} |", flush=True)
    without.clear()


def self_test():
    v4.self_test()
    x = torch.randn(3, 256).bfloat16()
    eye = torch.eye(128)
    h = torch.tensor([[(-1.0) ** bin(a & b).count("1") for b in range(128)] for a in range(128)])
    assert torch.equal(hadamard_transform(eye), h)
    q, s = act_quant(x, 128, "ue8m0", torch.float8_e8m0fnu)
    assert torch.equal((q.float().unflatten(-1, (-1, 128)) * s.float()[..., None]).flatten(-2).bfloat16(),
                       act_quant(x.clone(), 128, "ue8m0", torch.float8_e8m0fnu, True))
    amax = torch.tensor([7.0, 3.5, 448, 449, 1e-4])
    assert pow2_ceil(amax * np.float32(1 / 448)).log2().tolist() == [-6, -7, 0, 1, -22]
    w = np.random.default_rng(0).normal(0, 1, (96, 256)).astype(np.float32)
    code, scale = v4.fp4_encode(w)
    y = fp4_gemm(q, s, torch.from_numpy(code).view(torch.float4_e2m1fn_x2), torch.from_numpy(scale).view(torch.float8_e8m0fnu))
    exact = (q.float().unflatten(-1, (-1, 128)) * s.float()[..., None]).flatten(-2) @ torch.from_numpy(v4.fp4_decode(code, scale)).T
    assert (y.float() - exact).abs().max() < 1e-2 * exact.abs().max()
    print("self test of the stand-ins: ok")


def vendor_sha256(path):
    return hashlib.sha256(open(os.path.join(path, "model.py"), "rb").read()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=list(v4.CASES))
    parser.add_argument("--vendor", help="folder with the vendor's model.py")
    parser.add_argument("--source", default="", help="where that copy comes from, for the metadata")
    parser.add_argument("--out", default=v4.GOLDEN, help="folder that holds the case folders (default: tests/golden)")
    parser.add_argument("--mistakes", action="store_true", help="print what leaving out each rounding point changes")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    self_test()
    if args.mistakes:
        mistakes(args.case, load_vendor(args.vendor), args.out)
    elif args.case:
        c = v4.CASES[args.case]
        vendor = load_vendor(args.vendor)
        meta = dict(source=args.source, model_py_sha256=vendor_sha256(args.vendor))
        tensors, meta = official(c, vendor, c["seed"], meta)
        file = os.path.join(args.out, args.case, "golden_official.safetensors")
        save_file(tensors, file, meta)
        print({k: v for k, v in meta.items() if k not in ("stand_ins",)}, os.path.getsize(file), "bytes")


if __name__ == "__main__":
    main()
