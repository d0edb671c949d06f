/* Command lines: one table a command gives its parsing and its help. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prog.h"

int weft__report(const char *command, const weft_error *err)
{
    (void)fprintf(stderr, "weft %s: %s\n", command, err->text);
    return WEFT__EXIT_FAILED;
}

int weft__usage(const char *command, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "weft %s: %s; see `weft %s --help`\n", command, text, command);
    return WEFT__EXIT_USAGE;
}

void weft__warn_unread(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch)
{
    weft_error note;
    if (weft__weights_unread(checkpoint, arch, &note) > 0)
        (void)fprintf(stderr, "weft: warning: %s\n", note.text);
}

static void print_help(const struct weft__command_line *line)
{
    (void)printf("usage: weft %s%s%s [OPTION]...\n\n%s\n\n", line->command,
                 line->synopsis[0] != '\0' ? " " : "", line->synopsis, line->about);
    for (const struct weft__option *o = line->options; o->kind != WEFT__OPTION_END; o++) {
        int used = printf("  --%s%s%s", o->name, o->value != NULL ? " " : "",
                          o->value != NULL ? o->value : "");
        if (used > 28) used = printf("\n") - 1;
        (void)printf("%*s %s\n", 28 - used, "", o->help);
    }
    (void)printf("  %-26s %s\n", "--help", "this text");
}

/* The option that name (len bytes) is, or the only one it is a prefix of. */
static const struct weft__option *find(const struct weft__command_line *line, const char *name,
                                       size_t len, bool *ambiguous)
{
    const struct weft__option *found = NULL;
    *ambiguous = false;
    for (const struct weft__option *o = line->options; o->kind != WEFT__OPTION_END; o++) {
        if (strncmp(o->name, name, len) != 0) continue;
        if (strlen(o->name) == len) {
            *ambiguous = false;
            return o;
        }
        *ambiguous = found != NULL;
        if (found == NULL) found = o;
    }
    return *ambiguous ? NULL : found;
}

static void say_ambiguous(const struct weft__command_line *line, const char *name, size_t len)
{
    char list[400];
    size_t used = 0;
    for (const struct weft__option *o = line->options; o->kind != WEFT__OPTION_END; o++)
        if (strncmp(o->name, name, len) == 0 && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s--%s",
                                     used > 0 ? ", " : "", o->name);
    (void)weft__usage(line->command, "--%.*s may be %s", (int)weft__min((int64_t)len, 60), name,
                      list);
}

/* *index = which of "a|b|c" text is. */
static bool choose(const char *choices, const char *text, int64_t *index)
{
    size_t len = strlen(text);
    *index = 0;
    for (const char *at = choices;; at += strcspn(at, "|") + 1, (*index)++) {
        size_t n = strcspn(at, "|");
        if (n == len && strncmp(at, text, n) == 0) return true;
        if (at[n] == '\0') return false;
    }
}

weft_status weft__option_set(const struct weft__option *o, const char *text, weft_error *err)
{
    char *end = NULL;
    int64_t yes;
    if (o->kind == WEFT__OPTION_STRING) {
        *(const char **)o->target = text;
        return WEFT_OK;
    }
    if (o->kind == WEFT__OPTION_FLAG) {
        if (!choose("false|true", text, &yes))
            return weft__fail(err, WEFT_INVALID, "--%s %.40s: true or false is wanted", o->name,
                              text);
        *(bool *)o->target = yes != 0;
        return WEFT_OK;
    }
    if (o->kind == WEFT__OPTION_CHOICE) {
        if (choose(o->value, text, o->target)) return WEFT_OK;
        return weft__fail(err, WEFT_INVALID, "--%s %.40s: one of %s is wanted", o->name, text,
                          o->value);
    }
    errno = 0;
    bool whole = o->kind == WEFT__OPTION_INT;
    long long integer = whole ? strtoll(text, &end, 10) : 0;
    double number = whole ? (double)integer : strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || isnan(number) || number < o->min ||
        number > o->max)
        return weft__fail(err, WEFT_INVALID,
                          whole ? "--%s %.40s: an integer from %.0f to %.0f is wanted"
                                : "--%s %.40s: a number from %.10g to %.10g is wanted",
                          o->name, text, o->min, o->max);
    if (whole)
        *(int64_t *)o->target = integer;
    else
        *(double *)o->target = number;
    return WEFT_OK;
}

/* argv[*i] is an option; may take the next argument too. */
static bool take_option(struct weft__command_line *line, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    const char *text = equals != NULL ? equals + 1 : "true";
    size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
    bool ambiguous;
    weft_error err;
    const struct weft__option *o = find(line, name, len, &ambiguous);
    if (ambiguous) {
        say_ambiguous(line, name, len);
        return false;
    }
    if (o == NULL) {
        (void)weft__usage(line->command, "there is no option %.60s", argv[*i]);
        return false;
    }
    if (equals == NULL && o->kind != WEFT__OPTION_FLAG) {
        if (*i + 1 >= argc) {
            (void)weft__usage(line->command, "--%s needs a value", o->name);
            return false;
        }
        text = argv[++*i];
    }
    if (weft__option_set(o, text, &err) == WEFT_OK) return true;
    (void)weft__usage(line->command, "%s", err.text);
    return false;
}

bool weft__command_line_parse(struct weft__command_line *line, int argc, char **argv, int *status)
{
    bool only_arguments = false;
    *status = WEFT__EXIT_USAGE;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (only_arguments || text[0] != '-' || text[1] == '\0') {
            if (line->arguments == line->arguments_max) {
                (void)weft__usage(line->command, "\"%.40s\" is too many: %s is wanted", text,
                                  line->synopsis[0] != '\0' ? line->synopsis : "no argument");
                return false;
            }
            line->argument[line->arguments++] = text;
        } else if (strcmp(text, "--") == 0) {
            only_arguments = true;
        } else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            print_help(line);
            *status = WEFT__EXIT_OK;
            return false;
        } else if (strcmp(text, "-v") == 0 && find(line, "verbose", 7, &(bool){0}) != NULL) {
            *(bool *)find(line, "verbose", 7, &(bool){0})->target = true;
        } else if (text[1] != '-') {
            (void)weft__usage(line->command, "there is no option %.60s", text);
            return false;
        } else if (!take_option(line, argc, argv, &i)) {
            return false;
        }
    }
    if (line->arguments < line->arguments_min) {
        (void)weft__usage(line->command, "%s is wanted", line->synopsis);
        return false;
    }
    return true;
}

weft_status weft__read_input(const char *path, struct weft__buf *text, weft_error *err)
{
    char piece[65536];
    size_t got;
    bool piped = path == NULL || strcmp(path, "-") == 0;
    const char *name = piped ? "standard input" : path;
    FILE *file = piped ? stdin : fopen(path, "re");
    weft_status status = WEFT_OK;
    if (file == NULL) return weft__fail(err, WEFT_IO, "%.200s: %s", name, strerror(errno));
    weft__buf_puts(text, ""); /* so that of no input there is a text, too */
    /* Not another read after the end: on a terminal that would wait for a second one. */
    while (!text->failed && !feof(file) && (got = fread(piece, 1, sizeof piece, file)) > 0)
        weft__buf_append(text, piece, got);
    if (ferror(file))
        status = weft__fail(err, WEFT_IO, "%.200s: %s", name, strerror(errno));
    else if (text->failed)
        status = weft__fail(err, WEFT_TOO_LONG, "%.200s: longer than %zu MiB, or memory is out",
                            name, text->max >> 20);
    if (!piped) (void)fclose(file);
    return status;
}

weft_status weft__load_tokenizer(const char *path, struct weft__tokenizer **out, weft_error *err)
{
    char file[WEFT__MAX_PATH];
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return weft__tokenizer_load(path, out, err);
    WEFT__TRY(weft__path_join(file, path, "tokenizer.json", err));
    return weft__tokenizer_load(file, out, err);
}

bool weft__print_json(json_t *object, size_t flags)
{
    if (object == NULL) return false;
    (void)json_dumpf(object, stdout, flags);
    (void)putchar('\n');
    (void)fflush(stdout);
    json_decref(object);
    return true;
}

json_t *weft__number_json(double value) { return isfinite(value) ? json_real(value) : json_null(); }

/* ---- what takes long ---- */

void weft__signals_hold(void)
{
    sigset_t stops;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGINT);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &stops, NULL);
}

bool weft__signals_came(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

/* Nanoseconds before a bar, and between lines that a log may keep. */
static const uint64_t SECOND = 1000000000u, LINES_APART = 10000000000u;

struct weft__bar weft__bar_start(const char *what)
{
    bool terminal = isatty(STDERR_FILENO) != 0;
    return (struct weft__bar){.what = what,
                              .terminal = terminal,
                              .next_ns = weft__now_ns() + (terminal ? SECOND : LINES_APART),
                              .shown = -1};
}

void weft__bar_end(const struct weft__bar *bar)
{
    if (bar->terminal && bar->shown >= 0 && bar->shown < 100) (void)fprintf(stderr, "\n");
}

void weft__bar_show(void *ctx, double share)
{
    enum { WIDTH = 40 };
    struct weft__bar *shown = ctx;
    int percent = (int)(share * 100);
    uint64_t now = weft__now_ns();
    if (percent == shown->shown || now < shown->next_ns) return;
    shown->shown = percent;
    if (!shown->terminal) {
        shown->next_ns = now + LINES_APART;
        (void)fprintf(stderr, "%s: %d %%\n", shown->what, percent);
        return;
    }
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i * 100 < percent * WIDTH ? '#' : '.';
    bar[WIDTH] = '\0';
    (void)fprintf(stderr, "\r%s [%s] %3d %%%s", shown->what, bar, percent,
                  percent >= 100 ? "\n" : "");
}

weft_engine_options weft__engine_options_of(const struct weft__engine_flags *flags)
{
    static struct weft__bar bar; /* one load a process; ends before anything else starts */
    weft_engine_options options = {
        .ranks = (int)flags->ranks,
        .threads = (int)flags->threads,
        .context = flags->context,
        .kv_tokens = flags->kv_tokens,
        .chunk = flags->chunk,
        .timeout_ms = (uint32_t)(flags->timeout_s * 1000),
        .activations = (weft_activations)flags->activations,
        .rendezvous = flags->rendezvous,
        .portable = flags->portable,
    };
    bar = weft__bar_start("loading");
    if (bar.terminal) {
        options.on_progress = weft__bar_show;
        options.ctx = &bar;
    }
    return options;
}
