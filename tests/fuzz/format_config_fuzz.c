/* Fuzzes a configuration file and every kind of getter on the keys that model files use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static void use(const struct weft__node *node)
{
    static const char *const keys[] = {
        "hidden_size", "rms_norm_eps", "tie_word_embeddings",
        "model_type",  "eos_token_id", "num_experts|n_routed_experts",
        "a|b"};
    for (size_t i = 0; i < WEFT__COUNT(keys); i++) {
        int64_t integer = 7, values[4];
        double number = 0.5;
        bool flag;
        const char *text;
        struct weft__node list;
        struct weft__int_list ints = {.min = 0, .max = 9, .values = values, .max_count = 4};
        if (weft__node_int_opt(node, keys[i], 1, 100, &integer, NULL) == WEFT_OK &&
            (integer < 1 || integer > 100))
            abort();
        if (weft__node_double(node, keys[i], 0, 1, &number, NULL) == WEFT_OK &&
            !(number >= 0 && number <= 1))
            abort();
        (void)!weft__node_bool_opt(node, keys[i], &flag, NULL);
        if (weft__node_string(node, keys[i], &text, NULL) == WEFT_OK && strlen(text) > 1 << 20)
            abort();
        if (weft__node_ints(node, keys[i], &ints, NULL) == WEFT_OK)
            for (int n = 0; n < ints.count; n++)
                if (values[n] < 0 || values[n] > 9) abort();
        if (weft__node_list(node, keys[i], &list, NULL) == WEFT_OK)
            for (int64_t n = -1; n <= weft__node_count(&list); n++)
                (void)!weft__node_string_at(&list, n, &text, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, input, len, 0) != (ssize_t)len) abort();
    struct weft__node root = {0}, child;
    weft_error err = {0};
    if (weft__config_open(path, &root, &err) != WEFT_OK) {
        /* NO_MEMORY would mean that jansson refused what the scanner passed. */
        if (err.text[0] == '\0' || err.status == WEFT_NO_MEMORY) abort();
        return 0;
    }
    use(&root);
    if (weft__node_object(&root, "rope_parameters|rope_scaling", &child, NULL) == WEFT_OK)
        use(&child);
    weft__config_close(&root);
    return 0;
}
