/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: MIG devices and processes. "mig=UUID:PROFILE:MIB,..." lists the devices of a GPU and counts while
 * mig_mode_current is 1; "mig.<n>.<name>" is a value of one of them. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- MIG ---- */

int mig_get(unsigned gpu, unsigned index, struct mig_device *out)
{
    char text[1024], *word, *rest;
    unsigned number = 0;

    if (index >= MAX_MIG || !simgpu_gpu_number(gpu, "mig_mode_current", 0))
        return 0;
    simgpu_gpu_text(gpu, "mig", text, sizeof text);
    for (word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (number++ == index)
            return sscanf(word, "%63[^:]:%31[^:]:%lld", out->uuid, out->profile, &out->memory_mib) == 3;
    }
    return 0;
}

int mig_alive(unsigned gpu)
{
    struct mig_device device;
    return mig_get(gpu, 0, &device);
}

device_t mig_handle(unsigned gpu, unsigned index)
{
    return (device_t)(size_t)(MIG_HANDLE + gpu * 16 + index);
}

int mig_number(struct target target, const char *name, long long fallback, long long *out)
{
    char key[64];

    if (target.mig < 0)
        return value_or(target.gpu, name, fallback, out);
    snprintf(key, sizeof key, "mig.%d.%s", target.mig, name);
    return value_or(target.gpu, key, fallback, out);
}

EXPORT int nvmlDeviceIsMigDeviceHandle(device_t handle, unsigned *out)
{
    struct target target;
    int rc = call_any(__func__, handle, &target);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = target.mig >= 0;
    return rc;
}

/* 0 where MIG is off or not there at all. */
EXPORT int nvmlDeviceGetMaxMigDeviceCount(device_t handle, unsigned *out)
{
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = simgpu_gpu_number(gpu, "mig_mode_current", 0) ? MAX_MIG : 0;
    return rc;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device_t handle, unsigned index, device_t *out)
{
    struct mig_device device;
    long long mode;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc)
        rc = value_number(gpu, "mig_mode_current", &mode);
    if (!rc && !mode)
        rc = NVML_NOT_SUPPORTED;
    if (!rc && (!out || index >= MAX_MIG))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && !mig_get(gpu, index, &device))
        rc = NVML_NOT_FOUND;
    if (!rc)
        *out = mig_handle(gpu, index);
    return rc;
}

/* The MIG device behind a handle; NOT_SUPPORTED for a whole GPU, as in the interface. */
static int call_mig(const char *symbol, device_t handle, struct target *target, struct mig_device *device)
{
    int rc = call_any(symbol, handle, target);

    if (!rc && (target->mig < 0 || !mig_get(target->gpu, (unsigned)target->mig, device)))
        rc = NVML_NOT_SUPPORTED;
    return rc;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t handle, device_t *out)
{
    struct mig_device device;
    struct target target;
    int rc = call_mig(__func__, handle, &target, &device);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = (device_t)(size_t)(target.gpu + 1);
    return rc;
}

EXPORT int nvmlDeviceGetGpuInstanceId(device_t handle, unsigned *out)
{
    struct mig_device device;
    struct target target;
    int rc = call_mig(__func__, handle, &target, &device);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = (unsigned)target.mig + 1;           /* instance 0 is the whole GPU */
    return rc;
}

EXPORT int nvmlDeviceGetComputeInstanceId(device_t handle, unsigned *out)
{
    struct mig_device device;
    struct target target;
    int rc = call_mig(__func__, handle, &target, &device);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = 0;
    return rc;
}

EXPORT int nvmlDeviceGetAttributes_v2(device_t handle, device_attributes *out)
{
    struct mig_device device;
    struct target target;
    int rc = call_mig(__func__, handle, &target, &device);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (rc)
        return rc;
    memset(out, 0, sizeof *out);
    out->gpu_slices = out->compute_slices = (unsigned)strtoul(device.profile, NULL, 10);      /* 3g.40gb */
    out->multiprocessors = 14 * out->gpu_slices;
    out->memory_mib = (unsigned long long)device.memory_mib;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

#define NOT_AVAILABLE (~0ull)

/* One "pid:mib:kind" of the list; 1 when it is of the wanted kind. */
static int parse_process(char *word, const char *kind, process_v2 *out)
{
    char *memory = strchr(word, ':'), *name = memory ? strchr(memory + 1, ':') : NULL;

    if (strcmp(name ? name + 1 : "compute", kind))
        return 0;
    out->pid = (unsigned)strtoul(word, NULL, 10);
    out->used = memory && memory[1] != ':' && memory[1] ? strtoull(memory + 1, NULL, 10) << 20 : NOT_AVAILABLE;
    out->gpu_instance = out->compute_instance = ~0u;
    return 1;
}

/* The first call, with room for none, returns how many there are and INSUFFICIENT_SIZE; the second fills the places. */
static int processes(const char *symbol, device_t handle, const char *kind, unsigned *count, void *out, size_t size)
{
    char text[4096], key[32] = "processes", *word, *rest;
    process_v2 one;
    struct target target;
    unsigned room, have = 0;
    int rc = call_any(symbol, handle, &target);

    if (!rc && !count)
        rc = NVML_INVALID_ARGUMENT;
    if (rc)
        return rc;
    if (target.mig >= 0)
        snprintf(key, sizeof key, "mig.%d.processes", target.mig);
    rc = value_text(target.gpu, key, text, sizeof text);
    if (rc == NVML_NOT_SUPPORTED && !*text)
        rc = NVML_SUCCESS;                         /* no line: no process; "!unsupported" is a line */
    if (rc)
        return rc;
    room = *count;
    for (word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (!parse_process(word, kind, &one))
            continue;
        if (target.mig >= 0) {
            one.gpu_instance = (unsigned)target.mig + 1;
            one.compute_instance = 0;
        }
        if (out && have < room)
            memcpy((char *)out + have * size, &one, size);     /* version 1 is the first part of version 2 */
        have++;
    }
    *count = have;
    return have > room || (have && !out) ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(symbol, kind, type) \
    EXPORT int symbol(device_t handle, unsigned *count, type *out) \
    { \
        return processes(#symbol, handle, kind, count, out, sizeof(type)); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, "compute", process_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "graphics", process_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, "mps", process_v1)
#if DRIVER_BRANCH >= 450
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute", process_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", process_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", process_v2)
#endif
#if DRIVER_BRANCH >= 510
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute", process_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", process_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", process_v2)
#endif
