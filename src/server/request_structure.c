/* Structured output and tools of a request: what is asked for, in the form that grammars and templates take. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/request_fields.h"

/* ---- Structured output ------------------------------------------------------------------------------------------ */

void request_grammar_free(request_grammar *g)
{
    free(g->source);
    free(g->whitespace);
    *g = (request_grammar){0};
}

/* `text` is taken over. */
static bool take_source(request_grammar *g, hy_grammar_kind kind, char *text, request_fault *fault)
{
    if (!text) return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    free(g->source);
    g->any = true, g->kind = kind, g->source = text, g->length = strlen(text);
    return true;
}

/* Of a tree or a text; `param` names where it comes from. A tree may be a scalar: true is a schema. */
static bool source_of(request_grammar *g, hy_grammar_kind kind, const json_t *v, const char *param,
                      request_fault *fault)
{
    const char *s = json_string_value(v);
    if (!s) return take_source(g, kind, json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY), fault);
    if (strlen(s) != json_string_length(v))
        return request_refuse(fault, param, "%s cannot contain a NUL character", param);
    return take_source(g, kind, memory_string(s, strlen(s)), fault);
}

bool request_response_format(const json_t *format, request_grammar *out, request_fault *fault)
{
    static const char place[] = "body.response_format";
    if (!format) return true;
    if (!json_is_object(format))
        return request_schema(fault, "body", "response_format", "model_type", "Input should be a valid dictionary");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type) return request_schema(fault, place, "type", "missing", "Field required");
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) {
        out->any = true, out->kind = HY_GRAMMAR_JSON_OBJECT;
        return true;
    }
    if (strcmp(type, "structural_tag") == 0) return source_of(out, HY_GRAMMAR_TAGS, format, "response_format", fault);
    if (strcmp(type, "json_schema") != 0)
        return request_schema(fault, place, "type", "literal_error",
                              "Input should be text, json_object, json_schema or structural_tag");
    const json_t *named = json_object_get(format, "json_schema"), *schema = json_object_get(named, "schema");
    if (!json_is_object(named))
        return request_schema(fault, place, "json_schema", named ? "model_type" : "missing",
                              named ? "Input should be a valid dictionary" : "Field required");
    if (!json_is_string(json_object_get(named, "name")))
        return request_schema(fault, "body.response_format.json_schema", "name", "missing", "Field required");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return request_refuse(fault, "response_format", "response_format of type json_schema needs a schema");
    return source_of(out, HY_GRAMMAR_JSON_SCHEMA, schema, "response_format", fault);
}

struct outputs {
    json_t *json, *choice, *tag;
    const char *regex, *grammar, *whitespace;
    bool object, compact, closed, no_fallback;
};

static const request_field output_fields[] = {
    {"json", REQUEST_ANY, offsetof(struct outputs, json), 0, 0, "a JSON schema, as an object or as text"},
    {"regex", REQUEST_STRING, offsetof(struct outputs, regex), 0, 0, "the whole text matches"},
    {"choice", REQUEST_LIST, offsetof(struct outputs, choice), 0, 0, "one of these strings"},
    {"grammar", REQUEST_STRING, offsetof(struct outputs, grammar), 0, 0, "EBNF"},
    {"json_object", REQUEST_BOOL, offsetof(struct outputs, object), 0, 0, "any JSON object"},
    {"structural_tag", REQUEST_ANY, offsetof(struct outputs, tag), 0, 0, "tags with schemas in free text"},
    {"disable_any_whitespace", REQUEST_BOOL, offsetof(struct outputs, compact), 0, 0, "compact JSON"},
    {"disable_additional_properties", REQUEST_BOOL, offsetof(struct outputs, closed), 0, 0,
     "no properties beyond the named ones"},
    {"whitespace_pattern", REQUEST_STRING, offsetof(struct outputs, whitespace), 0, 0,
     "a regex for the white space of JSON"},
    {"disable_fallback", REQUEST_BOOL, offsetof(struct outputs, no_fallback), 0, 0, NULL},
};

bool request_structured_outputs(const json_t *outputs, request_grammar *out, request_fault *fault)
{
    struct outputs f = {0};
    if (!outputs) return true;
    if (!json_is_object(outputs))
        return request_schema(fault, "body", "structured_outputs", "model_type", "Input should be a valid dictionary");
    if (!request_read(outputs, "body.structured_outputs", output_fields, sizeof output_fields / sizeof *output_fields,
                      &f, fault))
        return false;
    int kinds = !!f.json + !!f.regex + !!f.choice + !!f.grammar + f.object + !!f.tag;
    if (kinds != 1)
        return request_refuse(fault, "structured_outputs",
                              "You must use exactly one kind of structured outputs constraint (json, regex, choice, "
                              "grammar, json_object, structural_tag), got %d",
                              kinds);
    out->outputs = true;
    out->options = (hy_grammar_options){.compact = f.compact, .closed = f.closed};
    if (f.whitespace) {
        free(out->whitespace);
        out->whitespace = memory_string(f.whitespace, strlen(f.whitespace));
        out->options.whitespace = out->whitespace;
    }
    if (f.json) return source_of(out, HY_GRAMMAR_JSON_SCHEMA, f.json, "structured_outputs", fault);
    if (f.tag) return source_of(out, HY_GRAMMAR_TAGS, f.tag, "structured_outputs", fault);
    if (f.choice) return source_of(out, HY_GRAMMAR_CHOICE, f.choice, "structured_outputs", fault);
    if (f.regex) return take_source(out, HY_GRAMMAR_REGEX, memory_string(f.regex, strlen(f.regex)), fault);
    if (f.grammar) return take_source(out, HY_GRAMMAR_EBNF, memory_string(f.grammar, strlen(f.grammar)), fault);
    out->any = true, out->kind = HY_GRAMMAR_JSON_OBJECT;
    return true;
}

/* ---- Tools ------------------------------------------------------------------------------------------------------ */

static bool check_tool(const json_t *tool, size_t i, request_fault *fault)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!json_is_object(tool))
        return request_schema(fault, "body", "tools", "model_type", "Input should be a valid dictionary");
    if (type && strcmp(type, "function") != 0)
        return request_refuse(fault, "tools", "tools[%zu] is of type %.40s; this server knows functions only", i, type);
    if (!json_is_object(function)) return request_schema(fault, "body.tools", "function", "missing", "Field required");
    if (!name || !*name) return request_schema(fault, "body.tools.function", "name", "missing", "Field required");
    const json_t *parameters = request_value(function, "parameters");
    if (parameters && !json_is_object(parameters))
        return request_schema(fault, "body.tools.function", "parameters", "dict_type",
                              "Input should be a valid dictionary");
    return true;
}

static bool has_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const char *own = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (own && strcmp(own, name) == 0) return true;
    }
    return false;
}

static bool read_choice(const json_t *choice, request_tools *out, request_fault *fault)
{
    static const char wrong[] = "tool_choice must be none, auto, required, or "
                                "{\"type\": \"function\", \"function\": {\"name\": ...}}";
    const char *word = json_string_value(choice);
    out->mode = REQUEST_TOOLS_AUTO;
    if (!choice || (word && strcmp(word, "auto") == 0)) return true;
    if (word && strcmp(word, "none") == 0) {
        out->mode = REQUEST_TOOLS_NONE;
        return true;
    }
    if (word && strcmp(word, "required") == 0) {
        out->mode = REQUEST_TOOLS_REQUIRED;
        return true;
    }
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (word || !json_is_object(choice) || !name) return request_refuse(fault, "tool_choice", "%s", wrong);
    if (!has_tool(out->list, name) || strlen(name) >= sizeof out->name)
        return request_refuse(fault, "tool_choice",
                              "The tool specified in `tool_choice` does not match any of the specified `tools`: %.100s",
                              name);
    out->mode = REQUEST_TOOLS_NAMED;
    snprintf(out->name, sizeof out->name, "%s", name);
    return true;
}

bool request_tools_read(const json_t *body, request_tools *out, request_fault *fault)
{
    json_t *tools = request_value(body, "tools"), *tool;
    const json_t *choice = request_value(body, "tool_choice"), *parallel = request_value(body, "parallel_tool_calls");
    size_t i;
    *out = (request_tools){.parallel = !json_is_false(parallel)};
    if (parallel && !json_is_boolean(parallel))
        return request_schema(fault, "body", "parallel_tool_calls", "bool_type", "Input should be a valid boolean");
    if (tools && !json_is_array(tools))
        return request_schema(fault, "body", "tools", "list_type", "Input should be a valid list");
    if (tools && json_array_size(tools) == 0) return request_refuse(fault, "tools", "tools must not be an empty list");
    const char *word = json_string_value(choice);
    if (!tools) {
        if (!choice || (word && strcmp(word, "none") == 0)) return true;
        return request_refuse(fault, "tool_choice", "When using `tool_choice`, `tools` must be set.");
    }
    json_array_foreach(tools, i, tool) if (!check_tool(tool, i, fault)) return false;
    out->list = json_incref(tools);
    return read_choice(choice, out, fault);
}
