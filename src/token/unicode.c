/* Properties of characters as the reference sees them, and the byte map of byte-level BPE. */
#include <utf8proc.h>

#include "tokenizer.h"

/* The range of a sorted table that holds the code, or NULL. Every row starts with first, last. */
static const void *range_of(const void *rows, size_t count, size_t row_size, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct weft__code_range *row = (const void *)((const char *)rows + middle * row_size);
        if (code < row->first)
            high = middle;
        else if (code > row->last)
            low = middle + 1;
        else
            return row;
    }
    return NULL;
}

static const char *category_of(uint32_t code)
{
    const struct weft__assigned *row =
        range_of(weft__assigned, weft__assigned_count, sizeof weft__assigned[0], code);
    return row != NULL ? row->category : utf8proc_category_string((utf8proc_int32_t)code);
}

bool weft__is_space(uint32_t code)
{
    return (code >= 0x9 && code <= 0xd) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool weft__is_word(uint32_t code)
{
    const char *category = category_of(code);
    if (category[0] == 'L' || category[0] == 'M') return true;
    if (category[0] == 'N') return category[1] != 'o';
    if (category[0] == 'P') return category[1] == 'c';
    /* Zero width (non-)joiner, and the circled letters, which are Alphabetic symbols. */
    return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
           (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
           (code >= 0x1f170 && code <= 0x1f189);
}

bool weft__is_inert(uint32_t code)
{
    return range_of(weft__inert, weft__inert_count, sizeof weft__inert[0], code) != NULL;
}

uint32_t weft__lowercase(uint32_t code)
{
    const struct weft__lower *row =
        range_of(weft__lower, weft__lower_count, sizeof weft__lower[0], code);
    if (row != NULL) return (uint32_t)((int32_t)code + row->delta);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

/* ---- byte map ---- */

static uint32_t char_of_byte(unsigned char byte)
{
    if (byte <= 0x20) return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0) return 0x121u + byte - 0x7fu;
    return byte == 0xad ? 0x143u : byte;
}

/* -1: not in the map */
static int byte_of_char(uint32_t code)
{
    if (code > 0x143) return -1;
    if (code == 0x143) return 0xad;
    if (code >= 0x121) return (int)(code - 0x121 + 0x7f);
    if (code >= 0x100) return (int)(code - 0x100);
    return char_of_byte((unsigned char)code) == code ? (int)code : -1;
}

void weft__map_bytes(const char *bytes, size_t len, struct weft__buf *out)
{
    char text[64];
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        count += (size_t)weft__utf8_put(text + count, char_of_byte((unsigned char)bytes[i]));
        if (count + 4 < sizeof text && i + 1 < len) continue;
        weft__buf_append(out, text, count);
        count = 0;
    }
}

bool weft__unmap_chars(const char *text, size_t len, struct weft__buf *out)
{
    char bytes[64];
    size_t count = 0;
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        int n = weft__utf8_next(text + i, len - i, &code);
        int byte = n > 0 ? byte_of_char(code) : -1;
        if (byte < 0) return false;
        bytes[count++] = (char)byte;
        i += (size_t)n;
        if (count < sizeof bytes && i < len) continue;
        weft__buf_append(out, bytes, count);
        count = 0;
    }
    return true;
}
