#include "tokenizer/newer_unicode.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "tokenizer/utf8.h"

typedef enum category { LU, LL, LM, LO, MN, MC, ND, NO, PD, PO, SM, SO, CF, N_CATEGORIES } category;

/* An old character of each category, three and four bytes long ("": no newer one is that long). */
static const char stand_ins[N_CATEGORIES][2][5] = {
    [LU] = {"\xe1\xb8\x80", "\xf0\x90\x90\x80"},
    [LL] = {"\xe1\xb8\x81", "\xf0\x90\x90\xa8"},
    [LM] = {"", "\xf0\x96\xbe\x93"},
    [LO] = {"", "\xf0\x90\x80\x80"},
    [MN] = {"\xe1\xb7\x80", "\xf0\x90\x87\xbd"},
    [MC] = {"\xe0\xa4\x83", "\xf0\x91\x80\x80"},
    [ND] = {"", "\xf0\x90\x92\xa0"},
    [NO] = {"", "\xf0\x90\x84\x87"},
    [PD] = {"", "\xf0\x90\xba\xad"},
    [PO] = {"\xe1\x8d\xa0", "\xf0\x90\x84\x80"},
    [SM] = {"", "\xf0\x9d\x9b\x81"},
    [SO] = {"\xe2\x8c\x80", "\xf0\x9d\x80\x80"},
    [CF] = {"", "\xf0\x91\x82\xbd"},
};

typedef struct newer_range {
    uint32_t first, last;
    category category;
} newer_range;

/* By tools/golden_tokenizer/make_newer_unicode.py. */
/* clang-format off */
static const newer_range ranges[] = {
    {0x00897, 0x00897, MN}, {0x00cf3, 0x00cf3, MC}, {0x00ece, 0x00ece, MN},
    {0x01b4e, 0x01b4f, PO}, {0x01b7f, 0x01b7f, PO}, {0x01c89, 0x01c89, LU},
    {0x01c8a, 0x01c8a, LL}, {0x02427, 0x02429, SO}, {0x02ffc, 0x02fff, SO},
    {0x031e4, 0x031e5, SO}, {0x031ef, 0x031ef, SO}, {0x0a7cb, 0x0a7cc, LU},
    {0x0a7cd, 0x0a7cd, LL}, {0x0a7da, 0x0a7da, LU}, {0x0a7db, 0x0a7db, LL},
    {0x0a7dc, 0x0a7dc, LU}, {0x105c0, 0x105f3, LO}, {0x10d40, 0x10d49, ND},
    {0x10d4a, 0x10d4d, LO}, {0x10d4e, 0x10d4e, LM}, {0x10d4f, 0x10d4f, LO},
    {0x10d50, 0x10d65, LU}, {0x10d69, 0x10d6d, MN}, {0x10d6e, 0x10d6e, PD},
    {0x10d6f, 0x10d6f, LM}, {0x10d70, 0x10d85, LL}, {0x10d8e, 0x10d8f, SM},
    {0x10ec2, 0x10ec4, LO}, {0x10efc, 0x10eff, MN}, {0x1123f, 0x11240, LO},
    {0x11241, 0x11241, MN}, {0x11380, 0x11389, LO}, {0x1138b, 0x1138b, LO},
    {0x1138e, 0x1138e, LO}, {0x11390, 0x113b5, LO}, {0x113b7, 0x113b7, LO},
    {0x113b8, 0x113ba, MC}, {0x113bb, 0x113c0, MN}, {0x113c2, 0x113c2, MC},
    {0x113c5, 0x113c5, MC}, {0x113c7, 0x113ca, MC}, {0x113cc, 0x113cd, MC},
    {0x113ce, 0x113ce, MN}, {0x113cf, 0x113cf, MC}, {0x113d0, 0x113d0, MN},
    {0x113d1, 0x113d1, LO}, {0x113d2, 0x113d2, MN}, {0x113d3, 0x113d3, LO},
    {0x113d4, 0x113d5, PO}, {0x113d7, 0x113d8, PO}, {0x113e1, 0x113e2, MN},
    {0x116d0, 0x116e3, ND}, {0x1171e, 0x1171e, MC}, {0x11b00, 0x11b09, PO},
    {0x11bc0, 0x11be0, LO}, {0x11be1, 0x11be1, PO}, {0x11bf0, 0x11bf9, ND},
    {0x11f00, 0x11f01, MN}, {0x11f02, 0x11f02, LO}, {0x11f03, 0x11f03, MC},
    {0x11f04, 0x11f10, LO}, {0x11f12, 0x11f33, LO}, {0x11f34, 0x11f35, MC},
    {0x11f36, 0x11f3a, MN}, {0x11f3e, 0x11f3f, MC}, {0x11f40, 0x11f40, MN},
    {0x11f41, 0x11f41, MC}, {0x11f42, 0x11f42, MN}, {0x11f43, 0x11f4f, PO},
    {0x11f50, 0x11f59, ND}, {0x11f5a, 0x11f5a, MN}, {0x1342f, 0x1342f, LO},
    {0x13439, 0x1343f, CF}, {0x13440, 0x13440, MN}, {0x13441, 0x13446, LO},
    {0x13447, 0x13455, MN}, {0x13460, 0x143fa, LO}, {0x16100, 0x1611d, LO},
    {0x1611e, 0x16129, MN}, {0x1612a, 0x1612c, MC}, {0x1612d, 0x1612f, MN},
    {0x16130, 0x16139, ND}, {0x16d40, 0x16d42, LM}, {0x16d43, 0x16d6a, LO},
    {0x16d6b, 0x16d6c, LM}, {0x16d6d, 0x16d6f, PO}, {0x16d70, 0x16d79, ND},
    {0x18cff, 0x18cff, LO}, {0x1b132, 0x1b132, LO}, {0x1b155, 0x1b155, LO},
    {0x1cc00, 0x1ccef, SO}, {0x1ccf0, 0x1ccf9, ND}, {0x1cd00, 0x1ceb3, SO},
    {0x1d2c0, 0x1d2d3, NO}, {0x1df25, 0x1df2a, LL}, {0x1e030, 0x1e06d, LM},
    {0x1e08f, 0x1e08f, MN}, {0x1e4d0, 0x1e4ea, LO}, {0x1e4eb, 0x1e4eb, LM},
    {0x1e4ec, 0x1e4ef, MN}, {0x1e4f0, 0x1e4f9, ND}, {0x1e5d0, 0x1e5ed, LO},
    {0x1e5ee, 0x1e5ef, MN}, {0x1e5f0, 0x1e5f0, LO}, {0x1e5f1, 0x1e5fa, ND},
    {0x1e5ff, 0x1e5ff, PO}, {0x1f6dc, 0x1f6dc, SO}, {0x1f774, 0x1f776, SO},
    {0x1f77b, 0x1f77f, SO}, {0x1f7d9, 0x1f7d9, SO}, {0x1f8b2, 0x1f8bb, SO},
    {0x1f8c0, 0x1f8c1, SO}, {0x1fa75, 0x1fa77, SO}, {0x1fa87, 0x1fa89, SO},
    {0x1fa8f, 0x1fa8f, SO}, {0x1faad, 0x1faaf, SO}, {0x1fabb, 0x1fabf, SO},
    {0x1fac6, 0x1fac6, SO}, {0x1face, 0x1facf, SO}, {0x1fada, 0x1fadc, SO},
    {0x1fadf, 0x1fadf, SO}, {0x1fae8, 0x1fae9, SO}, {0x1faf7, 0x1faf8, SO},
    {0x1fbcb, 0x1fbef, SO}, {0x2b739, 0x2b739, LO}, {0x2ebf0, 0x2ee5d, LO},
    {0x31350, 0x323af, LO},
};
/* clang-format on */

static const newer_range *find_range(uint32_t code_point)
{
    size_t low = 0, high = sizeof ranges / sizeof *ranges;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code_point > ranges[mid].last)
            low = mid + 1;
        else if (code_point < ranges[mid].first)
            high = mid;
        else
            return &ranges[mid];
    }
    return NULL;
}

size_t tamis_newer_unicode_find(const char *text, size_t bytes, size_t from)
{
    for (size_t at = from; at < bytes;) {
        const size_t len = tamis_utf8_len(text[at]);
        if (len >= 3 && find_range(tamis_utf8_code_point(text + at, len)) != NULL)
            return at;
        at += len;
    }
    return bytes;
}

void tamis_newer_unicode_replace(char *text)
{
    const size_t len = tamis_utf8_len(text[0]);
    const newer_range *range = find_range(tamis_utf8_code_point(text, len));
    assert(range != NULL);
    const char *stand_in = stand_ins[range->category][len - 3];
    assert(strlen(stand_in) == len);
    memcpy(text, stand_in, len);
}
