#include "session/runtime.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include "base/fd.hpp"
#include "session/check.hpp"
#include "session/trace.hpp"

namespace softnpu {

namespace {

std::atomic<Runtime*> current{nullptr};

void start_in_child() {
    close_session_fds_in_child();
    trace::forget_in_child();
    check::forget_in_child();
    Runtime* const parent = current.load();
    // the parent's runtime stays as it is: its locks may be held by threads that do not exist here
    auto* const made = new Runtime(static_cast<uint8_t>(parent->epoch + 1));
    made->handles.on_foreign = check::foreign_handle;
    current.store(made);
}

Runtime* first_runtime() {
    auto* const made = new Runtime(0);
    current.store(made);
    pthread_atfork(lock_session_fds, unlock_session_fds, start_in_child);
    return made;
}

// The loader's number of a kind of handle.
int loader_kind(Kind kind) {
    switch (kind) {
        case Kind::driver: return 0;
        case Kind::device: return 1;
        case Kind::context: return 2;
        case Kind::command_queue: return 3;
        case Kind::command_list: return 4;
        case Kind::fence: return 5;
        case Kind::event_pool: return 6;
        case Kind::event: return 7;
        default: return -1;
    }
}

uint64_t unwrapped(Kind kind, uint64_t handle) {
    using Translate = ze_result_t (*)(int, void*, void**);
    const int number = loader_kind(kind);
    if (number < 0) return handle;
    void* const loader = dlopen("libze_loader.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (loader == nullptr) return handle;
    const auto translate = reinterpret_cast<Translate>(dlsym(loader, "zelLoaderTranslateHandle"));
    void* original = nullptr;
    if (translate != nullptr &&
        translate(number, reinterpret_cast<void*>(handle), &original) == ZE_RESULT_SUCCESS &&
        original != nullptr) {
        handle = reinterpret_cast<uint64_t>(original);
    }
    dlclose(loader);
    return handle;
}

}  // namespace

Runtime& runtime() {
    static Runtime* const first = first_runtime();
    (void)first;
    return *current.load(std::memory_order_acquire);
}

std::shared_ptr<Object> find_object(Kind kind, uint64_t handle) {
    if (handle != 0 && !HandleTable::is_ours(handle)) handle = unwrapped(kind, handle);
    return runtime().handles.get(kind, handle);
}

}  // namespace softnpu
