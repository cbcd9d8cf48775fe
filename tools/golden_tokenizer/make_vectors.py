#!/usr/bin/env python3
"""Write vectors.jsonl and stream.jsonl for the tokenizers in ds/, glm/ and flags/ (README-tokenizer.md explains the fields).

The PyPI package `tokenizers` gives the ids; Python's own incremental UTF-8 decoder gives the stream deltas.
"""
import codecs
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, pre_tokenizers

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent).resolve()
SPACES = [chr(c) for c in (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
                           0x3000)]  # the 25 characters with the property White_Space

DIGITS = ["0", "12", "123", "1234", "12345 67", "1234567890", "3.14159", "-0.5e-10", "1,234,567.89", "0x1F2e", "v1.2.3", "a1b22c333d4444",
          "1 2  3   4", "2026年11月30日", "第12345章", "３４５６", "１２３abc", "٠١٢٣٤٥", "०१२३४५६", "Ⅳ Ⅻ ⅷ", "½¾⅓", "x²y³z⁴⁵⁶⁷", "①②③④⑤", "𝟏𝟐𝟑𝟒",
          "1️⃣2️⃣", "12%", "$1234", "100km/h", "1st 2nd 33rd", "五六七8九", "𐒠𐒡𐒢𐒣"]
CJK = ["日本語テスト abc", "你好，世界！", "中文English混排", "中文 English 混排", "カタカナー・ひらがな", "東京2026年", "ｶﾀｶﾅ", "「引用」『二重』", "々〆ヶ",
       "한국어 텍스트", "한글中文かな", "㐀㐁㐂", "𠀀𠀁", "龥龦龧", "\u9fa5\u9fa6", "\u3040\u30a0\u309f\u30ff\u303f\u3100", "ゟ゠ヿ", "，。！？", "。\n。\r\n", "a，b。c",
       "中　文", "　　全角空格", "あ゙か゚", "カ\u3099", "漢\u0301字", "《红楼梦》第1回", "abc中", "中abc", "!中", "中!", " 中", "中 ", "\n中\n", "葛\U000E0100飾", "神\uFE00"]
WHITE = ["", " ", "  ", "   ", " " * 7, " " * 40, "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", "\r\r", "\n\r", " \n", "\n ", " \n ",
         "  \n  \n  ", "a ", " a", " a ", "a  b", "a   b", "a\n", "a\n\n", "\na", "a \n", "a  \n  b", "a\r\nb", "a\n\rb", "a\r\n\r\nb", "a \r\n b", "a\t\tb", "a\t b",
         "\u00a0", "\u00a0\u00a0a", "a\u00a0b", "a \u00a0b", "a\u00a0 b", "\u2003\u2003x", "x\u2028y", "x\u2029\u2029y", "x\u0085y", "\u0085\u0085", "x\u200by", "\u200b", "\ufeffx", "x\ufeff",
         "\u180ex", "\x0b\x0cx", "x\x1c\x1d\x1e\x1fy", "\n\u00a0\n", "\n\u3000\n", " \u2003\n\u2003 ", "  int x;\n\n", "if x:\n    y = 1\n\n\n    z", "a:\n\tb\n\t\tc\r\n", "x  ", "x\n  ",
         "x  \n", "  \r\n  x", "end.\n\n  Next", "}\n\n\n}", "- a\n  - b\n", "()\n\n()", "...\n\n\n...", "!\r\n!", "?\n \n?", "a.\r\n\r\nb", "\n \n \n", "\t\n\t\n", "a\x00b", "\x00", "\x00\x00\x00"]
WORDS = ["Hello world", "hello", " hello", "Hello", "HELLO", "don't", "I'm we've you'll they're he'd it's", "DON'T I'M WE'VE YOU'LL THEY'RE HE'D IT'S", "don’t", "'s", "'S", "'tis", "rock'n'roll",
         "l'été", "aujourd'hui", "'", "''", "'''", "x's'", "'ll", "'LL 'rE 'Ve", "ſ'ſ 'ſ", "'\u017f", "K'K", "naïve café", "nai\u0308ve cafe\u0301", "e\u0301\u0301\u0301", "\u0301", "a\u0301b", " \u0301a", "1\u0301a", "!\u0301a", "Å\u030a",
         "Zażółć gęślą jaźń", "ÀÉÎÕÜ", "ßẞ", "ǅ ǈ ǋ", "ﬁﬂ", "Ελληνικά", "Привет, мир!", "Їжак", "שלום עולם", "مرحبا بالعالم", "می‌خواهم", "हिन्दी में", "ภาษาไทย", "ქართული", "Հայերեն", "ትግርኛ", "ᏣᎳᎩ", "മലയാളം", "தமிழ்",
         "བོད་ཡིག", "မြန်မာ", "ខ្មែរ", "ລາວ", "ᠮᠣᠩᠭᠣᠯ", "İstanbul ıI", "Ǆ", "𝒜𝓁𝓅𝒽𝒶", "𝔘𝔫𝔦", "ʰʷʲ", "ªº", "snake_case_name", "camelCaseName", "kebab-case", "SCREAMING_CASE", "a_b", "_a", "a_", "__init__", "x.y.z", "a/b/c",
         "http://example.org/a?b=c&d=e#f", "user@example.org", "C:\\dir\\file.txt", "~/.config", "#include <stdio.h>", "for(int i=0;i<n;i++)", "a+=b; c->d; e::f", "x<y && y>z || !w", "`code` **bold** _it_", "[a](b)", "{\"k\": [1, 2.5, null, true]}",
         "<div class=\"x\">y</div>", "a--b", "a---b", "a…b", "«a»", "“a” ‘b’", "a—b", "!a", " !a", "!!a", "!Ab1", "$a", "€a", " €a", "°C", "a°", "+a", "=a", "|a", "~a", "^a", "\\a", "¿a", "¡a", "§a", "¬a", ".a", "..a", ".é", "(é", "(a", "-é", "–a", "、a",
         "@user #tag", "a😀b", "Ω≈ç√∫", "x̄ȳ", "q̣̇", "TeX$^2_i$", "\\alpha\\beta", "%d%s%%", "'a'b'c'", "a\"b\"c"]
EMOJI = ["😀", "😀😀", " 😀", "😀 ", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "🇫", "❤️", "❤", "☀︎", "#️⃣", "🤷🏻‍♀️!", "a👍b", "🧑🏿‍🤝‍🧑🏻", "🏴\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "\u200d", "a\u200db", "\ufe0f", "😀\n😀", "🫠🪿🛜", "♠♥", "→→", "✅✅✅"]
ODD = ["\ufffd", "\ufffd\ufffd", "a\ufffdb", "\ufeff", "\ufeff\ufeff", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\U000f0000x", "\u0378", "a\u0378b", "\u2066a\u2069", "\u202eabc", "\u00ad", "a\u00adb", "\u061c", "\u2060", "\U000e0001", "\x7f", "\x80", "\x9f",
       "\x01\x02\x03", "\x1b[0m", "|", "\uff5c", "\u2581", "_", "\u2581a", "Ġ", "Ċ", "ĠaĊ", "Ā", "¡¢", "\u00ff\u0100", "\ud7ff\ue000", "\u07ff\u0800", "\uffff\U00010000", "ﷺ", "\u1d173", "𝅘𝅥𝅮"]


def added_cases(t):
    """Added tokens alone, beside each other, inside words, cut short and spelled nearly right."""
    names = [a.content for _, a in sorted(t.get_added_tokens_decoder().items())]
    out = list(names)
    for a in names[:: max(1, len(names) // 24)]:
        out += [a + a, "x" + a + "y", " " + a + " ", "\n" + a + "\n", a[:-1], a[1:], "1" + a + "2", "中" + a + "文", a + "\u0301", a.upper(), a.lower(), a.replace("\uff5c", "|").replace("\u2581", "_")]
    rng = random.Random(7)
    for _ in range(24):
        out.append("".join(rng.choice(names + ["a", " ", "\n", "你好", "12"]) for _ in range(rng.randint(2, 9))))
    return out


DS_ADDED = ["<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>", "<｜User｜>hi<｜Assistant｜><think>x</think>y<｜end▁of▁sentence｜>", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">", "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "｜DSML｜｜DSML｜", "｜｜DSML｜｜", "<｜｜User｜>", "<｜/table>｜DSML｜", "<｜/table>｜>", "<<think>>", "<think><think>", "</think></think>", "<thin k>", "<think", "think>", "<dsml:dsml:", "</dsml:x>", "<|User|>", "<｜User|>", "<｜user｜>", "<|EOT|>a",
            "<｜place▁holder▁no▁0｜>", "<｜place▁holder▁no▁799｜>", "<｜tool▁calls▁begin｜>\n\n<｜tool▁sep｜>", "<｜▁pad▁｜><｜ pad ｜>", "<｜fim▁begin｜>def f():<｜fim▁hole｜>\n<｜fim▁end｜>", "a<think>b", "1<think>2", "don<think>'t"]
GLM_ADDED = ["[gMASK]<sop><|user|>hi<|assistant|><think>", "[gMASK]<sop><|system|>\n# Tools\n", "<|assistant|></think>ok<|user|>", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "<|observation|><tool_response>x</tool_response>",
             "[MASK][gMASK][sMASK]", "[ gMASK]", "<sop><eop>", "/nothink", "a/nothinkb", "//nothink", "<|user|><|user|>", "<|user", "|user|>", "<｜user｜>", "</think></think>", "<think></think>", "<arg_key", "arg_key>", "</arg_value></tool_call>", "<|image|><|video|>"]
FLAGS_TEXT = ["attention", " attention", "attention ", "sparse", " sparse attention", "zebra", " zebra", "zebras", "a zebra", "  zebra", " été", "été", " e\u0301te\u0301", "猫", "猫猫", "\t\t\t", "\t\t\t\t", "x <left> y", "x  \n<left>y", "<left>", "  <left>  ", "x<right>  y",
              "x <right>\n\ny", "x <both> y", "x \t<both>\t\n y", "<both><both>", " <both> <both> ", "<left><right>", " <left> <right> ", "word", "a word b", "words", "sword", "word word", "word-word", "word1", "_word_", "(word)", "wordé", "éword", "中word文", "word\n", "WORD",
              "vi\u1ebf", "vie\u0302\u0301", "Vie\u0302\u0301", "xvie\u0302\u0301x", "vi\u00ea\u0301t", "<a>", "<a><b>", "<a><b", "<a><a><b>", "<a><b><b>", "ab<s>", "ab<", "ab<a>", "xab<x", "<s>", "a<s>b", "e\u0301", "é", "\u1100\u1161", "\u212b", "ﬁ", "Å", "ế", "e\u0323\u0302", "\u0344", "क़", "\u2126"]
LONG = ["a" * 10000, "ab" * 5000, "注意力" * 1500, " " * 3000, "é" * 2000, "😀" * 1000, "=" * 2500, "1" * 2000, "\n" * 1500, "the attention window " * 150]
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x00, 0xFF), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x1F1E6, 0x1F1FF), (0x20000, 0x2A6DF)]


def random_text(rng, ranges=RANGES):
    """Runs of characters from a few Unicode ranges with white space, digits and quotes between them."""
    parts = []
    for _ in range(rng.randint(1, 7)):
        low, high = rng.choice(ranges)
        parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8))))
        parts.append(rng.choice(["", "", " ", "  ", "\n", "\r\n", " \n", "1", "1234", "'s", "!", "\u00a0", "\u3000", "the", "的"]))
    return "".join(parts)


def any_char(rng):
    """A random scalar value of any plane, unassigned ones included; surrogates are not characters."""
    while True:
        c = rng.randint(0, 0x10FFFF) if rng.random() < 0.3 else rng.randint(0, 0xFFFF)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def texts(t, name, seed):
    rng = random.Random(seed)
    special = {"ds": DS_ADDED, "glm": GLM_ADDED, "flags": []}[name]
    if name == "flags":
        out = FLAGS_TEXT + WORDS[:40] + WHITE[:30] + added_cases(t)
    else:
        out = DIGITS + CJK + WHITE + WORDS + EMOJI + ODD + special + added_cases(t) + LONG
        out += [s + s2 for s in SPACES for s2 in ("a", "\n", " x")] + ["a" + s + s + "b" for s in SPACES]
    for _ in range(140 if name != "flags" else 40):
        out.append(random_text(rng))
    for _ in range(60 if name != "flags" else 0):
        out.append("".join(any_char(rng) for _ in range(rng.randint(1, 12))))
    return list(dict.fromkeys(out))  # keeps order, drops repeats


def plain_tokenizer(path):
    """The same model without its added tokens: how text that must not contain control tokens is encoded."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(data))


UNASSIGNED = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed")  # by the Unicode version inside `tokenizers`


def is_newer(c):
    """True if the character has a category in `tokenizers` (Unicode 16) and none in Unicode 14."""
    return unicodedata.category(c) == "Cn" and bool(UNASSIGNED.pre_tokenize_str(c))


def vector(t, plain, text):
    ids = t.encode(text, add_special_tokens=False).ids
    case, decoded = {"text": text, "ids": ids}, t.decode(ids, skip_special_tokens=False)
    if decoded != text:
        case["decoded"] = decoded
    skipped = t.decode(ids, skip_special_tokens=True)
    if skipped != decoded:
        case["decoded_skip_special"] = skipped
    plain_ids = plain.encode(text, add_special_tokens=False).ids
    if plain_ids != ids:
        case["plain_ids"] = plain_ids
    if any(is_newer(c) for c in text):  # a regex library with older tables splits these differently
        case["needs_unicode"] = 16
    return case


def token_bytes(t):
    """id -> (bytes, special). Base tokens undo the byte map, added tokens are their text."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {chr(b): b for b in keep}, 0
    for b in range(256):
        if b not in keep:
            table[chr(256 + n)] = b
            n += 1
    added = t.get_added_tokens_decoder()
    out = {i: (bytes(table[c] for c in s), False) for s, i in t.get_vocab(with_added_tokens=False).items() if i not in added}
    out.update({i: (a.content.encode(), a.special) for i, a in added.items()})
    return out


def stream(t, table, ids, skip):
    """What must be sent after each token, and at the end: complete characters only, U+FFFD for bytes that cannot become one."""
    decoder, deltas = codecs.getincrementaldecoder("utf-8")("replace"), []
    for i in ids:
        data, special = table[i]
        deltas.append("" if skip and special else decoder.decode(data))
    flush = decoder.decode(b"", final=True)
    assert "".join(deltas) + flush == t.decode(ids, skip_special_tokens=skip), ids
    return {"ids": ids, "skip_special": skip, "deltas": deltas, "flush": flush}


def streams(t, name, all_texts, seed):
    rng, table, out = random.Random(seed), token_bytes(t), []
    byte_ids = {v[0]: i for i, v in table.items() if len(v[0]) == 1 and not v[1]}
    raw = ["😀", "é", "中", "a\u0301", "👩‍💻", "\U0010ffff"]
    for text in raw:  # every byte its own token: the longest hold-back
        out.append([byte_ids[bytes([b])] for b in text.encode()])
        out.append(out[-1][:-1])
    bad = [b"\xff", b"\xc3", b"\xc3A", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x9f", b"\xf0\x9fA", b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\x80", b"\x80\x80", b"A\x80B", b"\xe4\xb8", b"\xe4\xb8\xe4\xb8\xad",
           b"\xf0\x80\x80\x80", b"\xe2\x82\xc3\xa9", b"\xfe\xfe", b"\xc3\xc3\xa9", b"\xef\xbf\xbd", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80\xf0"]
    out += [[byte_ids[bytes([b])] for b in s] for s in bad]
    n_ids, special = t.get_vocab_size(), [i for i, a in t.get_added_tokens_decoder().items()]
    for _ in range(60):  # sampled ids need not be any text's encoding
        out.append([rng.choice(special) if rng.random() < 0.1 else rng.randrange(n_ids) for _ in range(rng.randint(1, 24))])
    for _ in range(30):  # an added token between the bytes of one character
        ids = [byte_ids[bytes([b])] for b in rng.choice(raw).encode()]
        ids.insert(rng.randint(1, len(ids)), rng.choice(special))
        out.append(ids)
    short = [x for x in all_texts if 0 < len(x) < 60]
    for text in rng.sample(short, 90):
        ids = t.encode(text, add_special_tokens=False).ids
        out.append(ids if rng.random() < 0.7 else ids[: rng.randint(1, len(ids))])
    cases = []
    for ids in out:
        cases.append(stream(t, table, ids, True))
        if any(table[i][1] for i in ids):
            cases.append(stream(t, table, ids, False))
    return cases


def write(path, cases):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for case in cases:  # ASCII escapes, so that control characters and U+2028 survive every editor
            f.write(json.dumps(case, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    assert unicodedata.unidata_version == "14.0.0", "run with Python 3.11: needs_unicode is relative to Unicode 14"
    for name, seed in (("ds", 11), ("glm", 12), ("flags", 13)):
        path = OUT / name / "tokenizer.json"
        t, plain = Tokenizer.from_file(str(path)), plain_tokenizer(path)
        cases = texts(t, name, seed)
        vectors = [vector(t, plain, x) for x in cases]
        write(OUT / name / "vectors.jsonl", vectors)
        s = streams(t, name, cases, seed + 100)
        write(OUT / name / "stream.jsonl", s)
        lossy = sum("decoded" in v for v in vectors)
        print(name, len(vectors), "vectors,", sum("plain_ids" in v for v in vectors), "with plain_ids,",
              sum("needs_unicode" in v for v in vectors), "newer than Unicode 14,", lossy, "not lossless;", len(s), "streams")
