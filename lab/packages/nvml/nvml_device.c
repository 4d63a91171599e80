/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: what kind of device it is, its modes, firmware and place. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- kind ---- */

EXPORT int nvmlDeviceGetArchitecture(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "architecture", out);
}

EXPORT int nvmlDeviceGetBrand(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "brand", out);
}

EXPORT int nvmlDeviceGetModuleId(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "module_id", out);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(device_t handle, int *major, int *minor)
{
    char text[32];
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && (!major || !minor))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_text(gpu, "compute_capability", text, sizeof text);
    if (rc)
        return rc;
    return sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_UNKNOWN;
}

/* ---- modes ---- */

EXPORT int nvmlDeviceGetPersistenceMode(device_t handle, unsigned *out)
{
    int rc = answer_or(__func__, handle, "persistence_mode", 0, out);
    if (!rc)
        *out = *out != 0;
    return rc;
}

EXPORT int nvmlDeviceGetComputeMode(device_t handle, unsigned *out)
{
    return answer_or(__func__, handle, "compute_mode", 0, out);
}

EXPORT int nvmlDeviceGetVirtualizationMode(device_t handle, unsigned *out)
{
    return answer_or(__func__, handle, "virtualization_mode", 0, out);
}

EXPORT int nvmlDeviceGetPerformanceState(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pstate", out);
}

/* A mode in force and the one after the next boot. */
static int pair(const char *symbol, device_t handle, const char *now, const char *later, unsigned *current,
                unsigned *pending)
{
    long long first, second;
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && (!current || !pending))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, now, &first);
    if (!rc)
        rc = value_or(gpu, later, first, &second);
    if (rc)
        return rc;
    *current = (unsigned)first;
    *pending = (unsigned)second;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(device_t handle, unsigned *current, unsigned *pending)
{
    return pair(__func__, handle, "ecc_mode_current", "ecc_mode_pending", current, pending);
}

EXPORT int nvmlDeviceGetMigMode(device_t handle, unsigned *current, unsigned *pending)
{
    return pair(__func__, handle, "mig_mode_current", "mig_mode_pending", current, pending);
}

EXPORT int nvmlDeviceGetUtilizationRates(device_t handle, utilization *out)
{
    long long gpu_rate, memory_rate;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && mig_alive(gpu))
        rc = NVML_NOT_SUPPORTED;
    if (!rc)
        rc = value_number(gpu, "utilization_gpu", &gpu_rate);
    if (!rc)
        rc = value_number(gpu, "utilization_memory", &memory_rate);
    if (rc)
        return rc;
    out->gpu = (unsigned)gpu_rate;
    out->memory = (unsigned)memory_rate;
    return NVML_SUCCESS;
}

/* ---- firmware ---- */

#if DRIVER_BRANCH >= 510
EXPORT int nvmlDeviceGetGspFirmwareMode(device_t handle, unsigned *enabled, unsigned *by_default)
{
    long long modes[2];
    unsigned gpu, count;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && (!enabled || !by_default))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_list(gpu, "gsp_mode", modes, 2, &count);
    if (rc)
        return rc;
    if (count != 2)
        return NVML_UNKNOWN;
    *enabled = (unsigned)modes[0];
    *by_default = (unsigned)modes[1];
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGspFirmwareVersion(device_t handle, char *out)
{
    char text[64];
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (rc)
        return rc;
    /* The firmware comes with the driver, so where the state names no other version it is the library's. */
    if (!simgpu_gpu_text(gpu, "gsp_version", text, sizeof text)) {
        rc = value_text(gpu, "gsp_mode", text, sizeof text);
        if (!rc)
            snprintf(text, sizeof text, "%s", DRIVER_VERSION);
    } else {
        rc = value_text(gpu, "gsp_version", text, sizeof text);
    }
    return rc ? rc : put_text(out, 64, text);
}
#endif

/* ---- place ---- */

EXPORT int nvmlDeviceGetNumaNodeId(device_t handle, int *out)
{
    return answer_number(__func__, handle, "numa_node", (unsigned *)out);
}

static int affinity(const char *symbol, device_t handle, unsigned words, unsigned long *out)
{
    char text[64];
    unsigned gpu;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && (!out || !words))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_text(gpu, "cpu_affinity", text, sizeof text);
    if (rc)
        return rc;
    memset(out, 0, words * sizeof *out);
    out[0] = strtoul(text, NULL, 0);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCpuAffinity(device_t handle, unsigned words, unsigned long *out)
{
    return affinity(__func__, handle, words, out);
}

EXPORT int nvmlDeviceGetCpuAffinityWithinScope(device_t handle, unsigned words, unsigned long *out, unsigned scope)
{
    (void)scope;
    return affinity(__func__, handle, words, out);
}
