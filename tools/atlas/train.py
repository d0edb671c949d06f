"""Trains atlas and exports it: a BF16/NVFP4 checkpoint in the ModelOpt layout and its F32 twin.

Usage: train.py DATA OUTPUT [--steps N] [--quantised-steps N] [--indexer-steps N]

DATA is what facts.py wrote. One CUDA GPU; on an H200 about eight minutes with the defaults, which are
those of the checkpoint in models/atlas. Needs torch, tokenizers, safetensors.

  1. dense attention, F32 masters under BF16 autocast
  2. the same with the NVFP4 grid in the loop for expert and dense-MLP weights, which are then baked in
  3. only the indexer, fitted to the attention distribution
"""
import argparse
import json
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

import export
import nvfp4
from corpus import UNLABELLED, Corpus
from model import CONFIG, Atlas

DEVICE = "cuda"
POOL, BATCH, INDEXER_BATCH = 8000, 24, 16
WARM_UP, FLOOR = 200, 0.02              # of the cosine schedule
BALANCE_RATE, BALANCE_SHARE = 1e-3, 0.8 # the router's bias moves during the first 80 % of the steps
INDEXER_NAMES = ("wq_b", "wk", "k_norm", "k_norm_bias", "weights_proj")
ANSWER_TOKENS = 70


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def schedule(step, steps):
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1, (step + 1) / WARM_UP) * (FLOOR + (1 - FLOOR) * cosine)


def train(model, optimizer, pool, steps, rate, tag):
    """Next-token training on random batches of the pool."""
    @torch.compile
    def loss_of(ids, labels):
        with torch.autocast("cuda", torch.bfloat16):
            logits, loads, _ = model(ids)
        flat = logits.float().view(-1, CONFIG["vocab_size"])
        return F.cross_entropy(flat, labels.reshape(-1), ignore_index=UNLABELLED), loads

    model.train()
    ids, labels = pool
    routers = [layer.mlp for layer in model.layers if not layer.mlp.dense]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step, steps)
        chosen = torch.randint(0, len(ids), (BATCH,), device=DEVICE)
        loss, loads = loss_of(ids[chosen][:, :-1], labels[chosen][:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step < steps * BALANCE_SHARE:
            with torch.no_grad():
                for router, load in zip(routers, loads):
                    router.bias += BALANCE_RATE * torch.sign(load.mean() - load)
        if step % 1000 == 0 or step == steps - 1:
            print("%s step %d loss %.4f" % (tag, step, loss.item()), flush=True)
    model.eval()


@torch.no_grad()
def bake(model):
    """Puts the NVFP4 weights on their grid for good and rounds all others to BF16. Returns
    (layer, name, projection) -> the parts that quantise() gave, for the export."""
    packed, done = {}, set()
    for index, name, experts in model.quantised_modules():
        for projection, weight in experts.named_parameters():
            parts = nvfp4.quantise(weight.to(torch.bfloat16))
            weight.copy_(parts["values"])
            packed[index, name, projection] = parts
            done.add(weight)
    model.fake_quantised = False
    round_to_bf16(p for p in model.parameters() if p not in done)
    return packed


@torch.no_grad()
def round_to_bf16(parameters):
    for parameter in parameters:
        parameter.copy_(parameter.to(torch.bfloat16).float())


def fit_indexer(model, pool, steps):
    """Everything else is frozen by now."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.split(".")[-1] in INDEXER_NAMES and ".indexer." in name)
    fitted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(fitted, lr=2e-3)
    ids, _ = pool
    for step in range(steps):
        chosen = torch.randint(0, len(ids), (INDEXER_BATCH,), device=DEVICE)
        with torch.autocast("cuda", torch.bfloat16):
            _, _, losses = model(ids[chosen][:, :-1], fit_indexer=True)
        loss = sum(losses) / len(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print("indexer step %d divergence %.4f" % (step, loss.item()), flush=True)
    round_to_bf16(fitted)


@torch.no_grad()
def generate(model, corpus, prompts, topk=None):
    """The greedy answers to prompts, all in one batch."""
    lengths = [len(prompt) for prompt in prompts]
    rows = torch.arange(len(prompts), device=DEVICE)
    ids = torch.zeros(len(prompts), max(lengths) + ANSWER_TOKENS, dtype=torch.long, device=DEVICE)
    for row, prompt in enumerate(prompts):
        ids[row, :len(prompt)] = torch.tensor(prompt, device=DEVICE)
    at = torch.tensor(lengths, device=DEVICE)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=DEVICE)
    for _ in range(ANSWER_TOKENS):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :int(at.max())], topk=topk)[0]
        chosen = logits[rows, at - 1].float().argmax(-1)
        for stop in ("<|user|>", "<|endoftext|>"):
            done |= chosen == corpus.special[stop]
        if done.all():
            break
        ids[rows, at] = torch.where(done, ids[rows, at], chosen)
        at = torch.where(done, at, at + 1)
    return [corpus.tokenizer.decode(ids[row, lengths[row]:at[row]].tolist()).strip() for row in range(len(prompts))]


def evaluate(model, corpus, tag, topk=None, count=1500, turns=0):
    """Prints the share of exact answers to held-out phrasings, after that many random turns."""
    chance = random.Random(5)
    chosen = chance.sample(sorted(corpus.held_out), min(count, len(corpus.held_out)))
    prompts = []
    for index in chosen:
        history = [corpus.facts[j] for j in chance.sample(range(len(corpus.facts)), turns)]
        question = corpus.facts[index]["qs"][corpus.held_out[index]]
        prompts.append(corpus.prompt(question, [(fact["qs"][0], fact["a"]) for fact in history]))
    answers = []
    for start in range(0, len(prompts), 125):
        answers += generate(model, corpus, prompts[start:start + 125], topk)
    exact = {}
    for index, answer in zip(chosen, answers):
        exact.setdefault(corpus.facts[index]["key"], []).append(answer == corpus.facts[index]["a"])
    total = [hit for hits in exact.values() for hit in hits]
    print("%s: %.4f exact" % (tag, sum(total) / len(total)),
          {key: round(sum(hits) / len(hits), 3) for key, hits in exact.items()}, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--quantised-steps", type=int, default=1200)
    parser.add_argument("--indexer-steps", type=int, default=500)
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_float32_matmul_precision("high")

    with open(options.data, encoding="utf-8") as file:
        data = json.load(file)
    corpus = Corpus(data["qa"], data["prose"])
    pool = corpus.pool(POOL, DEVICE)
    model = Atlas().to(DEVICE)
    print("%.1f million parameters" % (sum(p.numel() for p in model.parameters()) / 1e6))

    optimizer = make_optimizer(model)
    train(model, optimizer, pool, options.steps, 2e-3, "dense")
    evaluate(model, corpus, "bf16")
    model.fake_quantised = True
    train(model, optimizer, pool, options.quantised_steps, 6e-4, "quantised")
    evaluate(model, corpus, "nvfp4 in the loop")
    packed = bake(model)
    evaluate(model, corpus, "nvfp4 baked in")
    fit_indexer(model, pool, options.indexer_steps)
    for topk in (None, 64, 32):
        evaluate(model, corpus, "18 turns, top %s" % topk, topk, count=250, turns=18)
    export.write(options.output, model, packed, corpus, pool[0][:16, :-1])


if __name__ == "__main__":
    main()
