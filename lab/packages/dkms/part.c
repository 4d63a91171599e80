/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A further module of the set (nvidia-modeset, nvidia-uvm): it only needs the first one. */
#include "stand_in.h"

#include <linux/init.h>
#include <linux/module.h>

const char *nvidia_stand_in_version(void);

static int __init start(void)
{
	pr_info("stand-in of driver %s\n", nvidia_stand_in_version());
	return 0;
}

static void __exit stop(void)
{
}

module_init(start);
module_exit(stop);
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);
MODULE_DESCRIPTION("Stand-in for a further module of the NVIDIA driver");
