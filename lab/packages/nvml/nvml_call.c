/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What every call of the stand-in library goes through, see nvml_call.h. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int call_initialised;

/* 1: like a slow driver, signals get through; 2: like one in uninterruptible sleep, only SIGKILL ends it. */
static void hang_while(const char *key)
{
    static const struct timespec moment = { 0, 20000000 };
    long long how = simgpu_number(key, 0);
    sigset_t all, before;

    if (!how)
        return;
    sigfillset(&all);
    if (how == 2)
        pthread_sigmask(SIG_BLOCK, &all, &before);
    while (simgpu_number(key, 0)) {
        nanosleep(&moment, NULL);
        simgpu_refresh();
    }
    if (how == 2)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int call_enter(const char *symbol)
{
    char key[128];

    simgpu_refresh();
    snprintf(key, sizeof key, "hang.%s", symbol);
    hang_while(key);
    snprintf(key, sizeof key, "rc.%s", symbol);
    return (int)simgpu_number(key, NVML_SUCCESS);
}

int call_ready(const char *symbol)
{
    int rc = call_enter(symbol);

    if (rc)
        return rc;
    return call_initialised > 0 ? NVML_SUCCESS : NVML_UNINITIALIZED;
}

int call_on(const char *symbol, unsigned gpu)
{
    char key[128];
    int rc = call_ready(symbol);

    if (rc)
        return rc;
    snprintf(key, sizeof key, "gpu.%u.hang.%s", gpu, symbol);
    hang_while(key);
    snprintf(key, sizeof key, "gpu.%u.rc.%s", gpu, symbol);
    return (int)simgpu_number(key, NVML_SUCCESS);
}

/* The GPU and MIG device that a handle means; 0 when it means none. */
static int resolve(device_t handle, struct target *out)
{
    size_t number = (size_t)handle;
    struct mig_device device;

    if (number >= MIG_HANDLE) {
        out->gpu = (unsigned)(number - MIG_HANDLE) / 16;
        out->mig = (int)((number - MIG_HANDLE) % 16);
        return out->gpu < simgpu_count() && mig_get(out->gpu, (unsigned)out->mig, &device);
    }
    out->gpu = (unsigned)number - 1;
    out->mig = -1;
    return number > 0 && number <= simgpu_count();
}

int call_any(const char *symbol, device_t handle, struct target *out)
{
    int rc;

    if (!resolve(handle, out)) {
        rc = call_ready(symbol);
        return rc ? rc : NVML_INVALID_ARGUMENT;
    }
    rc = call_on(symbol, out->gpu);
    if (!rc)
        rc = (int)simgpu_gpu_number(out->gpu, "rc", NVML_SUCCESS);
    if (!rc && simgpu_gpu_number(out->gpu, "lost", 0))
        rc = NVML_GPU_IS_LOST;
    return rc;
}

int call_gpu(const char *symbol, device_t handle, unsigned *out)
{
    struct target target;
    int rc = call_any(symbol, handle, &target);

    *out = target.gpu;
    if (!rc && target.mig >= 0)
        rc = NVML_INVALID_ARGUMENT;
    return rc;
}

int call_root(void)
{
    return simgpu_number("nvml.root", geteuid() == 0) ? NVML_SUCCESS : NVML_NO_PERMISSION;
}

/* ---- values ---- */

static int refusal(const char *text)
{
    char *end;
    long long code;

    if (*text != '!')
        return NVML_SUCCESS;
    code = strtoll(text + 1, &end, 10);
    return end == text + 1 || *end ? NVML_NOT_SUPPORTED : (int)code;
}

int value_text(unsigned gpu, const char *name, char *out, size_t size)
{
    if (!simgpu_gpu_text(gpu, name, out, size))
        return NVML_NOT_SUPPORTED;
    return refusal(out);
}

static int number_of(const char *text, long long *out)
{
    char *end;

    *out = strtoll(text, &end, 0);
    return end == text ? NVML_UNKNOWN : NVML_SUCCESS;
}

int value_number(unsigned gpu, const char *name, long long *out)
{
    char text[64];
    int rc = value_text(gpu, name, text, sizeof text);

    if (!rc && !*text)
        rc = NVML_NOT_SUPPORTED;
    return rc ? rc : number_of(text, out);
}

int value_or(unsigned gpu, const char *name, long long fallback, long long *out)
{
    char text[64];

    if (!simgpu_gpu_text(gpu, name, text, sizeof text) || !*text) {
        *out = fallback;
        return NVML_SUCCESS;
    }
    return value_number(gpu, name, out);
}

int value_list(unsigned gpu, const char *name, long long *out, unsigned room, unsigned *count)
{
    char text[1024], *word, *rest;
    int rc = value_text(gpu, name, text, sizeof text);

    *count = 0;
    for (word = rc ? NULL : strtok_r(text, ", ", &rest); word && *count < room; word = strtok_r(NULL, ", ", &rest)) {
        rc = number_of(word, &out[(*count)++]);
        if (rc)
            return rc;
    }
    return rc;
}

/* ---- whole calls ---- */

int put_text(char *out, unsigned size, const char *text)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (size <= strlen(text))
        return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

int answer_text(const char *symbol, device_t handle, const char *name, char *out, unsigned size)
{
    char text[256];
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc)
        rc = value_text(gpu, name, text, sizeof text);
    return rc ? rc : put_text(out, size, text);
}

int answer_number(const char *symbol, device_t handle, const char *name, unsigned *out)
{
    long long value;
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, name, &value);
    if (!rc)
        *out = (unsigned)value;
    return rc;
}

int answer_or(const char *symbol, device_t handle, const char *name, unsigned fallback, unsigned *out)
{
    long long value;
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_or(gpu, name, fallback, &value);
    if (!rc)
        *out = (unsigned)value;
    return rc;
}

int answer_long(const char *symbol, device_t handle, const char *name, unsigned long long *out)
{
    long long value;
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, name, &value);
    if (!rc)
        *out = (unsigned long long)value;
    return rc;
}
