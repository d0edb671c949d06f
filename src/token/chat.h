/* chat.h: chat templates: a conversation in the OpenAI shape -> the prompt text the model was
 * trained on. The template language (a Jinja subset) is hidden in jinja.h. */
#ifndef WEFT_SRC_CHAT_H
#define WEFT_SRC_CHAT_H

#include <jansson.h>
#include <time.h>

#include "base/base.h"

/* The templates and special tokens of one model directory. Immutable once open: any number of
 * threads may render with it at the same time. */
struct weft__chat;

/* Reads DIR/chat_template.jinja, else `chat_template` of DIR/tokenizer_config.json, and the special
 * tokens of the latter. A missing or unusable template is not an error here, so that raw prompts
 * and the stop token work without one: ask weft__chat_check. Caller closes. */
WEFT_CHECKED weft_status weft__chat_open(const char *dir, struct weft__chat **out, weft_error *err);
void weft__chat_close(struct weft__chat *chat); /* NULL is allowed */

/* WEFT_OK when there is a template weft can render; otherwise why not (no template, its syntax, a
 * construct that is not supported), with line and column. */
WEFT_CHECKED weft_status weft__chat_check(const struct weft__chat *chat, weft_error *err);

/* The text of a special token ("bos_token", "eos_token", "pad_token", ...) as tokenizer_config.json
 * gives it, or NULL when it does not. Borrowed from chat. */
const char *weft__chat_token(const struct weft__chat *chat, const char *name);

struct weft__chat_input {
    json_t *messages;           /* array of objects {role, content, ...} */
    json_t *tools;              /* array, or NULL for none */
    json_t *kwargs;             /* object of further variables (chat_template_kwargs), or NULL */
    bool add_generation_prompt; /* end with the header of an assistant turn */
    time_t now;                 /* what strftime_now() shows, in local time */
};

/* Appends the prompt to out. The input is borrowed and stays as it was: on a copy, tool call
 * arguments are parsed from JSON text to objects, null contents become "" and lists of text parts
 * one text, save for templates that were found to expect otherwise. A template's own
 * raise_exception() gives WEFT_INVALID with exactly its message; other faults of the conversation
 * are WEFT_INVALID too; a template that exceeds its limits is WEFT_TOO_LONG. */
WEFT_CHECKED weft_status weft__chat_render(const struct weft__chat *chat,
                                           const struct weft__chat_input *input,
                                           struct weft__buf *out, weft_error *err);

#endif
