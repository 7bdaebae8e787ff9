// What a model that has taken over a process would try: a library that does so as soon as it is loaded.
// The file `target` beside it names another process; each line on stderr tells of one attempt.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[4096];

static const char *beside(const char *name) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void tell(const char *what, int worked) {
    char line[200];
    const int length = snprintf(line, sizeof line, "foreign code: %s: %s\n", what, worked ? "WORKED" : "refused");
    if (write(2, line, (size_t)length) < 0) abort();
}

static int opened(const char *path, int flags) {
    const int fd = open(path, flags, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

__attribute__((constructor)) static void run(void) {
    Dl_info info;
    if (!dladdr((void *)run, &info)) abort();
    strncpy(folder, info.dli_fname, sizeof folder - 1);
    *strrchr(folder, '/') = 0;
    FILE *const file = fopen(beside("target"), "r");
    int target = 0;
    if (!file || fscanf(file, "%d", &target) != 1) abort();
    fclose(file);
    char memory[64];
    snprintf(memory, sizeof memory, "/proc/%d/mem", target);

    tell("create a file", opened(beside("new"), O_WRONLY | O_CREAT));
    tell("write a file", opened(beside("target"), O_WRONLY));
    tell("remove a file", unlink(beside("victim")) == 0);
    tell("rename a file", rename(beside("victim"), beside("other")) == 0);
    tell("change rights", chmod(beside("victim"), 0777) == 0);
    tell("truncate a file", truncate(beside("victim"), 0) == 0);
    tell("read a file of the user", opened(beside("../secret"), O_RDONLY));
    const int sock = socket(AF_INET, SOCK_STREAM, 0);
    tell("open a socket", sock >= 0);
    const pid_t child = fork();
    if (child == 0) _exit(0);
    tell("start a process", child > 0);
    char *const words[] = {"/bin/true", NULL};
    execve(words[0], words, NULL);
    tell("start a program", 0);
    tell("trace a process", ptrace(PTRACE_SEIZE, target, NULL, NULL) == 0);
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)&run, 1};
    tell("read another's memory", process_vm_readv(target, &here, 1, &there, 1, 0) == 1);
    tell("open another's memory", opened(memory, O_RDONLY));
    tell("signal a process", kill(target, SIGCONT) == 0);
    tell("signal all processes", kill(-1, 0) == 0);
    const int pidfd = (int)syscall(SYS_pidfd_open, target, 0);
    tell("take a descriptor", pidfd >= 0 && syscall(SYS_pidfd_getfd, pidfd, 0, 0) >= 0);
    struct rlimit limit;
    tell("limit a process", syscall(SYS_prlimit64, target, RLIMIT_CPU, NULL, &limit) == 0);
    tell("share memory by name", syscall(SYS_shmget, 4711, 4096, 0600 | 01000) >= 0);
    tell("use io_uring", syscall(SYS_io_uring_setup, 1, NULL) >= 0 || (errno != EPERM && errno != ENOSYS));
    tell("enter a namespace", syscall(SYS_unshare, 0x10000000) == 0);
    tell("the end", 0);
}
