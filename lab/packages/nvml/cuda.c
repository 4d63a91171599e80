/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for libcuda.so.1: the version and how many devices there are, nothing that computes.
 * "cuda.init_error" in the state file makes cuInit fail with that code. */
#include "nvml.h"

#include "state.h"

enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803 };

EXPORT int cuInit(unsigned flags)
{
    char version[64];
    int found = simgpu_module_version(version, sizeof version), rc;

    simgpu_refresh();
    rc = (int)simgpu_number("cuda.init_error", 0);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (rc)
        return rc;
    if (!found || !simgpu_count())
        return CUDA_ERROR_NO_DEVICE;
    return __builtin_strcmp(version, DRIVER_VERSION) ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_SUCCESS;
}

EXPORT int cuDriverGetVersion(int *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = CUDA_VERSION;
    return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetCount(int *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (int)simgpu_count();
    return CUDA_SUCCESS;
}
