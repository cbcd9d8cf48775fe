#include "core/json_load.h"

#include <pthread.h>
#include <stdatomic.h>

static _Atomic(json_malloc_t) watched;
static _Thread_local bool was_refused;

static void *watch(size_t bytes)
{
    void *block = atomic_load(&watched)(bytes);
    was_refused |= block == NULL;
    return block;
}

/* Again if the program has set other functions since. */
static void put_watcher_in_front(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    json_malloc_t take;
    json_free_t give_back;
    pthread_mutex_lock(&mutex);
    json_get_alloc_funcs(&take, &give_back);
    if (take != watch) {
        atomic_store(&watched, take);
        json_set_alloc_funcs(watch, give_back);
    }
    pthread_mutex_unlock(&mutex);
}

json_t *tamis_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error,
                        bool *no_memory)
{
    put_watcher_in_front();
    was_refused = false;
    json_t *json = json_loadb(text, bytes, flags, error);
    *no_memory = was_refused;
    if (was_refused && json != NULL) { /* perhaps not what the text says */
        json_decref(json);
        json = NULL;
    }
    return json;
}
