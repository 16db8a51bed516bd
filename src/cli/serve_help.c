/* hayate serve --help: the usual flags in groups, all of them, one group, or those that have a word in their name. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/cli.h"
#include "cli/serve_flags.h"

enum { INDENT = 36 };

static const char about[] =
    "Serves a model over HTTP with the flags, routes and answers of `vllm serve`. MODEL is a folder, a file in it, "
    "files of weights separated by commas, or a name of the hub such as MiniMaxAI/MiniMax-M3.1-Flash or "
    "owner/name@revision, which is downloaded once.\n"
    "Stops on Ctrl-C or SIGTERM.\n\n"
    "example:\n  hayate serve models/m3-nano --host 127.0.0.1 --port 8000";

static const char spellings[] = "Flags may be written with _ for -, as --name value or --name=value, switches as "
                                "--name and --no-name. JSON values may "
                                "come by members: --attention-config.indexer_kv_dtype nvfp4, lists as --name.list+ "
                                "a,b. Numbers as 25.6k (1000), 256K "
                                "(1024), 4GiB. --config FILE reads flags from YAML.\n"
                                "--help=all lists every flag, --help=GROUP those of a group, --help=WORD those with "
                                "the word in their name. What becomes "
                                "of each is in docs/flags.md.";

/* What --help shows, in the groups' order. */
static const char *const usual[] = {
    "host",
    "port",
    "uds",
    "api-key",
    "config",
    "served-model-name",
    "max-model-len",
    "chat-template",
    "default-chat-template-kwargs",
    "reasoning-parser",
    "tool-call-parser",
    "enable-auto-tool-choice",
    "override-generation-config",
    "max-num-seqs",
    "max-num-batched-tokens",
    "scheduling-policy",
    "kv-cache-dtype",
    "kv-cache-memory-bytes",
    "enable-prefix-caching",
    "attention-config",
    "speculative-config",
    "weights",
    "memory",
    "threads",
    "kv-offload-memory",
    "kv-offload-disk",
    "revision",
    "download-dir",
    "ssl-certfile",
    "ssl-keyfile",
    "shutdown-timeout",
    "enable-log-requests",
};

static bool is_usual(const arg_spec *spec)
{
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!strcmp(usual[i], spec->name)) return true;
    return false;
}

static const char *value_name(const arg_spec *spec)
{
    switch (spec->kind) {
    case ARG_BOOL: return "";
    case ARG_INT: return " N";
    case ARG_HUMAN:
    case ARG_BYTES: return " NUMBER";
    case ARG_AUTO: return " NUMBER|auto";
    case ARG_FLOAT: return " X";
    case ARG_TEXT: return " TEXT";
    case ARG_CHOICE: return "";
    case ARG_TEXTS: return " TEXT...";
    case ARG_JSON:
    case ARG_LIST:
    case ARG_EITHER: return " JSON";
    case ARG_MAYBE: return " [TEXT]";
    }
    return "";
}

static const char *fate_text(arg_fate fate)
{
    switch (fate) {
    case FATE_MAPPED: return "here";
    case FATE_NONE: return "no effect";
    case FATE_LATER: return "not yet";
    case FATE_ONLY: return "only the default";
    case FATE_DONE:
    case FATE_RANKS: break;
    }
    return NULL;
}

static void print_flag(const arg_spec *spec)
{
    int column = printf("  ");
    if (*spec->letters) column += printf("-%s, ", spec->letters);
    column += printf("--%s", spec->name);
    if (spec->kind == ARG_CHOICE)
        column += printf(" {%s}", spec->choices);
    else
        column += printf("%s", value_name(spec));
    if (column >= INDENT - 1)
        printf("\n%*s", INDENT, "");
    else
        printf("%*s", INDENT - column, "");
    char text[768];
    int n = snprintf(text, sizeof text, "%s", spec->help);
    if (*spec->value && !strstr(spec->help, "default"))
        n += snprintf(text + n, sizeof text - (size_t)n, " (default %s)", spec->value);
    if (fate_text(spec->fate))
        n += snprintf(text + n, sizeof text - (size_t)n, " [%s: %s]", fate_text(spec->fate), spec->note);
    if (spec->fate == FATE_RANKS) snprintf(text + n, sizeof text - (size_t)n, " [this version runs one]");
    cli_print_wrapped(text, INDENT, INDENT);
}

/* Flags of a group, all or the usual ones. */
static void print_group(arg_group group, bool all)
{
    size_t count, shown = 0;
    const arg_spec *table = serve_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (table[i].group != group || !(all || is_usual(&table[i]))) continue;
        if (!shown++) printf("%s: %s\n", serve_group(group)->title, serve_group(group)->about);
        print_flag(&table[i]);
    }
    if (shown) printf("\n");
}

static bool has_word(const char *name, const char *word)
{
    char plain[64];
    size_t n = 0;
    while (*word == '-') word++;
    for (; word[n] && n < sizeof plain - 1; n++)
        plain[n] = word[n] == '_' ? '-' : (char)tolower((unsigned char)word[n]);
    plain[n] = 0;
    return n > 0 && strstr(name, plain) != NULL;
}

static int help_about(const char *what)
{
    for (int g = 0; g < GROUP_COUNT; g++)
        if (!strcasecmp(serve_group((arg_group)g)->title, what)) {
            print_group((arg_group)g, true);
            return 0;
        }
    size_t count, found = 0;
    const arg_spec *table = serve_table(&count);
    for (size_t i = 0; i < count; i++)
        if (has_word(table[i].name, what)) print_flag(&table[i]), found++;
    if (found) return 0;
    printf("No group and no flag has '%.60s' in its name. The groups are:", what);
    for (int g = 0; g < GROUP_COUNT; g++) printf(" %s", serve_group((arg_group)g)->title);
    printf("\n");
    return 0;
}

/* A cell of a table: | separates columns there. */
static void print_cell(const char *text)
{
    for (; *text; text++) *text == '|' ? printf("\\|") : putchar(*text);
}

/* docs/flags.md, which a test compares with this. */
static int help_markdown(void)
{
    static const char *const fates[] = {
        [FATE_DONE] = "done",     [FATE_MAPPED] = "here",           [FATE_NONE] = "no effect",
        [FATE_LATER] = "not yet", [FATE_ONLY] = "only the default", [FATE_RANKS] = "one rank"};
    size_t count;
    const arg_spec *table = serve_table(&count);
    for (int g = 0; g < GROUP_COUNT; g++) {
        printf("\n### %s: %s\n\n| flag | default | what it is | what becomes of it |\n|---|---|---|---|\n",
               serve_group((arg_group)g)->title, serve_group((arg_group)g)->about);
        for (size_t i = 0; i < count; i++) {
            if (table[i].group != (arg_group)g) continue;
            printf("| `--%s", table[i].name);
            if (*table[i].letters) printf("`, `-%s", table[i].letters);
            printf("` | ");
            print_cell(table[i].kind == ARG_BOOL && !*table[i].value ? "off" : table[i].value);
            printf(" | ");
            print_cell(table[i].help);
            if (table[i].kind == ARG_CHOICE) printf(" ("), print_cell(table[i].choices), printf(")");
            printf(" | %s%s", fates[table[i].fate], *table[i].note ? ": " : "");
            print_cell(table[i].note);
            printf(" |\n");
        }
    }
    return 0;
}

int serve_help(const char *what)
{
    bool all = !strcasecmp(what, "all");
    if (!strcasecmp(what, "markdown")) return help_markdown();
    if (*what && !all) return help_about(what);
    printf("usage: hayate serve MODEL [flags]\n\n");
    cli_print_wrapped(about, 0, 0);
    printf("\n");
    for (int g = 0; g < GROUP_COUNT; g++) print_group((arg_group)g, all);
    cli_print_wrapped(spellings, 0, 0);
    printf("\ngroups:");
    int column = 7;
    for (int g = 0; g < GROUP_COUNT; g++) {
        const char *title = serve_group((arg_group)g)->title;
        if (column + (int)strlen(title) + 1 > 100) printf("\n       "), column = 7;
        column += printf(" %s", title);
    }
    printf("\n");
    return 0;
}
