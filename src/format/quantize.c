/* Quantising a checkpoint, tile by tile: memory is a few tiles whatever the model. A first pass
 * finds the largest magnitudes that NVFP4's global scales need, a second one writes. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/numerics.h"
#include "internal.h"

enum { TILE_ROWS = 128, TILE_COLS = 8192 };

struct tile {
    int64_t row, rows, col, cols;
};

struct job {
    struct weft__quantize_plan plan;
    const struct weft__quantize_options *options;
    struct weft__quantize_totals *totals;
    float *amax;                  /* [groups], NVFP4 */
    float *w, *scale;             /* [TILE_ROWS * TILE_COLS], [TILE_COLS] */
    uint8_t *codes, *block_scale; /* [TILE_ROWS * TILE_COLS], and a sixteenth */
    struct weft__new_dir dir;
    char path[WEFT__MAX_PATH]; /* of the file under way */
    int fd;
    uint64_t data;           /* where in it the data begins */
    int64_t work, work_done; /* bytes of the source to read, over both passes */
    weft_error *err;
};

static weft_status progress(struct job *job, int64_t bytes)
{
    job->work_done += bytes;
    double share = (double)job->work_done / (double)weft__max(job->work, 1);
    if (job->options->on_progress == NULL || job->options->on_progress(job->options->ctx, share))
        return WEFT_OK;
    return weft__fail(job->err, WEFT_CLOSED, "interrupted; %s was not written", job->dir.target);
}

/* ---- tiles ---- */

/* The tile after t of a [rows, cols] matrix, column by column in stripes; false at the end. Start
 * with a zeroed one. */
static bool next_tile(struct tile *t, int64_t rows, int64_t cols)
{
    t->col += t->cols;
    if (t->col >= cols || t->rows == 0) {
        t->row += t->rows;
        t->col = 0;
    }
    t->rows = weft__min(TILE_ROWS, rows - t->row);
    t->cols = weft__min(TILE_COLS, cols - t->col);
    return t->rows > 0;
}

/* The tile's values as F32 in job->w, and the largest magnitude among them. */
static weft_status read_tile(struct job *job, const struct weft__tensor *source,
                             const struct tile *t, float *amax)
{
    struct weft__tensor part = *source;
    int64_t size = weft__dtype_bits(source->dtype) / 8, cols = source->shape[1];
    bool whole = t->cols == cols;
    for (int64_t row = 0; row < t->rows; row += whole ? t->rows : 1) {
        int64_t first = ((t->row + row) * cols + t->col) * size;
        part.bytes = (whole ? t->rows : 1) * t->cols * size;
        part.file_offset = source->file_offset + first;
        weft_status status = weft__tensor_f32(&part, job->w + row * t->cols, job->err);
        if (status != WEFT_OK) return status;
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < t->rows * t->cols; i++) {
        uint32_t magnitude = weft__f32_bits(job->w[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7f800000u)
        return weft__fail(job->err, WEFT_FORMAT,
                          "%s: tensor " NAME " holds NaN or infinity and cannot be quantised",
                          source->file, source->name);
    *amax = weft__f32_from_bits(largest);
    return progress(job, t->rows * t->cols * size);
}

static weft_status put(struct job *job, uint64_t at, const void *bytes, int64_t count)
{
    return weft__pwrite_all(job->fd, job->path, job->data + at, bytes, (size_t)count, job->err);
}

/* Writes a tile of the tensor at `at`, which has a byte for each `step` of its columns. */
static weft_status write_tile(struct job *job, uint64_t at, const struct tile *t, int64_t cols,
                              int64_t step, const uint8_t *tile)
{
    int64_t row_bytes = cols / step, first = t->col / step, bytes = t->cols / step;
    bool whole = bytes == row_bytes;
    weft_status status = WEFT_OK;
    for (int64_t row = 0; row < t->rows && status == WEFT_OK; row += whole ? t->rows : 1)
        status = put(job, at + (uint64_t)((t->row + row) * row_bytes + first), tile + row * bytes,
                     whole ? t->rows * bytes : bytes);
    return status;
}

/* ---- items ---- */

static weft_status find_amax(struct job *job)
{
    weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < job->plan.items; i++) {
        const struct weft__quantize_item *item = &job->plan.item[i];
        if (!item->quantise) continue;
        float *group = &job->amax[item->group], amax;
        for (struct tile t = {0}; next_tile(&t, item->source.shape[0], item->source.shape[1]);) {
            status = read_tile(job, &item->source, &t, &amax);
            if (status != WEFT_OK) return status;
            if (amax > *group) *group = amax;
        }
    }
    return status;
}

static weft_status write_nvfp4(struct job *job, const struct weft__quantize_item *item,
                               struct weft__quantize_error *sum)
{
    int64_t cols = item->source.shape[1];
    float amax, global = weft__nvfp4_global(job->amax[item->group]);
    weft_status status = put(job, item->offset[2], &global, sizeof global);
    for (struct tile t = {0}; status == WEFT_OK && next_tile(&t, item->source.shape[0], cols);) {
        status = read_tile(job, &item->source, &t, &amax);
        if (status != WEFT_OK) break;
        weft__quantize_nvfp4(job->w, t.rows * t.cols, global, job->codes, job->block_scale, sum);
        status = write_tile(job, item->offset[0], &t, cols, 2, job->codes);
        if (status == WEFT_OK)
            status = write_tile(job, item->offset[1], &t, cols, 16, job->block_scale);
    }
    return status;
}

static weft_status write_fp8(struct job *job, const struct weft__quantize_item *item,
                             struct weft__quantize_error *sum)
{
    int64_t cols = item->source.shape[1], across = weft__ceil_div(cols, 128);
    float amax;
    weft_status status = WEFT_OK;
    for (struct tile t = {0}; status == WEFT_OK && next_tile(&t, item->source.shape[0], cols);) {
        status = read_tile(job, &item->source, &t, &amax);
        if (status != WEFT_OK) break;
        weft__quantize_fp8(job->w, t.rows, t.cols, job->codes, job->scale, sum);
        status = write_tile(job, item->offset[0], &t, cols, 1, job->codes);
        uint64_t at = (uint64_t)((t.row / 128 * across + t.col / 128) * 4);
        if (status == WEFT_OK)
            status = put(job, item->offset[1] + at, job->scale, weft__ceil_div(t.cols, 128) * 4);
    }
    return status;
}

static weft_status write_copy(struct job *job, const struct weft__quantize_item *item)
{
    weft_status status = WEFT_OK;
    int64_t chunk = TILE_ROWS * TILE_COLS, total = item->source.bytes;
    for (int64_t at = 0; at < total && status == WEFT_OK; at += chunk) {
        int64_t bytes = weft__min(chunk, total - at);
        status = weft__tensor_read(&item->source, at, bytes, job->codes, job->err);
        if (status == WEFT_OK) status = put(job, item->offset[0] + (uint64_t)at, job->codes, bytes);
        if (status == WEFT_OK) status = progress(job, bytes);
    }
    return status;
}

static void count_linear(struct job *job, const struct weft__quantize_item *item,
                         const struct weft__quantize_error *error)
{
    struct weft__quantize_totals *totals = job->totals;
    double relative =
        error->weight_squared > 0 ? sqrt(error->error_squared / error->weight_squared) : 0;
    totals->linears++;
    totals->error.error_squared += error->error_squared;
    totals->error.weight_squared += error->weight_squared;
    if (error->error_max > totals->error.error_max) totals->error.error_max = error->error_max;
    if (relative >= totals->worst_relative) {
        totals->worst_relative = relative;
        (void)snprintf(totals->worst, sizeof totals->worst, "%.*s", WEFT__MAX_TENSOR_NAME,
                       item->name);
    }
    struct weft__quantize_row row = {.module = item->name,
                                     .out = item->source.shape[0],
                                     .in = item->source.shape[1],
                                     .error = *error};
    if (job->options->on_linear != NULL) job->options->on_linear(job->options->ctx, &row);
}

/* ---- files ---- */

/* Places the outputs of file f, larger elements first so that every tensor is aligned, and appends
 * the header to buf. *data_bytes receives the size of the data. */
static void lay_out(struct job *job, uint32_t f, struct weft__buf *buf, uint64_t *data_bytes)
{
    uint64_t at = 0;
    weft__buf_puts(buf, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int size = 64; size >= 8; size /= 2) {
        for (uint32_t i = 0; i < job->plan.items; i++) {
            struct weft__quantize_item *item = &job->plan.item[i];
            struct weft__quantize_output out[WEFT__MAX_OUTPUTS];
            if (item->file != f) continue;
            int outputs = weft__quantize_outputs(&job->plan, item, out);
            for (int o = 0; o < outputs; o++) {
                char name[WEFT__MAX_TENSOR_NAME + 96];
                int bits = weft__dtype_bits(out[o].dtype);
                if ((bits < 8 ? 8 : bits) != size) continue;
                (void)snprintf(name, sizeof name, "%s%s", item->name, out[o].suffix);
                weft__buf_puts(buf, ",");
                weft__buf_json(buf, name);
                weft__buf_printf(buf, ":{\"dtype\":\"%s\",\"shape\":[",
                                 weft_dtype_name(out[o].dtype));
                for (int d = 0; d < out[o].dims; d++)
                    weft__buf_printf(buf, d > 0 ? ",%lld" : "%lld", (long long)out[o].shape[d]);
                weft__buf_printf(buf, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                                 (unsigned long long)(at + out[o].bytes));
                item->offset[o] = at;
                at += out[o].bytes;
            }
        }
    }
    weft__buf_puts(buf, "}");
    while (buf->len % 8 != 0 && !buf->failed) weft__buf_puts(buf, " ");
    *data_bytes = at;
}

static weft_status write_items(struct job *job, uint32_t f)
{
    weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < job->plan.items && status == WEFT_OK; i++) {
        const struct weft__quantize_item *item = &job->plan.item[i];
        struct weft__quantize_error error = {0};
        if (item->file != f) continue;
        if (!item->quantise) {
            status = write_copy(job, item);
            job->totals->kept++;
            continue;
        }
        status = job->options->to == WEFT__LINEAR_NVFP4 ? write_nvfp4(job, item, &error)
                                                        : write_fp8(job, item, &error);
        if (status == WEFT_OK) count_linear(job, item, &error);
    }
    return status;
}

static weft_status write_file(struct job *job, uint32_t f)
{
    struct weft__buf header;
    uint64_t data_bytes;
    uint8_t prefix[8];
    WEFT__TRY(weft__path_join(job->path, job->dir.partial, job->plan.file.name[f], job->err));
    job->fd = open(job->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (job->fd < 0) return weft__fail(job->err, WEFT_IO, "%s: %s", job->path, strerror(errno));
    job->data = 0;
    weft__buf_init(&header, WEFT__MAX_HEADER);
    lay_out(job, f, &header, &data_bytes);
    weft_status status = WEFT_OK;
    if (header.failed) status = weft__fail_oom(job->err, header.len, job->path);
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(header.len >> 8 * i);
    if (status == WEFT_OK) status = put(job, 0, prefix, sizeof prefix);
    if (status == WEFT_OK) status = put(job, sizeof prefix, header.data, (int64_t)header.len);
    job->data = sizeof prefix + header.len;
    if (status == WEFT_OK) status = write_items(job, f);
    if (status == WEFT_OK && fsync(job->fd) != 0)
        status = weft__fail(job->err, WEFT_IO, "%s: %s", job->path, strerror(errno));
    (void)close(job->fd);
    weft__buf_free(&header);
    job->totals->bytes += (int64_t)(job->data + data_bytes);
    return status;
}

/* ---- the whole ---- */

static uint64_t bytes_to_write(const struct weft__quantize_plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->items; i++) {
        struct weft__quantize_output out[WEFT__MAX_OUTPUTS];
        int outputs = weft__quantize_outputs(plan, &plan->item[i], out);
        for (int o = 0; o < outputs; o++) bytes += out[o].bytes;
    }
    return bytes;
}

static void count_work(struct job *job)
{
    for (uint32_t i = 0; i < job->plan.items; i++) {
        const struct weft__quantize_item *item = &job->plan.item[i];
        bool twice = item->quantise && job->options->to == WEFT__LINEAR_NVFP4;
        job->totals->source_bytes += item->source.bytes;
        job->work += item->source.bytes * (twice ? 2 : 1);
    }
}

static weft_status alloc_tiles(struct job *job)
{
    size_t tile = (size_t)TILE_ROWS * TILE_COLS;
    job->amax = calloc(job->plan.group.count, sizeof *job->amax);
    job->w = malloc(tile * sizeof *job->w);
    job->scale = malloc(TILE_COLS * sizeof *job->scale);
    job->codes = malloc(tile);
    job->block_scale = malloc(tile / 16);
    bool all = job->amax != NULL && job->w != NULL && job->scale != NULL && job->codes != NULL &&
               job->block_scale != NULL;
    return all ? WEFT_OK : weft__fail_oom(job->err, tile * 6, "tiles of weights");
}

static weft_status write_all(struct job *job, const struct weft__checkpoint *checkpoint,
                             const struct weft__node *config)
{
    const char *source = weft__checkpoint_path(checkpoint);
    const struct weft__names *files = &job->plan.file;
    weft_status status = weft__new_dir_room(&job->dir, bytes_to_write(&job->plan), job->err);
    if (status == WEFT_OK && job->options->to == WEFT__LINEAR_NVFP4) status = find_amax(job);
    for (uint32_t f = 0; f < files->count && status == WEFT_OK; f++) status = write_file(job, f);
    bool single = files->count == 1 && strcmp(files->name[0], "model.safetensors") == 0;
    if (status == WEFT_OK && !single)
        status = weft__quantize_write_index(&job->plan, job->dir.partial, job->err);
    if (status == WEFT_OK)
        status = weft__quantize_write_config(&job->plan, config, job->dir.partial, job->err);
    if (status == WEFT_OK) status = weft__quantize_copy_files(source, job->dir.partial, job->err);
    return status;
}

static weft_status run(struct job *job, const char *source, const char *target)
{
    struct weft__checkpoint *checkpoint = NULL;
    struct weft__node config = {0};
    char path[WEFT__MAX_PATH];
    WEFT__TRY(weft__path_join(path, source, "config.json", job->err));
    weft_status status = weft__config_open(path, &config, job->err);
    if (status == WEFT_OK) status = weft__checkpoint_open(source, &checkpoint, job->err);
    if (status == WEFT_OK)
        status = weft__quantize_plan_make(&job->plan, checkpoint, &config, job->err);
    if (status == WEFT_OK) status = alloc_tiles(job);
    if (status == WEFT_OK) count_work(job);
    if (status == WEFT_OK) status = weft__new_dir_make(&job->dir, target, job->err);
    if (status == WEFT_OK) {
        status = write_all(job, checkpoint, &config);
        if (status == WEFT_OK) status = weft__new_dir_publish(&job->dir, job->err);
        if (status != WEFT_OK) weft__new_dir_remove(&job->dir);
    }
    weft__checkpoint_close(checkpoint);
    weft__config_close(&config);
    return status;
}

weft_status weft__quantize(const char *source, const char *target,
                           const struct weft__quantize_options *options,
                           struct weft__quantize_totals *totals, weft_error *err)
{
    if (options->to != WEFT__LINEAR_NVFP4 && options->to != WEFT__LINEAR_FP8_BLOCK)
        return weft__fail(err, WEFT_INVALID, "quantising to NVFP4 or FP8 blocks only");
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) return weft__fail_oom(err, sizeof *job, "quantising");
    *totals = (struct weft__quantize_totals){0};
    job->plan.options = options;
    job->options = options;
    job->totals = totals;
    job->err = err;
    weft_status status = run(job, source, target);
    weft__quantize_plan_free(&job->plan);
    free(job->amax);
    free(job->w);
    free(job->scale);
    free(job->codes);
    free(job->block_scale);
    free(job);
    return status;
}
