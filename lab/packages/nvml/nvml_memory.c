/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: memory and its errors. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <stddef.h>
#include <string.h>

/* ---- size ---- */

static int memory(const char *symbol, device_t handle, memory_v2 *out)
{
    long long total, used, reserved;
    struct mig_device device;
    struct target target;
    int rc = call_any(symbol, handle, &target);

    if (rc)
        return rc;
    if (target.mig >= 0 && mig_get(target.gpu, (unsigned)target.mig, &device))
        total = device.memory_mib;
    else
        rc = value_number(target.gpu, "memory_total_mib", &total);
    if (!rc)
        rc = mig_number(target, "memory_reserved_mib", 0, &reserved);
    if (!rc)
        rc = mig_number(target, "memory_used_mib", 0, &used);
    if (rc)
        return rc;
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

#if DRIVER_BRANCH >= 510
EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t handle, memory_v2 *out)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (out->version != MEMORY_V2_WORD)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return memory(__func__, handle, out);
}
#endif

EXPORT int nvmlDeviceGetBAR1MemoryInfo(device_t handle, bar1_memory *out)
{
    long long total, used;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, "bar1_total_mib", &total);
    if (!rc)
        rc = value_or(gpu, "bar1_used_mib", 0, &used);
    if (rc)
        return rc;
    out->total = (unsigned long long)total << 20;
    out->used = (unsigned long long)used << 20;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

/* ---- ECC ---- */

/* NOT_SUPPORTED where the card has no ECC or has it switched off. */
static int ecc_counter(unsigned gpu, unsigned uncorrected, unsigned aggregate, unsigned long long *out)
{
    static const char *const names[2][2] = {
        { "ecc_corrected_volatile", "ecc_corrected_aggregate" }, { "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate" },
    };
    long long mode, value;
    int rc;

    if (uncorrected > 1 || aggregate > 1 || !out)
        return NVML_INVALID_ARGUMENT;
    rc = value_number(gpu, "ecc_mode_current", &mode);
    if (!rc && !mode)
        rc = NVML_NOT_SUPPORTED;
    if (!rc)
        rc = value_number(gpu, names[uncorrected][aggregate], &value);
    if (!rc)
        *out = (unsigned long long)value;
    return rc;
}

EXPORT int nvmlDeviceGetTotalEccErrors(device_t handle, unsigned type, unsigned counter, unsigned long long *out)
{
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    return rc ? rc : ecc_counter(gpu, type, counter, out);
}

/* All errors are shown in the device memory. */
EXPORT int nvmlDeviceGetMemoryErrorCounter(device_t handle, unsigned type, unsigned counter, unsigned location,
                                           unsigned long long *out)
{
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc)
        rc = ecc_counter(gpu, type, counter, out);
    if (!rc && location > 7)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && location != 2)
        *out = 0;
    return rc;
}

EXPORT int nvmlDeviceGetSramEccErrorStatus(device_t handle, sram_ecc_status_v1 *out)
{
    long long exceeded;
    unsigned gpu, version = SRAM_V1_WORD;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && out->version != version)
        rc = NVML_ARGUMENT_VERSION_MISMATCH;
    if (!rc)
        rc = call_root();
    if (!rc)
        rc = value_number(gpu, "sram_threshold_exceeded", &exceeded);
    if (rc)
        return rc;
    memset(out, 0, sizeof *out);
    out->version = version;
    out->threshold_exceeded = exceeded != 0;
    return NVML_SUCCESS;
}

/* ---- replaced rows and pages ---- */

#if DRIVER_BRANCH >= 450
static int numbers(unsigned gpu, const char *const *names, size_t count, unsigned *const *places)
{
    long long value;
    size_t index;
    int rc;

    for (index = 0; index < count; index++) {
        if (!places[index])
            return NVML_INVALID_ARGUMENT;
        rc = value_number(gpu, names[index], &value);
        if (rc)
            return rc;
        *places[index] = (unsigned)value;
    }
    return NVML_SUCCESS;
}

static const char *const rows[] = { "remap_correctable", "remap_uncorrectable", "remap_pending", "remap_failure" };

EXPORT int nvmlDeviceGetRemappedRows(device_t handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failure)
{
    unsigned *const places[] = { corrected, uncorrected, pending, failure };
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && mig_alive(gpu))
        rc = NVML_NOT_SUPPORTED;
    return rc ? rc : numbers(gpu, rows, 4, places);
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(device_t handle, row_remapper_histogram *out)
{
    static const char *const names[] = {
        "remap_bank_max", "remap_bank_high", "remap_bank_partial", "remap_bank_low", "remap_bank_none",
    };
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && mig_alive(gpu))
        rc = NVML_NOT_SUPPORTED;
    if (rc)
        return rc;
    return numbers(gpu, names, 5, (unsigned *const[]){ &out->max, &out->high, &out->partial, &out->low, &out->none });
}
#endif

#if DRIVER_BRANCH >= 590
EXPORT int nvmlDeviceGetRemappedRows_v2(device_t handle, remapped_rows_v2 *out)
{
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && mig_alive(gpu))
        rc = NVML_NOT_SUPPORTED;
    if (rc)
        return rc;
    memset(out, 0, sizeof *out);
    return numbers(gpu, rows, 4,
                   (unsigned *const[]){ &out->corrected, &out->uncorrected, &out->pending, &out->failure });
}
#endif

static int retired(const char *symbol, device_t handle, unsigned cause, unsigned *count, unsigned long long *addresses,
                   unsigned long long *times)
{
    long long have;
    unsigned gpu, room, index;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc && (cause > 1 || !count))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, cause ? "retired_dbe" : "retired_sbe", &have);
    if (rc)
        return rc;
    room = *count;
    *count = (unsigned)have;
    if (*count > room || (*count && !addresses))
        return NVML_INSUFFICIENT_SIZE;
    for (index = 0; index < *count; index++) {
        addresses[index] = 0x100000ull * (cause + 1) + 0x1000ull * index;
        if (times)
            times[index] = 0;
    }
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPages(device_t handle, unsigned cause, unsigned *count, unsigned long long *addresses)
{
    return retired(__func__, handle, cause, count, addresses, NULL);
}

EXPORT int nvmlDeviceGetRetiredPages_v2(device_t handle, unsigned cause, unsigned *count, unsigned long long *addresses,
                                        unsigned long long *times)
{
    return retired(__func__, handle, cause, count, addresses, times);
}

EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "retired_pending", out);
}

/* ---- repair ---- */

#if DRIVER_BRANCH >= 580
EXPORT int nvmlDeviceGetRepairStatus(device_t handle, repair_status_v1 *out)
{
    static const char *const names[] = { "repair_channel_pending", "repair_tpc_pending" };
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && out->version != REPAIR_V1_WORD)
        rc = NVML_ARGUMENT_VERSION_MISMATCH;
    return rc ? rc : numbers(gpu, names, 2, (unsigned *const[]){ &out->channel_pending, &out->tpc_pending });
}
#endif

#if DRIVER_BRANCH >= 590
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(device_t handle, unrepairable_memory_v1 *out)
{
    static const char *const names[] = { "unrepairable_memory" };
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc && out->version != UNREPAIRABLE_V1_WORD)
        rc = NVML_ARGUMENT_VERSION_MISMATCH;
    return rc ? rc : numbers(gpu, names, 1, (unsigned *const[]){ &out->unrepairable });
}
#endif
