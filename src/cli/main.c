/* The program: finds the command and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/flags.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} command;

static const command commands[] = {
    {"serve", cmd_serve, "the server"},
    {"chat", cmd_chat, "talk to a model in the terminal"},
    {"generate", cmd_generate, "one prompt in, text out; for scripts"},
    {"tokenize", cmd_tokenize, "text to token ids and back"},
    {"trace", cmd_trace, "logits, layer outputs, selected blocks and routes for given token ids"},
    {"inspect", cmd_inspect, "what a checkpoint holds, with sizes"},
    {"plan", cmd_plan, "will it fit: weights, cache, sequences per machine"},
    {"quantize", cmd_quantize, "bf16 to MXFP8 and NVFP4 in the published layout"},
    {"eval", cmd_eval, "what a model can do; writes training sets"},
    {"bench", cmd_bench, "what this machine can do, and how much of it the engine reaches"},
    {"synth", cmd_synth, "random weights in the published layout, any size"},
};

enum { COUNT = sizeof commands / sizeof commands[0], NAME_ROOM = 32 };

static void usage(FILE *out)
{
    fprintf(out, "usage: hayate COMMAND [arguments]\n\ncommands:\n");
    for (int i = 0; i < COUNT; i++) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\nexit codes: 0 done, 1 failed, 2 usage, 3 bad model file, 4 does not fit\n"
                 "'hayate COMMAND --help' tells more; 'hayate --version' the version.\n");
}

static const command *find(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(name, commands[i].name)) return &commands[i];
    return NULL;
}

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits that make one name of the other (Levenshtein). */
static int distance(const char *a, const char *b)
{
    int row[NAME_ROOM + 1], n = (int)strlen(b);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

static int unknown(const char *name)
{
    const char *best = NULL;
    int fewest = 4; /* more edits than three are another word */
    if (strlen(name) < NAME_ROOM)
        for (int i = 0; i < COUNT; i++) {
            int d = distance(name, commands[i].name);
            if (d < fewest && d < (int)strlen(name)) fewest = d, best = commands[i].name;
        }
    fprintf(stderr, "hayate: there is no command '%.60s'", name);
    if (best) fprintf(stderr, "; did you mean '%s'?", best);
    fprintf(stderr, "\nTry 'hayate --help'.\n");
    return 2;
}

static int help(const char *name)
{
    const command *c = find(name);
    char flag[] = "--help", *argv[] = {(char *)name, flag, NULL};
    return c ? c->run(2, argv) : unknown(name);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    const char *name = argv[1];
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of the write, not the end of the program, */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that reached the limit of its size */
    file_map_guard("hayate", cli_exit(HY_FAILED));
    flags_log_start(strcmp(name, "serve") ? HY_LOG_WARNING : HY_LOG_INFO);
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        if (argc > 2 && name[0] != '-') return help(argv[2]);
        usage(stdout);
        return 0;
    }
    if (!strcmp(name, "--version")) {
        printf("hayate %s\n", HY_VERSION);
        return 0;
    }
    const command *c = find(name);
    return c ? c->run(argc - 1, argv + 1) : unknown(name);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    /* What was printed may have gone nowhere: a full disk, a reader that left. That is no success. */
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fprintf(stderr, "hayate: cannot write to standard output: %s\n", errno ? strerror(errno) : "write error");
        code = 1;
    }
    return code;
}
