/* What is left of runs: the page of report.html with their JSON inside, and JSON by itself. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

enum { MAX_OUTPUT = 1 << 30 };

extern const char weft__report_start[], weft__report_end[]; /* report.S */

/* A file of the text, or the text behind what the file has; never a part of it. */
static weft_status write_file(const char *path, bool append, const struct weft__buf *text,
                              weft_error *err)
{
    struct stat before;
    FILE *file = fopen(path, append ? "ae" : "we");
    if (file == NULL || fstat(fileno(file), &before) != 0)
        return weft__fail(err, WEFT_IO, "%.200s: cannot be written: %s", path, strerror(errno));
    bool good = fwrite(text->data, 1, text->len, file) == text->len;
    if (fclose(file) == 0 && good) return WEFT_OK;
    int why = errno, cut = truncate(path, before.st_size);
    (void)cut; /* a pipe has no length */
    return weft__fail(err, WEFT_IO, "%.200s: cannot be written: %s", path, strerror(why));
}

weft_status weft__bench_write_json(const char *path, bool append, const json_t *value,
                                   weft_error *err)
{
    struct weft__buf out;
    char *text = json_dumps(value, append ? JSON_COMPACT : JSON_INDENT(2));
    weft__buf_init(&out, MAX_OUTPUT);
    weft__buf_puts(&out, text != NULL ? text : "");
    weft__buf_puts(&out, "\n");
    weft_status status = text != NULL && !out.failed ? write_file(path, append, &out, err)
                                                     : weft__fail_oom(err, out.len, path);
    weft__buf_free(&out);
    free(text);
    return status;
}

/* Inside a script element nothing may look like its end, nor like a line's end to older readers. */
static void put_json(struct weft__buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<' || c == '>' || c == '&')
            weft__buf_printf(out, "\\u%04x", c);
        else if (c == 0xe2 && (unsigned char)text[1] == 0x80 &&
                 ((unsigned char)text[2] | 1) == 0xa9)
            weft__buf_printf(out, "\\u20%02x", (unsigned char)*(text += 2) - 0x80);
        else
            weft__buf_append(out, text, 1);
    }
}

weft_status weft__bench_report(const char *path, const json_t *runs, weft_error *err)
{
    static const char mark[] = "@RUNS@";
    size_t len = (size_t)(weft__report_end - weft__report_start);
    const char *at = memmem(weft__report_start, len, mark, sizeof mark - 1);
    char *text = json_dumps(runs, JSON_COMPACT);
    struct weft__buf out;
    weft__buf_init(&out, MAX_OUTPUT);
    if (text != NULL && at != NULL) {
        const char *rest = at + sizeof mark - 1;
        weft__buf_append(&out, weft__report_start, (size_t)(at - weft__report_start));
        put_json(&out, text);
        weft__buf_append(&out, rest, (size_t)(weft__report_end - rest));
    }
    weft_status status = out.len > 0 && !out.failed ? write_file(path, false, &out, err)
                                                    : weft__fail_oom(err, out.len, "the report");
    weft__buf_free(&out);
    free(text);
    return status;
}
