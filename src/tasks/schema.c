/* The part of JSON schema that the tools of the catalogue use. */
#include <string.h>

#include "tasks/tools.h"

static bool is_type(const char *type, const json_t *value)
{
    if (!strcmp(type, "string")) return json_is_string(value);
    if (!strcmp(type, "integer")) return json_is_integer(value);
    if (!strcmp(type, "number")) return json_is_number(value);
    if (!strcmp(type, "boolean")) return json_is_boolean(value);
    if (!strcmp(type, "array")) return json_is_array(value);
    if (!strcmp(type, "object")) return json_is_object(value);
    return !strcmp(type, "null") && json_is_null(value);
}

static bool type_fits(const json_t *type, const json_t *value)
{
    size_t i;
    json_t *one;
    if (json_is_string(type)) return is_type(json_string_value(type), value);
    json_array_foreach(type, i, one) if (is_type(json_string_value(one), value)) return true;
    return !type;
}

static bool members_fit(const json_t *schema, const json_t *object)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    size_t i;
    const char *name;
    json_t *one;
    json_array_foreach(required, i, one)
    {
        const json_t *have = json_object_get(object, json_string_value(one));
        if (!have || json_is_null(have)) return false;
    }
    json_object_foreach((json_t *)object, name, one)
    {
        const json_t *of = json_object_get(properties, name);
        if (!of || !schema_fits(of, one)) return false;
    }
    return true;
}

bool schema_fits(const json_t *schema, const json_t *value)
{
    const json_t *options = json_object_get(schema, "enum"), *items = json_object_get(schema, "items");
    size_t i;
    json_t *one;
    bool among = !options || json_is_null(value);
    if (!type_fits(json_object_get(schema, "type"), value)) return false;
    json_array_foreach(options, i, one) among = among || json_equal(one, (json_t *)value);
    if (!among) return false;
    if (json_is_object(value)) return members_fit(schema, value);
    json_array_foreach((json_t *)value, i, one) if (items && !schema_fits(items, one)) return false;
    return true;
}

static size_t members(const json_t *object)
{
    size_t count = 0;
    const char *name;
    json_t *one;
    json_object_foreach((json_t *)object, name, one) count += !json_is_null(one);
    return count;
}

bool values_equal(const json_t *a, const json_t *b)
{
    size_t i;
    const char *name;
    json_t *one;
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_object(a)) {
        if (members(a) != members(b)) return false;
        json_object_foreach((json_t *)a, name, one)
        {
            const json_t *other = json_object_get(b, name);
            if (!json_is_null(one) && (!other || !values_equal(one, other))) return false;
        }
        return true;
    }
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        json_array_foreach((json_t *)a, i, one) if (!values_equal(one, json_array_get(b, i))) return false;
        return true;
    }
    return json_equal((json_t *)a, (json_t *)b);
}
