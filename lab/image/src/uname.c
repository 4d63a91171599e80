/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * STAND-IN of the GPU node lab: answers uname(2) with the kernel that the lab's boot loader "started".
 *
 * A container shares its host's kernel. This library, named in /etc/ld.so.preload, replaces release and version by the
 * two lines of /run/lab/uname; without that file the true answer passes through. Machine, node name and the rest stay true.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

static void copy_line(char *to, size_t size, const char *from, size_t length)
{
    if (length >= size)
        length = size - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

int uname(struct utsname *answer)
{
    long rc = syscall(SYS_uname, answer);
    if (rc != 0)
        return (int)rc;

    int fd = open("/run/lab/uname", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char text[512];
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';

    const char *end = strchr(text, '\n');
    if (end == NULL)
        return 0;
    copy_line(answer->release, sizeof answer->release, text, (size_t)(end - text));
    const char *version = end + 1;
    const char *last = strchr(version, '\n');
    if (last != NULL)
        copy_line(answer->version, sizeof answer->version, version, (size_t)(last - version));
    return 0;
}
