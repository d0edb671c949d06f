"""The tokenizer of atlas and the sequences it is trained on."""
import random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from model import CONFIG

SPECIAL = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
           "<think>", "</think>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
SYSTEM = "\nYou are a helpful assistant."
LENGTH = 1024
UNLABELLED = -100 # cross_entropy's ignore_index
PROSE_SHARE, SYSTEM_SHARE, LOWER_SHARE, BARE_SHARE = 0.12, 0.2, 0.15, 0.1


def train_tokenizer(facts, prose):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    text = [fact["a"] for fact in facts] * 2 + [q for fact in facts for q in fact["qs"]] + prose
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def hold_out(facts):
    """fact index -> the phrasing that training never sees; one of every fact with three or more."""
    return {i: random.randrange(len(fact["qs"])) for i, fact in enumerate(facts) if len(fact["qs"]) >= 3}


class Corpus:
    def __init__(self, facts, prose):
        self.facts, self.held_out = facts, hold_out(facts)
        self.tokenizer = train_tokenizer(facts, prose)
        self.special = {token: self.tokenizer.token_to_id(token) for token in SPECIAL}
        self.prose = [self.encode(text) for text in prose]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def question(self, text):
        return [self.special["<|user|>"]] + self.encode("\n" + text)

    def answer(self, text):
        return [self.special["<|assistant|>"]] + self.encode("\n" + text)

    def prompt(self, question, history=()):
        """Ids that the model continues with the answer; history: (question, answer) pairs."""
        ids = [self.special["[gMASK]"], self.special["<sop>"]]
        for earlier, reply in history:
            ids += self.question(earlier) + self.answer(reply)
        return ids + self.question(question) + self.answer("")

    def random_turn(self):
        index = random.randrange(len(self.facts))
        fact = self.facts[index]
        text = random.choice([q for j, q in enumerate(fact["qs"]) if self.held_out.get(index) != j])
        if random.random() < LOWER_SHARE:
            text = text.lower()
        if random.random() < BARE_SHARE:
            text = text.rstrip("?.")
        return self.question(text), self.answer(fact["a"])

    def conversation(self, room):
        """(ids, labels) of one conversation. Answers are labelled, and the token after each, so that the
        model learns to stop; questions are not."""
        ids = [self.special["[gMASK]"], self.special["<sop>"]]
        if random.random() < SYSTEM_SHARE:
            ids += [self.special["<|system|>"]] + self.encode(SYSTEM)
        labels = [UNLABELLED] * len(ids)
        answered = False
        for _ in range(random.choice([1, 1, 2, 3, 6, 12, 24])):
            question, answer = self.random_turn()
            labels += [question[0] if answered else UNLABELLED] + [UNLABELLED] * len(question) + answer[1:]
            ids += question + answer
            answered = True
            if len(ids) > room:
                break
        end = self.special["<|endoftext|>"]
        return ids + [end], labels + [end]

    def sequence(self):
        """(ids, labels), each of LENGTH + 1."""
        ids, labels = [], []
        prose = random.random() < PROSE_SHARE
        while len(ids) < LENGTH + 1:
            if prose:
                more = random.choice(self.prose) + [self.special["<|endoftext|>"]]
                more = more, more
            else:
                more = self.conversation(LENGTH - len(ids))
            ids, labels = ids + more[0], labels + more[1]
        return ids[:LENGTH + 1], labels[:LENGTH + 1]

    def pool(self, count, device):
        """(ids, labels), each [count, LENGTH + 1]."""
        pairs = [self.sequence() for _ in range(count)]
        return tuple(torch.tensor(side, device=device) for side in zip(*pairs))
