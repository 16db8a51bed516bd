#include "cli/geometry.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/find_model.h"
#include "hub/fetch.h"

hy_status geometry_load(const char *argument, geometry *out, hy_error *err)
{
    *out = (geometry){0};
    if (config_known(argument, &out->config)) {
        out->known = argument;
        out->scheme = layout_known_scheme(argument);
        out->drafter = out->scheme == SCHEME_M31;
        return HY_OK;
    }
    char path[SOURCE_PATH + 16], named[FIND_PATH_SIZE];
    const char *file = argument;
    hy_status s = HY_OK;
    out->hub = !find_is_path(argument);
    if (out->hub && !hub_is_name(argument))
        return error_at(err, HY_USAGE, argument, "'%.200s' is neither a file nor a folder nor a known model (%s)",
                        argument, config_known_names);
    if (out->hub || file_is_folder(argument) || source_is_files(argument)) {
        model_source source = {0};
        s = find_model(argument, &(find_options){.text_only = true}, named, err);
        if (s == HY_OK) s = source_open(named, &source, err);
        memcpy(out->folder, source.folder, sizeof out->folder);
        source_close(&source);
        if (s == HY_OK) s = file_join(out->folder, "config.json", path, sizeof path, err);
        file = path;
    }
    if (s == HY_OK) s = config_load(file, &out->config, err);
    out->scheme = layout_scheme_of(&out->config);
    out->drafter = out->scheme == SCHEME_M31;
    return s;
}
