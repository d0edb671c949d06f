/* Fuzzes model.safetensors.index.json in a directory with two shards: "s1" holds tensors a and b,
 * "s2" holds c. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static char dir[] = "/tmp/weft-fuzz-XXXXXX";

static void put(const char *name, const void *bytes, size_t len)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len || close(fd) != 0) abort();
}

static void remove_all(void)
{
    static const char *const names[] = {"s1", "s2", "model.safetensors.index.json"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static void put_shards(void)
{
    static const char *const headers[] = {
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        "{\"c\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}"};
    for (int i = 0; i < 2; i++) {
        char file[256] = {0};
        size_t len = strlen(headers[i]);
        file[0] = (char)len;
        memcpy(file + 8, headers[i], len);
        put(i == 0 ? "s1" : "s2", file, 8 + len + (i == 0 ? 2 : 4));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    static bool ready;
    if (!ready) {
        if (mkdtemp(dir) == NULL || atexit(remove_all) != 0) abort();
        put_shards();
        ready = true;
    }
    put("model.safetensors.index.json", input, len);
    struct weft__checkpoint *checkpoint = NULL;
    weft_error err = {0};
    if (weft__checkpoint_open(dir, &checkpoint, &err) != WEFT_OK) {
        if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL) abort();
        return 0;
    }
    if (weft__checkpoint_count(checkpoint) > 3) abort();
    for (int64_t i = 0; i < weft__checkpoint_count(checkpoint); i++) {
        struct weft__tensor tensor = weft__checkpoint_at(checkpoint, i);
        char bytes[4];
        if (weft__tensor_read(&tensor, 0, tensor.bytes, bytes, NULL) != WEFT_OK) abort();
    }
    weft__checkpoint_close(checkpoint);
    return 0;
}
