/* Copyright: aiinfra.gpu_node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stand-in for nvidia-persistenced: needs a loaded driver, forks into the background, keeps /run/nvidia-persistenced/ with
 * its pid file, and switches persistence_mode of all GPUs in the state file on (off with --no-persistence-mode). When it is
 * told to end, it switches it off. With --user it goes on as that user and comes back to root only to write the state. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "../nvml/state.h"

static const char *run_directory(void)
{
    const char *path = getenv("SIMGPU_RUN");
    return path && *path ? path : "/run/nvidia-persistenced";
}

static void say(int level, const char *text, unsigned number)
{
    char line[512];

    snprintf(line, sizeof line, text, number);
    syslog(level, "%s", line);
    if (level <= LOG_ERR)
        fprintf(stderr, "nvidia-persistenced: %s\n", line);
}

static int give_up(const char *text, unsigned number)
{
    say(LOG_ERR, text, number);
    fprintf(stderr, "nvidia-persistenced failed to initialize. Check syslog for more details.\n");
    return 1;
}

static int usage(FILE *out)
{
    fprintf(out,
            "nvidia-persistenced (lab stand-in): keeps the simulated GPUs in persistence mode\n\n"
            "    -u, --user=NAME               go on as this user\n"
            "    -g, --group=NAME              go on as this group\n"
            "        --persistence-mode        persistence on (the default)\n"
            "        --no-persistence-mode     persistence off\n"
            "        --uvm-persistence-mode    accepted, changes nothing\n"
            "    -V, --verbose                 more in the log\n"
            "        --nvidia-cfg-path=DIR     accepted, changes nothing\n"
            "    -v, --version                 print the version and end\n");
    return out == stdout ? 0 : 1;
}

/* The parent waits for the child to be ready: the exit code of the command says whether the daemon runs. */
static void to_background(int *ready_pipe)
{
    pid_t child;
    char ok = 0;

    if (pipe2(ready_pipe, O_CLOEXEC))
        exit(give_up("Failed to create init pipe", 0));
    child = fork();
    if (child < 0)
        exit(give_up("Failed to fork() daemon", 0));
    if (child > 0) {
        close(ready_pipe[1]);
        exit(read(ready_pipe[0], &ok, 1) == 1 ? 0 : 1);
    }
    close(ready_pipe[0]);
    setsid();
}

static int write_pid(void)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof path, "%s/nvidia-persistenced.pid", run_directory());
    file = fopen(path, "we");
    if (!file)
        return -1;
    fprintf(file, "%d\n", (int)getpid());
    return fclose(file);
}

int main(int argc, char **argv)
{
    enum { ON = 256, OFF, IGNORED, PATH };
    static const struct option options[] = {
        { "user", required_argument, NULL, 'u' }, { "group", required_argument, NULL, 'g' },
        { "persistence-mode", no_argument, NULL, ON }, { "no-persistence-mode", no_argument, NULL, OFF },
        { "uvm-persistence-mode", no_argument, NULL, IGNORED }, { "no-uvm-persistence-mode", no_argument, NULL, IGNORED },
        { "verbose", no_argument, NULL, 'V' }, { "no-verbose", no_argument, NULL, IGNORED },
        { "nvidia-cfg-path", required_argument, NULL, PATH }, { "version", no_argument, NULL, 'v' },
        { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
    };
    const char *user = NULL, *group = NULL;
    char module[64], path[PATH_MAX];
    int option, persistence = 1, ready_pipe[2], null;
    uid_t uid = 0;
    gid_t gid = 0;
    sigset_t signals;

    while ((option = getopt_long(argc, argv, "u:g:Vvh", options, NULL)) != -1) {
        switch (option) {
        case 'u': user = optarg; break;
        case 'g': group = optarg; break;
        case ON: persistence = 1; break;
        case OFF: persistence = 0; break;
        case 'V': case IGNORED: case PATH: break;
        case 'v': printf("nvidia-persistenced:  version %s (lab stand-in)\n", DRIVER_VERSION); return 0;
        case 'h': return usage(stdout);
        default:
            fprintf(stderr, "Invalid commandline, please run `%s --help` for usage information.\n", argv[0]);
            return 1;
        }
    }
    openlog("nvidia-persistenced", LOG_PID, LOG_DAEMON);
    if (user) {
        struct passwd *entry = getpwnam(user);
        if (!entry)
            return give_up("Failed to find user ID of the user given by --user", 0);
        uid = entry->pw_uid;
        gid = entry->pw_gid;
    }
    if (group) {
        struct group *entry = getgrnam(group);
        if (!entry)
            return give_up("Failed to find group ID of the group given by --group", 0);
        gid = entry->gr_gid;
    }
    if (mkdir(run_directory(), 0755) && errno != EEXIST)
        return give_up("Failed to create the runtime directory", 0);
    if ((uid || gid) && chown(run_directory(), uid, gid))
        return give_up("Failed to change ownership of the runtime directory", 0);

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    to_background(ready_pipe);
    if (write_pid())
        return give_up("Failed to update PID file", 0);
    if (gid && (setgroups(0, NULL) || setegid(gid)))
        return give_up("Failed to set group ID", 0);
    if (uid && seteuid(uid))
        return give_up("Failed to set user ID", 0);
    if (uid)
        say(LOG_NOTICE, "Now running with user ID %u", (unsigned)uid);
    if (simgpu_module_version(module, sizeof module) <= 0)
        return give_up("Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, and "
                       "that user %u has read and write permissions for those files.", (unsigned)uid);
    if (uid && seteuid(0))
        return give_up("Failed to set user ID", 0);
    if (simgpu_write_all("persistence_mode", persistence))
        return give_up("Failed to write the state of the simulated GPUs", 0);
    if (uid && seteuid(uid))
        return give_up("Failed to set user ID", 0);
    say(LOG_NOTICE, persistence ? "persistence mode enabled." : "persistence mode disabled.", 0);

    null = open("/dev/null", O_RDWR);
    if (null < 0 || chdir("/") || write(ready_pipe[1], "1", 1) != 1)
        return give_up("Failed to write init pipe", 0);
    close(ready_pipe[1]);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);

    sigwait(&signals, &option);
    if ((uid && seteuid(0)) || simgpu_write_all("persistence_mode", 0))
        say(LOG_WARNING, "Failed to switch persistence mode off", 0);
    snprintf(path, sizeof path, "%s/nvidia-persistenced.pid", run_directory());
    unlink(path);
    say(LOG_NOTICE, "Shutdown complete", 0);
    return 0;
}
