/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for libnvidia-ml.so.1: answers from the state file of the simulated GPUs. Compiled once for each driver version
 * with DRIVER_VERSION ("535.261.03"), DRIVER_BRANCH (535) and CUDA_VERSION (12020). The keys of the state file are listed
 * in lab/packages/README.md.
 *
 * This file: life cycle, system, finding a device, its identity. Functions without a body are listed in unsupported.def. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nvml_call.h"

/* ---- life cycle ---- */

static int init(const char *symbol)
{
    char version[64];
    int rc = call_enter(symbol), found;

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
    call_initialised++;
    return NVML_SUCCESS;
}

EXPORT int nvmlInit(void) { return init(__func__); }
EXPORT int nvmlInit_v2(void) { return init(__func__); }
EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return init(__func__); }

EXPORT int nvmlShutdown(void)
{
    int rc = call_ready(__func__);
    if (!rc)
        call_initialised--;
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
    int rc = call_ready(__func__);

    if (rc)
        return rc;
    return simgpu_module_version(version, sizeof version) > 0 ? put_text(out, size, version) : NVML_DRIVER_NOT_LOADED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char text[64];
    int rc = call_enter(__func__);                 /* the one query that needs no driver */

    snprintf(text, sizeof text, "%d.%s", CUDA_VERSION / 1000, DRIVER_VERSION);
    return rc ? rc : put_text(out, size, text);
}

static int cuda_version(const char *symbol, int *out)
{
    int rc = call_enter(symbol);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = (int)simgpu_number("nvml.cuda_version", CUDA_VERSION);
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(__func__, out); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(__func__, out); }

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    char path[64], text[1024] = "";
    FILE *file;
    int rc = call_ready(__func__);

    if (rc)
        return rc;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';       /* the first word ends with a zero byte */
    fclose(file);
    return put_text(out, size, text);
}

/* ---- finding a device ---- */

static int count(const char *symbol, unsigned *out)
{
    int rc = call_ready(symbol);

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
    int known = index < simgpu_count(), rc = known ? call_on(symbol, index) : call_ready(symbol);

    if (rc)
        return rc;
    if (!out || !known)
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
    int rc = call_ready(symbol);

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

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, device_t *out)
{
    return by_text(__func__, "serial", serial, out);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out)
{
    struct mig_device device;
    unsigned gpu, index, total = simgpu_count();
    int rc = by_text(__func__, "uuid", uuid, out);

    for (gpu = 0; rc == NVML_NOT_FOUND && gpu < total; gpu++) {
        for (index = 0; mig_get(gpu, index, &device); index++) {
            if (!strcasecmp(device.uuid, uuid)) {
                *out = mig_handle(gpu, index);
                return NVML_SUCCESS;
            }
        }
    }
    return rc;
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
    int rc = call_ready(symbol);

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

/* Bytes that need not be text, written as hexadecimal digits. */
static int name_bytes(unsigned gpu, char *out, size_t size)
{
    char digits[256];
    unsigned byte;
    size_t length = 0;

    if (!simgpu_gpu_text(gpu, "name_hex", digits, sizeof digits))
        return 0;
    while (length + 1 < size && sscanf(digits + 2 * length, "%2x", &byte) == 1)
        out[length++] = (char)byte;
    out[length] = '\0';
    return 1;
}

EXPORT int nvmlDeviceGetName(device_t handle, char *out, unsigned size)
{
    char text[256], whole[320];
    struct mig_device device;
    struct target target;
    int rc = call_any(__func__, handle, &target);

    if (!rc && !name_bytes(target.gpu, text, sizeof text))
        rc = value_text(target.gpu, "name", text, sizeof text);
    if (rc)
        return rc;
    if (target.mig < 0 || !mig_get(target.gpu, (unsigned)target.mig, &device))
        return put_text(out, size, text);
    snprintf(whole, sizeof whole, "%s MIG %s", text, device.profile);
    return put_text(out, size, whole);
}

EXPORT int nvmlDeviceGetUUID(device_t handle, char *out, unsigned size)
{
    struct mig_device device;
    struct target target;
    char text[256];
    int rc = call_any(__func__, handle, &target);

    if (!rc && target.mig >= 0 && mig_get(target.gpu, (unsigned)target.mig, &device))
        return put_text(out, size, device.uuid);
    if (!rc)
        rc = value_text(target.gpu, "uuid", text, sizeof text);
    return rc ? rc : put_text(out, size, text);
}

EXPORT int nvmlDeviceGetSerial(device_t handle, char *out, unsigned size)
{
    return answer_text(__func__, handle, "serial", out, size);
}

EXPORT int nvmlDeviceGetBoardPartNumber(device_t handle, char *out, unsigned size)
{
    return answer_text(__func__, handle, "board_part", out, size);
}

EXPORT int nvmlDeviceGetVbiosVersion(device_t handle, char *out, unsigned size)
{
    return answer_text(__func__, handle, "vbios", out, size);
}

EXPORT int nvmlDeviceGetInforomImageVersion(device_t handle, char *out, unsigned size)
{
    return answer_text(__func__, handle, "inforom_version", out, size);
}

EXPORT int nvmlDeviceGetInforomVersion(device_t handle, unsigned object, char *out, unsigned size)
{
    char name[32];

    snprintf(name, sizeof name, "inforom_object.%u", object);
    return answer_text(__func__, handle, name, out, size);
}

EXPORT int nvmlDeviceGetInforomConfigurationChecksum(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "inforom_checksum", out);
}

EXPORT int nvmlDeviceValidateInforom(device_t handle)
{
    char text[64];
    long long valid = 0;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (rc)
        return rc;
    rc = value_or(gpu, "inforom_valid", -1, &valid);
    if (!rc && valid < 0)
        rc = value_text(gpu, "inforom_version", text, sizeof text);
    return rc ? rc : valid ? NVML_SUCCESS : NVML_CORRUPTED_INFOROM;
}

EXPORT int nvmlDeviceGetIndex(device_t handle, unsigned *out)
{
    struct target target;
    int rc = call_any(__func__, handle, &target);

    if (rc)
        return rc;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    *out = target.mig < 0 ? target.gpu : (unsigned)target.mig;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(device_t handle, unsigned *out)
{
    size_t number = (size_t)handle;                /* a handle of a GPU is its index + 1, and the index is the default */
    return answer_or(__func__, handle, "minor", (unsigned)number - 1, out);
}

static int pci(const char *symbol, device_t handle, pci_info_v3 *out)
{
    char text[64], id[32];
    unsigned index, bus_id[4];
    int rc = call_gpu(symbol, handle, &index);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_text(index, "pci", text, sizeof text);
    if (rc)
        return rc;
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
    int rc = out ? pci(symbol, handle, &info) : NVML_INVALID_ARGUMENT;

    if (rc)
        return rc;
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

/* ---- the rest ---- */

static int unsupported(const char *symbol)
{
    int rc = call_ready(symbol);
    return rc ? rc : NVML_NOT_SUPPORTED;
}

#define UNSUPPORTED(symbol) EXPORT int symbol(void) { return unsupported(#symbol); }
#include "unsupported.def"
