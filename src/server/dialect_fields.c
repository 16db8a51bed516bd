#include "server/dialect_fields.h"

#include <string.h>

#include "model/model.h"

static void pick(json_t *out, const json_t *body, const char *name)
{
    json_t *value = request_value(body, name);
    if (value) json_object_set(out, name, value);
}

json_t *dialect_fields(const json_t *body)
{
    static const char *const more[] = {"model",
                                       "stream",
                                       "priority",
                                       "cache_salt",
                                       "structured_outputs",
                                       "hayate_deadline_s",
                                       "skip_special_tokens",
                                       "repetition_detection",
                                       "speculation"};
    json_t *out = json_object();
    for (size_t i = 0; i < request_sampling_field_count; i++) pick(out, body, request_sampling_fields[i].name);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) pick(out, body, more[i]);
    return out;
}

bool dialect_effort(const json_t *body, dialect_kind own, json_t **effort, request_fault *fault)
{
    static const struct {
        const char *parent, *place, *name;
    } fields[] = {{NULL, "body", "reasoning_effort"},
                  {"output_config", "body.output_config", "effort"},
                  {"reasoning", "body.reasoning", "effort"}};
    json_t *found = NULL;
    for (int i = -1; i < 3; i++) {
        int k = i < 0 ? (int)own : i;
        const json_t *parent = fields[k].parent ? request_value(body, fields[k].parent) : body;
        json_t *value = request_value(parent, fields[k].name);
        if (value && !json_is_string(value))
            return request_schema(fault, fields[k].place, fields[k].name, "string_type",
                                  "Input should be a valid string");
        if (!found) found = value;
    }
    *effort = json_incref(found);
    return true;
}

bool dialect_always_thinks(const generation_room *room)
{
    static const char *const ways[] = {"thinking_mode", "enable_thinking", "thinking"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (model_template_reads(room->model, ways[i])) return false;
    return true;
}

bool dialect_can_think_so(const generation *g, request_fault *fault)
{
    const json_t *kwargs = g->plan.kwargs;
    const char *effort = json_string_value(g->plan.effort);
    const char *mode = json_string_value(json_object_get(kwargs, "thinking_mode"));
    bool off = (effort && strcmp(effort, "none") == 0) || (mode && strcmp(mode, "disabled") == 0) ||
               json_is_false(json_object_get(kwargs, "enable_thinking")) ||
               json_is_false(json_object_get(kwargs, "thinking"));
    if (!off || !dialect_always_thinks(g->room)) return true;
    return request_refuse(fault, NULL,
                          "this model always thinks, so thinking cannot be switched off; ask for less with a "
                          "lower effort");
}

void dialect_plain_switches(const hy_model *model, json_t *kwargs)
{
    static const char *const names[] = {"enable_thinking", "thinking"};
    if (!model_template_reads(model, "thinking_mode") || json_object_get(kwargs, "thinking_mode")) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is_false(json_object_get(kwargs, names[i])) && !model_template_reads(model, names[i]))
            json_object_set_new(kwargs, "thinking_mode", json_string("disabled"));
}

static bool one_of(const json_t *j, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count && json_is_string(j); i++)
        if (strcmp(json_string_value(j), words[i]) == 0) return true;
    return false;
}

bool dialect_known_words(const hy_model *model, const json_t *messages, const json_t *kwargs, request_fault *fault)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "root"};
    static const char *const modes[] = {"enabled", "disabled", "adaptive"};
    const json_t *mode = json_object_get(kwargs, "thinking_mode");
    if (!model_template_known(model)) return true;
    if (mode && !json_is_null(mode) && !one_of(mode, modes, sizeof modes / sizeof *modes))
        return request_refuse(fault, "chat_template_kwargs",
                              "chat_template_kwargs.thinking_mode takes enabled, disabled or adaptive%s%.40s",
                              json_is_string(mode) ? ", not " : "",
                              json_is_string(mode) ? json_string_value(mode) : "");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");
        if (json_is_string(role) && !one_of(role, roles, sizeof roles / sizeof *roles))
            return request_refuse(fault, "messages",
                                  "messages.%zu.role: the model's chat template has no role '%.40s'; it takes system, "
                                  "developer, user, assistant and tool",
                                  i, json_string_value(role));
    }
    return true;
}
