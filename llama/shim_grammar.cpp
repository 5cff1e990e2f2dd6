// Turning a JSON Schema into a grammar, with llama.cpp's conversion.
#include "shim_internal.h"

#include <cstdlib>
#include <cstring>

#ifdef MESHNET_LLAMA_COMMON
#    include <json-schema-to-grammar.h>
#endif

char * mn_schema_to_grammar(const char * schema, mn_error * err) {
#ifdef MESHNET_LLAMA_COMMON
    return mn_guard(err, "JSON schema", (char *) nullptr, [&] {
        const std::string grammar = json_schema_to_grammar(common_json::parse(schema), true);
        return strdup(grammar.c_str());
    });
#else
    mn_fail(err, "JSON schema", "the llama.cpp that is linked came without its common library");
    return nullptr;
#endif
}
