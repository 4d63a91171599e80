/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for libnvidia-ml.so.1: answers from the state file of the simulated GPUs. Compiled once for each driver version
 * with DRIVER_VERSION ("535.261.03"), DRIVER_BRANCH (535) and CUDA_VERSION (12020).
 *
 * Every call passes enter(), which knows what any call can be told to do:
 *   nvml.init_error=CODE    initialisation fails with this code
 *   hang.<symbol>=1         the call does not return while the line is there
 *   rc.<symbol>=CODE        the call fails with this code
 *   gpu.<i>.lost=1          calls with this handle fail with 15
 * Functions without a body are listed in unsupported.def. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "state.h"

static int initialised;

static int enter(const char *symbol)
{
    char key[128];

    snprintf(key, sizeof key, "hang.%s", symbol);
    while (simgpu_number(key, 0))
        sleep(1);
    snprintf(key, sizeof key, "rc.%s", symbol);
    return (int)simgpu_number(key, NVML_SUCCESS);
}

static int ready(const char *symbol)
{
    int rc = enter(symbol);
    if (rc)
        return rc;
    return initialised > 0 ? NVML_SUCCESS : NVML_UNINITIALIZED;
}

/* The index behind a handle, after the checks that every call on a device makes. */
static int device(const char *symbol, device_t handle, unsigned *index)
{
    int rc = ready(symbol);
    size_t number = (size_t)handle;

    if (rc)
        return rc;
    if (number == 0 || number > simgpu_count())
        return NVML_INVALID_ARGUMENT;
    *index = (unsigned)(number - 1);
    return simgpu_gpu_number(*index, "lost", 0) ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

static int put(char *out, unsigned size, const char *text)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (size <= strlen(text))
        return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static int put_gpu(const char *symbol, device_t handle, const char *name, char *out, unsigned size)
{
    char text[256];
    unsigned index;
    int rc = device(symbol, handle, &index);

    if (rc)
        return rc;
    return simgpu_gpu_text(index, name, text, sizeof text) ? put(out, size, text) : NVML_NOT_SUPPORTED;
}

static int get_number(const char *symbol, device_t handle, const char *name, unsigned *out)
{
    unsigned index;
    long long value;
    int rc = device(symbol, handle, &index);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    value = simgpu_gpu_number(index, name, -1);
    if (value < 0)
        return NVML_NOT_SUPPORTED;
    *out = (unsigned)value;
    return NVML_SUCCESS;
}

/* ---- life cycle ---- */

static int init(const char *symbol)
{
    char version[64];
    int rc = enter(symbol), found;

    if (rc)
        return rc;
    rc = (int)simgpu_number("nvml.init_error", 0);
    if (rc)
        return rc;
    found = simgpu_module_version(version, sizeof version);
    if (found == 0)
        return NVML_DRIVER_NOT_LOADED;
    if (found < 0 || strcmp(version, DRIVER_VERSION))
        return NVML_LIB_RM_VERSION_MISMATCH;
    initialised++;
    return NVML_SUCCESS;
}

EXPORT int nvmlInit(void) { return init(__func__); }
EXPORT int nvmlInit_v2(void) { return init(__func__); }
EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return init(__func__); }

EXPORT int nvmlShutdown(void)
{
    int rc = ready(__func__);
    if (!rc)
        initialised--;
    return rc;
}

EXPORT const char *nvmlErrorString(int code)
{
    static const char *const text[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
        "GPU is lost", "GPU requires reset", "The operating system has blocked the request", "Driver/library version mismatch",
        "GPU is in use", "Insufficient Memory", "No data", "ECC is not supported with this vGPU", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
        "Reset type not supported",
    };
    return code >= 0 && code < (int)(sizeof text / sizeof *text) ? text[code] : "Unknown Error";
}

/* ---- system ---- */

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    char version[64];
    int rc = ready(__func__);

    if (rc)
        return rc;
    return simgpu_module_version(version, sizeof version) > 0 ? put(out, size, version) : NVML_DRIVER_NOT_LOADED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char text[64];
    int rc = enter(__func__);                      /* the one query that needs no driver */

    snprintf(text, sizeof text, "%d.%s", CUDA_VERSION / 1000, DRIVER_VERSION);
    return rc ? rc : put(out, size, text);
}

static int cuda_version(const char *symbol, int *out)
{
    int rc = enter(symbol);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = (int)simgpu_number("nvml.cuda_version", CUDA_VERSION);
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(__func__, out); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(__func__, out); }

/* ---- finding a device ---- */

static int count(const char *symbol, unsigned *out)
{
    int rc = ready(symbol);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = simgpu_count();
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCount(unsigned *out) { return count(__func__, out); }
EXPORT int nvmlDeviceGetCount_v2(unsigned *out) { return count(__func__, out); }

static int by_index(const char *symbol, unsigned index, device_t *out)
{
    int rc = ready(symbol);

    if (rc)
        return rc;
    if (!out || index >= simgpu_count())
        return NVML_INVALID_ARGUMENT;
    if (simgpu_gpu_number(index, "lost", 0))
        return NVML_GPU_IS_LOST;
    *out = (device_t)(size_t)(index + 1);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, device_t *out) { return by_index(__func__, index, out); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) { return by_index(__func__, index, out); }

static int by_text(const char *symbol, const char *name, const char *wanted, device_t *out)
{
    char text[256];
    unsigned index, total = simgpu_count();
    int rc = ready(symbol);

    if (rc)
        return rc;
    if (!wanted || !out)
        return NVML_INVALID_ARGUMENT;
    for (index = 0; index < total; index++) {
        if (simgpu_gpu_text(index, name, text, sizeof text) && !strcasecmp(text, wanted))
            return by_index(symbol, index, out);
    }
    return NVML_NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) { return by_text(__func__, "uuid", uuid, out); }
EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, device_t *out)
{
    return by_text(__func__, "serial", serial, out);
}

/* sysfs writes the domain with 4 digits, NVML with 8: compare numbers. */
static int parse_bus_id(const char *text, unsigned id[4])
{
    return text && sscanf(text, "%x:%x:%x.%x", &id[0], &id[1], &id[2], &id[3]) == 4;
}

static int by_bus_id(const char *symbol, const char *wanted, device_t *out)
{
    char text[64];
    unsigned index, total = simgpu_count(), want[4], have[4];
    int rc = ready(symbol);

    if (rc)
        return rc;
    if (!out || !parse_bus_id(wanted, want))
        return NVML_INVALID_ARGUMENT;
    for (index = 0; index < total; index++) {
        simgpu_gpu_text(index, "pci", text, sizeof text);
        if (parse_bus_id(text, have) && !memcmp(want, have, sizeof want))
            return by_index(symbol, index, out);
    }
    return NVML_NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, device_t *out) { return by_bus_id(__func__, id, out); }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, device_t *out) { return by_bus_id(__func__, id, out); }

/* ---- identity ---- */

EXPORT int nvmlDeviceGetName(device_t handle, char *out, unsigned size)
{
    return put_gpu(__func__, handle, "name", out, size);
}

EXPORT int nvmlDeviceGetUUID(device_t handle, char *out, unsigned size)
{
    return put_gpu(__func__, handle, "uuid", out, size);
}

EXPORT int nvmlDeviceGetSerial(device_t handle, char *out, unsigned size)
{
    return put_gpu(__func__, handle, "serial", out, size);
}

EXPORT int nvmlDeviceGetIndex(device_t handle, unsigned *out)
{
    unsigned index;
    int rc = device(__func__, handle, &index);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = index;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(device_t handle, unsigned *out)
{
    unsigned index;
    int rc = device(__func__, handle, &index);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = (unsigned)simgpu_gpu_number(index, "minor", index);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(device_t handle, unsigned *out)
{
    unsigned index;
    int rc = device(__func__, handle, &index);

    if (!rc && out)
        *out = 0;
    return rc;
}

static int pci(const char *symbol, device_t handle, pci_info_v3 *out)
{
    char text[64], id[32];
    unsigned index, bus_id[4];
    int rc = device(symbol, handle, &index);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    simgpu_gpu_text(index, "pci", text, sizeof text);
    if (!parse_bus_id(text, bus_id))
        return NVML_UNKNOWN;
    memset(out, 0, sizeof *out);
    out->domain = bus_id[0];
    out->bus = bus_id[1];
    out->device = bus_id[2];
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.%X", bus_id[0] & 0xffff, bus_id[1] & 0xff,
             bus_id[2] & 0xff, bus_id[3] & 7);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%X", bus_id[0], bus_id[1] & 0xff, bus_id[2] & 0xff,
             bus_id[3] & 7);
    simgpu_gpu_text(index, "device_id", id, sizeof id);   /* hexadecimal without 0x, as in sysfs and pci.ids */
    out->pci_device_id = (unsigned)strtoul(id, NULL, 16) << 16 | 0x10de;
    simgpu_gpu_text(index, "subsystem_id", id, sizeof id);
    out->pci_subsystem_id = (unsigned)strtoul(id, NULL, 16) << 16 | 0x10de;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(device_t handle, pci_info_v3 *out) { return pci(__func__, handle, out); }

static int pci_old(const char *symbol, device_t handle, pci_info_v2 *out)
{
    pci_info_v3 info;
    int rc = pci(symbol, handle, &info);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, info.bus_id_legacy, sizeof out->bus_id);
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->pci_device_id = info.pci_device_id;
    out->pci_subsystem_id = info.pci_subsystem_id;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo(device_t handle, pci_info_v2 *out) { return pci_old(__func__, handle, out); }
EXPORT int nvmlDeviceGetPciInfo_v2(device_t handle, pci_info_v2 *out) { return pci_old(__func__, handle, out); }

/* ---- memory ---- */

static int memory(const char *symbol, device_t handle, memory_v2 *out)
{
    unsigned index;
    long long total, used, reserved;
    int rc = device(symbol, handle, &index);

    if (rc)
        return rc;
    total = simgpu_gpu_number(index, "memory_mib", -1);
    if (total < 0)
        return NVML_NOT_SUPPORTED;
    reserved = simgpu_gpu_number(index, "memory_reserved_mib", 0);
    used = simgpu_gpu_number(index, "memory_used_mib", 0);
    out->total = (unsigned long long)total << 20;
    out->reserved = (unsigned long long)reserved << 20;
    out->used = (unsigned long long)used << 20;
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device_t handle, memory_v1 *out)
{
    memory_v2 info;
    int rc = out ? memory(__func__, handle, &info) : NVML_INVALID_ARGUMENT;

    if (rc)
        return rc;
    out->total = info.total;
    out->free = info.free;
    out->used = info.used + info.reserved;         /* version 1 counts what the driver keeps for itself as used */
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t handle, memory_v2 *out)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (out->version != MEMORY_V2_WORD)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return memory(__func__, handle, out);
}

/* ---- modes and readings ---- */

EXPORT int nvmlDeviceGetPersistenceMode(device_t handle, unsigned *out)
{
    unsigned index;
    int rc = device(__func__, handle, &index);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = simgpu_gpu_number(index, "persistence_mode", 0) != 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(device_t handle, unsigned sensor, unsigned *out)
{
    return sensor ? NVML_INVALID_ARGUMENT : get_number(__func__, handle, "temperature", out);
}

#if DRIVER_BRANCH >= 580
EXPORT int nvmlDeviceGetTemperatureV(device_t handle, temperature_v1 *out)
{
    unsigned value = 0;
    int rc;

    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (out->version != TEMPERATURE_V1_WORD)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    if (out->sensor)
        return NVML_INVALID_ARGUMENT;
    rc = get_number(__func__, handle, "temperature", &value);
    if (!rc)
        out->temperature = (int)value;
    return rc;
}
#endif

EXPORT int nvmlDeviceGetPowerUsage(device_t handle, unsigned *out)
{
    return get_number(__func__, handle, "power_mw", out);
}

/* ---- power limits: the one in force may be lower than the one that was set, where the board has another reason ---- */

EXPORT int nvmlDeviceGetEnforcedPowerLimit(device_t handle, unsigned *out)
{
    unsigned lower, index;
    int rc = get_number(__func__, handle, "power_limit_mw", out);

    if (rc || device(__func__, handle, &index))
        return rc;
    lower = (unsigned)simgpu_gpu_number(index, "power_enforced_mw", *out);
    *out = lower < *out ? lower : *out;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementLimit(device_t handle, unsigned *out)
{
    return get_number(__func__, handle, "power_limit_mw", out);
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(device_t handle, unsigned *out)
{
    return get_number(__func__, handle, "power_default_mw", out);
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(device_t handle, unsigned *lowest, unsigned *highest)
{
    int rc = get_number(__func__, handle, "power_min_mw", lowest);
    return rc ? rc : get_number(__func__, handle, "power_max_mw", highest);
}

EXPORT int nvmlDeviceSetPowerManagementLimit(device_t handle, unsigned milliwatt)
{
    unsigned index;
    long long lowest, highest;
    int rc = device(__func__, handle, &index);

    if (rc)
        return rc;
    if (geteuid())
        return NVML_NO_PERMISSION;
    lowest = simgpu_gpu_number(index, "power_min_mw", -1);
    highest = simgpu_gpu_number(index, "power_max_mw", -1);
    if (lowest < 0 || highest < 0)
        return NVML_NOT_SUPPORTED;
    if (milliwatt < lowest || milliwatt > highest)
        return NVML_INVALID_ARGUMENT;
    return simgpu_write_one(index, "power_limit_mw", milliwatt) ? NVML_UNKNOWN : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(device_t handle, utilization *out)
{
    int rc;

    if (!out)
        return NVML_INVALID_ARGUMENT;
    rc = get_number(__func__, handle, "utilization_gpu", &out->gpu);
    return rc ? rc : get_number(__func__, handle, "utilization_memory", &out->memory);
}

/* ---- the rest ---- */

static int unsupported(const char *symbol)
{
    int rc = ready(symbol);
    return rc ? rc : NVML_NOT_SUPPORTED;
}

#define UNSUPPORTED(symbol) EXPORT int symbol(void) { return unsupported(#symbol); }
#include "unsupported.def"
