#include "cli/serve_config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/error.h"

enum { MOST_BYTES = 256 << 10, MOST_DEEP = 16, MOST_VALUES = 100000, MOST_ANCHORS = 1000 };

typedef struct reader {
    const char *path;
    yaml_document_t *document;
    int values; /* made so far: references can make many of few */
    hy_error *err;
} reader;

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static const char *scalar_text(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

static bool one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strcasecmp(text, *words)) return true;
    return false;
}

/* A word without quotes. */
static json_t *plain(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", NULL};
    static const char *const no[] = {"false", "no", "off", NULL};
    static const char *const nothing[] = {"null", "~", "", NULL};
    if (one_of(text, yes)) return json_true();
    if (one_of(text, no)) return json_false();
    if (one_of(text, nothing)) return json_null();
    char *end;
    if (strspn(text, "+-0123456789.eE") == strlen(text) && strpbrk(text, "0123456789")) {
        errno = 0;
        long long whole = strtoll(text, &end, 10);
        if (!*end && errno == 0) return json_integer(whole);
        double number = strtod(text, &end);
        if (!*end && number - number == 0) return json_real(number);
    }
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X') && text[2]) {
        errno = 0;
        long long whole = strtoll(text, &end, 16);
        if (!*end && errno == 0) return json_integer(whole);
    }
    return json_string(text);
}

static json_t *fail(reader *r, const yaml_node_t *node, const char *what)
{
    error_at(r->err, HY_USAGE, r->path, "%.200s line %d: %s", r->path, line_of(node), what);
    return NULL;
}

static json_t *value(reader *r, const yaml_node_t *node, int depth);

static json_t *sequence(reader *r, const yaml_node_t *node, int depth)
{
    json_t *list = json_array();
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
        json_t *v = value(r, yaml_document_get_node(r->document, *i), depth + 1);
        if (!v) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, v);
    }
    return list;
}

/* The key of a pair; NULL: it is no text, or `object` has it. */
static const char *pair_key(reader *r, const yaml_node_pair_t *pair, const json_t *object)
{
    const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
    const char *why = NULL;
    if (key->type != YAML_SCALAR_NODE || !scalar_text(key)[0])
        why = "a key must be a word";
    else if (json_object_get(object, scalar_text(key)))
        why = "this key came before";
    if (!why) return scalar_text(key);
    fail(r, key, why);
    return NULL;
}

static json_t *mapping(reader *r, const yaml_node_t *node, int depth)
{
    json_t *object = json_object();
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        const char *key = pair_key(r, p, object);
        json_t *v = key ? value(r, yaml_document_get_node(r->document, p->value), depth + 1) : NULL;
        if (!v) {
            json_decref(object);
            return NULL;
        }
        json_object_set_new(object, key, v);
    }
    return object;
}

static json_t *value(reader *r, const yaml_node_t *node, int depth)
{
    if (depth > MOST_DEEP || ++r->values > MOST_VALUES)
        return fail(r, node, "values are nested too deeply, or too many");
    switch (node->type) {
    case YAML_SCALAR_NODE: {
        bool quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        r->values += (int)(node->data.scalar.length / 64); /* references copy it */
        /* A NUL in a text would cut it. */
        if (strlen(scalar_text(node)) != node->data.scalar.length) return fail(r, node, "a text has a NUL");
        json_t *v = quoted ? json_string(scalar_text(node)) : plain(scalar_text(node));
        return v ? v : fail(r, node, "a text is not UTF-8");
    }
    case YAML_SEQUENCE_NODE: return sequence(r, node, depth);
    case YAML_MAPPING_NODE: return mapping(r, node, depth);
    case YAML_NO_NODE: break;
    }
    return fail(r, node, "a value is missing");
}

static hy_status flags_of(reader *r, json_t **out)
{
    const yaml_node_t *root = yaml_document_get_root_node(r->document);
    json_t *all = json_object();
    if (root && root->type != YAML_MAPPING_NODE) {
        json_decref(all);
        return error_at(r->err, HY_USAGE, r->path, "%.200s must be lines of the form \"port: 8000\"", r->path);
    }
    for (yaml_node_pair_t *p = root ? root->data.mapping.pairs.start : NULL; root && p < root->data.mapping.pairs.top;
         p++) {
        const char *key = pair_key(r, p, all);
        const yaml_node_t *node = yaml_document_get_node(r->document, p->value);
        json_t *v = key ? value(r, node, 1) : NULL;
        if (!v) {
            json_decref(all);
            return HY_USAGE;
        }
        json_t *entry = json_object();
        json_object_set_new(entry, "line", json_integer(line_of(yaml_document_get_node(r->document, p->key))));
        json_object_set_new(entry, "value", v);
        if (node->type == YAML_SCALAR_NODE) json_object_set_new(entry, "text", json_string(scalar_text(node)));
        json_object_set_new(all, key, entry);
    }
    *out = all;
    return HY_OK;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static hy_status not_yaml(const char *path, const yaml_parser_t *parser, hy_error *err)
{
    return error_at(err, HY_USAGE, path, "%.200s line %d is not YAML: %.100s", path,
                    (int)(parser->problem_mark.line ? parser->problem_mark.line : parser->context_mark.line) + 1,
                    parser->problem ? parser->problem : "unreadable");
}

/*
 * Walks the events of a text before a document is made of them: the scanner looks at every open bracket for each token,
 * and a document at every anchor for each new one, so what is deep or has many anchors takes time without bound. Events
 * come about a line behind the scanner, which is as far as it runs ahead.
 */
static hy_status check_events(const char *path, yaml_parser_t *parser, hy_error *err)
{
    int depth = 0, anchors = 0;
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) return not_yaml(path, parser, err);
        int line = (int)event.start_mark.line + 1;
        const yaml_char_t *anchor = NULL;
        switch (event.type) {
        case YAML_SEQUENCE_START_EVENT: depth++, anchor = event.data.sequence_start.anchor; break;
        case YAML_MAPPING_START_EVENT: depth++, anchor = event.data.mapping_start.anchor; break;
        case YAML_SCALAR_EVENT: anchor = event.data.scalar.anchor; break;
        case YAML_SEQUENCE_END_EVENT:
        case YAML_MAPPING_END_EVENT: depth--; break;
        case YAML_DOCUMENT_END_EVENT: /* only the first document is read */
        case YAML_STREAM_END_EVENT: more = false; break;
        default: break;
        }
        anchors += anchor != NULL;
        yaml_event_delete(&event);
        if (depth > MOST_DEEP)
            return error_at(err, HY_USAGE, path, "%.200s line %d: values are nested more than %d deep", path, line,
                            MOST_DEEP);
        if (anchors > MOST_ANCHORS)
            return error_at(err, HY_USAGE, path, "%.200s line %d: there are more than %d anchors", path, line,
                            MOST_ANCHORS);
    }
    return HY_OK;
}

static hy_status read_document(const char *path, yaml_parser_t *parser, json_t **out, hy_error *err)
{
    yaml_document_t document;
    if (!yaml_parser_load(parser, &document)) return not_yaml(path, parser, err);
    reader r = {.path = path, .document = &document, .err = err};
    hy_status status = flags_of(&r, out);
    yaml_document_delete(&document);
    return status;
}

/* What is left of the file, at most one byte more than is allowed; a pipe is a file too. */
static hy_status read_text(const char *path, unsigned char **text, size_t *size, hy_error *err)
{
    FILE *in = fopen(path, "rb");
    unsigned char *bytes = in ? malloc(MOST_BYTES + 1) : NULL;
    hy_status status = HY_OK;
    *size = bytes ? fread(bytes, 1, MOST_BYTES + 1, in) : 0;
    if (!in || (bytes && ferror(in)))
        status = error_at(err, HY_USAGE, path, "--config %.200s cannot be read: %s", path, strerror(errno));
    else if (!bytes)
        status = error_memory(err, "a configuration file", MOST_BYTES);
    else if (*size > MOST_BYTES)
        status = error_at(err, HY_USAGE, path, "%.200s is larger than the %d KiB of a file of flags", path,
                          MOST_BYTES >> 10);
    if (in) fclose(in);
    if (status == HY_OK)
        *text = bytes;
    else
        free(bytes);
    return status;
}

hy_status config_text_read(const char *path, const unsigned char *text, size_t size, json_t **out, hy_error *err)
{
    hy_status status = HY_OK;
    for (int pass = 0; pass < 2 && status == HY_OK; pass++) {
        yaml_parser_t parser;
        if (!yaml_parser_initialize(&parser)) return error_memory(err, "a YAML parser", sizeof parser);
        yaml_parser_set_input_string(&parser, text, size);
        status = pass == 0 ? check_events(path, &parser, err) : read_document(path, &parser, out, err);
        yaml_parser_delete(&parser);
    }
    return status;
}

hy_status config_file_read(const char *path, json_t **out, hy_error *err)
{
    unsigned char *text = NULL;
    size_t size;
    hy_status status = read_text(path, &text, &size, err);
    if (status == HY_OK) status = config_text_read(path, text, size, out, err);
    free(text);
    return status;
}
