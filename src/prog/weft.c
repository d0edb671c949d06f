/* weft: the table of subcommands. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "prog.h"

static const struct {
    const char *word, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
#define X(name, word, summary) {word, summary, weft__cmd_##name},
    WEFT__COMMANDS(X)
#undef X
};

static void help(FILE *out)
{
    (void)fprintf(out,
                  "weft %s: language models split over several processors\n\n"
                  "usage: weft COMMAND ...\n\n",
                  weft_version());
    for (size_t i = 0; i < WEFT__COUNT(commands); i++)
        (void)fprintf(out, "  %-12s %s\n", commands[i].word, commands[i].summary);
    (void)fprintf(out, "\n`weft help COMMAND` explains a command. MODEL is a Hugging Face "
                       "directory.\n");
}

/* Output that could not be written is a failure, once, whatever the command thinks. */
static int finish(const char *word, int status)
{
    bool good = !ferror(stdout), closed = fclose(stdout) == 0;
    if (good && closed) return status;
    (void)fprintf(stderr, "weft %s: cannot write to standard output%s%s\n", word,
                  closed ? "" : ": ", closed ? "" : strerror(errno));
    return WEFT__EXIT_FAILED;
}

/* Weights are read through mappings. The signal's default action follows when this returns. */
static void tell_bus_error(int signal)
{
    static const char text[] =
        "weft: bus error: a model file was cut short or cannot be read any more while in use\n";
    (void)signal;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
}

/* What the process was started with, made safe. */
static void prepare_process(void)
{
    const struct sigaction tell = {.sa_handler = tell_bus_error, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGBUS, &tell, NULL);
    /* A reader that goes away and a file that may not grow are errors of write, not our end. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    /* No file or socket takes the number of a standard stream that came closed: what is printed
     * would go there. Reading from these ends at once, writing still fails. */
    int fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) continue;
    if (fd >= 0) (void)close(fd);
}

int main(int argc, char **argv)
{
    prepare_process();
    if (argc < 2) {
        help(stderr);
        return WEFT__EXIT_USAGE;
    }
    if (argc > 2 && strcmp(argv[1], "help") == 0) { /* "help run" is "run --help" */
        argv[1] = argv[2];
        argv[2] = "--help";
        argc = 3;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        help(stdout);
        return finish("help", WEFT__EXIT_OK);
    }
    if (strcmp(word, "--version") == 0) {
        (void)printf("weft %s\n", weft_version());
        return finish("--version", WEFT__EXIT_OK);
    }
    for (size_t i = 0; i < WEFT__COUNT(commands); i++)
        if (strcmp(word, commands[i].word) == 0)
            return finish(word, commands[i].run(argc - 1, argv + 1));
    (void)fprintf(stderr, "weft: there is no command \"%s\"; `weft --help` lists them\n", word);
    return WEFT__EXIT_USAGE;
}
