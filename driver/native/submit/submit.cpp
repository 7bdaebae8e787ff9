// What every submission of the Python driver does with its ring and its fence: sections 8 and 10.1 of
// docs/interface.md. driver/submit_calls.py loads it; without it the driver does the same in Python.
//
// Built-in functions of Python, as a call through ctypes takes longer than a round trip. They need only
// functions of its stable interface, which are declared here: so building needs no headers of Python, and one
// library serves every version.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "interface/schema.hpp"
#include "interface/words.hpp"

struct PyObject;
struct PyThreadState;
using Py_ssize_t = std::ptrdiff_t;

extern "C" {
struct PyMethodDef {
    const char* name;
    PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t);
    int flags;
    const char* doc;
};
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject* self, PyObject* module);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyBool_FromLong(long);
PyObject* PyErr_Occurred();
void PyErr_SetString(PyObject*, const char*);
int PyErr_CheckSignals();
extern PyObject* PyExc_TypeError;
PyThreadState* PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState*);
}

namespace softnpu {

namespace {

namespace fence = schema::fence_record;
namespace ring = schema::ring_header;

constexpr int FASTCALL = 0x80;  // METH_FASTCALL
constexpr uint64_t SHORT_NS = 5000000;
constexpr int CHECKS = 32;  // between two readings of the clock

// The arguments of a call: integers, all of them 64 bits wide and not negative.
template <Py_ssize_t COUNT>
class Arguments {
public:
    // Whether they are what the function takes; else Python's error is set.
    bool read(PyObject* const* given, Py_ssize_t count) {
        if (count != COUNT) {
            PyErr_SetString(PyExc_TypeError, "softnpu: another number of arguments than this function has");
            return false;
        }
        for (Py_ssize_t index = 0; index < COUNT; ++index)
            values_[index] = PyLong_AsUnsignedLongLong(given[index]);
        return PyErr_Occurred() == nullptr;
    }
    uint64_t operator[](size_t index) const { return values_[index]; }
    uint8_t* address(size_t index) const { return reinterpret_cast<uint8_t*>(values_[index]); }

private:
    uint64_t values_[COUNT];
};

uint64_t now_ns() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<uint64_t>(at.tv_sec) * 1000000000 + static_cast<uint64_t>(at.tv_nsec);
}

// submit(ring, slots, sequence, buffer, size, fence, fence_offset, ticket, record, doorbell): arms the fence
// with its record at that address, if any, publishes the submission, and rings the doorbell if the engine
// sleeps; whether that has failed. In one call: no signal handler of Python comes in between.
PyObject* submit(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments<10> arguments;
    if (!arguments.read(given, count)) return nullptr;
    uint8_t* const at = arguments.address(0);
    schema::Slot slot{};
    slot.sequence = arguments[2];
    slot.buffer = arguments[3];
    slot.size = static_cast<uint32_t>(arguments[4]);
    slot.fence = arguments[5];
    slot.fence_offset = arguments[6];
    slot.ticket = arguments[7];
    std::memcpy(at + ring::SIZE + ((slot.sequence - 1) & (arguments[1] - 1)) * sizeof slot, &slot,
                sizeof slot);
    if (arguments[8] != 0) store64(arguments.address(8) + fence::ARMED, slot.ticket);
    store32(at + ring::DRIVER_CORE, this_core());
    store64(at + ring::TAIL, slot.sequence);
    // the tail is stored before `asleep` is read; the engine stores `asleep` before it reads the tail
    full_fence();
    return PyBool_FromLong(load32(at + ring::ASLEEP) != 0 &&
                           eventfd_write(static_cast<int>(arguments[9]), 1) != 0);
}

// poll(fence, ticket, ring, sequence, limit_ns): 1 if the fence has the ticket or so many have ended, 2 if
// polling is in vain, 0 if neither was so within that time. Keeps the interpreter, as a loop in Python would:
// the caller bounds the time.
PyObject* poll(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments<5> arguments;
    if (!arguments.read(given, count)) return nullptr;
    const uint8_t* const signalled = arguments.address(0) + fence::SIGNALLED;
    const uint8_t* const completed = arguments.address(2) + ring::COMPLETED;
    const uint8_t* const core = arguments.address(2) + ring::ENGINE_CORE;
    const auto is_over = [&] {
        return load64(signalled) == arguments[1] || load64(completed) >= arguments[3];
    };
    if (is_over()) return PyLong_FromLong(1);
    for (const uint64_t end = now_ns() + arguments[4]; arguments[4] != 0;) {
        for (int check = 0; check < CHECKS; ++check) {
            const bool waits = pause_for(core);
            if (is_over()) return PyLong_FromLong(1);
            if (!waits) return PyLong_FromLong(2);
        }
        if (now_ns() >= end) break;
    }
    return PyLong_FromLong(0);
}

// Whether the daemon has closed its end of a connection.
bool is_gone(uint64_t socket) {
    pollfd entry{static_cast<int>(socket), POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) != 0;
}

// sleep(fence, ticket, ring, sequence, timeout_ns, slice_ns, count_address, count, socket, life): until
// something signals the fence, or one of the `OtherEnds` comes; the caller checks again. Between two slices
// it sees to signals of the process, and returns if so many have ended, the count has changed, or the daemon
// is gone. Waking up in Python for that takes 55 us instead of 20, which the device feels if many clients
// wait.
PyObject* sleep(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments<10> arguments;
    if (!arguments.read(given, count)) return nullptr;
    uint8_t* const at = arguments.address(0);
    const OtherEnds others{arguments.address(9), static_cast<int>(arguments[8]), arguments.address(6),
                           static_cast<uint32_t>(arguments[7])};
    // if the last wait was short: one word costs half a microsecond less, of ten, than three
    static bool is_short = true;  // guarded by the interpreter
    bool is_soon = std::exchange(is_short, false);
    const uint64_t begin = now_ns(), end = begin + arguments[4];
    for (uint64_t now = begin; now < end; now = now_ns(), is_soon = false) {
        const uint64_t slice = std::min(end - now, arguments[5]);
        store32(at + fence::WAITERS, 1);
        full_fence();
        const uint64_t signalled = load64(at + fence::SIGNALLED);
        if (signalled == arguments[1]) break;
        // of a fence that another thread has armed again this one's ticket may never be seen
        if (load64(arguments.address(2) + ring::COMPLETED) >= arguments[3]) break;
        // an earlier signal may have cleared the mark
        if (load32(at + fence::WAITERS) == 0) store32(at + fence::WAITERS, 1);
        PyThreadState* const state = PyEval_SaveThread();
        const bool is_woken = futex_wait(at + fence::SIGNALLED, static_cast<uint32_t>(signalled), slice,
                                         is_soon ? OtherEnds{} : others);
        PyEval_RestoreThread(state);
        if (is_woken) break;
        if (PyErr_CheckSignals() != 0) return nullptr;
        // with an unchanged count, and the interpreter, ring and socket are still those of the caller
        if (load64(arguments.address(6)) != arguments[7] || is_gone(arguments[8])) break;
    }
    is_short = now_ns() - begin < SHORT_NS;
    return PyBool_FromLong(0);
}

PyMethodDef functions[] = {
    {"submit", submit, FASTCALL, nullptr},
    {"poll", poll, FASTCALL, nullptr},
    {"sleep", sleep, FASTCALL, nullptr},
};

}  // namespace

}  // namespace softnpu

extern "C" {
// The number of `VERSION` in submit_calls.py.
int softnpu_submit_version() { return 5; }

// A function of Python, by its place in `_NAMES` of submit_calls.py.
PyObject* softnpu_submit_function(unsigned index) {
    return PyCFunction_NewEx(&softnpu::functions[index], nullptr, nullptr);
}
}
