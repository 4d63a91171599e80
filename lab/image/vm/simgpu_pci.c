/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * STAND-IN of the GPU node lab for GPUs on PCI: buses of their own whose configuration space is memory. lspci, sysfs, udev
 * and drivers believe in the cards; they have no BARs, no interrupts and do nothing.
 *
 *   insmod simgpu_pci.ko devices=0000:17:00.0=10de:2330:030200:10de:16c1,0000:2a:00.0=...
 *
 * that is address=vendor:device:class:subsystem vendor:subsystem device, all in hex. */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/pci.h>

#define MOST 32

static char *devices[MOST];
static int count;
module_param_array(devices, charp, &count, 0444);
MODULE_PARM_DESC(devices, "address=vendor:device:class:subvendor:subdevice, separated by commas");

struct root {
	struct pci_sysdata sysdata;
	struct pci_bus *bus;
	struct resource numbers;
	unsigned int number;
};

struct function {
	struct root *root;
	unsigned int devfn;
	u8 space[PCI_CFG_SPACE_SIZE];
};

static struct root roots[MOST];
static struct function functions[MOST];
static int root_count, function_count;

static struct function *at(struct pci_bus *bus, unsigned int devfn)
{
	int index;

	for (index = 0; index < function_count; index++)
		if (&functions[index].root->sysdata == bus->sysdata && functions[index].devfn == devfn)
			return &functions[index];
	return NULL;
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct function *function = at(bus, devfn);
	int index;

	*value = ~0U;
	if (!function)
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (where + size > PCI_CFG_SPACE_SIZE)
		return PCIBIOS_BAD_REGISTER_NUMBER;
	*value = 0;
	for (index = 0; index < size; index++)
		*value |= (u32)function->space[where + index] << (8 * index);
	return PCIBIOS_SUCCESSFUL;
}

/* Only the command register keeps what is written; a BAR that stays 0 is none. */
static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct function *function = at(bus, devfn);
	int index;

	if (!function)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (index = 0; index < size; index++)
		if (where + index == PCI_COMMAND || where + index == PCI_COMMAND + 1)
			function->space[where + index] = value >> (8 * index);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops ops = { .read = config_read, .write = config_write };

static struct root *root_of(unsigned int domain, unsigned int number)
{
	struct root *root;
	int index;

	for (index = 0; index < root_count; index++)
		if (roots[index].sysdata.domain == domain && roots[index].number == number)
			return &roots[index];
	root = &roots[root_count++];
	root->sysdata.domain = domain;
	root->number = number;
	root->numbers = (struct resource)DEFINE_RES_NAMED(number, 1, "simulated GPUs", IORESOURCE_BUS);
	return root;
}

static void put16(u8 *where, unsigned int value)
{
	where[0] = value & 0xff;
	where[1] = value >> 8;
}

static int add(const char *text)
{
	unsigned int domain, bus, slot, number, vendor, device, class, subvendor, subdevice;
	struct function *function = &functions[function_count];

	if (sscanf(text, "%x:%x:%x.%x=%x:%x:%x:%x:%x", &domain, &bus, &slot, &number, &vendor, &device, &class, &subvendor,
		   &subdevice) != 9)
		return -EINVAL;
	function->root = root_of(domain, bus);
	function->devfn = PCI_DEVFN(slot, number);
	put16(function->space + PCI_VENDOR_ID, vendor);
	put16(function->space + PCI_DEVICE_ID, device);
	put16(function->space + PCI_COMMAND, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	function->space[PCI_REVISION_ID] = 0xa1;
	function->space[PCI_CLASS_PROG] = class & 0xff;
	put16(function->space + PCI_CLASS_DEVICE, class >> 8);
	put16(function->space + PCI_SUBSYSTEM_VENDOR_ID, subvendor);
	put16(function->space + PCI_SUBSYSTEM_ID, subdevice);
	function_count++;
	return 0;
}

static void stop(void)
{
	int index;

	pci_lock_rescan_remove();
	for (index = 0; index < root_count; index++) {
		if (!roots[index].bus)
			continue;
		pci_stop_root_bus(roots[index].bus);
		pci_remove_root_bus(roots[index].bus);
	}
	pci_unlock_rescan_remove();
}

static int __init start(void)
{
	int index, rc;

	for (index = 0; index < count; index++) {
		rc = add(devices[index]);
		if (rc) {
			pr_err("simgpu_pci: %s is not address=vendor:device:class:subvendor:subdevice\n", devices[index]);
			return rc;
		}
	}
	for (index = 0; index < root_count; index++) {
		struct root *root = &roots[index];
		LIST_HEAD(resources);

		pci_add_resource(&resources, &root->numbers);
		pci_lock_rescan_remove();
		root->bus = pci_scan_root_bus(NULL, root->number, &ops, &root->sysdata, &resources);
		if (root->bus)
			pci_bus_add_devices(root->bus);
		pci_unlock_rescan_remove();
		if (!root->bus) {
			pci_free_resource_list(&resources);
			stop();
			return -ENODEV;
		}
	}
	return 0;
}

module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stand-in for GPUs on PCI");
