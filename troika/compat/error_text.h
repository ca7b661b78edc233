// Errors of LibTorch, and their messages without the appended stack frames.
#pragma once

#include <exception>
#include <string>

namespace troika::compat {

// Returns what(). For an error of LibTorch, removes the stack of C++ frames, unless the environment
// has TORCH_SHOW_CPP_STACKTRACES=1, as in PyTorch.
std::string error_text(const std::exception& problem);

// Whether LibTorch threw the error: a c10::Error, or what view() and reshape() throw instead.
bool is_torch_error(const std::exception& problem);

}  // namespace troika::compat
