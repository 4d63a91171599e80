/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for NVIDIA's kernel module: it binds to NVIDIA display controllers and serves /proc/driver/nvidia/version and,
 * through MODULE_VERSION, /sys/module/nvidia/version. It drives nothing. */
#include "stand_in.h"

#include <linux/init.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

static struct proc_dir_entry *directory;

/* The other modules of the set use this, so that depmod knows their order. */
const char *nvidia_stand_in_version(void);
const char *nvidia_stand_in_version(void)
{
	return STAND_IN_VERSION;
}
EXPORT_SYMBOL(nvidia_stand_in_version);

static int show_version(struct seq_file *file, void *unused)
{
	seq_printf(file, STAND_IN_BANNER "\n", STAND_IN_VERSION);
	seq_puts(file, "GCC version:  stand-in\n");
	return 0;
}

static int probe(struct pci_dev *device, const struct pci_device_id *id)
{
	pci_info(device, "bound by the stand-in driver %s\n", STAND_IN_VERSION);
	return 0;
}

static void release(struct pci_dev *device)
{
}

static const struct pci_device_id ids[] = {
	{ .vendor = 0x10de, .device = PCI_ANY_ID, .subvendor = PCI_ANY_ID, .subdevice = PCI_ANY_ID,
	  .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0 },
	{ .vendor = 0x10de, .device = PCI_ANY_ID, .subvendor = PCI_ANY_ID, .subdevice = PCI_ANY_ID,
	  .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0 },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = release,
};

static int __init start(void)
{
	int rc;

	directory = proc_mkdir("driver/nvidia", NULL);
	if (!directory || !proc_create_single("version", 0444, directory, show_version)) {
		proc_remove(directory);
		return -ENOMEM;
	}
	rc = pci_register_driver(&driver);
	if (rc)
		proc_remove(directory);
	return rc;
}

static void __exit stop(void)
{
	pci_unregister_driver(&driver);
	proc_remove(directory);
}

module_init(start);
module_exit(stop);
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);
MODULE_DESCRIPTION("Stand-in for the NVIDIA driver");
MODULE_ALIAS("char-major-195-*");
