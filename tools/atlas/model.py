"""The architecture of atlas, GLM-5's (`glm_moe_dsa`) at a tiny size, in plain PyTorch.

Latent attention, a sparse indexer, and a mixture of experts with a sigmoid router, a bias that balances
its load without a loss, and one shared expert.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import nvfp4

CONFIG = dict(
    vocab_size=4096, hidden_size=256, num_hidden_layers=6, num_attention_heads=8,
    q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48,
    n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, intermediate_size=768,
    first_k_dense_replace=1, routed_scaling_factor=2.5,
    index_n_heads=4, index_head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0,
)
LATENT_EPS = 1e-6 # of the norms inside attention
INDEX_NORM_EPS = 1e-6


def parameter(*shape, std=0.02):
    return nn.Parameter(torch.randn(*shape) * std)


def ones(size):
    return nn.Parameter(torch.ones(size))


def rms_norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope_angles(length, device):
    """(cos, sin), each [length, rope/2]."""
    width = CONFIG["qk_rope_head_dim"]
    inverse = CONFIG["rope_theta"] ** (-torch.arange(0, width, 2, device=device).float() / width)
    angle = torch.arange(length, device=device).float()[:, None] * inverse
    return angle.cos(), angle.sin()


def rotate(x, angles):
    """Interleaved pairs in, the two halves out, as GLM-5."""
    cos, sin = angles
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Indexer(nn.Module):
    """Scores every earlier key for each query; attention then reads the best index_topk."""

    def __init__(self):
        super().__init__()
        heads, width = CONFIG["index_n_heads"], CONFIG["index_head_dim"]
        self.wq_b = parameter(heads * width, CONFIG["q_lora_rank"], std=0.05)
        self.wk = parameter(width, CONFIG["hidden_size"], std=0.05)
        self.k_norm = ones(width)
        self.k_norm_bias = nn.Parameter(torch.zeros(width))
        self.weights_proj = parameter(heads, CONFIG["hidden_size"], std=0.05)

    def forward(self, x, q_latent, angles):
        """Scores [batch, query, key], F32."""
        heads, width, rope = (CONFIG[k] for k in ("index_n_heads", "index_head_dim", "qk_rope_head_dim"))
        query = F.linear(q_latent, self.wq_b).unflatten(-1, (heads, width)).transpose(1, 2)
        key = F.layer_norm(F.linear(x, self.wk).float(), (width,), self.k_norm, self.k_norm_bias, INDEX_NORM_EPS)
        key = key.to(x.dtype)[:, None]
        query, key = (torch.cat([rotate(t[..., :rope], angles), t[..., rope:]], -1).float() for t in (query, key))
        score = F.relu(query @ key.transpose(-1, -2) * width ** -0.5)
        weight = F.linear(x, self.weights_proj).float() * heads ** -0.5
        return (score * weight.transpose(1, 2)[..., None]).sum(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, heads, layers = (CONFIG[k] for k in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        q_rank, kv_rank = CONFIG["q_lora_rank"], CONFIG["kv_lora_rank"]
        nope, rope, value = (CONFIG[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        self.q_a_proj = parameter(q_rank, hidden)
        self.q_a_layernorm = ones(q_rank)
        self.q_b_proj = parameter(heads * (nope + rope), q_rank, std=0.05)
        self.kv_a_proj_with_mqa = parameter(kv_rank + rope, hidden)
        self.kv_a_layernorm = ones(kv_rank)
        self.kv_b_proj = parameter(heads * (nope + value), kv_rank, std=0.05)
        self.o_proj = parameter(hidden, heads * value, std=0.02 / math.sqrt(2 * layers))
        self.indexer = Indexer()

    def forward(self, x, angles, topk=None, fit_indexer=False):
        """(output, divergence of the indexer from the attention distribution, or None)."""
        heads, nope, rope = (CONFIG[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
        length = x.shape[1]
        q_latent = rms_norm(F.linear(x, self.q_a_proj), self.q_a_layernorm, LATENT_EPS)
        query = F.linear(q_latent, self.q_b_proj).unflatten(-1, (heads, -1)).transpose(1, 2)
        query = torch.cat([query[..., :nope], rotate(query[..., nope:], angles)], -1)
        latent, key_rope = F.linear(x, self.kv_a_proj_with_mqa).split([CONFIG["kv_lora_rank"], rope], -1)
        latent = rms_norm(latent, self.kv_a_layernorm, LATENT_EPS)
        key_rope = rotate(key_rope[:, None], angles).expand(-1, heads, -1, -1)
        key_value = F.linear(latent, self.kv_b_proj).unflatten(-1, (heads, -1)).transpose(1, 2)
        key, value = key_value.split([nope, CONFIG["v_head_dim"]], -1)
        key = torch.cat([key, key_rope], -1)

        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        # The indexer learns from attention, which does not learn from the indexer.
        score = self.indexer(x.detach(), q_latent.detach(), angles) if topk or fit_indexer else None
        mask = None
        if topk and topk < length:
            best = score.masked_fill(~causal, float("-inf")).topk(topk, -1).indices
            chosen = torch.zeros_like(score, dtype=torch.bool).scatter(-1, best, True)
            mask = (chosen & causal)[:, None]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        out = F.linear(out.transpose(1, 2).flatten(-2), self.o_proj)
        return out, divergence(query, key, score, causal) if fit_indexer else None


def divergence(query, key, score, causal):
    """KL from the attention distribution, averaged over heads, to the indexer's softmax."""
    with torch.no_grad():
        logits = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
        target = logits.masked_fill(~causal, float("-inf")).softmax(-1).mean(1)
    log_mine = score.masked_fill(~causal, float("-inf")).log_softmax(-1).masked_fill(~causal, 0)
    terms = target * (target.clamp(min=1e-9).log() - log_mine)
    return terms.masked_fill(~causal, 0).sum(-1).mean()


class Experts(nn.Module):
    """count gated MLPs side by side; the matrices that NVFP4 stores."""

    def __init__(self, count, width):
        super().__init__()
        hidden, layers = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
        self.gate_proj = parameter(count, width, hidden, std=0.04)
        self.up_proj = parameter(count, width, hidden, std=0.04)
        self.down_proj = parameter(count, hidden, width, std=0.04 / math.sqrt(2 * layers))

    def middle(self, x, on_grid):
        """What down_proj reads, [experts, tokens, width]."""
        gate = torch.einsum("th,eih->eti", x, on_grid(self.gate_proj))
        return F.silu(gate) * torch.einsum("th,eih->eti", x, on_grid(self.up_proj))

    def forward(self, x, on_grid):
        """Every expert on every token, [tokens, experts, hidden]: few and small, so no dispatch."""
        return torch.einsum("eti,ehi->teh", self.middle(x, on_grid), on_grid(self.down_proj))


class FeedForward(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.dense = dense
        experts = CONFIG["n_routed_experts"]
        self.experts = Experts(1 if dense else experts,
                               CONFIG["intermediate_size" if dense else "moe_intermediate_size"])
        if not dense:
            self.router = parameter(experts, CONFIG["hidden_size"])
            self.register_buffer("bias", torch.zeros(experts))
            self.shared = Experts(1, CONFIG["moe_intermediate_size"])

    def forward(self, x, on_grid):
        """(output, share of tokens that each expert receives, or None)."""
        rows = x.flatten(0, 1)
        if self.dense:
            return self.experts(rows, on_grid)[:, 0].view_as(x), None
        with torch.autocast("cuda", enabled=False):
            score = F.linear(rows.float(), self.router.float()).sigmoid()
        # The bias chooses; it does not weigh.
        chosen = (score + self.bias).topk(CONFIG["num_experts_per_tok"], -1).indices
        weight = score.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * CONFIG["routed_scaling_factor"]
        weight = torch.zeros_like(score).scatter(1, chosen, weight.to(score.dtype))
        routed = self.experts(rows, on_grid)
        out = (routed * weight[..., None].to(routed.dtype)).sum(1) + self.shared(rows, on_grid)[:, 0]
        return out.view_as(x), (weight > 0).float().mean(0)


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.input_layernorm = ones(CONFIG["hidden_size"])
        self.post_attention_layernorm = ones(CONFIG["hidden_size"])
        self.self_attn = Attention()
        self.mlp = FeedForward(dense=index < CONFIG["first_k_dense_replace"])

    def mlp_input(self, x):
        return rms_norm(x, self.post_attention_layernorm, CONFIG["rms_norm_eps"])

    def attend(self, x, angles, topk=None, fit_indexer=False):
        normed = rms_norm(x, self.input_layernorm, CONFIG["rms_norm_eps"])
        out, loss = self.self_attn(normed, angles, topk, fit_indexer)
        return x + out, loss


class Atlas(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = parameter(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer(index) for index in range(CONFIG["num_hidden_layers"]))
        self.norm = ones(CONFIG["hidden_size"])
        self.lm_head = parameter(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.fake_quantised = False # NVFP4 in the loop

    def on_grid(self, weight):
        return nvfp4.fake_quantise(weight) if self.fake_quantised else weight

    def quantised_modules(self):
        """(layer, name, module) of all that NVFP4 stores."""
        for index, layer in enumerate(self.layers):
            yield index, "experts", layer.mlp.experts
            if not layer.mlp.dense:
                yield index, "shared", layer.mlp.shared

    def forward(self, ids, topk=None, fit_indexer=False):
        """(logits, expert loads of the MoE layers, losses of the indexers)."""
        angles = rope_angles(ids.shape[1], ids.device)
        x, loads, losses = F.embedding(ids, self.embed_tokens), [], []
        for layer in self.layers:
            x, loss = layer.attend(x, angles, topk, fit_indexer)
            out, load = layer.mlp(layer.mlp_input(x), self.on_grid)
            x = x + out
            losses.append(loss)
            if load is not None:
                loads.append(load)
        return F.linear(rms_norm(x, self.norm, CONFIG["rms_norm_eps"]), self.lm_head), loads, losses
