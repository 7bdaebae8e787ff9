// The attempts of a model that has taken over a process: a library that makes them as soon as it is loaded.
// The file `target` beside it names another process; each line on stderr reports one attempt.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
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

static int is_allowed(long result) { return result >= 0 || (errno != EPERM && errno != ENOSYS); }

#ifdef __x86_64__
// getpid as called by 32-bit and x32 programs
static long call_of_i386(void) {
    long result = 20;
    __asm__ volatile("int $0x80" : "+a"(result) : : "r8", "r9", "r10", "r11", "memory");
    return result;
}
#endif

static void reach(pid_t target) {
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    tell("choose the cores of a process", sched_setaffinity(target, sizeof cores, &cores) == 0);
    tell("choose its own cores", sched_setaffinity(0, sizeof cores, &cores) != 0);  // a library may
    struct sched_param param = {0};
    tell("choose the scheduler of a process", is_allowed(sched_setscheduler(target, SCHED_OTHER, &param)));
    tell("choose the priority of a process", is_allowed(setpriority(PRIO_PROCESS, (id_t)target, 1)));
    tell("choose the disk priority of a process", is_allowed(syscall(SYS_ioprio_set, 1, target, 0)));
    tell("share the cores of a process", is_allowed(prctl(62, 1, target, 0, 0)));
    tell("signal a thread", is_allowed(syscall(SYS_tgkill, target, target, SIGCONT)));
    siginfo_t info = {.si_code = -1};
    tell("queue a signal", is_allowed(syscall(SYS_rt_sigqueueinfo, target, SIGCONT, &info)));
    tell("hold a process", is_allowed(syscall(SYS_pidfd_open, target, 0)));
    void *list = NULL;
    size_t size = 0;
    tell("learn the locks of a process", is_allowed(syscall(SYS_get_robust_list, target, &list, &size)));
    tell("move the pages of a process", is_allowed(syscall(SYS_move_pages, target, 0, NULL, NULL, NULL, 0)));
}

static void reach_kernel(void) {
    char space[128] = {0};
    tell("handle page faults", is_allowed(syscall(SYS_userfaultfd, 1)));
    tell("load a program into the kernel", is_allowed(syscall(SYS_bpf, 0, space, sizeof space)));
    tell("measure the machine", is_allowed(syscall(SYS_perf_event_open, space, 0, -1, -1, 0)));
    tell("read keys", is_allowed(syscall(SYS_keyctl, 0, -4, 0)));
    tell("hide memory", is_allowed(syscall(447, 0)));
    tell("filter calls", is_allowed(syscall(SYS_seccomp, 2, 0, space)));
    tell("be another system", is_allowed(syscall(SYS_personality, 0xffffffff)));
    tell("make everybody wait for disks", is_allowed(syscall(SYS_syncfs, -1)));
    const int file = open(beside("target"), O_RDONLY);
    int flags = 0;
    if (file < 0) abort();
    tell("keep others from writing a file", is_allowed(fcntl(file, F_SETLEASE, F_RDLCK)));
    tell("be told of a directory", is_allowed(fcntl(file, F_NOTIFY, 1)));
    tell("change a file's attributes", is_allowed(ioctl(file, 0x40086602, &flags)));  // FS_IOC_SETFLAGS
    close(file);
#ifdef __x86_64__
    const long result = call_of_i386();
    tell("call as a program of 32 bits", result >= 0);
    tell("call as a program of x32", is_allowed(syscall(0x40000000L | SYS_getpid)));
#endif
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
    reach(target);
    reach_kernel();
    tell("enter a namespace", syscall(SYS_unshare, 0x10000000) == 0);
    tell("the end", 0);
}
