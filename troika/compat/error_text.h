// Errors of LibTorch, and their messages without the stack frames that it appends.
#pragma once

#include <exception>
#include <string>

namespace troika::compat {

// what(), but of an error of LibTorch only its message. The stack of C++ frames that LibTorch adds
// stays where the environment has TORCH_SHOW_CPP_STACKTRACES=1, as in PyTorch.
std::string error_text(const std::exception& problem);

// Whether LibTorch threw it: a c10::Error, or what view() and reshape() throw in its place.
bool is_torch_error(const std::exception& problem);

}  // namespace troika::compat
