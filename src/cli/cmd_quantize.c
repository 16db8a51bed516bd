/* hayate quantize: a bf16 checkpoint to the published quantised layout. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/quantize.h"
#include "cli/find_model.h"

static const char usage[] = "quantize SRC DST [flags]";
static const char about[] =
    "Quantises the bf16, f16 or f32 checkpoint SRC into the new folder DST. Scheme m31: routed experts NVFP4, other "
    "linears MXFP8, the rest as it is; mxfp8: all linears MXFP8; modelopt: as m31 with ModelOpt's names. Tensors get "
    "their published names; tokenizer and template files and a drafter are copied.\n\n"
    "example:\n  hayate quantize MiniMax-M3 MiniMax-M3-quantised --scheme m31";

int cmd_quantize(int argc, char **argv)
{
    const char *places[2], *scheme = "m31";
    int count = 2;
    uint64_t shard = 0;
    const cli_option options[] = {
        {"scheme", "NAME", "m31 (default), mxfp8 or modelopt", &scheme, CLI_STRING},
        {"shard-size", "SIZE", "largest file (default 5.25GB)", &shard, CLI_SIZE},
    };
    int code =
        cli_parse("quantize", usage, about, options, sizeof options / sizeof options[0], argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 2) return cli_usage_error("quantize", "SRC and DST are needed");
    quantize_options o = {.shard_bytes = (int64_t)shard, .on_progress = cli_progress};
    if (!layout_parse_scheme(scheme, &o.scheme))
        return cli_usage_error("quantize", "there is no scheme '%s': m31, mxfp8 and modelopt are known", scheme);
    if (shard > INT64_MAX) return cli_usage_error("quantize", "--shard-size is too large");

    hy_error err = {0};
    checkpoint *source = NULL;
    char a[32];
    cli_catch_interrupt();
    char folder[FIND_PATH_SIZE];
    hy_status s = find_model(places[0], NULL, folder, &err);
    if (s == HY_OK) s = checkpoint_open(folder, &source, &err);
    if (s == HY_OK) checkpoint_warn_draft(source);
    if (s == HY_OK) s = quantize_run(source, places[1], &o, &err);
    checkpoint_close(source);
    if (s != HY_OK) {
        cli_error(&err);
        return cli_exit(s);
    }
    checkpoint *made = NULL; /* what was written is opened once, with all its checks */
    s = checkpoint_open(places[1], &made, &err);
    if (s != HY_OK) {
        cli_error(&err);
        return cli_exit(s);
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(made, false); i++)
        bytes += checkpoint_tensor_at(made, i, false)->bytes;
    printf("%s: %zu tensors, %s bytes, scheme %s\n", places[1], checkpoint_tensor_count(made, false),
           cli_format_count(bytes, a), scheme);
    checkpoint_close(made);
    return 0;
}
