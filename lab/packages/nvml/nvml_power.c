/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in NVML library: heat, fans, power and clocks. */
#define _GNU_SOURCE
#include "nvml_call.h"

#include <stdio.h>
#include <time.h>

/* ---- heat ---- */

EXPORT int nvmlDeviceGetTemperature(device_t handle, unsigned sensor, unsigned *out)
{
    return sensor ? NVML_INVALID_ARGUMENT : answer_number(__func__, handle, "temperature", out);
}

#if DRIVER_BRANCH >= 580
EXPORT int nvmlDeviceGetTemperatureV(device_t handle, temperature_v1 *out)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (out->version != TEMPERATURE_V1_WORD)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    if (out->sensor)
        return NVML_INVALID_ARGUMENT;
    return answer_number(__func__, handle, "temperature", (unsigned *)&out->temperature);
}
#endif

EXPORT int nvmlDeviceGetMarginTemperature(device_t handle, margin_temperature_v1 *out)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (out->version != MARGIN_V1_WORD)
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return answer_number(__func__, handle, "temperature_margin", (unsigned *)&out->margin);
}

EXPORT int nvmlDeviceGetTemperatureThreshold(device_t handle, unsigned type, unsigned *out)
{
    static const char *const names[] = {
        "temperature_shutdown", "temperature_slowdown", "temperature_mem_max", "temperature_gpu_max",
        "temperature_acoustic_min", "temperature_acoustic", "temperature_acoustic_max", "temperature_gps",
    };

    if (type >= sizeof names / sizeof *names)
        return NVML_INVALID_ARGUMENT;
    return answer_number(__func__, handle, names[type], out);
}

/* ---- fans ---- */

EXPORT int nvmlDeviceGetNumFans(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "fan_count", out);
}

static int fan_speed(const char *symbol, device_t handle, unsigned fan, unsigned *out)
{
    long long speeds[16];
    unsigned gpu, count;
    int rc = call_gpu(symbol, handle, &gpu);

    if (!rc)
        rc = value_list(gpu, "fan_speed", speeds, 16, &count);
    if (!rc && !count)
        rc = NVML_NOT_SUPPORTED;
    if (!rc && (!out || fan >= count))
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = (unsigned)speeds[fan];
    return rc;
}

EXPORT int nvmlDeviceGetFanSpeed(device_t handle, unsigned *out) { return fan_speed(__func__, handle, 0, out); }
EXPORT int nvmlDeviceGetFanSpeed_v2(device_t handle, unsigned fan, unsigned *out)
{
    return fan_speed(__func__, handle, fan, out);
}

/* ---- power: the limit in force may be lower than the one that was set, where the board has another reason ---- */

EXPORT int nvmlDeviceGetPowerUsage(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "power_mw", out);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(device_t handle, unsigned *out)
{
    long long limit, lower;
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        rc = value_number(gpu, "power_limit_mw", &limit);
    if (!rc)
        rc = value_or(gpu, "power_enforced_mw", limit, &lower);
    if (!rc)
        *out = (unsigned)(lower < limit ? lower : limit);
    return rc;
}

EXPORT int nvmlDeviceGetPowerManagementLimit(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "power_limit_mw", out);
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(device_t handle, unsigned *out)
{
    return answer_number(__func__, handle, "power_default_mw", out);
}

static int limits(unsigned gpu, unsigned *lowest, unsigned *highest)
{
    long long low, high;
    int rc = value_number(gpu, "power_min_mw", &low);

    if (!rc)
        rc = value_number(gpu, "power_max_mw", &high);
    if (rc)
        return rc;
    *lowest = (unsigned)low;
    *highest = (unsigned)high;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(device_t handle, unsigned *lowest, unsigned *highest)
{
    unsigned gpu;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc && (!lowest || !highest))
        rc = NVML_INVALID_ARGUMENT;
    return rc ? rc : limits(gpu, lowest, highest);
}

EXPORT int nvmlDeviceSetPowerManagementLimit(device_t handle, unsigned milliwatt)
{
    unsigned gpu, lowest, highest;
    int rc = call_gpu(__func__, handle, &gpu);

    if (!rc)
        rc = call_root();
    if (!rc)
        rc = limits(gpu, &lowest, &highest);
    if (rc)
        return rc;
    if (milliwatt < lowest || milliwatt > highest)
        return NVML_INVALID_ARGUMENT;
    return simgpu_write_one(gpu, "power_limit_mw", milliwatt) ? NVML_UNKNOWN : NVML_SUCCESS;
}

/* ---- clocks ---- */

static int clock_of(const char *symbol, device_t handle, unsigned type, const char *const names[4], unsigned *out)
{
    return type > 3 ? NVML_INVALID_ARGUMENT : answer_number(symbol, handle, names[type], out);
}

EXPORT int nvmlDeviceGetClockInfo(device_t handle, unsigned type, unsigned *out)
{
    static const char *const names[] = { "clock_sm_mhz", "clock_sm_mhz", "clock_mem_mhz", "clock_video_mhz" };
    return clock_of(__func__, handle, type, names, out);
}

EXPORT int nvmlDeviceGetMaxClockInfo(device_t handle, unsigned type, unsigned *out)
{
    static const char *const names[] = {
        "clock_sm_max_mhz", "clock_sm_max_mhz", "clock_mem_max_mhz", "clock_video_max_mhz",
    };
    return clock_of(__func__, handle, type, names, out);
}

static int supported_reasons(const char *symbol, device_t handle, unsigned long long *out)
{
    unsigned long long now;
    int rc = answer_long(symbol, handle, "clock_reasons", &now);

    if (!rc && !out)
        rc = NVML_INVALID_ARGUMENT;
    if (!rc)
        *out = 0x1ff;
    return rc;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(device_t handle, unsigned long long *out)
{
    return answer_long(__func__, handle, "clock_reasons", out);
}

EXPORT int nvmlDeviceGetSupportedClocksThrottleReasons(device_t handle, unsigned long long *out)
{
    return supported_reasons(__func__, handle, out);
}

#if DRIVER_BRANCH >= 535
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(device_t handle, unsigned long long *out)
{
    return answer_long(__func__, handle, "clock_reasons", out);
}

EXPORT int nvmlDeviceGetSupportedClocksEventReasons(device_t handle, unsigned long long *out)
{
    return supported_reasons(__func__, handle, out);
}
#endif

EXPORT int nvmlDeviceGetViolationStatus(device_t handle, unsigned policy, violation_time *out)
{
    char name[32];
    struct timespec now;
    int rc;

    if (!out)
        return NVML_INVALID_ARGUMENT;
    snprintf(name, sizeof name, "violation.%u", policy);
    rc = answer_long(__func__, handle, name, &out->violation_time);
    clock_gettime(CLOCK_REALTIME, &now);
    out->reference_time = (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000;
    return rc;
}
