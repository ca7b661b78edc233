// Errors of the user: what went wrong, what was got and expected, and what to do about it.
//
// Errors of the programmer are TROIKA_CHECK; the library never calls exit().
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace troika {

// The kind of an error, which a process that ends with it tells its launcher by its exit code.
enum class ErrorKind : int {
  failure = 1,  // anything else: a bug, a full disk, memory
  usage = 2,    // configuration, command line, environment or input data: a retry cannot help
  peer = 3,     // another rank failed or left; that rank has the cause
  timeout = 4,  // a deadline passed
};

// The parts of a message. Only `what` must be set; `got` and `expected` are printed as a pair.
struct ErrorText {
  std::string what;
  std::string got = {};
  std::string expected = {};
  std::string hint = {};
};

// Prints as `[room] what; got X, expected Y (hint)`.
class Error : public std::runtime_error {
 public:
  Error(std::string_view room, ErrorKind kind, const ErrorText& text);

  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// A broken promise of the calling code, with the place in the source.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The exit code for an exception: the kind of an Error, else ErrorKind::failure.
int exit_code(const std::exception& error);

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}

}  // namespace troika

#define TROIKA_CHECK(condition, message)                                                       \
  do {                                                                                         \
    if (!(condition)) ::troika::detail::check_failed(#condition, __FILE__, __LINE__, message); \
  } while (false)
