#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: what the `tokenizers` package makes of texts, for weft's tests.

    make_token_golden.py tests/golden/tokenizers models/atlas/tokenizer.json

The directory holds corpus.json (texts; those that are not UTF-8 as {"hex": ...}), tokenizers NAME.json,
and for each NAME.expected, a line a text: [ids, ids with special tokens read as text or null if that
changes nothing, decoded text without special tokens or null], and for some NAME.sweep, a hash for each
block of 4096 code points. The decoded text is null where an added token that the normalizer changes
occurs: the package gives its normalized form since 0.23, weft its content, as older versions do. qwen3.json and deepseek_v3.json come from trim_tokenizer.py; the rest is made here.

Needs `pip install tokenizers==0.23.3`.
"""
import json
import os
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
          r"|\s*[\r\n]|\s+(?!\S)|\s")

SENTENCES = [
    "The quick brown fox can't jump over 12345 lazy dogs; it's THEY'LL who'd've won!",
    "I'm 123", "a  b", "Hello, world!  How's   it\tgoing?\r\n\r\n  Fine.\n", "", " ", "\n", "\t\t x",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ẞ ſ",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis — « non » ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia; ¿añoraba a su querido cachorro?",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок їжак",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΣΊΣΥΦΟΣ σίσυφος ᾳ ῼ",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה. שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق ١٢٣٤٥ لاَ",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३ क्षत्रिय",
    "বাংলা ভাষা ১২৩ கதை தமிழ் ಕನ್ನಡ తెలుగు മലയാളം ਪੰਜਾਬੀ ગુજરાતી සිංහල",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。２０２４年12月31日——「你好」!𠀀𫝀",
    "いろはにほへと ちりぬるを カタカナ ガギグゲゴ ｶﾞｷﾞ 漢字かな交じり文、テスト。",
    "다람쥐 헌 쳇바퀴에 타고파. 각각 가각 한글 123",
    "Ⅷ ½ ² ③ ㉈ ௰ ፲ 〇 𝟘𝟙 ④⑤", "ﬁne ﬂow oﬃce ß Å Å ﷺ ㎏ ℌ ｆｕｌｌ　ｗｉｄｔｈ",
    "é é ë̈ q̣̇ q̣̇ 각 각 ạ̈̕ ̀alone", "😀👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️‍🔥 ☺︎ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🫠🫨",
    "a\u00a0b\u1680c\u2003d\u2028e\u2029f\u3000g\u0085h\u180ei\ufeffj\u200bk\u200cl\u200dm",
    "\x00\x01\x02\x1f\x7f\x80\x9f tabs\tand\x0bverticals\x0cfeeds", "   leading and trailing   ",
    " \n \n\n  \r\n\t\n x \r y", "def f(x, *args, **kw):\n    \"\"\"Doc.\"\"\"\n\treturn {k: v for k, v in kw.items()} or x[::-1]\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2 & 0xFF; } // done\n#include <stdio.h>\n",
    "SELECT * FROM t WHERE a>=1 AND b!='x''y' -- comment;\n<div class=\"a\">&amp;</div> {\"k\": [1, -2.5e+10, null]}",
    "https://example.org/path?q=1&r=%20#frag user@example.com C:\\Users\\x ../../y ~/.z",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case x1y2z3 1a2b 3.14159 1,000,000 0x1F 1e-9",
    "<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|<|im_end|>|>",
    "<think>\nhm\n</think>\n\nok", "[gMASK]<sop><|user|>x<|assistant|>", "<｜begin▁of▁sentence｜>hi<｜User｜>x<｜Assistant｜>",
    "<s> x </s>", "  <mask>  y", "x<mask>y", "<word> a<word>b <word>", "ABC abc Abc abcabc ab abab",
    "'S 'T 'RE 'VE 'M 'LL 'D 's 'ſ 've've", "!!!???...---___+++===", "\"quoted\" 'single' `tick` “curly” ‘x’ „low“ «g»",
    "$100 €50 £3 ¥7 ₹9 ± × ÷ ≤ ∑ ∞ ← → ⇒ © ® ™ ° ¶ §", "word" * 40, "ab" * 100, "x" * 49 + " " + "y" * 48,
    " " * 30 + "x" + "\n" * 20, "0123456789" * 6, "\ufffd real replacement \ufffd\ufffd",
    "\U00010330\U0001d400\U0001f9ff\U00020000\U00031350\U00010ffd \U000e0001 \ue000 \ufdd0 \uffff",
    "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ ᚠᛇᚻ ⠓⠑⠇⠇⠕ ᏣᎳᎩ ꮳꮃꭹ ქართული ՀԱՅԵՐԵՆ հայերեն አማርኛ ភាសាខ្មែរ မြန်မာ ລາວ ᠮᠣᠩᠭᠣᠯ",
]
BYTES = [b"\xff", b"a\x80b", b"\xe2\x82", b"\xe2\x82x\xac", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\xf0\x9f", b"\xed\xa0\x80",
         b"\xc0\x80\xe0\x80\x80\xf5\x80", b"\xf4\x90\x80\x80", bytes(range(256)), b"\xe6\x97\xa5\xe6\x9c"]
ALPHABETS = [" \t\n\r", "abcdefgXYZ", "0123456789", "'sStTrReEvVmMlLdD\u017f\u212a", "!?.,;:-_()[]{}#@", "éèñüßøåłžČ",
             "абвгЖЗ", "αβγδΣς", "אבג", "ابت", "你好世界", "ひカナ", "한국어", "กขคง", "नमस्ते", "😀👍🏽\u200d", "\u0301\u0308\u0327\u0345",
             "\u00a0\u2003\u2028\u3000\u0085\u180e", "½²③Ⅷ٣", "\x00\x1f\x7f", "ﬁ①Å", "\u1100\u1161\u11a8각"]


def corpus(seed=1):
    rng = random.Random(seed)
    texts = list(SENTENCES)
    for _ in range(40):
        text = ""
        while len(text) < 40:
            alphabet = rng.choice(ALPHABETS)
            text += "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 7)))
        texts.append(text)
    raw = BYTES + [bytes(rng.randrange(256) for _ in range(rng.randrange(4, 40))) for _ in range(12)]
    return texts + [{"hex": data.hex()} for data in raw]


def as_str(text):
    return text if isinstance(text, str) else bytes.fromhex(text["hex"]).decode("utf-8", "replace")


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def template(single, *tokens):
    return processors.TemplateProcessing(single=single, special_tokens=list(tokens))


def variants():
    """name -> what distinguishes it: normalizer, steps, added tokens, post-processor, options."""
    def variant(steps, normalizer=None, added=(), special=("<|endoftext|>", "<s>", "</s>"), post=None, size=420,
                merges="pairs", ignore=False, alphabet=True, escape=False):
        return locals()
    seq = normalizers.Sequence
    return {
        "gpt2": variant([byte_level(regex=True)], merges="strings"),
        "smollm": variant([pre_tokenizers.Digits(True), byte_level(regex=True)], merges="strings"),
        "llama3": variant([split(LLAMA3), byte_level()], ignore=True, merges="strings",
                          post=processors.Sequence([processors.ByteLevel(), template("<s> $A", ("<s>", 1))])),
        "nemo": variant([split(NEMO), byte_level()], post=template("<s> $A </s>", ("<s>", 1), ("</s>", 2))),
        "cl100k": variant([split(CL100K), byte_level()], escape=True),
        "bloom": variant([split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), byte_level()]),
        "falcon": variant([pre_tokenizers.Punctuation("contiguous"), byte_level(regex=True), pre_tokenizers.Digits(False),
                           split("[0-9][0-9][0-9]")]),
        "roberta": variant([byte_level(prefix=True, regex=True)], post=processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
                           added=[AddedToken("<mask>", lstrip=True, special=True, normalized=False)]),
        "claude": variant([byte_level(regex=True)], normalizer=normalizers.NFKC()),
        "nfd": variant([split(LLAMA3), byte_level()], normalizer=normalizers.NFD()),
        "nfkd_lower": variant([byte_level(regex=True)], normalizer=seq([normalizers.NFKD(), normalizers.Lowercase()])),
        "strip_replace": variant([byte_level(regex=True)], normalizer=seq([
            normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("ab", "AB"),
            normalizers.Prepend("_"), normalizers.NFC()])),
        "byte_normalizer": variant([split("Ġ?[A-Za-z]+|.")], normalizer=seq([normalizers.NFC(), normalizers.ByteLevel()]),
                                   added=[AddedToken("ABC", normalized=True)]),
        "added": variant([split(LLAMA3), byte_level()], normalizer=normalizers.Lowercase(), added=[
            AddedToken("ABC", normalized=True), AddedToken("abcab", normalized=True), AddedToken(" y", normalized=False),
            AddedToken("<word>", single_word=True, normalized=False), AddedToken("jump", single_word=True, normalized=True),
            AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True),
            AddedToken("  ", rstrip=True, normalized=False), AddedToken("\n\n", lstrip=True, normalized=True)]),
        "partial": variant([byte_level(regex=True)], alphabet=False),
        "removed": variant([split(r"\s+", "removed"), byte_level(prefix=True)]),
        "previous": variant([split(r"[\p{P}&&[^,]]|\s", "merged_with_previous"), byte_level()]),
        "next": variant([split(r"\p{Lu}|[^\S\n]", "merged_with_next"), byte_level()]),
        "contiguous": variant([split(r"\w|'", "contiguous", True), byte_level()]),
        "inverted": variant([split(r"\p{L}+|\p{N}{1,3}+?", "removed", True), byte_level()]),
        "empty_matches": variant([split(r"x*|\b", "isolated"), split(r"(?=\p{Lu})", "merged_with_previous", True), byte_level()]),
        "scripts": variant([split(r"\p{Han}+|[\p{Hiragana}\p{Katakana}ー]+|(?i:[a-f]+|größe)|\p{^L}{2,}?|\P{Cyrillic}(?<=\p{M})"),
                            pre_tokenizers.WhitespaceSplit(), byte_level()]),
    }


def train(v, texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=v["ignore"]))
    if v["normalizer"] is not None:
        tokenizer.normalizer = v["normalizer"]
    steps = v["steps"]
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=v["size"], special_tokens=list(v["special"]), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if v["alphabet"] else [])
    tokenizer.train_from_iterator(texts[:30] if not v["alphabet"] else texts, trainer)
    if v["post"] is not None:
        tokenizer.post_processor = v["post"]
    tokenizer.add_tokens(list(v["added"]))
    data = json.loads(tokenizer.to_str())
    if v["merges"] == "strings":
        data["model"]["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in data["model"]["merges"]]
    return data, v["escape"]


def expected(tokenizer, texts):
    normalizer = tokenizer.normalizer
    changed = {i for i, token in tokenizer.get_added_tokens_decoder().items()
               if token.normalized and normalizer and normalizer.normalize_str(token.content) != token.content}
    for text in texts:
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = False
        yield json.dumps([ids, None if plain == ids else plain, None if changed & set(ids) else tokenizer.decode(ids)],
                         ensure_ascii=False, separators=(",", ":"))


def sweep(tokenizer):
    """A line of 16 hexadecimal digits for each 4096 code points: a hash of the ids of 64 texts."""
    mask = (1 << 64) - 1
    for block in range(0, 0x110000, 4096):
        digest = 0xcbf29ce484222325
        texts = []
        for begin in range(block, block + 4096, 64):
            codes = [chr(c) for c in range(begin, begin + 64) if not 0xd800 <= c < 0xe000]
            texts.append("".join("a%sb %s%s1" % (c, c, c) for c in codes))
        for encoding in tokenizer.encode_batch(texts):
            for token in encoding.ids:
                digest = ((digest ^ token) * 0x100000001b3) & mask
        yield "%016x" % digest


def write(path, lines):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(line + "\n" for line in lines)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out, atlas = sys.argv[1:]
    raw = corpus()
    write(os.path.join(out, "corpus.json"), [json.dumps(raw, ensure_ascii=False, indent=0)])
    texts = [as_str(text) for text in raw]
    for name, v in variants().items():
        data, escape = train(v, texts)
        write(os.path.join(out, name + ".json"), [json.dumps(data, ensure_ascii=escape, separators=(",", ":"))])
    files = {name[:-5]: os.path.join(out, name) for name in sorted(os.listdir(out))
             if name.endswith(".json") and name != "corpus.json"}
    files["atlas"] = atlas
    for name, path in files.items():
        tokenizer = Tokenizer.from_file(path)
        write(os.path.join(out, name + ".expected"), expected(tokenizer, texts))
        if name in ("atlas", "qwen3", "deepseek_v3", "smollm", "nemo"):
            write(os.path.join(out, name + ".sweep"), sweep(tokenizer))


if __name__ == "__main__":
    main()
