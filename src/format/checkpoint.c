/* Checkpoints: a directory's safetensors files mapped read-only, their tensors found by name. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/numerics.h"
#include "internal.h"

enum { UNSEEN = 0xff }; /* dims of a tensor that the index promises and no shard has shown yet */

struct file {
    char *path;
    int fd;
    uint8_t *map; /* whole file; NULL before it is mapped */
    size_t size;
    uint64_t data_start;
    int64_t *shape; /* pool that the entries of this file point into */
};

struct weft__checkpoint {
    struct weft__arena arena; /* paths */
    const char *path;
    struct file *file; /* [files] */
    uint32_t files;
    char *text; /* owns the tensors' names */
    struct weft__names names;
    struct weft__entry *entry; /* [names.count] */
    uint32_t *order;           /* [names.count] */
    atomic_bool *found;        /* [names.count] */
};

/* ---- opening ---- */

static char *path_join(struct weft__checkpoint *c, const char *name)
{
    size_t size = strlen(c->path) + strlen(name) + 2;
    char *path = weft__arena_alloc(&c->arena, size);
    if (path != NULL) (void)snprintf(path, size, "%s/%s", c->path, name);
    return path;
}

static weft_status files_alloc(struct weft__checkpoint *c, uint32_t count, weft_error *err)
{
    c->file = weft__arena_array(&c->arena, count, sizeof *c->file);
    if (c->file == NULL) return weft__fail_oom(err, count * sizeof *c->file, "the list of shards");
    for (uint32_t i = 0; i < count; i++) c->file[i].fd = -1;
    c->files = count;
    return WEFT_OK;
}

/* Opens and maps a file and reads its header, whose shapes the file keeps. */
static weft_status file_open(struct file *file, struct weft__header *header, weft_error *err)
{
    uint64_t size;
    weft_status status = weft__open_regular(file->path, &file->fd, &size, err);
    if (status == WEFT_OK) status = weft__header_read(file->path, file->fd, size, header, err);
    if (status != WEFT_OK) return status;
    file->size = (size_t)size;
    file->data_start = header->data_start;
    file->shape = header->shape;
    header->shape = NULL;
    void *map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, file->fd, 0);
    if (map == MAP_FAILED && errno == ENOMEM)
        return weft__fail(err, WEFT_NO_MEMORY,
                          "%s: out of memory: cannot map %zu bytes; raise the limit on address "
                          "space (ulimit -v)",
                          file->path, file->size);
    if (map == MAP_FAILED)
        return weft__fail(err, WEFT_IO, "%s: cannot be mapped: %s", file->path, strerror(errno));
    file->map = map;
    return WEFT_OK;
}

static weft_status open_single(struct weft__checkpoint *c, char *path, weft_error *err)
{
    struct weft__header header = {0};
    weft_status status = files_alloc(c, 1, err);
    if (status != WEFT_OK) return status;
    c->file[0].path = path;
    status = file_open(&c->file[0], &header, err);
    if (status == WEFT_OK) {
        c->text = header.text;
        c->names = header.names;
        c->entry = header.entry;
        header.text = NULL;
        header.names = (struct weft__names){0};
        header.entry = NULL;
    }
    weft__header_free(&header);
    return status;
}

static weft_status check_shard_name(const struct weft__scan *scan, const char *tensor,
                                    const char *name)
{
    bool plain = name[0] != '\0' && strcmp(name, ".") != 0 && strlen(name) <= 255 &&
                 strpbrk(name, "/\\") == NULL && strstr(name, "..") == NULL;
    if (plain) return WEFT_OK;
    return weft__fail(scan->err, WEFT_FORMAT,
                      "%s: tensor " NAME " is placed in " NAME ", which is not a plain file name",
                      scan->file, tensor, name);
}

/* weight_map: tensors get the number of their shard in order of appearance. */
static weft_status read_weight_map(struct weft__scan *scan, struct weft__checkpoint *c,
                                   struct weft__names *shards)
{
    uint32_t cap = 0;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_OBJECT);
    while (status == WEFT_OK) {
        bool added;
        char *tensor, *shard;
        status = weft__scan_member(scan, &tensor);
        if (status != WEFT_OK || tensor == NULL) break;
        status = weft__scan_string(scan, &shard);
        if (status == WEFT_OK) status = check_shard_name(scan, tensor, shard);
        if (status == WEFT_OK) status = weft__names_add(&c->names, tensor, &added, scan->err);
        if (status != WEFT_OK) break;
        if (!added)
            return weft__fail(scan->err, WEFT_FORMAT, "%s: tensor " NAME " appears twice",
                              scan->file, tensor);
        status = weft__names_add(shards, shard, &added, scan->err);
        if (status != WEFT_OK) break;
        if (shards->count > WEFT__MAX_SHARDS || c->names.count > WEFT__MAX_TENSORS)
            return weft__fail(scan->err, WEFT_TOO_LONG, "%s: more than %d shards or %d tensors",
                              scan->file, WEFT__MAX_SHARDS, WEFT__MAX_TENSORS);
        if (c->names.cap > cap) {
            cap = c->names.cap;
            struct weft__entry *entry = realloc(c->entry, cap * sizeof *entry);
            if (entry == NULL) return weft__fail_oom(scan->err, cap * sizeof *entry, scan->file);
            c->entry = entry;
        }
        c->entry[c->names.count - 1] =
            (struct weft__entry){.file = (uint16_t)weft__names_find(shards, shard), .dims = UNSEEN};
    }
    return status;
}

static weft_status read_index(struct weft__scan *scan, struct weft__checkpoint *c,
                              struct weft__names *shards)
{
    struct weft__names keys = {0};
    bool found = false, added;
    char *key;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_OBJECT);
    while (status == WEFT_OK) {
        status = weft__scan_member(scan, &key);
        if (status != WEFT_OK || key == NULL) break;
        status = weft__names_add(&keys, key, &added, scan->err);
        if (status == WEFT_OK && !added) status = weft__scan_fail(scan, "a duplicate key");
        if (status != WEFT_OK) break;
        if (strcmp(key, "weight_map") == 0) {
            found = true;
            status = read_weight_map(scan, c, shards);
        } else {
            status = weft__scan_skip(scan);
        }
    }
    weft__names_free(&keys);
    if (status == WEFT_OK) status = weft__scan_end(scan);
    if (status == WEFT_OK && !found)
        status = weft__fail(scan->err, WEFT_FORMAT, "%s: has no weight_map", scan->file);
    return status;
}

/* Takes over the tensors of shard f that the index places there. Tensors the index does not name
 * are ignored. */
static weft_status merge_shard(struct weft__checkpoint *c, uint32_t f,
                               const struct weft__header *header, weft_error *err)
{
    for (uint32_t i = 0; i < header->names.count; i++) {
        const char *name = header->names.name[i];
        int64_t known = weft__names_find(&c->names, name);
        if (known < 0) continue;
        struct weft__entry *entry = &c->entry[known];
        if (entry->file != f)
            return weft__fail(err, WEFT_FORMAT,
                              "%s: tensor " NAME " is here, but the index places it in %s",
                              c->file[f].path, name, c->file[entry->file].path);
        *entry = header->entry[i];
        entry->file = (uint16_t)f;
    }
    return WEFT_OK;
}

static weft_status open_shards(struct weft__checkpoint *c, const struct weft__names *shards,
                               weft_error *err)
{
    weft_status status = files_alloc(c, shards->count, err);
    for (uint32_t f = 0; f < shards->count && status == WEFT_OK; f++) {
        c->file[f].path = path_join(c, shards->name[f]);
        if (c->file[f].path == NULL) return weft__fail_oom(err, 0, "the path of a shard");
    }
    for (uint32_t f = 0; f < shards->count && status == WEFT_OK; f++) {
        struct weft__header header = {0};
        status = file_open(&c->file[f], &header, err);
        if (status == WEFT_NOT_FOUND)
            (void)weft__fail(err, status,
                             "%s: the index names this shard, but it is missing: "
                             "download it",
                             c->file[f].path);
        if (status == WEFT_OK) status = merge_shard(c, f, &header, err);
        weft__header_free(&header);
    }
    for (uint32_t i = 0; i < c->names.count && status == WEFT_OK; i++)
        if (c->entry[i].dims == UNSEEN)
            status = weft__fail(err, WEFT_FORMAT,
                                "%s: lacks tensor " NAME ", which the index places there",
                                c->file[c->entry[i].file].path, c->names.name[i]);
    return status;
}

static weft_status open_directory(struct weft__checkpoint *c, weft_error *err)
{
    struct weft__names shards = {0};
    size_t len;
    char *index = path_join(c, "model.safetensors.index.json");
    char *single = path_join(c, "model.safetensors");
    if (index == NULL || single == NULL) return weft__fail_oom(err, 0, "a path");
    weft_status status = weft__read_file(index, WEFT__MAX_INDEX, &c->text, &len, err);
    if (status == WEFT_NOT_FOUND) {
        status = open_single(c, single, err);
        if (status == WEFT_NOT_FOUND)
            (void)weft__fail(err, status,
                             "%s: holds neither model.safetensors nor model.safetensors.index.json;"
                             " weft reads Hugging Face checkpoints in safetensors format",
                             c->path);
        return status;
    }
    if (status != WEFT_OK) return status;
    struct weft__scan scan;
    weft__scan_init(&scan, index, c->text, len, err);
    status = read_index(&scan, c, &shards);
    weft__scan_free(&scan);
    if (status == WEFT_OK) status = open_shards(c, &shards, err);
    weft__names_free(&shards);
    return status;
}

static int by_place(const void *a, const void *b, void *checkpoint)
{
    const struct weft__checkpoint *c = checkpoint;
    const struct weft__entry *x = &c->entry[*(const uint32_t *)a];
    const struct weft__entry *y = &c->entry[*(const uint32_t *)b];
    if (x->file != y->file) return strcmp(c->file[x->file].path, c->file[y->file].path);
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

weft_status weft__checkpoint_open(const char *path, struct weft__checkpoint **out, weft_error *err)
{
    struct stat st;
    struct weft__checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL) return weft__fail_oom(err, sizeof *c, "a checkpoint");
    char *copy = weft__arena_strndup(&c->arena, path, strlen(path));
    weft_status status = WEFT_OK;
    if (copy == NULL) {
        status = weft__fail_oom(err, strlen(path), "a path");
        goto close_checkpoint;
    }
    c->path = copy;
    status = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_directory(c, err)
                                                         : open_single(c, copy, err);
    if (status != WEFT_OK) goto close_checkpoint;
    size_t bytes = c->names.count * sizeof *c->order;
    c->order = malloc(bytes + 1);
    c->found = calloc(c->names.count + 1, sizeof *c->found);
    if (c->order == NULL || c->found == NULL) {
        status = weft__fail_oom(err, bytes, "tensor order");
        goto close_checkpoint;
    }
    for (uint32_t i = 0; i < c->names.count; i++) c->order[i] = i;
    if (c->names.count > 0) qsort_r(c->order, c->names.count, sizeof *c->order, by_place, c);
    *out = c;
    return WEFT_OK;

close_checkpoint:
    weft__checkpoint_close(c);
    return status;
}

void weft__checkpoint_close(struct weft__checkpoint *c)
{
    if (c == NULL) return;
    for (uint32_t f = 0; f < c->files; f++) {
        if (c->file[f].map != NULL) (void)munmap(c->file[f].map, c->file[f].size);
        if (c->file[f].fd >= 0) (void)close(c->file[f].fd);
        free(c->file[f].shape);
    }
    weft__names_free(&c->names);
    free(c->text);
    free(c->entry);
    free(c->order);
    free(c->found);
    weft__arena_free(&c->arena);
    free(c);
}

/* ---- lookup ---- */

const char *weft__checkpoint_path(const struct weft__checkpoint *c) { return c->path; }

int64_t weft__checkpoint_count(const struct weft__checkpoint *c) { return c->names.count; }

static struct weft__tensor view(const struct weft__checkpoint *c, int64_t i)
{
    const struct weft__entry *entry = &c->entry[i];
    const struct file *file = &c->file[entry->file];
    uint64_t offset = file->data_start + entry->begin;
    struct weft__tensor tensor = {.name = c->names.name[i],
                                  .file = file->path,
                                  .dtype = (weft_dtype)entry->dtype,
                                  .dims = entry->dims,
                                  .bytes = (int64_t)entry->bytes,
                                  .data = file->map + offset,
                                  .file_offset = (int64_t)offset,
                                  .fd = file->fd};
    for (int d = 0; d < tensor.dims; d++) tensor.shape[d] = file->shape[entry->shape + (uint32_t)d];
    return tensor;
}

struct weft__tensor weft__checkpoint_at(const struct weft__checkpoint *c, int64_t i)
{
    return view(c, c->order[i]);
}

bool weft__checkpoint_find(const struct weft__checkpoint *c, const char *name,
                           struct weft__tensor *out)
{
    int64_t i = weft__names_find(&c->names, name);
    if (i < 0) return false;
    atomic_store_explicit(&c->found[i], true, memory_order_relaxed);
    *out = view(c, i);
    return true;
}

bool weft__checkpoint_found(const struct weft__checkpoint *c, int64_t i)
{
    return atomic_load_explicit(&c->found[c->order[i]], memory_order_relaxed);
}

char *weft__shape_text(int dims, const int64_t *shape, char text[WEFT__SHAPE_TEXT])
{
    size_t at = 1;
    (void)snprintf(text, WEFT__SHAPE_TEXT, "[");
    for (int d = 0; d < dims && at < WEFT__SHAPE_TEXT; d++)
        at += (size_t)snprintf(text + at, WEFT__SHAPE_TEXT - at, shape[d] < 0 ? "%s*" : "%s%lld",
                               d > 0 ? ", " : "", (long long)shape[d]);
    if (at < WEFT__SHAPE_TEXT) (void)snprintf(text + at, WEFT__SHAPE_TEXT - at, "]");
    return text;
}

weft_status weft__checkpoint_get(const struct weft__checkpoint *c, const char *name, int dims,
                                 const int64_t *shape, struct weft__tensor *out, weft_error *err)
{
    struct weft__tensor tensor;
    if (!weft__checkpoint_find(c, name, &tensor))
        return weft__fail(err, WEFT_NOT_FOUND,
                          "%s: tensor " NAME " is missing: the checkpoint is incomplete, or not "
                          "what its config.json says",
                          c->path, name);
    if (tensor.dtype == WEFT_DTYPE_COUNT)
        return weft__fail(err, WEFT_UNSUPPORTED, "%s: tensor " NAME " has an unknown element type",
                          tensor.file, name);
    bool equal = tensor.dims == dims;
    for (int d = 0; d < dims && equal; d++) equal = shape[d] < 0 || shape[d] == tensor.shape[d];
    if (!equal) {
        char have[WEFT__SHAPE_TEXT], want[WEFT__SHAPE_TEXT];
        return weft__fail(err, WEFT_FORMAT,
                          "%s: tensor " NAME " has shape %s, but the model's config.json calls for "
                          "%s",
                          tensor.file, name, weft__shape_text(tensor.dims, tensor.shape, have),
                          weft__shape_text(dims, shape, want));
    }
    *out = tensor;
    return WEFT_OK;
}

/* ---- tensors ---- */

struct weft__tensor weft__tensor_rows(const struct weft__tensor *tensor, int64_t first,
                                      int64_t count)
{
    struct weft__tensor rows = *tensor;
    int64_t row_bytes = tensor->shape[0] > 0 ? tensor->bytes / tensor->shape[0] : 0;
    rows.shape[0] = count;
    rows.bytes = count * row_bytes;
    rows.data += first * row_bytes;
    rows.file_offset += first * row_bytes;
    return rows;
}

struct weft__tensor weft__tensor_slice(const struct weft__tensor *tensor, int64_t i)
{
    struct weft__tensor slice = weft__tensor_rows(tensor, i, 1);
    slice.dims--;
    for (int d = 0; d < slice.dims; d++) slice.shape[d] = tensor->shape[d + 1];
    return slice;
}

weft_status weft__tensor_read(const struct weft__tensor *tensor, int64_t first, int64_t count,
                              void *out, weft_error *err)
{
    if (first < 0 || count < 0 || first > tensor->bytes || count > tensor->bytes - first)
        return weft__fail(err, WEFT_INVALID, "tensor " NAME ": bytes beyond its end wanted",
                          tensor->name);
    return weft__pread_all(tensor->fd, tensor->file, (uint64_t)(tensor->file_offset + first), out,
                           (size_t)count, err);
}

static void convert(weft_dtype dtype, const uint8_t *from, float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        switch (dtype) {
        case WEFT_F32:
            memcpy(&out[i], from + 4 * i, 4);
            break;
        case WEFT_F16:
            memcpy(&half, from + 2 * i, 2);
            out[i] = weft__f32_from_f16(half);
            break;
        case WEFT_BF16:
            memcpy(&half, from + 2 * i, 2);
            out[i] = weft__f32_from_bf16(half);
            break;
        case WEFT_F8_E4M3:
            out[i] = weft__f32_from_e4m3(from[i]);
            break;
        default:
            out[i] = weft__f32_from_e8m0(from[i]);
            break; /* F8_E8M0 */
        }
    }
}

weft_status weft__tensor_f32(const struct weft__tensor *tensor, float *out, weft_error *err)
{
    uint8_t chunk[8192];
    weft_dtype type = tensor->dtype;
    if (type != WEFT_F32 && type != WEFT_F16 && type != WEFT_BF16 && type != WEFT_F8_E4M3 &&
        type != WEFT_F8_E8M0)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: tensor " NAME " has type %s; F32, F16 or BF16 is needed here",
                          tensor->file, tensor->name, weft_dtype_name(type));
    int64_t size = weft__dtype_bits(type) / 8;
    for (int64_t at = 0; at < tensor->bytes;) {
        int64_t bytes = weft__min(tensor->bytes - at, (int64_t)sizeof chunk);
        weft_status status = weft__tensor_read(tensor, at, bytes, chunk, err);
        if (status != WEFT_OK) return status;
        convert(type, chunk, out + at / size, bytes / size);
        at += bytes;
    }
    return WEFT_OK;
}

void weft__tensor_prefetch(const struct weft__tensor *tensor)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t begin = (uintptr_t)tensor->data & ~page;
    uintptr_t end = ((uintptr_t)tensor->data + (uintptr_t)tensor->bytes + page) & ~page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_WILLNEED);
}
