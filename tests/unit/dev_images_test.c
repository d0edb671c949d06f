/* The embedded kernels: every file of kernels/ is there, for every target, or none in a build
 * without nvcc. Reads the fatbin containers themselves, so it needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

extern const struct {
    const char *name;
    const uint8_t *start, *end;
} weft__cuda_images[]; /* cmake/kernels.cmake */

enum { FATBIN_MAGIC = 0xba55ed50, KIND_PTX = 1, KIND_ELF = 2 };

static uint64_t read_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Header: magic 4, version 2, header bytes 2, content bytes 8. Entry: kind 2, version 2, header
 * bytes 4, content bytes 8, ..., architecture 4 at offset 28. */
static void image_holds_every_target(const uint8_t *image, size_t len)
{
    static const struct {
        int kind;
        uint32_t arch;
    } wanted[] = {{KIND_ELF, 80},  {KIND_ELF, 86},  {KIND_ELF, 89}, {KIND_ELF, 90},
                  {KIND_ELF, 100}, {KIND_ELF, 120}, {KIND_PTX, 80}};
    unsigned found = 0;
    assert_true(len > 16);
    assert_int_equal(read_le(image, 4), FATBIN_MAGIC);
    size_t at = (size_t)read_le(image + 6, 2), end = at + (size_t)read_le(image + 8, 8);
    assert_true(end <= len);
    while (at + 32 <= end) {
        int kind = (int)read_le(image + at, 2);
        uint32_t arch = (uint32_t)read_le(image + at + 28, 4);
        for (size_t i = 0; i < WEFT__COUNT(wanted); i++)
            if (wanted[i].kind == kind && wanted[i].arch == arch) found |= 1u << i;
        at += (size_t)read_le(image + at + 4, 4) + (size_t)read_le(image + at + 8, 8);
    }
    assert_int_equal(found, (1u << WEFT__COUNT(wanted)) - 1);
}

static void every_kernel_is_embedded(void **state)
{
    (void)state;
    int count = 0;
    for (; weft__cuda_images[count].name != NULL; count++) {
        const uint8_t *start = weft__cuda_images[count].start;
        assert_int_equal((uintptr_t)start % 64, 0);
        image_holds_every_target(start, (size_t)(weft__cuda_images[count].end - start));
        if (count > 0)
            assert_true(strcmp(weft__cuda_images[count - 1].name, weft__cuda_images[count].name) <
                        0);
    }
    assert_int_equal(count, WEFT_KERNELS);
    printf("%d kernel files embedded%s\n", count, count == 0 ? ": built without nvcc" : "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_is_embedded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
