/* The files around the tensors of a quantised checkpoint: configuration, index, and copies of the
 * source's other files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_TEXT = 1 << 30 };

void weft__buf_json(struct weft__buf *buf, const char *text)
{
    weft__buf_puts(buf, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            weft__buf_printf(buf, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            weft__buf_printf(buf, "\\u%04x", *text);
        else
            weft__buf_append(buf, text, 1);
    }
    weft__buf_puts(buf, "\"");
}

weft_status weft__pwrite_all(int fd, const char *path, uint64_t offset, const void *bytes,
                             size_t len, weft_error *err)
{
    for (size_t done = 0; done < len;) {
        ssize_t put = pwrite(fd, (const char *)bytes + done, len - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && errno == ENOSPC)
            return weft__fail(err, WEFT_IO, "%s: the disk is full; free some space", path);
        if (put <= 0) return weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
        done += (size_t)put;
    }
    return WEFT_OK;
}

static weft_status create(const char *path, int *fd, weft_error *err)
{
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd >= 0 ? WEFT_OK : weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
}

/* Makes what was written durable, so that the final rename never precedes it. */
static weft_status finish(int fd, const char *path, weft_status status, weft_error *err)
{
    if (status == WEFT_OK && fsync(fd) != 0)
        status = weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
    (void)close(fd);
    return status;
}

static weft_status write_text(const char *dir, const char *name, const char *text, size_t len,
                              weft_error *err)
{
    char path[WEFT__MAX_PATH];
    int fd;
    weft_status status = weft__path_join(path, dir, name, err);
    if (status == WEFT_OK) status = create(path, &fd, err);
    if (status != WEFT_OK) return status;
    return finish(fd, path, weft__pwrite_all(fd, path, 0, text, len, err), err);
}

/* ---- configuration ---- */

/* Text that reads back as the same value, with the fewest digits that do; caller frees. */
static char *dump(const json_t *value)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        if (text == NULL || digits == 17) return text;
        json_t *back = json_loads(text, 0, NULL);
        bool same = back != NULL && json_equal(back, value);
        json_decref(back);
        if (same) return text;
        free(text);
    }
    return NULL;
}

/* Writes value, which is released in any case, and may be NULL for want of memory. */
static weft_status write_json(const char *dir, const char *name, json_t *value, weft_error *err)
{
    char *text = value != NULL ? dump(value) : NULL;
    json_decref(value);
    if (text == NULL) return weft__fail_oom(err, 0, name);
    weft_status status = write_text(dir, name, text, strlen(text), err);
    free(text);
    return status;
}

static json_t *kept_list(const struct weft__quantize_plan *plan)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < plan->kept.count; i++)
        if (json_array_append_new(list, json_string(plan->kept.name[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Without calibration there are no input scales: weights are NVFP4, activations stay as they are.
 */
static json_t *nvfp4_config(const struct weft__quantize_plan *plan)
{
    return json_pack("{s:s, s:s, s:{s:{s:{s:b, s:i, s:s, s:i}, s:[s]}}, s:o, s:{s:s, s:s}}",
                     "quant_method", "modelopt", "quant_algo", "W4A16_NVFP4", "config_groups",
                     "group_0", "weights", "dynamic", 0, "num_bits", 4, "type", "float",
                     "group_size", 16, "targets", "Linear", "ignore", kept_list(plan), "producer",
                     "name", "weft", "version", WEFT_VERSION);
}

static json_t *nvfp4_file(const struct weft__quantize_plan *plan)
{
    return json_pack("{s:{s:s, s:s}, s:{s:s, s:n, s:i, s:o}}", "producer", "name", "weft",
                     "version", WEFT_VERSION, "quantization", "quant_algo", "W4A16_NVFP4",
                     "kv_cache_quant_algo", "group_size", 16, "exclude_modules", kept_list(plan));
}

static json_t *fp8_config(const struct weft__quantize_plan *plan)
{
    return json_pack("{s:s, s:s, s:[i, i], s:s, s:o}", "quant_method", "fp8", "fmt", "e4m3",
                     "weight_block_size", 128, 128, "activation_scheme", "dynamic",
                     "modules_to_not_convert", kept_list(plan));
}

weft_status weft__quantize_write_config(const struct weft__quantize_plan *plan,
                                        const struct weft__node *config, const char *dir,
                                        weft_error *err)
{
    bool nvfp4 = plan->options->to == WEFT__LINEAR_NVFP4;
    /* A shallow copy, as only a member is added; jansson leaves out members it has no memory for.
     */
    json_t *root = json_copy(config->json);
    json_t *own = nvfp4 ? nvfp4_config(plan) : fp8_config(plan);
    bool added = json_object_set_new(root, "quantization_config", own) == 0;
    bool had_null = json_object_get(config->json, "quantization_config") != NULL;
    if (!added || json_object_size(root) != json_object_size(config->json) + !had_null) {
        json_decref(root);
        root = NULL;
    }
    weft_status status = write_json(dir, "config.json", root, err);
    if (status == WEFT_OK && nvfp4)
        status = write_json(dir, "hf_quant_config.json", nvfp4_file(plan), err);
    return status;
}

weft_status weft__quantize_write_index(const struct weft__quantize_plan *plan, const char *dir,
                                       weft_error *err)
{
    struct weft__buf map;
    uint64_t total = 0;
    char head[128];
    weft__buf_init(&map, MAX_TEXT);
    for (uint32_t i = 0; i < plan->items; i++) {
        struct weft__quantize_output out[WEFT__MAX_OUTPUTS];
        int outputs = weft__quantize_outputs(plan, &plan->item[i], out);
        for (int o = 0; o < outputs; o++) {
            char name[WEFT__MAX_TENSOR_NAME + 96];
            (void)snprintf(name, sizeof name, "%s%s", plan->item[i].name, out[o].suffix);
            weft__buf_puts(&map, map.len > 0 ? ",\n    " : "    ");
            weft__buf_json(&map, name);
            weft__buf_puts(&map, ": ");
            weft__buf_json(&map, plan->file.name[plan->item[i].file]);
            total += out[o].bytes;
        }
    }
    struct weft__buf text;
    weft__buf_init(&text, MAX_TEXT);
    (void)snprintf(head, sizeof head, "{\n  \"metadata\": {\"total_size\": %llu},\n  ",
                   (unsigned long long)total);
    weft__buf_puts(&text, head);
    weft__buf_puts(&text, "\"weight_map\": {\n");
    weft__buf_append(&text, map.data, map.len);
    weft__buf_puts(&text, "\n  }\n}\n");
    weft_status status = map.failed || text.failed ? weft__fail_oom(err, map.len, "the index")
                                                   : write_text(dir, "model.safetensors.index.json",
                                                                text.data, text.len, err);
    weft__buf_free(&map);
    weft__buf_free(&text);
    return status;
}

/* ---- the other files ---- */

/* Tokenizer, templates, licence; not weights in any form, nor what is written anew. */
static bool is_copied(const char *name)
{
    static const char *const ends[] = {".safetensors", ".bin", ".gguf",    ".pt",
                                       ".pth",         ".h5",  ".msgpack", ".onnx"};
    static const char *const own[] = {"config.json", "hf_quant_config.json",
                                      "model.safetensors.index.json"};
    const char *dot = strrchr(name, '.');
    if (name[0] == '.') return false;
    for (size_t i = 0; i < WEFT__COUNT(ends); i++)
        if (dot != NULL && strcmp(dot, ends[i]) == 0) return false;
    for (size_t i = 0; i < WEFT__COUNT(own); i++)
        if (strcmp(name, own[i]) == 0) return false;
    return true;
}

static weft_status copy_bytes(int from, const char *from_path, uint64_t size, int to,
                              const char *to_path, weft_error *err)
{
    char chunk[16384];
    weft_status status = WEFT_OK;
    for (uint64_t at = 0; at < size && status == WEFT_OK;) {
        size_t bytes = size - at < sizeof chunk ? (size_t)(size - at) : sizeof chunk;
        status = weft__pread_all(from, from_path, at, chunk, bytes, err);
        if (status == WEFT_OK) status = weft__pwrite_all(to, to_path, at, chunk, bytes, err);
        at += bytes;
    }
    return status;
}

static weft_status copy_file(const char *source, const char *dir, const char *name, weft_error *err)
{
    char from_path[WEFT__MAX_PATH], to_path[WEFT__MAX_PATH];
    int from, to;
    uint64_t size;
    weft_status status = weft__path_join(from_path, source, name, err);
    if (status == WEFT_OK) status = weft__path_join(to_path, dir, name, err);
    if (status != WEFT_OK) return status;
    /* Directories, FIFOs and dangling links are not part of a model. */
    if (weft__open_regular(from_path, &from, &size, NULL) != WEFT_OK) return WEFT_OK;
    status = create(to_path, &to, err);
    if (status == WEFT_OK)
        status = finish(to, to_path, copy_bytes(from, from_path, size, to, to_path, err), err);
    (void)close(from);
    return status;
}

weft_status weft__quantize_copy_files(const char *source, const char *dir, weft_error *err)
{
    weft_status status = WEFT_OK;
    DIR *entries = opendir(source);
    if (entries == NULL) return weft__fail(err, WEFT_IO, "%s: %s", source, strerror(errno));
    for (struct dirent *entry; status == WEFT_OK && (entry = readdir(entries)) != NULL;)
        if (is_copied(entry->d_name)) status = copy_file(source, dir, entry->d_name, err);
    (void)closedir(entries);
    return status;
}
