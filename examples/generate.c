/*
 * Answers a question:  generate MODEL "text"   (or continues token ids "1,2,3" where a model has no tokenizer)
 * hy_tokenize in the place of hy_render_chat continues a text. After `make`, build it with
 *
 *     gcc examples/generate.c -Iinclude build/libhayate.a \
 *         $(pkg-config --libs jansson libutf8proc libcrypto) -pthread -lm
 */
#include <hayate.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool print(void *show_ids, const hy_event *event)
{
    for (size_t i = 0; *(bool *)show_ids && i < event->id_count; i++) printf("%d ", (int)event->ids[i]);
    fwrite(event->text, 1, event->text_length, stdout);
    return fflush(stdout) == 0; /* false would cancel the request */
}

/* The prompt of a conversation that begins with this question. */
static hy_status ask(const hy_model *model, const char *question, hy_ids *ids, hy_error *err)
{
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", question); /* NULL where it is not UTF-8 */
    char *messages = json_dumps(list, 0);
    const char *kwargs = "{\"thinking_mode\": \"disabled\"}"; /* the answer alone */
    hy_status status = HY_BAD_INPUT;
    if (messages) status = hy_render_chat(model, messages, NULL, kwargs, ids, err);
    if (!messages) snprintf(err->message, sizeof err->message, "the question is not valid UTF-8");
    free(messages), json_decref(list);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: generate MODEL PROMPT\n"), 2;
    hy_error err = {0};
    hy_model *model = NULL;
    hy_engine *engine = NULL;
    hy_request *request = NULL;
    hy_model_info info = {0};
    hy_ids text = {0};
    int32_t list[256], count = 0; /* the prompt as ids, when there is no tokenizer */
    hy_status status = hy_model_open(argv[1], NULL, &model, &err);
    if (status == HY_OK) status = hy_engine_open(model, NULL, &engine, &err);
    if (status == HY_OK) hy_model_describe(model, &info);
    if (info.has_tokenizer) status = ask(model, argv[2], &text, &err);
    for (char *id = strtok(argv[2], ", "); id && count < 256; id = strtok(NULL, ", ")) list[count++] = atoi(id);
    if (status == HY_OK) {
        bool show_ids = !info.has_tokenizer;
        hy_request_options options = hy_request_defaults(model);
        options.prompt_ids = show_ids ? list : text.data, options.prompt_count = show_ids ? (size_t)count : text.count;
        options.sampling.temperature = 0, options.sampling.max_tokens = 32;
        options.on_event = print, options.user = &show_ids;
        status = hy_engine_submit(engine, &options, &request, &err);
        if (status == HY_OK) status = hy_request_wait(request);
    }
    if (status == HY_OK) putchar('\n');
    if (status != HY_OK) fprintf(stderr, "%s\n", err.message[0] ? err.message : hy_status_name(status));
    hy_request_close(request), hy_ids_free(&text), hy_engine_close(engine), hy_model_close(model);
    return status != HY_OK;
}
