/* A camera without softnpu: it writes frames into shared memory, at the pace of its consumer.
 *
 *     cc -O2 camera.c -o camera -lrt -pthread && ./camera NAME
 *
 * The layout is that of layout.py. */
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { SLOTS = 4, PIXELS = 64, VARIANTS = 64, WRITTEN = 0, INFERRED = 8, CONSUMED = 16, PAGE = 4096 };

static void check(int failed, const char *what) {
    if (!failed) return;
    perror(what);
    exit(1);
}

static sem_t *semaphore(const char *name, const char *suffix) {
    char full[256];
    snprintf(full, sizeof full, "%s-%s", name, suffix);
    sem_t *opened = sem_open(full, 0);
    check(opened == SEM_FAILED, full);
    return opened;
}

static void expose(float *frame, uint64_t sequence) {
    for (int pixel = 0; pixel < PIXELS; pixel++)
        frame[pixel] = (float)((sequence % VARIANTS * 37 + (uint64_t)pixel * 11) % 17) / 16.0f;
}

int main(int count, char **words) {
    check(count != 2, "usage: camera NAME");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = shm_open(words[1], O_CREAT | O_RDWR, 0600);
    check(fd < 0, words[1]);
    /* the same size each time: mapped memory is never truncated */
    check(ftruncate(fd, PAGE + SLOTS * PAGE) != 0, "ftruncate");
    char *memory = mmap(NULL, PAGE + SLOTS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(memory == MAP_FAILED, "mmap");
    _Atomic uint64_t *counters = (_Atomic uint64_t *)memory;
    sem_t *slots = semaphore(words[1], "free"), *frames = semaphore(words[1], "frames");

    sem_post(frames); /* an earlier camera may have been killed before posting */
    for (;;) {
        /* trust the counters, not the semaphore: a killed camera may have consumed a post */
        while (counters[WRITTEN] - counters[CONSUMED] < SLOTS) {
            const uint64_t sequence = counters[WRITTEN];
            expose((float *)(memory + PAGE + sequence % SLOTS * PAGE), sequence);
            counters[WRITTEN] = sequence + 1;
            check(sem_post(frames) != 0, "sem_post");
        }
        sem_wait(slots);
    }
}
