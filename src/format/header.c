/* The header of one safetensors file, and the rules a loader must enforce. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

weft_status weft__open_regular(const char *path, int *fd, uint64_t *size, weft_error *err)
{
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return weft__fail(err, errno == ENOENT ? WEFT_NOT_FOUND : WEFT_IO, "%s: %s", path,
                          strerror(errno));
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(f);
        return weft__fail(err, WEFT_IO, "%s: not a regular file", path);
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return WEFT_OK;
}

weft_status weft__pread_all(int fd, const char *path, uint64_t offset, void *out, size_t bytes,
                            weft_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
        if (got == 0) return weft__fail(err, WEFT_IO, "%s: became shorter while it was read", path);
        done += (size_t)got;
    }
    return WEFT_OK;
}

static weft_status tensor_fail(struct weft__scan *scan, const char *name, const char *what)
{
    return weft__fail(scan->err, WEFT_FORMAT, "%s: tensor " NAME ": %s", scan->file, name, what);
}

static uint8_t dtype_of(const char *text)
{
    uint8_t dtype = 0;
    while (dtype < WEFT_DTYPE_COUNT && strcmp(text, weft_dtype_name((weft_dtype)dtype)) != 0)
        dtype++;
    return dtype;
}

static weft_status shape_push(struct weft__header *header, int64_t size, weft_error *err)
{
    if (header->shape_count == header->shape_cap) {
        uint32_t cap = header->shape_cap == 0 ? 64 : header->shape_cap * 2;
        int64_t *shape = realloc(header->shape, cap * sizeof *shape);
        if (shape == NULL) return weft__fail_oom(err, cap * sizeof *shape, "tensor shapes");
        header->shape = shape;
        header->shape_cap = cap;
    }
    header->shape[header->shape_count++] = size;
    return WEFT_OK;
}

static weft_status read_shape(struct weft__scan *scan, struct weft__header *header,
                              const char *name, struct weft__entry *entry)
{
    bool more;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_ARRAY);
    entry->shape = header->shape_count;
    while (status == WEFT_OK) {
        int64_t size;
        status = weft__scan_item(scan, &more);
        if (status != WEFT_OK || !more) break;
        if (entry->dims == WEFT__MAX_DIMS) return tensor_fail(scan, name, "more than 8 dimensions");
        entry->dims++;
        status = weft__scan_size(scan, &size);
        if (status == WEFT_OK) status = shape_push(header, size, scan->err);
    }
    return status;
}

static weft_status read_offsets(struct weft__scan *scan, const char *name, int64_t offset[2])
{
    bool more;
    int count = 0;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_ARRAY);
    while (status == WEFT_OK) {
        status = weft__scan_item(scan, &more);
        if (status != WEFT_OK || !more) break;
        if (count == 2) return tensor_fail(scan, name, "data_offsets has more than two numbers");
        status = weft__scan_size(scan, &offset[count++]);
    }
    if (status == WEFT_OK && count != 2)
        return tensor_fail(scan, name, "data_offsets has fewer than two numbers");
    return status;
}

static weft_status check_extent(struct weft__scan *scan, const struct weft__header *header,
                                const char *name, const struct weft__entry *entry, uint64_t end)
{
    if (entry->begin > end) return tensor_fail(scan, name, "data_offsets run backwards");
    if (end > header->data_bytes)
        return weft__fail(scan->err, WEFT_FORMAT,
                          "%s: tensor " NAME " ends at byte %llu of the data but the file holds "
                          "%llu: it is truncated, download it again",
                          scan->file, name, (unsigned long long)end,
                          (unsigned long long)header->data_bytes);
    if (entry->dtype == WEFT_DTYPE_COUNT) return WEFT_OK; /* an error once somebody wants it */
    const int64_t *shape = entry->dims > 0 ? header->shape + entry->shape : NULL;
    uint64_t bits = (uint64_t)weft__dtype_bits((weft_dtype)entry->dtype);
    for (int i = 0; i < entry->dims; i++)
        if (__builtin_mul_overflow(bits, (uint64_t)shape[i], &bits))
            return tensor_fail(scan, name, "the shape needs more than 2^64 bits");
    if (bits % 8 != 0) return tensor_fail(scan, name, "does not fill whole bytes");
    if (bits / 8 != entry->bytes) {
        char text[WEFT__SHAPE_TEXT];
        return weft__fail(scan->err, WEFT_FORMAT,
                          "%s: tensor " NAME ": %s %s takes %llu bytes but data_offsets span %llu",
                          scan->file, name, weft_dtype_name((weft_dtype)entry->dtype),
                          weft__shape_text(entry->dims, shape, text),
                          (unsigned long long)(bits / 8), (unsigned long long)entry->bytes);
    }
    return WEFT_OK;
}

static weft_status read_tensor(struct weft__scan *scan, struct weft__header *header,
                               const char *name, struct weft__entry *entry)
{
    static const char *const members[] = {"dtype", "shape", "data_offsets"};
    bool seen[3] = {false};
    int64_t offset[2] = {0, 0};
    char *key, *dtype;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_OBJECT);
    while (status == WEFT_OK) {
        status = weft__scan_member(scan, &key);
        if (status != WEFT_OK || key == NULL) break;
        size_t i = 0;
        while (i < WEFT__COUNT(members) && strcmp(key, members[i]) != 0) i++;
        if (i == WEFT__COUNT(members))
            return tensor_fail(scan, name, "has a member other than dtype, shape, data_offsets");
        if (seen[i]) return tensor_fail(scan, name, "has a duplicate member");
        seen[i] = true;
        if (i == 0) {
            status = weft__scan_string(scan, &dtype);
            if (status == WEFT_OK) entry->dtype = dtype_of(dtype);
        } else {
            status =
                i == 1 ? read_shape(scan, header, name, entry) : read_offsets(scan, name, offset);
        }
    }
    if (status != WEFT_OK) return status;
    if (!seen[0] || !seen[1] || !seen[2])
        return tensor_fail(scan, name, "lacks dtype, shape or data_offsets");
    entry->begin = (uint64_t)offset[0];
    entry->bytes = (uint64_t)(offset[1] - offset[0]);
    return check_extent(scan, header, name, entry, (uint64_t)offset[1]);
}

/* Strings only; their content is nobody's business here. */
static weft_status read_metadata(struct weft__scan *scan)
{
    struct weft__names keys = {0};
    char *key, *value;
    bool added;
    weft_status status = weft__scan_enter(scan, WEFT__JSON_OBJECT);
    while (status == WEFT_OK) {
        status = weft__scan_member(scan, &key);
        if (status != WEFT_OK || key == NULL) break;
        status = weft__names_add(&keys, key, &added, scan->err);
        if (status == WEFT_OK && !added) status = tensor_fail(scan, key, "duplicate in metadata");
        if (status == WEFT_OK) status = weft__scan_string(scan, &value);
    }
    weft__names_free(&keys);
    return status;
}

static weft_status add_tensor(struct weft__scan *scan, struct weft__header *header, char *name)
{
    size_t len = strlen(name);
    bool added;
    if (len == 0 || len > WEFT__MAX_TENSOR_NAME)
        return tensor_fail(scan, name, "a name has 1 to 1024 bytes");
    if (header->names.count == WEFT__MAX_TENSORS)
        return weft__fail(scan->err, WEFT_TOO_LONG, "%s: more than %d tensors", scan->file,
                          WEFT__MAX_TENSORS);
    weft_status status = weft__names_add(&header->names, name, &added, scan->err);
    if (status != WEFT_OK) return status;
    if (!added) return tensor_fail(scan, name, "appears twice in the header");
    if (header->names.cap > header->entry_cap) {
        size_t bytes = header->names.cap * sizeof *header->entry;
        struct weft__entry *entry = realloc(header->entry, bytes);
        if (entry == NULL) return weft__fail_oom(scan->err, bytes, "tensor entries");
        header->entry = entry;
        header->entry_cap = header->names.cap;
    }
    struct weft__entry *entry = &header->entry[header->names.count - 1];
    *entry = (struct weft__entry){0};
    scan->tensor = name;
    status = read_tensor(scan, header, name, entry);
    scan->tensor = NULL;
    return status;
}

static weft_status read_tensors(struct weft__scan *scan, struct weft__header *header)
{
    bool metadata = false;
    char *key;
    if (scan->text[0] != '{') return weft__scan_fail(scan, "does not begin with {");
    weft_status status = weft__scan_enter(scan, WEFT__JSON_OBJECT);
    while (status == WEFT_OK) {
        status = weft__scan_member(scan, &key);
        if (status != WEFT_OK || key == NULL) break;
        if (strcmp(key, "__metadata__") != 0) {
            status = add_tensor(scan, header, key);
        } else {
            status = metadata ? tensor_fail(scan, key, "appears twice") : read_metadata(scan);
            metadata = true;
        }
    }
    for (const char *p = scan->json.at; status == WEFT_OK && p < scan->json.end; p++)
        if (*p != ' ')
            status = weft__scan_fail(scan, "something other than spaces after the object");
    return status;
}

static int by_extent(const void *a, const void *b, void *entries)
{
    const struct weft__entry *entry = entries;
    const struct weft__entry *x = &entry[*(const uint32_t *)a], *y = &entry[*(const uint32_t *)b];
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* In order of their offsets the tensors must cover the data without gap or overlap. */
static weft_status check_tiling(const char *path, const struct weft__header *header,
                                weft_error *err)
{
    const struct weft__names *names = &header->names;
    size_t bytes = names->count * sizeof(uint32_t);
    uint32_t *order = malloc(bytes + 1);
    uint64_t end = 0;
    weft_status status = WEFT_OK;
    if (order == NULL) return weft__fail_oom(err, bytes, "tensor order");
    for (uint32_t i = 0; i < names->count; i++) order[i] = i;
    if (names->count > 0) qsort_r(order, names->count, sizeof *order, by_extent, header->entry);
    for (uint32_t i = 0; i < names->count && status == WEFT_OK; i++) {
        const struct weft__entry *entry = &header->entry[order[i]];
        if (entry->begin != end)
            status = weft__fail(err, WEFT_FORMAT,
                                "%s: tensor " NAME " begins at byte %llu of the data where the one "
                                "before ends at %llu: %s",
                                path, names->name[order[i]], (unsigned long long)entry->begin,
                                (unsigned long long)end, entry->begin < end ? "overlap" : "gap");
        end = entry->begin + entry->bytes;
    }
    if (status == WEFT_OK && end != header->data_bytes)
        status = weft__fail(err, WEFT_FORMAT,
                            "%s: %llu bytes after the last tensor belong to none: the file is "
                            "damaged, download it again",
                            path, (unsigned long long)(header->data_bytes - end));
    free(order);
    return status;
}

static weft_status check_size(const char *path, uint64_t file_bytes, uint64_t header_bytes,
                              weft_error *err)
{
    static const char pointer[] = "version "; /* how a Git LFS pointer begins */
    uint64_t pointer_value;
    memcpy(&pointer_value, pointer, sizeof pointer_value);
    if (header_bytes == pointer_value)
        return weft__fail(err, WEFT_FORMAT,
                          "%s: a Git LFS pointer, not the tensors: fetch them with `git lfs pull`",
                          path);
    if (header_bytes > WEFT__MAX_HEADER)
        return weft__fail(err, WEFT_TOO_LONG,
                          "%s: announces a header of %llu bytes, at most %d are read: not a "
                          "safetensors file, or damaged",
                          path, (unsigned long long)header_bytes, WEFT__MAX_HEADER);
    if (header_bytes < 2 || header_bytes > file_bytes - 8)
        return weft__fail(err, WEFT_FORMAT,
                          "%s: announces a header of %llu bytes in a file of %llu: truncated, or "
                          "not a safetensors file",
                          path, (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    return WEFT_OK;
}

weft_status weft__header_read(const char *path, int fd, uint64_t size, struct weft__header *out,
                              weft_error *err)
{
    unsigned char prefix[8];
    uint64_t len = 0;
    if (size < sizeof prefix)
        return weft__fail(err, WEFT_FORMAT, "%s: %llu bytes are too few for a safetensors file",
                          path, (unsigned long long)size);
    weft_status status = weft__pread_all(fd, path, 0, prefix, sizeof prefix, err);
    if (status != WEFT_OK) return status;
    for (int i = 7; i >= 0; i--) len = len << 8 | prefix[i];
    status = check_size(path, size, len, err);
    if (status != WEFT_OK) return status;

    out->text = malloc((size_t)len);
    if (out->text == NULL) return weft__fail_oom(err, (size_t)len, path);
    status = weft__pread_all(fd, path, sizeof prefix, out->text, (size_t)len, err);
    if (status != WEFT_OK) return status;
    out->data_start = sizeof prefix + len;
    out->data_bytes = size - out->data_start;
    struct weft__scan scan;
    weft__scan_init(&scan, path, out->text, (size_t)len, err);
    status = read_tensors(&scan, out);
    weft__scan_free(&scan);
    return status == WEFT_OK ? check_tiling(path, out, err) : status;
}

void weft__header_free(struct weft__header *header)
{
    weft__names_free(&header->names);
    free(header->entry);
    free(header->shape);
    free(header->text);
    *header = (struct weft__header){0};
}
