/* Lines about requests and their answers (--enable-log-requests, --enable-log-outputs), in the words of `vllm serve`.
 */
#ifndef HAYATE_SERVER_REQUEST_LOG_H
#define HAYATE_SERVER_REQUEST_LOG_H

#include "server/generation.h"

/* "Received request ID: params: SamplingParams(...), lora_request: None."; on the level of debugging also each prompt.
 * On the worker, while the plan and the prompts are whole. */
void request_log_asked(const generation *g);
/* "Generated response ID: output: "...", output_token_ids: [...], finish_reason: stop"; on the HTTP thread. */
void request_log_answered(const generation *g, const hy_request *request, int choice, const char *finish);

#endif
