/* UTF-8, as the Unicode standard's table 3-7 of well-formed sequences has it. */
#include <string.h>

#include "base.h"

int weft__utf8_next(const char *p, size_t len, uint32_t *code)
{
    const unsigned char *b = (const unsigned char *)p;
    unsigned lead = b[0];
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    int length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length == 0) return -1;

    /* Only the second byte has limits of its own: no overlong forms, surrogates, or codes beyond
     * U+10FFFF. */
    unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    uint32_t value = lead & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == len) return 0;
        if (b[i] < low || b[i] > high) return -i;
        value = value << 6 | (b[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *code = value;
    return length;
}

int weft__utf8_put(char out[4], uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(0xf0 << (4 - length) | (int)code);
    return length;
}

bool weft__utf8_valid(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= sizeof word) { /* eight ASCII characters at once */
            memcpy(&word, text + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        uint32_t code;
        int n = weft__utf8_next(text + i, len - i, &code);
        if (n <= 0) return false;
        i += (size_t)n;
    }
    return true;
}
