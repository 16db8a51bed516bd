/* hayate synth: random checkpoints in the published layout. */
#include "cli/cli.h"

#include <stdio.h>

#include "checkpoint/synth.h"
#include "cli/geometry.h"

static const char usage[] = "synth CONFIG DST [flags]";
static const char about[] =
    "Writes a checkpoint of random weights in the published layout to the new folder DST. CONFIG is a released model "
    "by name (m3.1-flash, m3, m3-mxfp8), a config.json, or a folder that holds one. The same seed gives the same "
    "bytes, whatever the shard size.\n\n"
    "examples:\n  hayate synth models/m3-nano random-nano --seed 1\n"
    "  hayate synth m3.1-flash whole --holes";

static void report(const geometry *g, const char *folder, const synth_options *options)
{
    char a[32], b[32];
    layout_totals t = layout_count(&g->config, options->scheme);
    printf("%s: %s tensors, %s bytes, scheme %s%s\n", folder, cli_format_count(t.tensors, a),
           cli_format_count(t.bytes, b), layout_scheme_name(options->scheme), options->holes ? ", holes" : "");
    if (!options->drafter) return;
    draft_config d = config_drafter(&g->config);
    t = layout_count_draft(&g->config, &d);
    printf("%s/dspark: %s tensors, %s bytes\n", folder, cli_format_count(t.tensors, a), cli_format_count(t.bytes, b));
}

int cmd_synth(int argc, char **argv)
{
    const char *places[2], *scheme = NULL;
    int count = 2, layers = -1, dense = -1, drafter = -1;
    uint64_t shard = 0;
    synth_options o = {0};
    int64_t seed = 0;
    const cli_option options[] = {
        {"scheme", "NAME", "m31, mxfp8, modelopt or bf16 (default: what CONFIG has)", &scheme, CLI_STRING},
        {"seed", "N", "start of the random numbers (default 0)", &seed, CLI_LONG},
        {"layers", "N", "only N layers of the geometry (default all)", &layers, CLI_INT},
        {"dense-layers", "K", "of these, K with a dense feed-forward (default: as the first N have)", &dense, CLI_INT},
        {"drafter", NULL, "with a drafter in DST/dspark, or --no-drafter (default: with m31)", &drafter, CLI_SWITCH},
        {"holes", NULL,
         "files of full size without data, to try plan, inspect and opening at that size: they take no space and read "
         "as zeros",
         &o.holes, CLI_FLAG},
        {"shard-size", "SIZE", "largest file (default 5.25GB)", &shard, CLI_SIZE},
    };
    int code =
        cli_parse("synth", usage, about, options, sizeof options / sizeof options[0], argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 2) return cli_usage_error("synth", "CONFIG and DST are needed");
    if (layers < -1 || layers == 0) return cli_usage_error("synth", "--layers takes a number of at least 1");
    if (layers < 0 && dense >= 0) return cli_usage_error("synth", "--dense-layers needs --layers");
    if (shard > INT64_MAX) return cli_usage_error("synth", "--shard-size is too large");

    hy_error err = {0};
    geometry g;
    hy_status s = geometry_load(places[0], &g, &err);
    if (s == HY_OK && layers > 0) s = config_slice(&g.config, layers, dense, &err);
    o.scheme = g.scheme;
    if (s == HY_OK && scheme && !layout_parse_scheme(scheme, &o.scheme))
        return cli_usage_error("synth", "there is no scheme '%s': m31, mxfp8, modelopt and bf16 are known", scheme);
    o.drafter = drafter < 0 ? o.scheme == SCHEME_M31 : drafter;
    o.seed = (uint64_t)seed, o.shard_bytes = (int64_t)shard, o.on_progress = cli_progress;
    cli_catch_interrupt();
    if (s == HY_OK) s = synth_write(&g.config, places[1], &o, &err);
    if (s != HY_OK)
        cli_error(&err);
    else
        report(&g, places[1], &o);
    return cli_exit(s);
}
