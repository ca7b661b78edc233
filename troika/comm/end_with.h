// How a program ends with an error.
#pragma once

#include <exception>

namespace troika::comm {

// For the catch of main(), which returns its result:
//   int main() try { ... } catch (const std::exception& error) { return comm::end_with(error); }
// Prints "error: ..." to standard error, of an error of LibTorch without the stack of C++ frames
// (unless TORCH_SHOW_CPP_STACKTRACES=1), tells the launcher (cluster::report_failure()), and
// returns the exit code for the error's kind (troika::exit_code()). Without it an exception ends
// the process by abort(), with exit code 134.
int end_with(const std::exception& error) noexcept;

}  // namespace troika::comm
