/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What every call of the stand-in library goes through. A handle is a number in the place of a pointer: index + 1 for a
 * GPU, MIG_HANDLE and both indices for a MIG device. */
#ifndef SIMGPU_NVML_CALL_H
#define SIMGPU_NVML_CALL_H

#include "nvml.h"
#include "state.h"

#define MAX_MIG 7u
#define MIG_HANDLE 0x1000u

struct target {
    unsigned gpu;
    int mig;                                      /* index of the MIG device, -1: the GPU itself */
};

extern int call_initialised;

/* Every function returns NVML's code, NVML_SUCCESS to go on. symbol is the name of the exported function. */
int call_enter(const char *symbol);               /* reads a changed state file; what "hang" and "rc" say */
int call_ready(const char *symbol);               /* and: initialised */
int call_on(const char *symbol, unsigned gpu);    /* and: what the lines of this GPU say, but not whether it is lost */
int call_any(const char *symbol, device_t handle, struct target *out);    /* a GPU or a MIG device */
int call_gpu(const char *symbol, device_t handle, unsigned *out);         /* a GPU only */
int call_root(void);                              /* NO_PERMISSION where root is needed and not there */

/* Values of the state file; a key that is absent or "!unsupported" is NOT_SUPPORTED, "!CODE" is that code. */
int value_text(unsigned gpu, const char *name, char *out, size_t size);
int value_number(unsigned gpu, const char *name, long long *out);
int value_or(unsigned gpu, const char *name, long long fallback, long long *out);    /* absent: fallback */
int value_list(unsigned gpu, const char *name, long long *out, unsigned room, unsigned *count);  /* "1,1,0" */

/* A whole call that puts one value into one place. */
int answer_text(const char *symbol, device_t handle, const char *name, char *out, unsigned size);
int answer_number(const char *symbol, device_t handle, const char *name, unsigned *out);
int answer_or(const char *symbol, device_t handle, const char *name, unsigned fallback, unsigned *out);
int answer_long(const char *symbol, device_t handle, const char *name, unsigned long long *out);
int put_text(char *out, unsigned size, const char *text);

/* MIG devices, see nvml_mig.c. */
struct mig_device {
    char uuid[64], profile[32];
    long long memory_mib;
};
int mig_get(unsigned gpu, unsigned index, struct mig_device *out);        /* 1 when there is one */
int mig_alive(unsigned gpu);                      /* whether the GPU has any */
device_t mig_handle(unsigned gpu, unsigned index);
int mig_number(struct target target, const char *name, long long fallback, long long *out);

#endif
