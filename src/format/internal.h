/* internal.h: what the files of format share: sets of names, a JSON scanner, the parsed header of
 * one safetensors file, and the parts of quantising. */
#ifndef WEFT_SRC_FORMAT_INTERNAL_H
#define WEFT_SRC_FORMAT_INTERNAL_H

#include "format.h"

/* The longest part of a tensor's name that messages show. */
#define NAME "'%.160s'"

/* ---- files ---- */

/* Opens a regular file for reading; never blocks on a FIFO. NOT_FOUND when there is none. */
weft_status weft__open_regular(const char *path, int *fd, uint64_t *size,
                               weft_error *err) WEFT_CHECKED;
weft_status weft__pread_all(int fd, const char *path, uint64_t offset, void *out, size_t bytes,
                            weft_error *err) WEFT_CHECKED;

/* ---- names: a set of strings, numbered in order of arrival; a zeroed one is empty ---- */

struct weft__names {
    const char **name; /* [count], borrowed */
    uint32_t *slot;    /* [slots] number + 1, 0 when free; slots is a power of two */
    uint32_t count, cap, slots;
    uint64_t seed; /* random, so that a file cannot choose colliding names */
};

int64_t weft__names_find(const struct weft__names *names, const char *name); /* -1: absent */

/* Adds a name that the caller keeps alive. *added is false when it was there already. */
weft_status weft__names_add(struct weft__names *names, const char *name, bool *added,
                            weft_error *err) WEFT_CHECKED;
void weft__names_free(struct weft__names *names);

/* ---- scanner: base's pull reader over a buffer that it may overwrite ---- */

struct weft__scan {
    struct weft__json json;
    const char *file;   /* for messages */
    const char *tensor; /* the one being read, for messages; or NULL */
    char *text;         /* the buffer; strings become C strings in it */
    struct weft__buf scratch;
    int64_t values; /* passed over by weft__scan_skip so far */
    weft_error *err;
};

void weft__scan_init(struct weft__scan *scan, const char *file, char *text, size_t len,
                     weft_error *err);
void weft__scan_free(struct weft__scan *scan);

/* Fails with FORMAT, the file and the line. */
weft_status weft__scan_fail(struct weft__scan *scan, const char *what) WEFT_CHECKED;

weft_status weft__scan_enter(struct weft__scan *scan, enum weft__json_kind kind) WEFT_CHECKED;
weft_status weft__scan_item(struct weft__scan *scan, bool *more) WEFT_CHECKED;
weft_status weft__scan_member(struct weft__scan *scan, char **key) WEFT_CHECKED; /* NULL: ended */
weft_status weft__scan_string(struct weft__scan *scan, char **out) WEFT_CHECKED;
weft_status weft__scan_size(struct weft__scan *scan, int64_t *out) WEFT_CHECKED; /* 0 or more */
/* Checks and passes over any value, without duplicate keys. */
weft_status weft__scan_skip(struct weft__scan *scan) WEFT_CHECKED;
weft_status weft__scan_end(struct weft__scan *scan) WEFT_CHECKED;

/* ---- header of one safetensors file ---- */

struct weft__entry {
    uint64_t begin, bytes; /* in the data */
    uint32_t shape;        /* first of `dims` numbers in the shape pool */
    uint16_t file;
    uint8_t dtype; /* WEFT_DTYPE_COUNT: unknown */
    uint8_t dims;
};

struct weft__header {
    char *text; /* owns the names */
    struct weft__names names;
    struct weft__entry *entry; /* [names.count] */
    uint32_t entry_cap;
    int64_t *shape; /* pool */
    uint32_t shape_count, shape_cap;
    uint64_t data_start, data_bytes; /* in the file */
};

/* Reads the header of an open file of `size` bytes, checked at least as strictly as by the crate
 * safetensors. Free with weft__header_free, also after failure. */
weft_status weft__header_read(const char *path, int fd, uint64_t size, struct weft__header *out,
                              weft_error *err) WEFT_CHECKED;
void weft__header_free(struct weft__header *header);

/* ---- quantising ---- */

/* w [count], a multiple of 16, to codes [count / 2] and E4M3 scales [count / 16] under the global
 * scale. Adds to *sum. */
void weft__quantize_nvfp4(const float *w, int64_t count, float scale_global, uint8_t *codes,
                          uint8_t *scales, struct weft__quantize_error *sum);

/* At most 128 rows of cols to E4M3 codes [rows, cols] and one scale each 128 columns. */
void weft__quantize_fp8(const float *w, int64_t rows, int64_t cols, uint8_t *codes, float *scales,
                        struct weft__quantize_error *sum);

/* The global scale for weights whose largest magnitude is amax. */
float weft__nvfp4_global(float amax);

/* What becomes of one tensor of the source, or of one expert's slice of it. */
enum { WEFT__MAX_OUTPUTS = 3 };

struct weft__quantize_item {
    struct weft__tensor source;
    const char *name; /* quantised: the module; copied: the tensor */
    bool quantise;
    uint32_t file, group;               /* numbers */
    uint64_t offset[WEFT__MAX_OUTPUTS]; /* of its outputs, in the file's data */
};

struct weft__quantize_plan {
    const struct weft__quantize_options *options;
    struct weft__arena arena; /* names */
    struct weft__quantize_item *item;
    uint32_t items, item_cap;
    struct weft__names file;  /* base names of the shards */
    struct weft__names group; /* linears that share a global scale */
    struct weft__names kept;  /* modules and globs for the configuration's list of exclusions */
    int64_t layers;           /* from here on layers belong to the MTP part */
    bool mla;
};

/* One tensor that an item becomes: P.weight, P.weight_scale, .. */
struct weft__quantize_output {
    const char *suffix; /* after the item's name */
    weft_dtype dtype;
    int dims;
    int64_t shape[WEFT__MAX_DIMS];
    uint64_t bytes;
};
int weft__quantize_outputs(const struct weft__quantize_plan *plan,
                           const struct weft__quantize_item *item,
                           struct weft__quantize_output out[WEFT__MAX_OUTPUTS]);

/* Fills a zeroed plan but for its options; checkpoint must stay open. Free also after failure. */
weft_status weft__quantize_plan_make(struct weft__quantize_plan *plan,
                                     const struct weft__checkpoint *checkpoint,
                                     const struct weft__node *config, weft_error *err) WEFT_CHECKED;
void weft__quantize_plan_free(struct weft__quantize_plan *plan);

/* Writes config.json, hf_quant_config.json and the index to dir, and copies the other files. */
weft_status weft__quantize_write_config(const struct weft__quantize_plan *plan,
                                        const struct weft__node *config, const char *dir,
                                        weft_error *err) WEFT_CHECKED;
weft_status weft__quantize_write_index(const struct weft__quantize_plan *plan, const char *dir,
                                       weft_error *err) WEFT_CHECKED;
weft_status weft__quantize_copy_files(const char *source, const char *dir,
                                      weft_error *err) WEFT_CHECKED;

/* Appends text as a JSON string. */
void weft__buf_json(struct weft__buf *buf, const char *text);

weft_status weft__pwrite_all(int fd, const char *path, uint64_t offset, const void *bytes,
                             size_t len, weft_error *err) WEFT_CHECKED;

#endif
