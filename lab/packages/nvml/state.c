/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Reads and writes the state file of the simulated GPUs; see state.h. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
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

int simgpu_text(const char *key, char *out, size_t size)
{
    FILE *file = fopen(simgpu_state_path(), "re");
    char line[512];
    size_t length = strlen(key);
    int found = 0;

    *out = '\0';
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) || line[length] != '=')
            continue;
        line[strcspn(line, "\r\n")] = '\0';
        snprintf(out, size, "%s", line + length + 1);
        found = 1;
    }
    if (file)
        fclose(file);
    return found;
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
    long long count = simgpu_number("gpu.count", 0);
    return count < 0 ? 0 : (unsigned)count;
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
