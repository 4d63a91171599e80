/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the stand-in library needs of the NVML interface: codes and the layout of the structures that cross it. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#define EXPORT __attribute__((visibility("default")))

enum nvml_return {
    NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9, NVML_GPU_IS_LOST = 15,
    NVML_LIB_RM_VERSION_MISMATCH = 18, NVML_ARGUMENT_VERSION_MISMATCH = 25, NVML_UNKNOWN = 999,
};

typedef struct nvml_device *device_t;             /* opaque: index + 1 */

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id, reserved[4];
} pci_info_v2;                                    /* 52 bytes */

typedef struct {
    char bus_id_legacy[16];                       /* 0000:65:00.0 */
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];                              /* 00000000:65:00.0 */
} pci_info_v3;                                    /* 68 bytes */

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned version, sensor; int temperature; } temperature_v1;
typedef struct { unsigned gpu, memory; } utilization;

#define MEMORY_V2_WORD 0x02000028u
#define TEMPERATURE_V1_WORD 0x0100000cu

#endif
