/* format.h: files of untrusted bytes become checked views: safetensors checkpoints, the linears in
 * them whatever their quantisation, and JSON configuration.
 *
 * Everything here is read-only after opening, but for which tensors have been found, and may be
 * used by many threads at once. Views borrow from the checkpoint and stay valid until it is closed.
 *
 * A file that another process truncates while it is mapped raises SIGBUS on access, as for every
 * mapped program; models are replaced by renaming, never in place. Headers are read with pread and
 * cannot raise it; nor can weft__tensor_read, for those who copy. */
#ifndef WEFT_SRC_FORMAT_H
#define WEFT_SRC_FORMAT_H

#include <jansson.h>

#include "base/base.h"

/* ---- tensors ---- */

enum {
    WEFT__MAX_DIMS = 8,
    WEFT__MAX_TENSORS = 1000000,  /* a checkpoint, and a file */
    WEFT__MAX_TENSOR_NAME = 1024, /* bytes */
    WEFT__MAX_HEADER = 100000000, /* bytes of JSON in one file */
    WEFT__MAX_INDEX = 256 << 20,  /* bytes of model.safetensors.index.json */
    WEFT__MAX_SHARDS = 4096,
};

/* A view of one tensor, or of a slice of its leading dimension. Row-major, little-endian. */
struct weft__tensor {
    const char *name; /* NULL: there is no such tensor */
    const char *file; /* path, for messages */
    weft_dtype dtype; /* WEFT_DTYPE_COUNT: a type this version does not know; bytes only */
    int dims;
    int64_t shape[WEFT__MAX_DIMS];
    int64_t bytes;
    const uint8_t *data; /* in the mapping; any alignment */
    int64_t file_offset; /* of data, in the file */
    int fd;              /* open on the file, borrowed */
};

/* A Hugging Face directory, or one .safetensors file. */
struct weft__checkpoint;

/* Opens path: a directory with model.safetensors.index.json or model.safetensors, or a file such as
 * reference.safetensors. Every header is checked; no tensor data is touched. */
weft_status weft__checkpoint_open(const char *path, struct weft__checkpoint **out,
                                  weft_error *err) WEFT_CHECKED;
void weft__checkpoint_close(struct weft__checkpoint *checkpoint); /* NULL allowed */

const char *weft__checkpoint_path(const struct weft__checkpoint *checkpoint);

/* Tensors in file order: shards by name, then by offset. */
int64_t weft__checkpoint_count(const struct weft__checkpoint *checkpoint);
struct weft__tensor weft__checkpoint_at(const struct weft__checkpoint *checkpoint, int64_t i);

/* The tensor of that name, or false. */
bool weft__checkpoint_find(const struct weft__checkpoint *checkpoint, const char *name,
                           struct weft__tensor *out);
/* Whether anybody has found tensor i by its name. */
bool weft__checkpoint_found(const struct weft__checkpoint *checkpoint, int64_t i);

/* The tensor of that name with that shape (-1: any size). NOT_FOUND when absent, FORMAT with both
 * shapes when they differ, UNSUPPORTED when its type is unknown. */
weft_status weft__checkpoint_get(const struct weft__checkpoint *checkpoint, const char *name,
                                 int dims, const int64_t *shape, struct weft__tensor *out,
                                 weft_error *err) WEFT_CHECKED;

/* Element i of the leading dimension: [e, a, b] -> [a, b]. i must be in range. */
struct weft__tensor weft__tensor_slice(const struct weft__tensor *tensor, int64_t i);

/* Rows first .. first + count of the leading dimension. Must be in range. */
struct weft__tensor weft__tensor_rows(const struct weft__tensor *tensor, int64_t first,
                                      int64_t count);

/* Converts all elements (F32, F16, BF16, F8_E4M3, F8_E8M0) to F32: norms, biases, small tables. */
weft_status weft__tensor_f32(const struct weft__tensor *tensor, float *out,
                             weft_error *err) WEFT_CHECKED;

/* Copies bytes first .. first + count through pread. */
weft_status weft__tensor_read(const struct weft__tensor *tensor, int64_t first, int64_t count,
                              void *out, weft_error *err) WEFT_CHECKED;

/* A hint to the kernel: about to be read. */
void weft__tensor_prefetch(const struct weft__tensor *tensor);

/* "[4, 16]"; truncated when it does not fit. Returns text. */
enum { WEFT__SHAPE_TEXT = 96 };
char *weft__shape_text(int dims, const int64_t *shape, char text[WEFT__SHAPE_TEXT]);

/* ---- linears: y = x W^T (+ bias) ---- */

enum weft__linear_kind {
    WEFT__LINEAR_PLAIN,       /* F32, F16, BF16 */
    WEFT__LINEAR_NVFP4,       /* w = e2m1 * scale[o, i / 16] * scale_global */
    WEFT__LINEAR_FP8_TENSOR,  /* w = e4m3 * scale_global */
    WEFT__LINEAR_FP8_CHANNEL, /* w = e4m3 * scale[o] */
    WEFT__LINEAR_FP8_BLOCK,   /* w = e4m3 * scale[o / 128, i / 128] */
};

struct weft__linear_view {
    enum weft__linear_kind kind;
    weft_dtype dtype;           /* of the values: F32, F16, BF16, F4_E2M1, F8_E4M3 */
    int64_t out, in;            /* logical */
    int64_t row_bytes;          /* of the weight: in * bits / 8 */
    struct weft__tensor weight; /* [out, in]; NVFP4: bytes [out, in / 2], low nibble first */
    struct weft__tensor scale;  /* NVFP4: E4M3 [out, in / 16]. FP8_CHANNEL: [out] or [out, 1], F32
                                   or BF16. FP8_BLOCK: [ceil(out / 128), ceil(in / 128)], F32, BF16,
                                   F16 or E8M0. Else none */
    struct weft__tensor bias;   /* [out], F32, F16 or BF16; or none */
    float scale_global;         /* multiplies; 1 when the kind has none */
    float input_scale;          /* static, decode sense (x = q * input_scale * ..); 0: none */
};

/* The linear `module` ("model.layers.0.mlp.gate_proj"), which must be [out, in]. Its format is
 * decided by the tensors in the file, whatever config.json says. */
weft_status weft__linear_open(const struct weft__checkpoint *checkpoint, const char *module,
                              int64_t out, int64_t in, struct weft__linear_view *view,
                              weft_error *err) WEFT_CHECKED;

/* One projection of one routed expert, stored by itself or stacked. */
struct weft__expert_ref {
    const char *experts;    /* "model.layers.3.mlp.experts" */
    const char *projection; /* "gate_proj", "up_proj" or "down_proj" */
    int64_t expert, count;  /* expert of count */
    int64_t out, in;        /* of the projection */
};
weft_status weft__linear_open_expert(const struct weft__checkpoint *checkpoint,
                                     const struct weft__expert_ref *ref,
                                     struct weft__linear_view *view, weft_error *err) WEFT_CHECKED;

/* Number of values in a channel or block scale table, 0 for the other kinds; and the table as F32,
 * checked: finite and > 0, or the tensor is named. */
int64_t weft__linear_scale_count(const struct weft__linear_view *view);
weft_status weft__linear_scale_f32(const struct weft__linear_view *view, float *out,
                                   weft_error *err) WEFT_CHECKED;

/* Scans the NVFP4 block scales of rows first .. first + count for NaN and negative ones, which name
 * the tensor, row and block. Other kinds pass. */
weft_status weft__linear_check(const struct weft__linear_view *view, int64_t first, int64_t count,
                               weft_error *err) WEFT_CHECKED;

/* ---- configuration: config.json and its relatives ---- */

/* An object (or list) in a configuration file. Where a getter takes `keys`, it is one name or
 * alternative spellings, "num_experts|n_routed_experts": those present must agree. A null value
 * counts as absent. A node whose json is NULL is an empty object. */
struct weft__node {
    json_t *json;
    const char *file;
    char where[64]; /* "rope_parameters."; "" at the root */
};

/* Nesting is bounded by WEFT__JSON_MAX_DEPTH. */
enum { WEFT__MAX_CONFIG = 16 << 20, WEFT__MAX_CONFIG_VALUES = 2000000 };

/* Reads a file that holds one JSON object. Close with weft__config_close; a zeroed node may be
 * closed. */
weft_status weft__config_open(const char *path, struct weft__node *root,
                              weft_error *err) WEFT_CHECKED;
void weft__config_close(struct weft__node *root);

bool weft__node_has(const struct weft__node *node, const char *keys);

/* Required values. */
weft_status weft__node_int(const struct weft__node *node, const char *keys, int64_t min,
                           int64_t max, int64_t *value, weft_error *err) WEFT_CHECKED;
weft_status weft__node_double(const struct weft__node *node, const char *keys, double min,
                              double max, double *value, weft_error *err) WEFT_CHECKED;
weft_status weft__node_string(const struct weft__node *node, const char *keys, const char **value,
                              weft_error *err) WEFT_CHECKED; /* borrowed */

/* The same, but *value keeps what it held when the key is absent. */
weft_status weft__node_int_opt(const struct weft__node *node, const char *keys, int64_t min,
                               int64_t max, int64_t *value, weft_error *err) WEFT_CHECKED;
weft_status weft__node_double_opt(const struct weft__node *node, const char *keys, double min,
                                  double max, double *value, weft_error *err) WEFT_CHECKED;
weft_status weft__node_bool_opt(const struct weft__node *node, const char *keys, bool *value,
                                weft_error *err) WEFT_CHECKED;
weft_status weft__node_string_opt(const struct weft__node *node, const char *keys,
                                  const char **value, weft_error *err) WEFT_CHECKED;

/* An integer or a list of at most max_count integers; absent: *count = 0. */
struct weft__int_list {
    int64_t min, max; /* of each value */
    int64_t *values;
    int max_count, count;
};
weft_status weft__node_ints(const struct weft__node *node, const char *keys,
                            struct weft__int_list *list, weft_error *err) WEFT_CHECKED;

/* A nested object, or list; absent: child->json = NULL. */
weft_status weft__node_object(const struct weft__node *node, const char *keys,
                              struct weft__node *child, weft_error *err) WEFT_CHECKED;
weft_status weft__node_list(const struct weft__node *node, const char *keys,
                            struct weft__node *child, weft_error *err) WEFT_CHECKED;
int64_t weft__node_count(const struct weft__node *list);
weft_status weft__node_string_at(const struct weft__node *list, int64_t i, const char **value,
                                 weft_error *err) WEFT_CHECKED;

/* ---- a new directory of plain files: whole under its name, or not there ---- */

struct weft__new_dir {
    char target[WEFT__MAX_PATH];
    char partial[WEFT__MAX_PATH]; /* target.partial-PID, where the files are written */
};

weft_status weft__new_dir_make(struct weft__new_dir *dir, const char *target,
                               weft_error *err) WEFT_CHECKED;
/* Fails when the disk has less than this free. */
weft_status weft__new_dir_room(const struct weft__new_dir *dir, uint64_t bytes,
                               weft_error *err) WEFT_CHECKED;
weft_status weft__new_dir_publish(const struct weft__new_dir *dir, weft_error *err) WEFT_CHECKED;
/* Removes the unfinished directory and its files. */
void weft__new_dir_remove(const struct weft__new_dir *dir);

/* ---- quantising a checkpoint ---- */

/* How far a quantised linear is from its source. */
struct weft__quantize_error {
    double error_squared, weight_squared; /* sums over the elements */
    double error_max;                     /* largest absolute difference */
};

struct weft__quantize_row { /* one linear done */
    const char *module;
    int64_t out, in;
    struct weft__quantize_error error;
};

struct weft__quantize_totals {
    int64_t linears, kept; /* tensors quantised, and copied as they are */
    int64_t source_bytes, bytes;
    struct weft__quantize_error error;
    char worst[WEFT__MAX_TENSOR_NAME + 1]; /* the linear with the largest relative error */
    double worst_relative;
};

struct weft__quantize_options {
    enum weft__linear_kind to;  /* LINEAR_NVFP4 or LINEAR_FP8_BLOCK */
    bool attention;             /* NVFP4: also the attention of MLA models */
    const char *const *exclude; /* [exclude_count] module names or globs to keep as they are */
    int exclude_count;
    /* Called often; false stops with CLOSED. */
    bool (*on_progress)(void *ctx, double share);
    void (*on_linear)(void *ctx, const struct weft__quantize_row *row);
    void *ctx;
};

/* Writes the checkpoint in directory source, quantised, to the new directory target: its shards,
 * its configuration and its other small files. Memory stays bounded whatever the model's size.
 * Everything is written under target.partial-PID and renamed at the end, so target is whole or
 * absent; after a failure nothing is left. */
weft_status weft__quantize(const char *source, const char *target,
                           const struct weft__quantize_options *options,
                           struct weft__quantize_totals *totals, weft_error *err) WEFT_CHECKED;

#endif
