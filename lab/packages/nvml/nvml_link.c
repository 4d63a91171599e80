/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: PCIe, NVLink and the fabric. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- PCIe ---- */

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_gen", out);
}

EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_gen_max", out);
}

#if DRIVER_BRANCH >= 470
EXPORT int nvmlDeviceGetGpuMaxPcieLinkGeneration(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_gen_gpu_max", out);
}
#endif

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_width", out);
}

EXPORT int nvmlDeviceGetMaxPcieLinkWidth(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_width_max", out);
}

EXPORT int nvmlDeviceGetPcieReplayCounter(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "pcie_replay", out);
}

/* ---- NVLink ---- */

#define MAX_LINKS 64u

/* Whether the card has this link; after the last one the answer is INVALID_ARGUMENT, which is how a caller finds the end. */
static int link_state(const char *symbol, device_t handle, unsigned link, unsigned *gpu, long long *active)
{
    long long states[MAX_LINKS];
    unsigned count;
    int rc = call_gpu(symbol, handle, gpu);

    if (!rc)
        rc = value_list(*gpu, "nvlink_states", states, MAX_LINKS, &count);
    if (rc)
        return rc;
    if (link >= count)
        return NVML_INVALID_ARGUMENT;
    *active = states[link];
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkState(device_t handle, unsigned link, unsigned *out)
{
    long long active;
    unsigned gpu;
    int rc = link_state(__func__, handle, link, &gpu, &active);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = (unsigned)active;
    return rc;
}

EXPORT int nvmlDeviceGetNvLinkVersion(device_t handle, unsigned link, unsigned *out)
{
    long long value;
    unsigned gpu;
    int rc = link_state(__func__, handle, link, &gpu, &value);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, "nvlink_version", &value);
    if (!rc)
        *out = (unsigned)value;
    return rc;
}

/* True for links that are down too: what a link could do says nothing about what it does. */
EXPORT int nvmlDeviceGetNvLinkCapability(device_t handle, unsigned link, unsigned capability, unsigned *out)
{
    long long active;
    unsigned gpu;
    int rc = link_state(__func__, handle, link, &gpu, &active);

    if (!rc && (!out || capability > 5))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = 1;
    return rc;
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(device_t handle, unsigned link, unsigned counter, unsigned long long *out)
{
    long long active, sums[4];
    unsigned gpu, count;
    int rc = link_state(__func__, handle, link, &gpu, &active);

    if (!rc)
        rc = value_list(gpu, "nvlink_errors", sums, 4, &count);
    if (!rc && (!out || counter > 4))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && counter >= count)
        rc = NVML_NOT_SUPPORTED;
    if (!rc)
        *out = link ? 0 : (unsigned long long)sums[counter];
    return rc;
}

/* ---- fabric ---- */

static int hexadecimal(char digit)
{
    return isdigit((unsigned char)digit) ? digit - '0' : tolower((unsigned char)digit) - 'a' + 10;
}

static void parse_uuid(const char *text, unsigned char *out)
{
    size_t digits = 0;

    memset(out, 0, 16);
    for (; *text && digits < 32; text++) {
        if (!isxdigit((unsigned char)*text))
            continue;
        out[digits / 2] = (unsigned char)(out[digits / 2] << 4 | hexadecimal(*text));
        digits++;
    }
}

/* The state decides whether there is a fabric; the other values are 0 where the state file has none. */
static int fabric(unsigned gpu, fabric_info_v3 *out)
{
    const struct { const char *name; unsigned *place; } parts[] = {
        { "fabric_status", &out->status }, { "fabric_clique", &out->clique }, { "fabric_health_mask", &out->health_mask },
    };
    char text[64];
    long long value;
    size_t index;
    int rc = value_number(gpu, "fabric_state", &value);

    if (rc)
        return rc;
    out->state = (unsigned)value;
    for (index = 0; index < sizeof parts / sizeof *parts; index++) {
        rc = value_or(gpu, parts[index].name, 0, &value);
        if (rc)
            return rc;
        *parts[index].place = (unsigned)value;
    }
    simgpu_gpu_text(gpu, "fabric_cluster", text, sizeof text);
    parse_uuid(text, out->cluster);
    out->health_summary = (unsigned char)simgpu_gpu_number(gpu, "fabric_health_summary", 0);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfo(device_t handle, fabric_info_v1 *out)
{
    fabric_info_v3 info;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = fabric(gpu, &info);
    if (rc)
        return rc;
    memcpy(out->cluster, info.cluster, sizeof out->cluster);
    out->status = info.status;
    out->clique = info.clique;
    out->state = info.state;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(device_t handle, fabric_info_v3 *out)
{
    fabric_info_v3 info;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && out->version != FABRIC_V2_WORD && out->version != FABRIC_V3_WORD)
        rc = NVML_ARGUMENT_VERSION_MISMATCH;
    if (!rc)
        rc = fabric(gpu, &info);
    if (rc)
        return rc;
    info.version = out->version;
    memcpy(out, &info, out->version & 0xffffff);   /* the word carries the size of the caller's structure */
    return NVML_SUCCESS;
}
