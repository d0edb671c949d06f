/* Fuzzes a safetensors file through the public way: open, list, recognise linears, read scales.
 * Input: 0xff and a whole file; or two bytes of data size, little-endian, and a header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

enum { MAX_INPUT = 1 << 20 };

/* Views that opened must be whole: every byte readable, scales of the size they claim. */
static void use_linear(const struct weft__checkpoint *checkpoint, const struct weft__tensor *weight)
{
    struct weft__linear_view view;
    char module[WEFT__MAX_TENSOR_NAME + 1];
    (void)snprintf(module, sizeof module, "%s", weight->name);
    char *end = strstr(module, ".weight");
    if (end == NULL || weight->dims != 2) return;
    *end = '\0';
    for (int packed = 1; packed <= 2; packed++) {
        if (weight->shape[1] > INT64_MAX / 2) return;
        int64_t out = weight->shape[0], in = weight->shape[1] * packed;
        if (weft__linear_open(checkpoint, module, out, in, &view, NULL) != WEFT_OK) continue;
        if (view.row_bytes * out != view.weight.bytes) abort();
        int64_t count = weft__linear_scale_count(&view);
        float *scale = malloc((size_t)count * sizeof(float) + 1);
        if (weft__linear_scale_f32(&view, scale, NULL) == WEFT_OK)
            for (int64_t i = 0; i < count; i++)
                if (!(scale[i] > 0)) abort();
        free(scale);
        if (out > 0) (void)!weft__linear_check(&view, 0, out, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    static int fd = -1;
    static char path[64];
    static uint8_t file[MAX_INPUT + (1 << 16) + 16];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (len < 2 || len > MAX_INPUT) return 0;
    size_t size = len - 1;
    if (input[0] == 0xff) {
        memcpy(file, input + 1, size);
    } else {
        size_t header = len - 2, data = input[0] | (size_t)input[1] << 8;
        memset(file, 0, 8);
        for (int i = 0; i < 4; i++) file[i] = (uint8_t)(header >> 8 * i);
        memcpy(file + 8, input + 2, header);
        memset(file + 8 + header, 0x3f, data);
        size = 8 + header + data;
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, file, size, 0) != (ssize_t)size) abort();

    struct weft__checkpoint *checkpoint = NULL;
    weft_error err = {0};
    if (weft__checkpoint_open(path, &checkpoint, &err) != WEFT_OK) {
        if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL) abort();
        return 0;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < weft__checkpoint_count(checkpoint); i++) {
        struct weft__tensor at = weft__checkpoint_at(checkpoint, i), found;
        if (!weft__checkpoint_find(checkpoint, at.name, &found) || found.data != at.data) abort();
        volatile uint8_t sum = 0;
        for (int64_t b = 0; b < at.bytes; b++) sum = (uint8_t)(sum + at.data[b]);
        total += at.bytes;
        use_linear(checkpoint, &at);
    }
    if (total > (int64_t)size) abort();
    weft__checkpoint_close(checkpoint);
    return 0;
}
