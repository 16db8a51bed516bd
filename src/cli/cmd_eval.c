/* hayate eval: what a model can do, and the sets that it is trained on. */
#include "cli/cli.h"
#include "cli/eval_write.h"
#include "cli/flags.h"

static const char about[] =
    "With --write-set it writes generated problems as rows of tokens for training: rows-L.ids (uint16), rows-L.weights "
    "(1 for what the model writes, 0 for what it is given, 255 for padding) and set.json. MODEL needs a tokenizer "
    "only; a "
    "tokenizer.json will do. The same seed gives the same bytes, whatever the number of threads. Sets are arithmetic, "
    "synthaime, retrieval, tools, form and talk.\n\n"
    "examples:\n  hayate eval models/m3-nano --write-set data --tokens 100m --rows 512,1024\n"
    "  hayate eval models/m3-nano --write-set long --tokens 20m --rows 16384 --mix retrieval=3,tools=1\n"
    "  hayate eval models/m3-nano --write-set look.jsonl --tokens 20k --mix form=1";

int cmd_eval(int argc, char **argv)
{
    eval_write_flags write = eval_write_defaults();
    const char *places[16];
    int count = 16;
    cli_option table[FLAGS_MAX] = {
        {"seed", "N", "start of the random numbers (default 0)", &write.seed, CLI_LONG},
        {"threads", "N", "threads (default: one a core)", &write.threads, CLI_INT},
    };
    int lines = eval_write_table(&write, table, 2);
    int code = cli_parse("eval", "eval MODEL [flags]", about, table, lines, argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("eval", "name the folder of a model");
    if (write.threads < 0) return cli_usage_error("eval", "--threads takes a number of at least 1");
    if (!write.path) return cli_usage_error("eval", "give --write-set");
    if (count > 1) return cli_usage_error("eval", "--write-set takes its sets from --mix");
    return eval_write(places[0], &write);
}
