/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for nvidia-smi: lists GPUs through whatever libnvidia-ml.so.1 the loader finds.
 * Knows -L, --query-gpu=FIELDS --format=csv[,noheader][,nounits], -i INDEX, --version, -h and a short default table. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../nvml/nvml.h"

static void *library;

static struct {
    int (*init)(void);
    int (*driver_version)(char *, unsigned);
    int (*nvml_version)(char *, unsigned);
    int (*cuda_version)(int *);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, device_t *);
    int (*name)(device_t, char *, unsigned);
    int (*uuid)(device_t, char *, unsigned);
    int (*serial)(device_t, char *, unsigned);
    int (*pci)(device_t, pci_info_v3 *);
    int (*memory)(device_t, memory_v1 *);
    int (*persistence)(device_t, unsigned *);
    int (*temperature)(device_t, unsigned, unsigned *);
    int (*power)(device_t, unsigned *);
    int (*utilization)(device_t, utilization *);
    const char *(*text)(int);
} nvml;

static int load(void)
{
    static const struct { const char *name; size_t offset; } symbols[] = {
#define SYMBOL(member, symbol) { symbol, (size_t)&((typeof(nvml) *)0)->member }
        SYMBOL(init, "nvmlInit_v2"), SYMBOL(driver_version, "nvmlSystemGetDriverVersion"),
        SYMBOL(nvml_version, "nvmlSystemGetNVMLVersion"), SYMBOL(cuda_version, "nvmlSystemGetCudaDriverVersion_v2"),
        SYMBOL(count, "nvmlDeviceGetCount_v2"), SYMBOL(by_index, "nvmlDeviceGetHandleByIndex_v2"),
        SYMBOL(name, "nvmlDeviceGetName"), SYMBOL(uuid, "nvmlDeviceGetUUID"), SYMBOL(serial, "nvmlDeviceGetSerial"),
        SYMBOL(pci, "nvmlDeviceGetPciInfo_v3"), SYMBOL(memory, "nvmlDeviceGetMemoryInfo"),
        SYMBOL(persistence, "nvmlDeviceGetPersistenceMode"), SYMBOL(temperature, "nvmlDeviceGetTemperature"),
        SYMBOL(power, "nvmlDeviceGetPowerUsage"), SYMBOL(utilization, "nvmlDeviceGetUtilizationRates"),
        SYMBOL(text, "nvmlErrorString"),
    };
    size_t index;

    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        return 12;
    for (index = 0; index < sizeof symbols / sizeof *symbols; index++) {
        void *address = dlsym(library, symbols[index].name);
        if (!address)
            return 13;
        memcpy((char *)&nvml + symbols[index].offset, &address, sizeof address);
    }
    return 0;
}

static void explain(int rc)
{
    if (rc == 12)
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
               "Driver is properly installed and present in your system.\n");
    else if (rc == NVML_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
    else
        printf("Failed to initialize NVML: %s\n", nvml.text ? nvml.text(rc) : "Unknown Error");
}

static void field_value(const char *field, unsigned index, device_t device, int units, char *out, size_t size)
{
    char text[96] = "";
    pci_info_v3 pci;
    memory_v1 memory;
    utilization load_now;
    unsigned number = 0;
    int rc;

    if (!strcmp(field, "index")) {
        snprintf(out, size, "%u", index);
        return;
    }
    if (!strcmp(field, "name") || !strcmp(field, "gpu_name")) {
        rc = nvml.name(device, text, sizeof text);
    } else if (!strcmp(field, "uuid") || !strcmp(field, "gpu_uuid")) {
        rc = nvml.uuid(device, text, sizeof text);
    } else if (!strcmp(field, "serial")) {
        rc = nvml.serial(device, text, sizeof text);
    } else if (!strcmp(field, "driver_version")) {
        rc = nvml.driver_version(text, sizeof text);
    } else if (!strcmp(field, "pci.bus_id") || !strcmp(field, "gpu_bus_id")) {
        rc = nvml.pci(device, &pci);
        if (!rc)
            snprintf(text, sizeof text, "%s", pci.bus_id);
    } else if (!strcmp(field, "pci.device_id")) {
        rc = nvml.pci(device, &pci);
        snprintf(text, sizeof text, "0x%08X", rc ? 0 : pci.pci_device_id);
    } else if (!strcmp(field, "memory.total") || !strcmp(field, "memory.used") || !strcmp(field, "memory.free")) {
        rc = nvml.memory(device, &memory);
        if (!rc)
            snprintf(text, sizeof text, "%llu%s", (field[7] == 't' ? memory.total : field[7] == 'u' ? memory.used
                     : memory.free) >> 20, units ? " MiB" : "");
    } else if (!strcmp(field, "persistence_mode")) {
        rc = nvml.persistence(device, &number);
        snprintf(text, sizeof text, "%s", number ? "Enabled" : "Disabled");
    } else if (!strcmp(field, "temperature.gpu")) {
        rc = nvml.temperature(device, 0, &number);
        snprintf(text, sizeof text, "%u", number);
    } else if (!strcmp(field, "power.draw")) {
        rc = nvml.power(device, &number);
        snprintf(text, sizeof text, "%u.%02u%s", number / 1000, number % 1000 / 10, units ? " W" : "");
    } else if (!strcmp(field, "utilization.gpu")) {
        rc = nvml.utilization(device, &load_now);
        snprintf(text, sizeof text, "%u%s", rc ? 0 : load_now.gpu, units ? " %" : "");
    } else {
        printf("Field \"%s\" is not a valid field to query.\n\n", field);
        exit(2);
    }
    if (rc == NVML_NOT_SUPPORTED)
        snprintf(out, size, "[N/A]");
    else if (rc)
        snprintf(out, size, "[%s]", nvml.text(rc));
    else
        snprintf(out, size, "%s", text);
}

static int each_gpu(long only, const char *query, int header, int units, int list)
{
    unsigned index, total = 0;
    int rc = nvml.count(&total);
    char fields[512], value[128], *field, *rest;

    if (rc) {
        printf("Unable to determine the device count: %s\n", nvml.text(rc));
        return rc;
    }
    if (!total) {
        printf("No devices were found\n");
        return query ? 6 : 0;
    }
    if (only >= (long)total) {
        printf("No devices were found\n");
        return 6;
    }
    if (query && header) {
        snprintf(fields, sizeof fields, "%s", query);
        for (field = strtok_r(fields, ",", &rest); field; field = strtok_r(NULL, ",", &rest))
            printf("%s%s", field, rest && *rest ? ", " : "\n");
    }
    for (index = 0; index < total; index++) {
        device_t device = NULL;
        if (only >= 0 && (unsigned)only != index)
            continue;
        rc = nvml.by_index(index, &device);
        if (rc) {
            printf("Unable to determine the device handle for GPU%u: %s\n", index, nvml.text(rc));
            return rc;
        }
        if (list) {
            field_value("name", index, device, 1, value, sizeof value);
            printf("GPU %u: %s", index, value);
            field_value("uuid", index, device, 1, value, sizeof value);
            printf(" (UUID: %s)\n", value);
            continue;
        }
        snprintf(fields, sizeof fields, "%s", query);
        for (field = strtok_r(fields, ",", &rest); field; field = strtok_r(NULL, ",", &rest)) {
            field_value(field, index, device, units, value, sizeof value);
            printf("%s%s", value, rest && *rest ? ", " : "\n");
        }
    }
    return 0;
}

static int usage(void)
{
    printf("nvidia-smi (lab stand-in): lists simulated GPUs through libnvidia-ml.so.1\n\n"
           "    nvidia-smi [-i INDEX]            a short table\n"
           "    nvidia-smi -L [-i INDEX]         one line a GPU\n"
           "    nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits] [-i INDEX]\n"
           "    nvidia-smi --version\n\n"
           "FIELDS: index name uuid serial pci.bus_id pci.device_id memory.total memory.used memory.free driver_version\n"
           "        persistence_mode temperature.gpu power.draw utilization.gpu\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *query = NULL, *format = NULL;
    char driver[96] = "", version[96] = "";
    int list = 0, versions = 0, argument, rc, cuda = 0;
    long only = -1;

    for (argument = 1; argument < argc; argument++) {
        const char *word = argv[argument];
        if (!strcmp(word, "-h") || !strcmp(word, "--help"))
            return usage();
        if (!strcmp(word, "-L") || !strcmp(word, "--list-gpus"))
            list = 1;
        else if (!strcmp(word, "--version"))
            versions = 1;
        else if (!strcmp(word, "-i") && argument + 1 < argc)
            only = strtol(argv[++argument], NULL, 10);
        else if (!strncmp(word, "--id=", 5))
            only = strtol(word + 5, NULL, 10);
        else if (!strncmp(word, "--query-gpu=", 12))
            query = word + 12;
        else if (!strncmp(word, "--format=", 9))
            format = word + 9;
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
            return 1;
        }
    }
    if (query && (!format || strncmp(format, "csv", 3))) {
        printf("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n");
        return 1;
    }
    rc = load();
    if (!rc)
        rc = nvml.init();
    if (rc) {
        explain(rc);
        return rc == NVML_UNKNOWN ? 255 : rc;
    }
    nvml.driver_version(driver, sizeof driver);
    nvml.nvml_version(version, sizeof version);
    nvml.cuda_version(&cuda);
    if (versions) {
        printf("NVIDIA-SMI version  : lab stand-in\nNVML version        : %s\nDRIVER version      : %s\n"
               "CUDA Version        : %d.%d\n", version, driver, cuda / 1000, cuda % 1000 / 10);
        return 0;
    }
    if (list || query)
        return each_gpu(only, query, format && !strstr(format, "noheader"), format && !strstr(format, "nounits"), list);
    printf("NVIDIA-SMI (lab stand-in)   Driver Version: %s   CUDA Version: %d.%d\n", driver, cuda / 1000, cuda % 1000 / 10);
    return each_gpu(only, "index,name,pci.bus_id,persistence_mode,temperature.gpu,power.draw,memory.used,memory.total", 1, 1,
                    0);
}
