/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the stand-in library needs of the NVML interface: codes and the layout of the structures that cross it. The sizes
 * are checked below, because a caller with another layout reads garbage that looks like values. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#define EXPORT __attribute__((visibility("default")))

enum nvml_return {
    NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9, NVML_CORRUPTED_INFOROM = 14,
    NVML_GPU_IS_LOST = 15, NVML_LIB_RM_VERSION_MISMATCH = 18, NVML_ARGUMENT_VERSION_MISMATCH = 25, NVML_UNKNOWN = 999,
};

typedef struct nvml_device *device_t;             /* opaque: see nvml_call.h */

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id, reserved[4];
} pci_info_v2;

typedef struct {
    char bus_id_legacy[16];                       /* 0000:65:00.0 */
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];                              /* 00000000:65:00.0 */
} pci_info_v3;

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned long long total, free, used; } bar1_memory;
typedef struct { unsigned version, sensor; int temperature; } temperature_v1;
typedef struct { unsigned version; int margin; } margin_temperature_v1;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned max, high, partial, low, none; } row_remapper_histogram;
typedef struct { unsigned long long reference_time, violation_time; } violation_time;
typedef struct { unsigned version, channel_pending, tpc_pending; } repair_status_v1;
typedef struct { unsigned version, unrepairable; } unrepairable_memory_v1;
typedef struct { unsigned corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failure; } remapped_rows_v2;

typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_sec_ded, aggregate_corrected, volatile_parity, volatile_sec_ded,
        volatile_corrected, bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned threshold_exceeded;
} sram_ecc_status_v1;

typedef struct {
    unsigned char cluster[16];
    unsigned status, clique, state;
} fabric_info_v1;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health_mask;
    unsigned char health_summary;                 /* from version 3 on */
} fabric_info_v3;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} device_attributes;

typedef struct { unsigned pid; unsigned long long used; } process_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_v2;

enum value_type { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3, VALUE_SIGNED_LONG_LONG = 4, VALUE_SIGNED = 5 };

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union { double real; unsigned u; unsigned long long ull; long long sll; int s; } value;
} field_reading;

#define VERSION_WORD(type, number) ((unsigned)sizeof(type) | (number) << 24)
#define MEMORY_V2_WORD VERSION_WORD(memory_v2, 2u)
#define TEMPERATURE_V1_WORD VERSION_WORD(temperature_v1, 1u)
#define MARGIN_V1_WORD VERSION_WORD(margin_temperature_v1, 1u)
#define REPAIR_V1_WORD VERSION_WORD(repair_status_v1, 1u)
#define UNREPAIRABLE_V1_WORD VERSION_WORD(unrepairable_memory_v1, 1u)
#define SRAM_V1_WORD VERSION_WORD(sram_ecc_status_v1, 1u)
#define FABRIC_V2_WORD 0x02000024u                /* version 3 without its last member */
#define FABRIC_V3_WORD VERSION_WORD(fabric_info_v3, 3u)

_Static_assert(sizeof(pci_info_v2) == 52 && sizeof(pci_info_v3) == 68, "PciInfo");
_Static_assert(sizeof(memory_v1) == 24 && MEMORY_V2_WORD == 0x02000028u && sizeof(bar1_memory) == 24, "Memory");
_Static_assert(TEMPERATURE_V1_WORD == 0x0100000cu && MARGIN_V1_WORD == 0x01000008u, "Temperature");
_Static_assert(sizeof(row_remapper_histogram) == 20 && sizeof(remapped_rows_v2) == 24, "rows");
_Static_assert(SRAM_V1_WORD == 0x01000068u && REPAIR_V1_WORD == 0x0100000cu, "SramEccErrorStatus, RepairStatus");
_Static_assert(UNREPAIRABLE_V1_WORD == 0x01000008u, "UnrepairableMemory");
_Static_assert(sizeof(fabric_info_v1) == 28 && FABRIC_V3_WORD == 0x03000028u, "GpuFabricInfo");
_Static_assert(sizeof(process_v1) == 16 && sizeof(process_v2) == 24, "ProcessInfo");
_Static_assert(sizeof(field_reading) == 40 && sizeof(violation_time) == 16 && sizeof(device_attributes) == 40, "FieldValue");

#endif
