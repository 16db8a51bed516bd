/* The program: finds the command and runs it. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    {"inspect", cmd_inspect, "what a checkpoint holds, with sizes"},
    {"plan", cmd_plan, "will it fit: weights, cache, sequences per machine"},
    {"quantize", cmd_quantize, "bf16 to MXFP8 and NVFP4 in the published layout"},
    {"synth", cmd_synth, "random weights in the published layout, any size"},
};

enum { COUNT = sizeof commands / sizeof commands[0] };

static void usage(FILE *out)
{
    fprintf(out, "usage: hayate COMMAND [arguments]\n\ncommands:\n");
    for (int i = 0; i < COUNT; i++) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\n'hayate COMMAND --help' tells more; 'hayate --version' the version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("hayate %s\n", HY_VERSION);
        return 0;
    }
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "hayate: there is no command '%.60s'; see 'hayate --help'\n", argv[1]);
    return 2;
}
