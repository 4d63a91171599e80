/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for nvidia-smi: lists GPUs through whatever libnvidia-ml.so.1 the loader finds.
 * Knows -L, --query-gpu=FIELDS --format=csv[,noheader][,nounits], -i ID, -pl WATT, --version, -h and a short default table. */
#include <ctype.h>
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
    int (*limit)(device_t, unsigned *);
    int (*default_limit)(device_t, unsigned *);
    int (*enforced)(device_t, unsigned *);
    int (*constraints)(device_t, unsigned *, unsigned *);
    int (*set_limit)(device_t, unsigned);
    int (*by_uuid)(const char *, device_t *);
    int (*by_bus_id)(const char *, device_t *);
    int (*index)(device_t, unsigned *);
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
        SYMBOL(limit, "nvmlDeviceGetPowerManagementLimit"), SYMBOL(enforced, "nvmlDeviceGetEnforcedPowerLimit"),
        SYMBOL(default_limit, "nvmlDeviceGetPowerManagementDefaultLimit"),
        SYMBOL(constraints, "nvmlDeviceGetPowerManagementLimitConstraints"),
        SYMBOL(set_limit, "nvmlDeviceSetPowerManagementLimit"), SYMBOL(by_uuid, "nvmlDeviceGetHandleByUUID"),
        SYMBOL(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2"), SYMBOL(index, "nvmlDeviceGetIndex"),
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

/* The real program has an exit code of its own for these; every other failure is 255. See tests/real/test_nvidia_smi.py. */
static int exit_code(int rc)
{
    static const int own[] = { 2, 3, 4, 6, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 23 };
    size_t index;

    for (index = 0; index < sizeof own / sizeof *own; index++) {
        if (rc == own[index])
            return rc;
    }
    return 255;
}

/* "12.535.261.03" is shown as "535.261", without the CUDA generation and the last number. */
static void explain_version(void)
{
    char version[96], *first, *last;

    if (!nvml.nvml_version || nvml.nvml_version(version, sizeof version))
        return;
    first = strchr(version, '.');
    last = strrchr(version, '.');
    if (first && last > first) {
        *last = '\0';
        printf("NVML library version: %s\n", first + 1);
    }
}

static void explain(int rc)
{
    if (rc == 12)
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
               "Driver is properly installed and present in your system.\n"
               "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n");
    else if (rc == NVML_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
    else
        printf("Failed to initialize NVML: %s\n", nvml.text ? nvml.text(rc) : "Unknown Error");
    if (rc == NVML_LIB_RM_VERSION_MISMATCH)
        explain_version();
}

static int power_field(const char *field, device_t device, unsigned *number)
{
    unsigned lowest = 0, highest = 0;
    int rc;

    if (!strcmp(field, "power.draw"))
        return nvml.power(device, number);
    if (!strcmp(field, "power.limit"))
        return nvml.limit(device, number);
    if (!strcmp(field, "power.default_limit"))
        return nvml.default_limit(device, number);
    if (!strcmp(field, "enforced.power.limit"))
        return nvml.enforced(device, number);
    rc = nvml.constraints(device, &lowest, &highest);
    *number = strcmp(field, "power.min_limit") ? highest : lowest;
    return rc;
}

static int is_power_field(const char *field)
{
    static const char *const names[] = {
        "power.draw", "power.limit", "power.default_limit", "enforced.power.limit", "power.min_limit", "power.max_limit",
    };
    size_t index;

    for (index = 0; index < sizeof names / sizeof *names; index++) {
        if (!strcmp(field, names[index]))
            return 1;
    }
    return 0;
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
    } else if (is_power_field(field)) {
        rc = power_field(field, device, &number);
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

/* -i takes an index, a UUID or a PCI address, as the real one does; -1 where there is no such card. */
static long find_card(const char *word)
{
    device_t device = NULL;
    unsigned index = 0;
    char *end;
    long number = strtol(word, &end, 10);

    if (isdigit((unsigned char)*word) && !*end)
        return number;
    if (nvml.by_uuid(word, &device) && nvml.by_bus_id(word, &device))
        return -1;
    return nvml.index(device, &index) ? -1 : (long)index;
}

static int set_power(long only, const char *watt)
{
    unsigned index, total = 0, lowest, highest, before;
    double wanted = strtod(watt, NULL);
    int rc = nvml.count(&total), worst = 0;
    pci_info_v3 pci;
    device_t device;

    for (index = 0; !rc && index < total; index++) {
        if (only >= 0 && (unsigned)only != index)
            continue;
        if (nvml.by_index(index, &device) || nvml.pci(device, &pci))
            return 15;
        if (nvml.constraints(device, &lowest, &highest)) {
            printf("Changing power management limit is not supported for GPU: %s.\n", pci.bus_id);
            worst = 3;
            continue;
        }
        if (wanted * 1000 < lowest || wanted * 1000 > highest) {
            printf("Provided power limit %.2f W is not a valid power limit which should be between %.2f W and %.2f W for "
                   "GPU %s\nTerminating early due to previous errors.\n", wanted, lowest / 1e3, highest / 1e3, pci.bus_id);
            return 2;
        }
        nvml.limit(device, &before);
        rc = nvml.set_limit(device, (unsigned)(wanted * 1000));
        if (rc)
            printf("Failed to set power management limit for GPU %s: %s\n", pci.bus_id, nvml.text(rc));
        else
            printf("Power limit for GPU %s was set to %.2f W from %.2f W.\n", pci.bus_id, wanted, before / 1e3);
    }
    printf("%s", rc || worst ? "" : "All done.\n");
    return rc ? rc : worst;
}

static int usage(void)
{
    printf("nvidia-smi (lab stand-in): lists simulated GPUs through libnvidia-ml.so.1\n\n"
           "    nvidia-smi [-i INDEX]            a short table\n"
           "    nvidia-smi -L [-i INDEX]         one line a GPU\n"
           "    nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits] [-i INDEX]\n"
           "    nvidia-smi -pl WATT [-i ID]      set the power limit\n"
           "    nvidia-smi --version\n\n"
           "ID: index, UUID or PCI address\n"
           "FIELDS: index name uuid serial pci.bus_id pci.device_id memory.total memory.used memory.free driver_version\n"
           "        persistence_mode temperature.gpu utilization.gpu power.draw power.limit power.default_limit\n"
           "        power.min_limit power.max_limit enforced.power.limit\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *query = NULL, *format = NULL, *card = NULL, *watt = NULL;
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
            card = argv[++argument];
        else if (!strncmp(word, "--id=", 5))
            card = word + 5;
        else if ((!strcmp(word, "-pl") || !strcmp(word, "--power-limit")) && argument + 1 < argc)
            watt = argv[++argument];
        else if (!strncmp(word, "--power-limit=", 14))
            watt = word + 14;
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
        return exit_code(rc);
    }
    if (card && (only = find_card(card)) < 0) {
        printf("No devices were found\n");
        return 6;
    }
    if (watt)
        return set_power(only, watt);
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
