/* --config files: any bytes end in flags or in one line that says what is wrong, soon. */
#include <stdlib.h>
#include <string.h>

#include "cli/serve_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *flags = NULL;
    hy_error err = {0};
    hy_status status = config_text_read("flags.yaml", data, size, &flags, &err);
    if (status == HY_OK ? !json_is_object(flags) : status != HY_USAGE || !err.message[0] || strchr(err.message, '\n'))
        abort();
    json_decref(flags);
    return 0;
}
