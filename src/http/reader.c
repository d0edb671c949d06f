/* Bodies become what they ask for: parsed, put through the chat template, cut into tokens. A large
 * one takes seconds: a thread of the server's reads it while the loop goes on. */
#include <stdlib.h>

#include "private.h"

/* The loop's: what was read is answered, or its client has gone. */
static void finish(struct weft__reading *r)
{
    if (r->conn != NULL) r->conn->reading = NULL;
    r->server->body_bytes -= (int64_t)r->body.len;
    r->done(r);
    weft__prompts_free(r->prompts, r->prompt_count);
    weft__buf_free(&r->answer);
    weft__buf_free(&r->body);
    free(r);
}

static void append(struct weft__readings *list, struct weft__reading *r)
{
    r->next = NULL;
    if (list->first == NULL)
        list->first = r;
    else
        list->last->next = r;
    list->last = r;
}

static void *read_bodies(void *arg)
{
    struct weft__server *server = arg;
    struct weft__reader *reader = &server->reader;
    (void)pthread_mutex_lock(&reader->mutex);
    while (!reader->closing) {
        struct weft__reading *r = reader->waiting.first;
        if (r == NULL) {
            (void)pthread_cond_wait(&reader->work, &reader->mutex);
            continue;
        }
        reader->waiting.first = r->next;
        (void)pthread_mutex_unlock(&reader->mutex);
        r->read(r);
        (void)pthread_mutex_lock(&reader->mutex);
        append(&reader->read, r);
        weft__server_wake(server);
    }
    (void)pthread_mutex_unlock(&reader->mutex);
    return NULL;
}

static void hand_over(struct weft__reading *r)
{
    struct weft__reader *reader = &r->server->reader;
    r->conn->reading = r;
    reader->count++;
    (void)pthread_mutex_lock(&reader->mutex);
    append(&reader->waiting, r);
    (void)pthread_cond_signal(&reader->work);
    (void)pthread_mutex_unlock(&reader->mutex);
}

void weft__read_body(struct weft__conn *conn, struct weft__call *call,
                     void (*read)(struct weft__reading *), void (*done)(struct weft__reading *))
{
    struct weft__reading *r = calloc(1, sizeof *r);
    if (r == NULL) {
        struct weft__reading failed = {.server = conn->server, .conn = conn, .call = call};
        (void)weft__refuse(&failed.refusal, 500, "out_of_memory", NULL, "no memory");
        done(&failed);
        return;
    }
    *r = (struct weft__reading){.server = conn->server,
                                .conn = conn,
                                .call = call,
                                .body = conn->body,
                                .read = read,
                                .done = done};
    weft__buf_init(&r->answer, WEFT__ANSWER_MAX);
    weft__buf_init(&conn->body, r->body.max);
    if (r->body.len > WEFT__BODY_SMALL) {
        hand_over(r);
        return;
    }
    read(r);
    finish(r);
}

/* Finishes all of a list. */
static void finish_all(struct weft__reader *reader, struct weft__reading *list)
{
    while (list != NULL) {
        struct weft__reading *r = list;
        list = r->next;
        reader->count--;
        finish(r);
    }
}

void weft__reader_take(struct weft__reader *reader)
{
    (void)pthread_mutex_lock(&reader->mutex);
    struct weft__reading *list = reader->read.first;
    reader->read.first = NULL;
    (void)pthread_mutex_unlock(&reader->mutex);
    finish_all(reader, list);
}

weft_status weft__reader_open(struct weft__server *server, weft_error *err)
{
    struct weft__reader *reader = &server->reader;
    (void)pthread_mutex_init(&reader->mutex, NULL);
    (void)pthread_cond_init(&reader->work, NULL);
    reader->started = pthread_create(&reader->thread, NULL, read_bodies, server) == 0;
    return reader->started ? WEFT_OK : weft__fail(err, WEFT_NO_MEMORY, "no thread for bodies");
}

/* Nobody waits for what is left. */
void weft__reader_close(struct weft__reader *reader)
{
    if (!reader->started) return;
    (void)pthread_mutex_lock(&reader->mutex);
    reader->closing = true;
    (void)pthread_cond_signal(&reader->work);
    (void)pthread_mutex_unlock(&reader->mutex);
    (void)pthread_join(reader->thread, NULL);
    finish_all(reader, reader->read.first);
    finish_all(reader, reader->waiting.first);
    (void)pthread_mutex_destroy(&reader->mutex);
    (void)pthread_cond_destroy(&reader->work);
}
