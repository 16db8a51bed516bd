#include "cli/geometry.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"

layout_scheme geometry_scheme(const config *c)
{
    if (!c->quant_method[0]) return SCHEME_BF16;
    if (!strcmp(c->quant_method, "modelopt")) return SCHEME_MODELOPT;
    return c->moe_quant[0] ? SCHEME_M31 : SCHEME_MXFP8;
}

hy_status geometry_load(const char *argument, geometry *out, hy_error *err)
{
    *out = (geometry){0};
    if (config_known(argument, &out->config)) {
        out->known = argument;
        out->scheme = layout_known_scheme(argument);
        out->drafter = out->scheme == SCHEME_M31;
        return HY_OK;
    }
    char path[4096];
    const char *file = argument;
    if (file_is_folder(argument)) {
        hy_status s = file_join(argument, "config.json", path, sizeof path, err);
        if (s != HY_OK) return s;
        file = path;
    } else if (!file_exists(argument)) {
        return error_at(err, HY_USAGE, argument, "'%s' is neither a file nor a folder nor a known model (%s)", argument,
                        config_known_names);
    }
    hy_status s = config_load(file, &out->config, err);
    out->scheme = geometry_scheme(&out->config);
    out->drafter = out->scheme == SCHEME_M31;
    return s;
}
