// Rendering conversations by a model's own chat template, with llama.cpp's template engine.
#include "shim_internal.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>

#ifdef MESHNET_LLAMA_COMMON

// Headers with functions of their own that we do not call.
#    pragma GCC diagnostic ignored "-Wunused-function"
#    include <jinja/caps.h>
#    include <jinja/lexer.h>
#    include <jinja/parser.h>
#    include <jinja/runtime.h>
#    include <json.h>

struct mn_chat {
    std::string    source;
    jinja::program program;
    jinja::caps    caps;
};

namespace {

// Roles come from a closed set. As a template's own text they may be part of a control token: '<|' + role + '|>'.
void trust_role(jinja::value & message) {
    for (auto & part : message->at("role")->val_str.parts) {
        part.is_input = false;
    }
}

void render(const mn_chat * chat, const mn_chat_input * in, mn_text * out) {
    jinja::context ctx(chat->source);
    ctx.current_time = (std::time_t) in->now;
    jinja::global_from_json(ctx, common_json::parse(std::string(in->conversation, in->conversation_len)), true);
    jinja::global_from_json(ctx, common_json{
        { "bos_token", std::string(in->bos) },
        { "eos_token", std::string(in->eos) },
        { "add_generation_prompt", true },
    }, false);
    auto messages = ctx.get_val("messages");
    for (size_t i = 0; i < messages->as_array().size(); ++i) {
        trust_role(messages->at((int64_t) i));
    }
    jinja::runtime runtime(ctx);
    const auto     parts = jinja::runtime::gather_string_parts(runtime.execute(chat->program));

    size_t size = 0;
    for (const auto & part : parts->val_str.parts) {
        size += part.val.size();
    }
    if (size > in->limit_bytes) {
        throw std::runtime_error("it makes a text of " + std::to_string(size) + " bytes of them; the limit is " +
                                 std::to_string(in->limit_bytes));
    }
    out->bytes = (char *) malloc(size + 1);
    out->input = (bool *) malloc(size + 1);
    if (out->bytes == nullptr || out->input == nullptr) {
        throw std::bad_alloc();
    }
    for (const auto & part : parts->val_str.parts) {
        memcpy(out->bytes + out->len, part.val.data(), part.val.size());
        memset(out->input + out->len, part.is_input, part.val.size());
        out->len += part.val.size();
    }
}

// The engine says where it failed as well, over several lines; the last one says why.
std::string reason(const std::string & what) {
    static const std::string mark = "Error: ";
    const size_t             at   = what.rfind(mark);
    return at == std::string::npos ? what : what.substr(at + mark.size());
}

// A template is parsed and run by recursion: it gets a stack of its own.
constexpr size_t template_stack = (size_t) 64 << 20;

bool on_template_stack(void * (*run)(void *), void * arg) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_t  thread;
    const bool started = pthread_attr_setstacksize(&attr, template_stack) == 0 && pthread_create(&thread, &attr, run, arg) == 0;
    pthread_attr_destroy(&attr);
    if (started) {
        pthread_join(thread, nullptr);
    }
    return started;
}

template <typename F> bool run_template(mn_error * err, F && body) {
    struct call {
        F &         body;
        bool        done;
        std::string why;
    } c{ body, false, {} };
    const auto run = [](void * arg) -> void * {
        auto * c = (call *) arg;
        try {
            c->body();
            c->done = true;
        } catch (const std::exception & e) {
            c->why = reason(e.what());
        } catch (...) {
            c->why = "unknown exception";
        }
        return nullptr;
    };
    if (!on_template_stack(run, &c)) {
        c.why = "no memory for its stack";
    }
    if (!c.done) {
        mn_fail(err, "chat template", c.why);
    }
    return c.done;
}

}  // namespace

bool mn_has_common(void) {
    return true;
}

mn_chat * mn_chat_new(const char * source, mn_error * err) {
    mn_chat * chat = nullptr;
    if (run_template(err, [&] {
            chat         = new mn_chat();
            chat->source = source;
            jinja::lexer lexer;
            const auto   tokens = lexer.tokenize(chat->source);
            chat->source  = tokens.source;
            chat->program = jinja::parse_from_tokens(tokens);
            chat->caps    = jinja::caps_get(chat->program);
        })) {
        return chat;
    }
    delete chat;
    return nullptr;
}

void mn_chat_free(mn_chat * chat) {
    delete chat;
}

void mn_chat_facts_get(const mn_chat * chat, mn_chat_facts * out) {
    out->system_role      = chat->caps.supports_system_role;
    out->only_parts       = chat->caps.supports_typed_content && !chat->caps.supports_string_content;
    out->tools            = chat->caps.supports_tools;
    out->tool_calls       = chat->caps.supports_tool_calls;
    out->object_arguments = chat->caps.supports_object_arguments;
}

bool mn_chat_render(const mn_chat * chat, const mn_chat_input * in, mn_text * out, mn_error * err) {
    *out = mn_text{};
    if (run_template(err, [&] { render(chat, in, out); })) {
        return true;
    }
    mn_text_free(out);
    return false;
}

#else  // MESHNET_LLAMA_COMMON

bool mn_has_common(void) {
    return false;
}

mn_chat * mn_chat_new(const char *, mn_error * err) {
    mn_fail(err, "chat template", "the llama.cpp that is linked came without its common library");
    return nullptr;
}

void mn_chat_free(mn_chat *) {}

void mn_chat_facts_get(const mn_chat *, mn_chat_facts * out) {
    *out = mn_chat_facts{};
}

bool mn_chat_render(const mn_chat *, const mn_chat_input *, mn_text * out, mn_error *) {
    *out = mn_text{};
    return false;
}

#endif  // MESHNET_LLAMA_COMMON

void mn_text_free(mn_text * text) {
    free(text->bytes);
    free(text->input);
    *text = mn_text{};
}

int32_t mn_control_text(const mn_model * m, int32_t token, char * out, int32_t out_size) {
    if ((llama_vocab_get_attr(m->vocab, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) == 0) {
        return 0;
    }
    const char *  text = llama_vocab_get_text(m->vocab, token);
    const int32_t len  = (int32_t) strlen(text);
    if (len > out_size) {
        return -len;
    }
    memcpy(out, text, (size_t) len);
    return len;
}

bool mn_space_before_text(const mn_model * m) {
    return llama_vocab_type(m->vocab) == LLAMA_VOCAB_TYPE_SPM;
}
