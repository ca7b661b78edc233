// How a program ends with an error.
#pragma once

#include <exception>

namespace troika::comm {

// For main():
//   int main() try { ... } catch (const std::exception& error) { return comm::end_with(error); }
// Prints "error: ..." to standard error, tells the launcher (cluster::report_failure()), and
// returns the exit code for the kind of the error (troika::exit_code()). The stack of C++ frames in
// an error of LibTorch is printed only with TORCH_SHOW_CPP_STACKTRACES=1. Without this function, an
// exception ends the process by abort(), with exit code 134.
int end_with(const std::exception& error) noexcept;

}  // namespace troika::comm
