/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Reads and writes the state file of the simulated GPUs; see state.h. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *simgpu_state_path(void)
{
    const char *path = getenv("SIMGPU_STATE");
    return path && *path ? path : SIMGPU_STATE_DEFAULT;
}

const char *simgpu_proc_path(void)
{
    const char *path = getenv("SIMGPU_PROC_VERSION");
    return path && *path ? path : SIMGPU_PROC_DEFAULT;
}

/* ---- the parsed file ---- */

/* A file whose last change is younger than this when it is read may change once more without a new time stamp. */
#define SETTLED_NS 50000000LL

struct entry { char *key, *value; };

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int known, settled;
    struct stat info;                              /* of the file that was parsed; size -1 when there was none */
    char *text;
    struct entry *slots;                           /* open addressing, a free slot has no key */
    size_t capacity;                               /* a power of two */
} cache;

static size_t hash(const char *key)
{
    size_t value = 1469598103934665603u;

    for (; *key; key++)
        value = (value ^ (unsigned char)*key) * 1099511628211u;
    return value;
}

static struct entry *slot_of(const char *key)
{
    size_t place = hash(key) & (cache.capacity - 1);

    while (cache.slots[place].key && strcmp(cache.slots[place].key, key))
        place = (place + 1) & (cache.capacity - 1);
    return &cache.slots[place];
}

static void drop(void)
{
    free(cache.text);
    free(cache.slots);
    cache.text = NULL;
    cache.slots = NULL;
    cache.capacity = 0;
}

static void parse(void)
{
    size_t lines = 1;
    char *line, *next, *separator;
    struct entry *entry;

    for (line = cache.text; *line; line++)
        lines += *line == '\n';
    for (cache.capacity = 16; cache.capacity < 2 * lines; cache.capacity *= 2)
        ;
    cache.slots = calloc(cache.capacity, sizeof *cache.slots);
    if (!cache.slots) {
        drop();
        return;
    }
    for (line = cache.text; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        line[strcspn(line, "\r")] = '\0';
        separator = strchr(line, '=');
        if (*line == '#' || !separator)
            continue;
        *separator = '\0';
        entry = slot_of(line);
        entry->key = line;
        entry->value = separator + 1;
    }
}

static int same_file(const struct stat *one, const struct stat *other)
{
    return one->st_size == other->st_size && one->st_ino == other->st_ino && one->st_dev == other->st_dev &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

static long long age_ns(const struct stat *info)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (now.tv_sec - info->st_mtim.tv_sec) * 1000000000LL + now.tv_nsec - info->st_mtim.tv_nsec;
}

static void load(void)
{
    FILE *file = fopen(simgpu_state_path(), "re");
    size_t done;

    drop();
    cache.known = 1;
    cache.settled = 1;
    memset(&cache.info, 0, sizeof cache.info);
    cache.info.st_size = -1;
    if (!file)
        return;
    if (!fstat(fileno(file), &cache.info)) {
        cache.settled = age_ns(&cache.info) > SETTLED_NS;
        cache.text = malloc((size_t)cache.info.st_size + 1);
    }
    if (cache.text) {
        done = fread(cache.text, 1, (size_t)cache.info.st_size, file);
        cache.text[done] = '\0';
        parse();
    }
    fclose(file);
}

void simgpu_refresh(void)
{
    struct stat info;

    pthread_mutex_lock(&guard);
    if (stat(simgpu_state_path(), &info)) {
        memset(&info, 0, sizeof info);
        info.st_size = -1;
    }
    if (!cache.known || !cache.settled || !same_file(&info, &cache.info))
        load();
    pthread_mutex_unlock(&guard);
}

int simgpu_text(const char *key, char *out, size_t size)
{
    const char *value;

    *out = '\0';
    if (!cache.known)
        simgpu_refresh();
    pthread_mutex_lock(&guard);
    value = cache.capacity ? slot_of(key)->value : NULL;
    if (value)
        snprintf(out, size, "%s", value);
    pthread_mutex_unlock(&guard);
    return value != NULL;
}

long long simgpu_number(const char *key, long long fallback)
{
    char text[64], *end;
    long long value;

    if (!simgpu_text(key, text, sizeof text) || !*text)
        return fallback;
    value = strtoll(text, &end, 0);
    return end == text ? fallback : value;
}

static const char *gpu_key(unsigned index, const char *name, char *out, size_t size)
{
    snprintf(out, size, "gpu.%u.%s", index, name);
    return out;
}

int simgpu_gpu_text(unsigned index, const char *name, char *out, size_t size)
{
    char key[128];
    return simgpu_text(gpu_key(index, name, key, sizeof key), out, size);
}

long long simgpu_gpu_number(unsigned index, const char *name, long long fallback)
{
    char key[128];
    return simgpu_number(gpu_key(index, name, key, sizeof key), fallback);
}

unsigned simgpu_count(void)
{
    long long count;

    simgpu_refresh();
    count = simgpu_number("gpu.count", 0);
    return count < 0 ? 0 : count > SIMGPU_MAX_GPUS ? SIMGPU_MAX_GPUS : (unsigned)count;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue ...": the first word after "Module" that starts with a
 * digit. The open modules say "... Open Kernel Module for x86_64  535.261.03  Release Build ...". */
int simgpu_module_version(char *out, size_t size)
{
    FILE *file = fopen(simgpu_proc_path(), "re");
    char line[512], *word, *rest, *module;
    int found = -1;

    *out = '\0';
    if (!file)
        return 0;
    while (found < 0 && fgets(line, sizeof line, file)) {
        module = strstr(line, "Module");
        if (strncmp(line, "NVRM", 4) || !module)
            continue;
        for (word = strtok_r(module, " \t\r\n", &rest); word; word = strtok_r(NULL, " \t\r\n", &rest)) {
            if (*word < '0' || *word > '9' || !strchr(word, '.'))
                continue;
            snprintf(out, size, "%s", word);
            found = 1;
            break;
        }
    }
    fclose(file);
    return found;
}

/* Whether a line holds the key of any GPU from first to last. */
static int is_written_key(const char *line, const char *name, unsigned first, unsigned last)
{
    unsigned index;
    int used = 0;
    size_t length = strlen(name);

    if (sscanf(line, "gpu.%u.%n", &index, &used) != 1 || used == 0 || index < first || index > last)
        return 0;
    return !strncmp(line + used, name, length) && line[used + length] == '=';
}

static int write_range(unsigned first, unsigned last, const char *name, long long value)
{
    char new_path[PATH_MAX], lock_path[PATH_MAX], line[512];
    const char *path = simgpu_state_path();
    unsigned index;
    FILE *old, *new;
    struct stat info;
    int lock, failed;

    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    snprintf(new_path, sizeof new_path, "%s.new", path);
    lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0)
        return -1;
    if (flock(lock, LOCK_EX) || !(old = fopen(path, "re"))) {
        close(lock);
        return -1;
    }
    new = fopen(new_path, "we");
    if (!new) {
        fclose(old);
        close(lock);
        return -1;
    }
    while (fgets(line, sizeof line, old)) {
        if (!is_written_key(line, name, first, last))
            fputs(line, new);
    }
    for (index = first; index <= last; index++)
        fprintf(new, "gpu.%u.%s=%lld\n", index, name, value);
    if (!fstat(fileno(old), &info) && fchmod(fileno(new), info.st_mode & 0777))
        errno = 0;                                 /* a mode that cannot be kept is no reason to lose the value */
    fclose(old);
    failed = fflush(new) || fsync(fileno(new));
    failed |= fclose(new) != 0;
    failed = failed || rename(new_path, path);
    close(lock);
    return failed ? -1 : 0;
}

int simgpu_write_all(const char *name, long long value)
{
    unsigned count = simgpu_count();
    return count ? write_range(0, count - 1, name, value) : 0;
}

int simgpu_write_one(unsigned index, const char *name, long long value)
{
    return write_range(index, index, name, value);
}
