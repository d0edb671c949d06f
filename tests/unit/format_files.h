/* format_files.h: directories and safetensors files made on the spot, for the tests of format. */
#ifndef WEFT_TESTS_FORMAT_FILES_H
#define WEFT_TESTS_FORMAT_FILES_H

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void remove_directory(const char *dir)
{
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new directory; dir receives its path. In memory where there is such a place: tests make tens of
 * thousands of files. */
static inline void make_directory(char dir[64])
{
    (void)snprintf(dir, 64, "/dev/shm/weft-format-XXXXXX");
    if (mkdtemp(dir) != NULL) return;
    (void)snprintf(dir, 64, "/tmp/weft-format-XXXXXX");
    if (mkdtemp(dir) == NULL) abort();
}

static inline const char *join(const char *dir, const char *name, char path[256])
{
    (void)snprintf(path, 256, "%s/%s", dir, name);
    return path;
}

static inline void put_bytes(const char *path, const void *bytes, size_t len)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, len, file) != len || fclose(file) != 0) abort();
}

static inline void put_text(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

/* A safetensors file: announced header length, header, data. */
static inline void put_file(const char *path, uint64_t announced, const char *header,
                            const void *data, size_t data_len)
{
    FILE *file = fopen(path, "wb");
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(announced >> 8 * i);
    size_t len = strlen(header);
    if (file == NULL || fwrite(prefix, 1, 8, file) != 8 || fwrite(header, 1, len, file) != len ||
        fwrite(data, 1, data_len, file) != data_len || fclose(file) != 0)
        abort();
}

/* A file put together tensor by tensor. Zero it first. */
struct build {
    char header[1 << 16];
    size_t header_len;
    uint8_t data[1 << 20];
    size_t data_len;
};

/* shape as JSON, "[2,3]"; data NULL: all ones (0x01). Returns where the data went. */
static inline uint8_t *build_add(struct build *build, const char *name, const char *dtype,
                                 const char *shape, const void *data, size_t bytes)
{
    uint8_t *to = build->data + build->data_len;
    int len = snprintf(build->header + build->header_len, sizeof build->header - build->header_len,
                       "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                       build->header_len == 0 ? '{' : ',', name, dtype, shape, build->data_len,
                       build->data_len + bytes);
    build->header_len += (size_t)len;
    build->data_len += bytes;
    if (build->header_len + 2 > sizeof build->header || build->data_len > sizeof build->data)
        abort();
    if (data != NULL)
        memcpy(to, data, bytes);
    else
        memset(to, 1, bytes);
    return to;
}

static inline void build_write(struct build *build, const char *path)
{
    (void)snprintf(build->header + build->header_len, 2, "}");
    put_file(path, build->header_len + 1, build->header, build->data, build->data_len);
}

#endif
