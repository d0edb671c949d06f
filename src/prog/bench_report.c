/* The report: the page of report.html with the runs' JSON inside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

extern const char weft__report_start[], weft__report_end[]; /* report.S */

/* Inside a script element nothing may look like its end, nor like a line's end to older readers. */
static void put_json(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<' || c == '>' || c == '&')
            (void)fprintf(file, "\\u%04x", c);
        else if (c == 0xe2 && (unsigned char)text[1] == 0x80 &&
                 ((unsigned char)text[2] | 1) == 0xa9)
            (void)fprintf(file, "\\u20%02x", (unsigned char)*(text += 2) - 0x80);
        else
            (void)fputc(c, file);
    }
}

weft_status weft__bench_report(const char *path, const json_t *runs, weft_error *err)
{
    static const char mark[] = "@RUNS@";
    size_t len = (size_t)(weft__report_end - weft__report_start);
    const char *at = memmem(weft__report_start, len, mark, sizeof mark - 1);
    char *text = json_dumps(runs, JSON_COMPACT);
    FILE *file = fopen(path, "we");
    bool good = file != NULL && text != NULL && at != NULL;
    if (good) {
        const char *rest = at + sizeof mark - 1;
        (void)fwrite(weft__report_start, 1, (size_t)(at - weft__report_start), file);
        put_json(file, text);
        (void)fwrite(rest, 1, (size_t)(weft__report_end - rest), file);
        good = ferror(file) == 0;
    }
    if (file != NULL && fclose(file) != 0) good = false;
    free(text);
    return good ? WEFT_OK : weft__fail(err, WEFT_IO, "%.200s: cannot be written", path);
}
