// Process-wide state: compute backends and the log.
#include "shim_internal.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

extern "C" void meshnetLlamaLog(int level, char * text);  // in log.go

namespace {

std::mutex              log_mutex;
std::string             log_line;             // an unfinished line, continued by later calls
int                     log_line_level = 0;
std::deque<std::string> log_problems;         // newest warnings and errors
std::string             log_all;              // all lines since mn_log_forget, bounded
std::atomic<int>        log_threshold{4};

// While this thread computes, the flag that may abort it: what llama.cpp then reports as an error was asked for.
thread_local const std::atomic<bool> * log_abort_flag = nullptr;

constexpr size_t kept_problems = 6;
constexpr size_t kept_bytes    = 256 * 1024;

void on_log(ggml_log_level level, const char * text, void *) {
    std::string done;
    int         done_level = 0;
    {
        std::lock_guard<std::mutex> lock(log_mutex);
        if (level != GGML_LOG_LEVEL_CONT) {
            log_line_level = (int) level;
        }
        if (log_abort_flag != nullptr && log_abort_flag->load()) {
            log_line_level = GGML_LOG_LEVEL_DEBUG;
        }
        log_line += text;
        if (log_all.size() < kept_bytes) {
            log_all += text;
        }
        const size_t end = log_line.find('\n');
        if (end == std::string::npos) {
            return;
        }
        done       = log_line.substr(0, end);
        done_level = log_line_level;
        log_line.clear();
        if (done_level >= GGML_LOG_LEVEL_WARN) {
            log_problems.push_back(done);
            if (log_problems.size() > kept_problems) {
                log_problems.pop_front();
            }
        }
    }
    if (done_level >= log_threshold.load() && !done.empty()) {
        meshnetLlamaLog(done_level, &done[0]);
    }
}

// What llama.cpp calls when an assertion of its own fails, as it does on a model whose metadata contradict each other. Nothing can
// go on after it; without this the process would end in a core dump and pages of stack traces.
[[noreturn]] void on_assertion(const char * message) {
    fprintf(stderr, "llama.cpp gave up; the model is damaged or one that it does not support: %s\n", message);
    _exit(EXIT_FAILURE);
}

bool is_dir(const std::string & path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// The folder that the running llama.cpp library was loaded from.
std::string library_dir() {
    Dl_info info;
    if (dladdr((void *) &llama_backend_init, &info) == 0 || info.dli_fname == nullptr) {
        return "";
    }
    const std::string file = info.dli_fname;
    const size_t      cut  = file.rfind('/');
    return cut == std::string::npos ? "" : file.substr(0, cut);
}

bool has_cpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != nullptr;
}

bool load_backends(const char * dir, mn_error * err) {
    llama_log_set(on_log, nullptr);
    ggml_set_abort_callback(on_assertion);
    // Never the search of ggml's own default, which looks into the working directory.
    std::vector<std::string> tried;
    if (dir != nullptr) {
        tried.push_back(dir);
    } else if (!has_cpu()) {  // a library with its backends built in needs no search
        const std::string own = library_dir();
        tried                 = { own, own + "/ggml", own + "/ggml/backends" };
    }
    std::string places;
    for (const auto & path : tried) {
        if (!path.empty() && is_dir(path) && !has_cpu()) {
            ggml_backend_load_all_from_path(path.c_str());
        }
        places += (places.empty() ? "" : ", ") + path;
    }
    if (!has_cpu()) {
        mn_fail(err, "no CPU backend of llama.cpp found",
                "looked in " + places + "; set MESHNET_GGML_DIR to the folder with libggml-cpu*.so");
        return false;
    }
    llama_backend_init();
    return true;
}

}  // namespace

void mn_fail(mn_error * err, const char * what, const std::string & why) {
    if (err != nullptr) {
        snprintf(err->text, sizeof(err->text), "%s%s%s", what, why.empty() ? "" : ": ", why.c_str());
    }
}

void mn_log_aborts_by(const std::atomic<bool> * flag) {
    log_abort_flag = flag;
}

void mn_log_forget() {
    std::lock_guard<std::mutex> lock(log_mutex);
    log_problems.clear();
    log_all.clear();
}

std::string mn_log_recall() {
    std::lock_guard<std::mutex> lock(log_mutex);
    std::string                 out;
    for (const auto & line : log_problems) {
        out += (out.empty() ? "" : "; ") + line;
    }
    return out;
}

bool mn_log_saw(const char * text) {
    std::lock_guard<std::mutex> lock(log_mutex);
    return log_all.find(text) != std::string::npos;
}

bool mn_backends_load(const char * dir, mn_error * err) {
    return mn_guard(err, "loading backends", false, [&] { return load_backends(dir, err); });
}

void mn_log_level(int level) {
    log_threshold.store(level);
}

const char * mn_version(void) {
    return llama_version();
}

const char * mn_system_info(void) {
    return llama_print_system_info();
}

bool mn_device(size_t i, char * name, size_t name_size, char * description, size_t description_size) {
    if (i >= ggml_backend_dev_count()) {
        return false;
    }
    ggml_backend_dev_t dev = ggml_backend_dev_get(i);
    snprintf(name, name_size, "%s", ggml_backend_dev_name(dev));
    snprintf(description, description_size, "%s", ggml_backend_dev_description(dev));
    return true;
}
