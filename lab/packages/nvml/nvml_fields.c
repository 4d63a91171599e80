/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: nvmlDeviceGetFieldValues. The call succeeds while single values fail, each with its own code. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <stdio.h>
#include <time.h>

enum { WHOLE = -1 };

static const struct field {
    unsigned id;
    const char *name;
    enum value_type type;
    int part;                                     /* which number of a list, by link; WHOLE: the value is one number */
} fields[] = {
    { 1, "ecc_mode_current", VALUE_UNSIGNED, WHOLE },
    { 2, "ecc_mode_pending", VALUE_UNSIGNED, WHOLE },
    { 3, "ecc_corrected_volatile", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 4, "ecc_uncorrected_volatile", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 5, "ecc_corrected_aggregate", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 6, "ecc_uncorrected_aggregate", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 29, "retired_sbe", VALUE_UNSIGNED, WHOLE },
    { 30, "retired_dbe", VALUE_UNSIGNED, WHOLE },
    { 31, "retired_pending", VALUE_UNSIGNED, WHOLE },
    { 82, "memory_temperature", VALUE_UNSIGNED, WHOLE },
    { 91, "nvlink_count", VALUE_UNSIGNED, WHOLE },
    { 94, "pcie_replay", VALUE_UNSIGNED, WHOLE },
    { 142, "remap_correctable", VALUE_UNSIGNED, WHOLE },
    { 143, "remap_uncorrectable", VALUE_UNSIGNED, WHOLE },
    { 144, "remap_pending", VALUE_UNSIGNED, WHOLE },
    { 145, "remap_failure", VALUE_UNSIGNED, WHOLE },
    { 173, "pcie_correctable", VALUE_UNSIGNED, WHOLE },
    { 176, "pcie_bad_tlp", VALUE_UNSIGNED, WHOLE },
    { 179, "pcie_nonfatal", VALUE_UNSIGNED, WHOLE },
    { 180, "pcie_fatal", VALUE_UNSIGNED, WHOLE },
    { 182, "pcie_lcrc", VALUE_UNSIGNED, WHOLE },
    { 186, "power_mw", VALUE_UNSIGNED, WHOLE },
    { 193, "tlimit_shutdown", VALUE_SIGNED, WHOLE },
    { 194, "tlimit_slowdown", VALUE_SIGNED, WHOLE },
    { 195, "tlimit_mem", VALUE_SIGNED, WHOLE },
    { 196, "tlimit_gpu_max", VALUE_SIGNED, WHOLE },
    { 214, "nvlink5_errors", VALUE_UNSIGNED_LONG_LONG, 0 },
    { 215, "nvlink5_errors", VALUE_UNSIGNED_LONG_LONG, 1 },
    { 221, "nvlink5_errors", VALUE_UNSIGNED_LONG_LONG, 2 },
    { 219, "nvlink5_errors", VALUE_UNSIGNED_LONG_LONG, 3 },
    { 226, "reset_status", VALUE_UNSIGNED, WHOLE },
    { 230, "recovery_action", VALUE_UNSIGNED, WHOLE },
    { 269, "clock_ns_sw_thermal", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 270, "clock_ns_hw_thermal", VALUE_UNSIGNED_LONG_LONG, WHOLE },
    { 271, "clock_ns_hw_brake", VALUE_UNSIGNED_LONG_LONG, WHOLE },
};

static const struct field *find(unsigned id)
{
    size_t index;

    for (index = 0; index < sizeof fields / sizeof *fields; index++) {
        if (fields[index].id == id)
            return &fields[index];
    }
    return NULL;
}

/* The scope of these fields is a link; the sum of all is shown on link 0. */
static int of_link(unsigned gpu, const struct field *field, unsigned link, long long *out)
{
    long long sums[4], states[64];
    unsigned count, links;
    int rc = value_list(gpu, field->name, sums, 4, &count);

    if (!rc && (unsigned)field->part >= count)
        rc = NVML_NOT_SUPPORTED;
    if (!rc)
        rc = value_list(gpu, "nvlink_states", states, 64, &links);
    if (!rc && link >= links)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = link ? 0 : sums[field->part];
    return rc;
}

static int is_row_remap(unsigned id)
{
    return id >= 142 && id <= 145;
}

static int read_field(unsigned gpu, unsigned id, unsigned scope, long long *out, enum value_type *type)
{
    const struct field *field = find(id);
    char key[48], text[64];
    int rc;

    snprintf(key, sizeof key, "field.%u.rc", id);
    rc = (int)simgpu_gpu_number(gpu, key, NVML_SUCCESS);
    if (rc)
        return rc;
    if (is_row_remap(id) && mig_alive(gpu))
        return NVML_NOT_SUPPORTED;
    *type = field ? field->type : VALUE_UNSIGNED_LONG_LONG;
    if (field && field->part != WHOLE)
        return of_link(gpu, field, scope, out);
    if (field && simgpu_gpu_text(gpu, field->name, text, sizeof text))
        return value_number(gpu, field->name, out);
    snprintf(key, sizeof key, "field.%u", id);
    rc = value_number(gpu, key, out);
    if (!rc && !field && *out < 0)
        *type = VALUE_SIGNED_LONG_LONG;
    return rc;
}

static void store(field_reading *out, long long value)
{
    out->value.ull = 0;
    if (out->type == VALUE_UNSIGNED)
        out->value.u = (unsigned)value;
    else if (out->type == VALUE_SIGNED)
        out->value.s = (int)value;
    else
        out->value.sll = value;                   /* the two long types share their bytes */
}

EXPORT int nvmlDeviceGetFieldValues(device_t handle, int count, field_reading *values)
{
    struct timespec now;
    enum value_type type = VALUE_UNSIGNED;
    long long value;
    unsigned gpu;
    int index, rc = call_gpu(__func__, handle, &gpu);

    if (!rc && (count < 1 || !values))
        rc = NVML_INVALID_ARGUMENT;
    if (rc)
        return rc;
    clock_gettime(CLOCK_REALTIME, &now);
    for (index = 0; index < count; index++) {
        value = 0;
        values[index].code = read_field(gpu, values[index].id, values[index].scope, &value, &type);
        values[index].type = type;
        values[index].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        values[index].latency = 1;
        store(&values[index], value);
    }
    return NVML_SUCCESS;
}
