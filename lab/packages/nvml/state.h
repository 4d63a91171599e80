/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The state file of the simulated GPUs: one "key=value" a line, '#' starts a comment, the last line of a key wins.
 * It is parsed once and again whenever simgpu_refresh() finds that it has changed, so that a change takes effect while a
 * program runs and a hundred readings cost a hundred calls of stat(). */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <stddef.h>

#define SIMGPU_STATE_DEFAULT "/var/lib/simgpu/state"
#define SIMGPU_PROC_DEFAULT "/proc/driver/nvidia/version"
#define SIMGPU_MAX_GPUS 16u

const char *simgpu_state_path(void);              /* $SIMGPU_STATE or the default */
const char *simgpu_proc_path(void);               /* $SIMGPU_PROC_VERSION or the default */

/* Parse the file again when it has changed since the last time. simgpu_count() does it by itself. */
void simgpu_refresh(void);

/* 1 and the value copied when the key is there, else 0 and out empty. */
int simgpu_text(const char *key, char *out, size_t size);
long long simgpu_number(const char *key, long long fallback);
/* The same with the key "gpu.<index>.<name>". */
int simgpu_gpu_text(unsigned index, const char *name, char *out, size_t size);
long long simgpu_gpu_number(unsigned index, const char *name, long long fallback);
unsigned simgpu_count(void);                      /* at most SIMGPU_MAX_GPUS */

/* The version in /proc/driver/nvidia/version: 1 when found, 0 when the file is absent, -1 when it names none. */
int simgpu_module_version(char *out, size_t size);

/* Write gpu.<i>.<name>=<value> for all GPUs or for one, by a temporary file, rename and a lock. 0 or -1 with errno. */
int simgpu_write_all(const char *name, long long value);
int simgpu_write_one(unsigned index, const char *name, long long value);

#endif
