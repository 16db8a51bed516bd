/* hayate eval: what a model can do, and the sets that it is trained on. */
#include <string.h>

#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/eval_write.h"
#include "cli/flags.h"
#include "cli/speculation.h"

static const char about[] =
    "Asks a model generated tasks that training never sees and marks what it writes: arithmetic, synthaime (hard "
    "arithmetic at temperature 1), retrieval (values in long texts, by length and depth), tools (calls and their use), "
    "form (what a system text asks for), talk, and perplexity of the answers. Without names all sets run. Several "
    "cache "
    "formats, read-backs or ways of selecting blocks are compared task by task in one call.\n\n"
    "With --write-set it writes generated problems as rows of tokens for training: rows-L.ids (uint16), rows-L.weights "
    "(1 for what the model writes, 0 for what it is given, 255 for padding) and set.json. MODEL needs a tokenizer "
    "only; a tokenizer.json will do. The same seed gives the same bytes, whatever the number of threads.\n\n"
    "examples:\n"
    "  hayate eval models/m3-nano\n"
    "  hayate eval models/m3-nano retrieval tools --kv-cache-dtype bf16,nvfp4 --json\n"
    "  hayate eval models/m3-nano retrieval --selection trained,random,dense\n"
    "  hayate eval models/m3-nano --write-set data --tokens 100m --rows 512,1024\n"
    "  hayate eval models/m3-nano --write-set long --tokens 20m --rows 16384 --mix retrieval=3,tools=1\n"
    "  hayate eval models/m3-nano --write-set look.jsonl --tokens 20k --mix form=1";

static int table_of(eval_flags *f, cli_option *table, int count)
{
    const cli_option lines[] = {
        {"kv-cache-dtype", "LIST", "cache formats, compared with the first: auto (default), bf16, fp8, nvfp4",
         &f->formats, CLI_STRING},
        {"indexer-kv-dtype", "FORMAT", "format of index keys (default: as the main cache)", &f->model.indexer_kv_dtype,
         CLI_STRING},
        {"readback", "LIST", "how an nvfp4 cache is read: exact (default), e4m3", &f->readbacks, CLI_STRING},
        {"selection", "LIST",
         "blocks that sparse layers read: trained (default; the index branch), random (retrieval only), dense (all)",
         &f->selections, CLI_STRING},
        {"moe-activation", "KIND", "activations of routed experts: auto (default), nvfp4 or none",
         &f->model.moe_activation, CLI_STRING},
        {"speculative-config", "JSON",
         "drafts, such as '{\"num_speculative_tokens\": 7}'; answers, and so marks, stay the same "
         "(docs/speculation.md)",
         &f->speculative, CLI_STRING},
        {"count", "N", "tasks of a set; of retrieval, texts of a length (default: five minutes in all on two cores)",
         &f->count, CLI_INT},
        {"full", NULL, "five times as many", &f->full, CLI_FLAG},
        {"show", "WHICH", "print the answers too: wrong, or all", &f->show, CLI_STRING},
        {"backend", "NAME", "cpu (default), cuda or reference", &f->model.backend, CLI_STRING},
        {"device", "NAME", "the same: auto (default), cpu or cuda", &f->model.backend, CLI_STRING},
        {"json", NULL, "one JSON object on stdout instead of tables", &f->json, CLI_FLAG},
        {"verbose", NULL, "log lines of the library on stderr", &f->verbose, CLI_FLAG},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) table[count++] = lines[i];
    return count;
}

/* -1: go on. */
static int read_sets(eval_flags *f, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        int set = 0;
        while (set < EVAL_SETS && strcmp(names[i], eval_set_name(set)) != 0) set++;
        if (set == EVAL_SETS)
            return cli_usage_error(
                "eval",
                "there is no set '%.40s': choose among arithmetic, synthaime, retrieval, tools, form, "
                "talk, perplexity",
                names[i]);
        f->wanted[set] = true;
    }
    for (int set = 0; set < EVAL_SETS && !count; set++)
        f->wanted[set] = set == EVAL_PERPLEXITY || task_set_present((task_set)set);
    return -1;
}

int cmd_eval(int argc, char **argv)
{
    eval_write_flags write = eval_write_defaults();
    eval_flags f = {
        .formats = "auto", .readbacks = "exact", .selections = "trained", .model = {.on_progress = cli_progress}};
    const char *places[16];
    int count = 16;
    cli_option table[FLAGS_MAX] = {
        {"seed", "N", "start of the random numbers: which tasks there are; 0 (default) has SynthAIME-30", &write.seed,
         CLI_LONG},
        {"threads", "N", "threads (default: one a core)", &write.threads, CLI_INT},
    };
    int lines = eval_write_table(&write, table, table_of(&f, table, 2));
    int code = cli_parse("eval", "eval MODEL [SET ...] [flags]", about, table, lines, argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("eval", "name the folder of a model");
    if (write.threads < 0) return cli_usage_error("eval", "--threads takes a number of at least 1");
    if (write.path && count > 1) return cli_usage_error("eval", "--write-set takes its sets from --mix");
    if (write.path) return eval_write(places[0], &write);
    if (f.count < 0) return cli_usage_error("eval", "--count takes a number from 1");
    if (f.show && strcmp(f.show, "wrong") != 0 && strcmp(f.show, "all") != 0)
        return cli_usage_error("eval", "--show takes wrong or all, not '%.40s'", f.show);
    if (f.show && f.json) return cli_usage_error("eval", "--show and --json both write to stdout: give one of them");
    speculation drafts;
    code = f.speculative ? speculation_parse("eval", f.speculative, &drafts) : -1;
    if (code < 0) code = read_sets(&f, places + 1, count - 1);
    if (code >= 0) return code;
    f.seed = (uint64_t)write.seed, f.model.threads = write.threads;
    flags_log_start(f.verbose ? HY_LOG_INFO : HY_LOG_WARNING);
    hy_error err = {0};
    cli_catch_interrupt();
    hy_status status = eval_model(places[0], &f, &err);
    if (status != HY_OK) cli_error(&err);
    return cli_exit(status);
}
