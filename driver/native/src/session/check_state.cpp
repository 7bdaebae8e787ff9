#include "session/check_state.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/environment.hpp"
#include "base/error_info.hpp"

namespace softnpu::check {

Notes* notes = nullptr;
std::atomic<const std::string*> noted_in{nullptr};

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (letter == '"' || letter == '\\') out += '\\';
        if (byte < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
            out += escaped;
        } else {
            out += letter;
        }
    }
    return out + '"';
}

void Line::write() {
    text_ += "}\n";
    size_t done = 0;
    while (done < text_.size()) {
        const ssize_t written = ::write(notes->file, text_.data() + done, text_.size() - done);
        if (written <= 0) {
            notes->file = -1;  // a cut line is the last one
            log_once("softnpu check: what follows is not checked: " + std::string(std::strerror(errno)));
            return;
        }
        done += static_cast<size_t>(written);
    }
}

namespace {

constexpr int FRAMES = 24, SHOWN = 12;

// ---------------------------------------------------------------- places in the program

// The Python frames of this thread, innermost first, if it runs Python. Called with the lock.
void add_python_frames(std::vector<std::string>& frames) {
    if (notes->get_thread == nullptr || notes->dump_frames == nullptr) return;
    void* const thread = notes->get_thread();
    if (thread == nullptr) return;
    const int file = notes->frames;
    if (file < 0 || ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0) return;
    notes->dump_frames(file, thread);
    char text[8192];
    const ssize_t size = pread(file, text, sizeof text - 1, 0);
    if (size <= 0) return;
    text[size] = '\0';
    for (char* line = std::strtok(text, "\n"); line != nullptr; line = std::strtok(nullptr, "\n")) {
        char* const name = std::strstr(line, "File \"");
        char* const number = std::strstr(line, "\", line ");
        char* const function = number == nullptr ? nullptr : std::strstr(number, " in ");
        if (name == nullptr || function == nullptr) continue;
        const std::string place(name + 6, static_cast<size_t>(number - name - 6));
        const std::string at(number + 8, static_cast<size_t>(function - number - 8));
        frames.push_back(place + ":" + at + " " + (function + 4));
        if (frames.size() == SHOWN) return;
    }
}

// The frames outside of this library: module, offset, and the nearest exported name.
void add_native_frames(std::vector<std::string>& frames) {
    void* addresses[FRAMES];
    const int count = backtrace(addresses, FRAMES);
    Dl_info ours{};
    dladdr(reinterpret_cast<void*>(&add_native_frames), &ours);
    for (int index = 0; index < count && frames.size() < SHOWN; ++index) {
        Dl_info info{};
        auto* const address = static_cast<char*>(addresses[index]) - 1;
        if (dladdr(address, &info) == 0 || info.dli_fbase == ours.dli_fbase) continue;
        char offset[32];
        std::snprintf(offset, sizeof offset, "+0x%zx ",
                      static_cast<size_t>(address - static_cast<char*>(info.dli_fbase)));
        std::string name = "?";
        if (info.dli_sname != nullptr) {
            int status = 0;
            char* const readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
            name = readable == nullptr ? info.dli_sname : readable;
            std::free(readable);
        }
        frames.push_back(std::string(info.dli_fname == nullptr ? "?" : info.dli_fname) + offset + name);
    }
}

}  // namespace

uint32_t site() {
    std::vector<std::string> frames;
    add_python_frames(frames);
    add_native_frames(frames);
    std::string list;
    for (const auto& frame : frames) list += (list.empty() ? "" : ",") + quoted(frame);
    const auto [known, is_new] = notes->sites.emplace(list, static_cast<uint32_t>(notes->sites.size() + 1));
    if (is_new) Line("site").put("site", known->second).raw("frames", "[" + list + "]").write();
    return known->second;
}

namespace {

// Called with the lock. Throws why there is no file.
int open_file(const std::string& role, const std::string& name) {
    const std::string path = notes->folder + "/" + role + "-" + name;
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) throw out_of_host_memory(path, errno_text(errno), "a file for notes");
    return file;
}

}  // namespace

void change_folder(const std::string& folder) {
    for (auto& [queue, flight] : notes->in_flight) allow(queue, UINT64_MAX);
    if (notes->file >= 0) close(notes->file);
    notes->file = -1;
    notes->sites.clear();
    notes->tails.clear();
    notes->rewaits.clear();
    notes->folder = folder;
    noted_in = folder.empty() ? nullptr : new std::string(folder);  // the one before may be read
    if (folder.empty()) return;
    // pids are used again
    const std::string key = std::to_string(getpid()) + "-" + std::to_string(now_ns()) + "n";
    const int touched = open_file("touched", key + ".txt");
    notes->file = open_file("client", key + ".jsonl");
    softnpu_watch_install(touched, notes->get_thread, notes->dump_frames);
    const int mode = softnpu_watch_gate((folder + "/gate").c_str());
    notes->asks = mode == 't';
    if (mode == 'p')
        log_once("softnpu check: pdb stops programs of the Python driver; --debugger gdb stops this one");
}

void ask() noexcept {
    if (notes != nullptr && notes->asks && softnpu_watch_ask() != 0) raise(SIGTRAP);
}

uint64_t number_of(const Object& object) {
    const uint64_t own = object.noted().number;
    if (own != 0) return own;
    const auto [known, is_new] = notes->numbers.emplace(&object, notes->last + 1);
    if (is_new) ++notes->last;
    return known->second;
}

void start() {
    if (notes != nullptr) return;
    auto* const made = new Notes;
    void* warm[2];
    backtrace(warm, 2);
    made->get_thread = reinterpret_cast<GetThread>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
    made->dump_frames = reinterpret_cast<DumpFrames>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
    if (made->get_thread != nullptr) made->frames = memfd_create("softnpu-frames", MFD_CLOEXEC);
    notes = made;
    std::atexit([] { noting([] { Line("exit").write(); }); });
}

}  // namespace softnpu::check
