// User-facing errors: what went wrong, the actual and the expected value, and a hint.
//
// Programming errors are reported by TROIKA_CHECK. The library never calls exit().
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace troika {

// The kind of an error. A failed process reports the kind to its launcher as its exit code.
enum class ErrorKind : int {
  failure = 1,  // any other error: a bug, a full disk, out of memory
  usage = 2,    // configuration, command line, environment or input data: retrying cannot help
  peer = 3,     // another rank failed or left; its own error has the cause
  timeout = 4,  // a deadline passed
};

// The parts of a message. Only `what` is required.
struct ErrorText {
  std::string what;
  std::string got = {};
  std::string expected = {};
  std::string hint = {};
};

// what() has the form `[room] what; got X, expected Y (hint)`.
class Error : public std::runtime_error {
 public:
  Error(std::string_view room, ErrorKind kind, const ErrorText& text);

  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// A precondition that the calling code broke. The message has the source location.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Returns the exit code for an exception: the kind of an Error, otherwise ErrorKind::failure.
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
