#!/usr/bin/env python3
"""Train the small tokenizers ds/, glm/ and flags/ (needs the PyPI package `tokenizers`).

ds/    pre-tokenizer, added tokens (spelling, order, special flags) and JSON layout of the DeepSeek-V4 file, small vocabulary
glm/   the GLM-4.5..5.2 split pattern and its 36 added tokens, merges written as pairs
flags/ options that the vendors' files leave off: ignore_merges, lstrip, rstrip, single_word, an NFC normalizer

Run: python make_tokenizer.py FOLDER   (then make_vectors.py). The result is deterministic; it is committed, so nobody has to run it.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import corpus

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent).resolve()
BAR, LOW = "\uff5c", "\u2581"  # full-width vertical line and lower one eighth block: look-alikes of | and _

# The three DeepSeek splits: digits, CJK runs, then one alternation. They run one after the other, not as one pattern.
DS_DIGITS = r"\p{N}{1,3}"
DS_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DS_REST = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" "\r\n" r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
           "\r\n" r"""]*|\s*[""" "\r\n" r"""]+|\s+(?!\S)|\s+""")
GLM_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def bar(name):
    """<|name|> with the vendor's full-width bars; spaces become the low block."""
    return f"<{BAR}{name.replace(' ', LOW)}{BAR}>"


# Spelling, order and flags of V4 from id 128800 on, with 6 of the 800 numbered place holders and 2 of the 415 image span ones.
# (text, special, normalized); "</table>" and its neighbours are spelled as the vendor spells them.
DS_IN_VOCAB = [bar("begin of sentence"), bar("end of sentence"), bar(" pad ")]
DS_ADDED = (
    [(bar(f"place holder no {i}"), True, False) for i in range(6)]
    + [(bar(x), False, True) for x in ("fim hole", "fim begin", "fim end", "User", "Assistant")] + [("<|EOT|>", False, True)]
    + [(bar(f"tool {x}"), False, True) for x in ("calls begin", "calls end", "call begin", "call end", "outputs begin", "outputs end",
                                                "output begin", "output end", "sep")]
    + [(bar(f"{a} of {b}"), False, True) for b in ("repo name", "file name", "file") for a in ("begin", "end")]
    + [("<think>", False, True), ("</think>", False, True), (bar("place holder for copy"), False, True),
       (bar("place holder for pointer replace"), False, True), (f"{BAR}DSML{BAR}", False, True)]
    + [(bar(x), False, True) for x in ("begin sys", "end sys", "latest_reminder", "action", "query", "authority", "domain", "task",
                                      "political", "entity", "title", "safety", "answer", "search")]
    + [("<dsml:", False, True), ("</dsml:", False, True)]
    + [(bar(x), False, True) for x in ("search begin", "search end", "extracted_url", "read_url")] + [(bar("end_of_query"), True, False)]
    + [(f"<|place_holder_mm_span_{i:04d}|>", True, False) for i in (21, 22)]
    + [(bar("rl_image_pad"), True, False), (bar("rl_image_start"), True, False), (bar("image2"), False, False),
       (f"<{BAR}/table>{BAR}", False, False)]
    + [(bar(x), False, False) for x in ("table", "/td", "td", "/tr", "tr")]
    + [(bar(x), True, False) for x in ("/polygon", "polygon", "/point", "point", "/box", "box", "/ref", "ref", "image")]
)
GLM_SPECIAL = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
               "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
               "<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>", "<|end_of_transcription|>"]
GLM_PLAIN = ["<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
             "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink",
             "<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>"]


def train(tokenizer, vocab_size, first=()):
    """Byte-level BPE on the corpus; `first` become ids 0, 1, ... of the base vocabulary."""
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(first), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus.lines(), trainer)


def save(tokenizer, name, config, merges_as_pairs):
    """Write compact JSON; the two spellings of merges ("a b" and ["a", "b"]) both occur in vendors' files."""
    data = json.loads(tokenizer.to_str())
    if not merges_as_pairs:
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    folder = OUT / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def make_ds():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(DS_DIGITS), "isolated"), pre_tokenizers.Split(Regex(DS_CJK), "isolated"),
        pre_tokenizers.Split(Regex(DS_REST), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 2900, DS_IN_VOCAB)
    for text, special, normalized in DS_ADDED:
        token = AddedToken(text, normalized=normalized, special=special)
        (t.add_special_tokens if special else t.add_tokens)([token])
    save(t, "ds", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "add_eos_token": False,
                   "bos_token": DS_IN_VOCAB[0], "eos_token": DS_IN_VOCAB[1], "pad_token": DS_IN_VOCAB[1],
                   "clean_up_tokenization_spaces": False, "model_max_length": 1048576}, merges_as_pairs=False)


def make_glm():
    t = Tokenizer(models.BPE(ignore_merges=False))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GLM_SPLIT), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 2960)
    t.add_special_tokens([AddedToken(x, normalized=False, special=True) for x in GLM_SPECIAL])
    t.add_tokens([AddedToken(x, normalized=False, special=False) for x in GLM_PLAIN])
    save(t, "glm", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
                    "clean_up_tokenization_spaces": False, "model_max_length": 202752}, merges_as_pairs=True)


def make_flags():
    """A 420-entry vocabulary whose last words cannot be reached by merges: only ignore_merges emits them."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GLM_SPLIT), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, 400)
    data = json.loads(t.to_str())
    n = len(data["model"]["vocab"])
    for i, word in enumerate(["attention", "Ġattention", "Ġsparse", "zebra", "Ġzebra", "ĠÃ©tÃ©", "çĮ«", "ĉĉĉ"]):  # byte-level spelling
        data["model"]["vocab"].setdefault(word, n + i)
    data["model"]["ignore_merges"] = True
    t = Tokenizer.from_str(json.dumps(data))
    t.add_tokens([AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
                  AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False),
                  AddedToken("vi\u1ebf", normalized=True), AddedToken("<a>", normalized=False), AddedToken("<a><b>", normalized=False),
                  AddedToken("ab<", normalized=True)])
    t.add_special_tokens([AddedToken("<s>", normalized=False)])
    save(t, "flags", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}, merges_as_pairs=True)


if __name__ == "__main__":
    make_ds()
    make_glm()
    make_flags()
    for name in ("ds", "glm", "flags"):
        path = OUT / name / "tokenizer.json"
        t = Tokenizer.from_file(str(path))
        print(name, "vocab", t.get_vocab_size(), "base", t.get_vocab_size(with_added_tokens=False), "bytes", path.stat().st_size)
